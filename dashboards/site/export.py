"""Write the boards, trends and releases of public targets as a folder of plain files.

Nothing but the data decides what is written: the same data give the same bytes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from dashboards import assets, boards
from dashboards.docs import docs_page
from dashboards.links import GLOSSARY
from dashboards.pages.history.boards import BoardAddress, board_values, composed, newest_by_target, past_of
from dashboards.pages.history.compare import Compared, ComparedAddress, Show, compose
from dashboards.pages.history.trends import TrendAddress, trend_values
from dashboards.rendering import page
from dashboards.site import links as paths
from dashboards.site.documents import (
    SiteBoardRow,
    SitePointRow,
    SiteReleaseRow,
    SiteTable,
    history_parts,
    json_document,
)
from dashboards.site.folder import SiteFolder
from dashboards.site.links import SiteBoardAddress, SiteLinks
from service.db.engine import snapshot
from service.db.models import Target
from service.db.visibility import hiding
from service.domain.states import TargetKind
from service.domain.text import listed
from service.domain.verdicts.samples import Name
from service.errors import BadInput, Conflict, NotFound, Refused
from service.ledger.reading.board import board, limit_to_sota, measured_devices
from service.ledger.reading.compare import compare
from service.ledger.reading.histories import MainlineRun, histories, mainline_runs, measured_names
from service.ledger.reading.runs import CaseFilter
from service.ledger.targets import all_targets, target_named
from service.reports.charts import board as cells
from service.reports.charts.board import BoardRun
from service.reports.rows import RevisionsCompared
from service.reports.schema.base import rfc3339
from service.reports.views import Point
from service.settings import settings

REVISIONS = 1000  # of a history, the newest
MAX_TRENDS = 3000  # pages of all boards together; a page of 300 revisions has about 50 kB
MAX_RELEASES = 20  # that are compared, of a board
_SERIES = 50  # histories that are in memory at a time
_STYLES = ("kernelwatch.css", "board.css", "trend.css", "compare.css", "docs.css", "site.css")
_ASSETS = (*_STYLES, "theme.js", "page.js", "table.js", "icon.svg")


@dataclass(frozen=True)
class ExportedSite:
    """What was written."""

    files: int
    bytes: int
    boards: int
    trends: int
    without_page: int  # cases of boards that have no page for their trend
    made: float
    form: str  # of the tables, in addition to JSON


@dataclass(frozen=True)
class _Board:
    """A target on a device."""

    target: Target
    device: str
    runs: Sequence[MainlineRun]

    @property
    def releases(self) -> list[tuple[str, str]]:
        """The newest releases that were measured, each with the one before; the newest first."""
        if self.target.kind is not TargetKind.PACKAGE:
            return []
        versions = list(dict.fromkeys(run.revision for run in self.runs))
        return list(pairwise(versions))[: -MAX_RELEASES - 1 : -1]


@dataclass(frozen=True)
class SiteRelease:
    """A release against the one before."""

    base: str
    head: str
    found: RevisionsCompared | None
    why: str  # there is no comparison
    table: Compared | None


def export_site(
    path: Path,
    names: Sequence[str] = (),
    *,
    address: str = "",
    service: str = "",
    show: Callable[[str], object] = str,
) -> ExportedSite:
    """Write the site of these targets, or of all public ones, to the folder `path`, all of one state of the database.

    `address` is where the site will be published, `service` that of this service for links to it.

    Raises:
        BadInput: If there is nothing to write.
        Refused: If a target is private.
        Conflict: If there is a folder that this did not make.
        OSError: If a file cannot be written.
    """
    with snapshot() as session:
        published = _published(session, names)
        with hiding([one.id for one in all_targets(session) if one not in published]):
            found = [
                _Board(target, device, mainline_runs(session, target, device, REVISIONS))
                for target in published
                for device in measured_devices(session, target)
            ]
            found = [one for one in found if one.runs]
            if not found:
                raise BadInput("Nothing was measured on the mainline of a public target yet, so there is no board.")
            with SiteFolder(path) as folder:
                return _Site(session, folder, found, address.rstrip("/"), service, show).write()


def _published(session: Session, names: Sequence[str]) -> list[Target]:
    """The targets of the site.  One that is named is published even if reading the service needs a key."""
    if names:
        chosen = [target_named(session, name) for name in dict.fromkeys(names)]
        if private := [one.name for one in chosen if one.private]:
            raise Refused(
                f"{listed(private)} {'are' if len(private) > 1 else 'is'} private, and a site is for everybody. "
                f"Leave it out, or run `kernelwatch target edit {private[0]} --public` first."
            )
        return sorted(chosen, key=lambda one: one.name)
    if not settings().public_read:
        raise BadInput(
            "KERNELWATCH_PUBLIC_READ is false, so that no target is public by default: name each one to publish with "
            "--target."
        )
    return [one for one in all_targets(session) if not one.private]


class _Site:
    """The files of one export."""

    def __init__(
        self,
        session: Session,
        folder: SiteFolder,
        found: Sequence[_Board],
        address: str,
        service: str,
        show: Callable[[str], object],
    ) -> None:
        self._session = session
        self._folder, self._boards, self._address, self._service, self._show = folder, found, address, service, show
        self._made = max(run.finished_at or run.committed_at for one in found for run in one.runs)
        self._pages = {paths.HOME, "about.html", paths.docs_path(GLOSSARY)}
        self._pages |= {paths.board_path(one.target.name, one.device) for one in found}
        self._pages |= {paths.releases_path(one.target.name, one.device) for one in found if one.releases}
        self._trends = self._without_page = 0

    def write(self) -> ExportedSite:
        for name in _ASSETS:
            self._folder.write(paths.asset_path(name), assets.asset(name).body)
        with (
            SiteTable(self._folder, "boards", SiteBoardRow, self._made, json=True) as of_boards,
            SiteTable(self._folder, "points", SitePointRow, self._made, json=False) as points,
            SiteTable(self._folder, "releases", SiteReleaseRow, self._made, json=True) as releases,
        ):
            for number, one in enumerate(self._boards, 1):
                self._show(f"{one.target.name} on {one.device}, {number} of {len(self._boards)} boards")
                self._board(one, of_boards)
                self._histories(one, points)
                self._releases(one, releases)
        tables = (of_boards, points, releases)
        self._front(tables)
        self._for_hosts()
        sizes = self._folder.sizes()
        return ExportedSite(
            len(sizes),
            sum(sizes),
            len(self._boards),
            self._trends,
            self._without_page,
            self._made,
            points.form.value,
        )

    def _page(self, path: str, template: str, **values: Any) -> None:
        links = self._links(path)
        shown = page(
            template, layout="site/layout.html", links=links, asset=links.asset, now=None, made=self._made, **values
        )
        self._pages.add(path)
        self._folder.write(path, shown.encode())

    def _links(self, path: str) -> SiteLinks:
        return SiteLinks(path, self._pages, self._service)

    def _board(self, one: _Board, table: SiteTable) -> None:
        """The pages of a board: with each dtype, against each provider.  Decides which of its cases have a trend."""
        name, device = one.target.name, one.device
        run = board(self._session, one.target, device)
        past = past_of(self._session, one.target, device, run)
        past = replace(past, before="", after="")  # boards of earlier revisions have no pages
        sota, _ = limit_to_sota(one.target, device)
        for case in run.cases:
            table.add(SiteBoardRow.all_of(name, device, run, case, sota))
        self._choose_trends(one, run)
        parts = list(_parts(run))
        first = SiteBoardAddress(name, device, links=self._links(paths.HOME), sota=sota)
        shown = [replace(first, dtype=dtype, against="" if other == sota else other) for dtype, other in parts]
        self._pages |= {address.path for address in shown}
        devices = [each.device for each in self._boards if each.target.id == one.target.id]
        for address in dict.fromkeys([first, *shown]):
            links = self._links(address.path)
            values = board_values(one.target, replace(address, links=links), run, devices, past, links)
            self._page(
                address.path,
                "site/board.html",
                releases=links.page(paths.releases_path(name, device)),
                history=links.to(paths.history_path(name, device)),
                **values,
            )

    def _choose_trends(self, one: _Board, run: BoardRun) -> None:
        """Of too many cases those that are behind have a page first, then those with the largest ratio to SOTA."""
        found = composed(one.target, BoardAddress(one.target.name, one.device), run)
        ordered = sorted(
            found.board.cells,
            key=lambda cell: (not cell.behind, -(cell.ratio or 0.0), cell.case.provider, cell.case.case),
        )
        share = MAX_TRENDS // len(self._boards)
        for cell in ordered[:share]:
            self._pages.add(paths.trend_path(one.target.name, one.device, cell.case.provider, cell.case.case))
        self._without_page += len(ordered[share:])

    def _histories(self, one: _Board, table: SiteTable) -> None:
        """The histories of all series as data, and pages for those that have one."""
        name, device = one.target.name, one.device
        document = history_parts(self._made, name, device, one.runs, self._series(one, table))
        with self._folder.open(paths.history_path(name, device)) as file:
            for part in document:
                file.write(part)

    def _series(self, one: _Board, table: SiteTable) -> Iterator[tuple[Name, Sequence[Point]]]:
        """Read the histories some at a time; write their rows and their pages."""
        names = measured_names(self._session, one.runs)
        for start in range(0, len(names), _SERIES):
            for name, points in histories(self._session, one.runs, names[start : start + _SERIES]).items():
                table.add([SitePointRow.of(one.target.name, one.device, *name, point) for point in points])
                if paths.trend_path(one.target.name, one.device, *name) in self._pages:
                    self._trend(one, name, points)
                yield name, points

    def _trend(self, one: _Board, name: Name, points: Sequence[Point]) -> None:
        path = paths.trend_path(one.target.name, one.device, *name)
        links = self._links(path)
        at = TrendAddress(one.target.name, one.device, *name, days="all")
        values = trend_values(self._session, one.target, at, points, links)
        history = links.to(paths.history_path(one.target.name, one.device))
        self._page(path, "site/trend.html", history=history, **values)
        self._trends += 1

    def _releases(self, one: _Board, table: SiteTable) -> None:
        """A page for each release, against the one before, and their list."""
        if not one.releases:
            return
        name, device = one.target.name, one.device
        listed_here = []
        for base, head in one.releases:
            release = self._release(one, base, head)
            listed_here.append(release)
            if release.found is None:
                continue
            table.add([SiteReleaseRow.of(name, release.found, case) for case in release.found.cases])
            self._page(
                paths.release_path(name, device, head),
                "site/release.html",
                target=one.target,
                address=ComparedAddress(name, base, head, device, show=Show.ALL),
                found=release.found,
                table=release.table,
                trouble="",
            )
        path = paths.releases_path(name, device)
        links = self._links(path)
        self._page(
            path,
            "site/releases.html",
            target=one.target,
            device=device,
            releases=[(each, links.page(paths.release_path(name, device, each.head))) for each in listed_here],
        )

    def _release(self, one: _Board, base: str, head: str) -> SiteRelease:
        try:
            found = compare(self._session, one.target, base, head, one.device, CaseFilter())
        except (Conflict, NotFound) as why:
            return SiteRelease(base, head, None, str(why), None)
        found = replace(found, base=replace(found.base, worker=None), head=replace(found.head, worker=None))
        return SiteRelease(base, head, found, "", compose(found.cases, Show.ALL))

    def _front(self, tables: Sequence[SiteTable]) -> None:
        """The list of boards, how to read them, the glossary, and the index of the data."""
        rows = newest_by_target(self._session)
        newest = {(target.name, one.device): (one, mean) for target, ones in rows for one, mean in ones}
        links = self._links(paths.HOME)
        ours = [(one, links.board(one.target.name, one.device)) for one in self._boards]
        self._page(
            paths.HOME,
            "site/index.html",
            rows=rows,
            without=[each for each in ours if (each[0].target.name, each[0].device) not in newest],
            released=[
                (one, links.page(paths.releases_path(one.target.name, one.device)))
                for one in self._boards
                if one.releases
            ],
        )
        self._page(
            "about.html",
            "site/about.html",
            tables=tables,
            histories=[(one, f"data/{_in_data(one)}") for one in self._boards],
            steps=cells.STEPS,
        )
        glossary = paths.docs_path(GLOSSARY)
        self._page(glossary, "docs.html", name=GLOSSARY, shown=docs_page(GLOSSARY, self._links(glossary)))
        listed_boards = [
            {
                "target": one.target.name,
                "device": one.device,
                "page": paths.board_path(one.target.name, one.device),
                "history": _in_data(one),
                "revision": one.runs[-1].revision,
                "sota": totals.sota if totals else None,
                "geomean": mean,
                "cases": totals.sota_cases if totals else 0,
                "behind": totals.behind if totals else 0,
            }
            for one in self._boards
            for totals, mean in [newest.get((one.target.name, one.device), (None, None))]
        ]
        files = [{"name": one.name, "rows": one.rows, "files": one.files} for one in tables]
        self._folder.write("data/index.json", json_document(self._made, boards=listed_boards, tables=files))

    def _for_hosts(self) -> None:
        """What web hosts and search engines look for."""
        self._folder.write(".nojekyll", b"")  # GitHub Pages publishes the files as they are
        robots = "User-agent: *\nAllow: /\n"
        if self._address:
            robots += f"Sitemap: {self._address}/sitemap.xml\n"
            addresses = [f"{self._address}/{SiteLinks('', ()).to(one)}" for one in sorted(self._pages)]
            shown = page("site/sitemap.xml", addresses=addresses, at=rfc3339(self._made))
            self._folder.write("sitemap.xml", shown.encode())
        self._folder.write("robots.txt", robots.encode())
        self._folder.write("404.html", page("site/404.html", address=self._address).encode())


def _in_data(one: _Board) -> str:
    return paths.history_path(one.target.name, one.device).removeprefix("data/")


def _parts(run: BoardRun) -> Iterator[tuple[str, str]]:
    """Each choice of dtypes and of the other provider that a board offers."""
    others = boards.providers(run.cases)
    if len(others) > 1:
        others.append(cells.BEST)
    for dtype in ("", *(one for one in boards.dtypes(run.cases) if one)):
        yield from ((dtype, other) for other in others)
