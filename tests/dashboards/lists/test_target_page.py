"""The page of a target: its verdict, what needs a person, its revisions by device, and targets in odd states."""

import re
from collections.abc import Iterator
from math import log

import pytest
from playwright.sync_api import Page
from sqlalchemy import func, select, update

from dashboards.target_lines import rows, verdict
from service.db.engine import clock, transaction
from service.db.models import Pull, Revision, Target
from service.domain.health.overview import DeviceResult, StripRevision
from service.domain.states import TargetKind
from service.domain.verdicts.totals import SotaMean
from service.ledger.health.mainline import MainlineRevision
from service.reports.health.facts import EarlierRun, RecentRun, TargetLately
from tests.dashboards.asking import Get, asking, words
from tests.dashboards.conftest import reachable
from tests.dashboards.inspection import CONTRAST, barriers
from tests.dashboards.lists import seed_big
from tests.dashboards.seed import watched

WIDE, PHONE = {"width": 1440, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Get]:
    """A service with targets of both kinds, one without revisions, and one with a hostile name."""
    with watched(tmp_path_factory.mktemp("big"), seed_big.small):
        yield asking()


def test_the_heading_is_the_verdict(big: Get) -> None:
    with transaction() as session:
        names = session.scalars(select(Target.name)).all()
    headings = {name: words(big(f"/targets/{name}")) for name in names if "<" not in name}
    assert re.search(r"norms: .*\d+ open regressions", headings["norms"])
    assert any("no revisions yet" in said for said in headings.values())


def test_revisions_are_lines_with_a_cell_for_each_device_and_page_without_a_gap(big: Get) -> None:
    seen, address = list[str](), "/targets/norms"
    while address:
        page = big(address).text
        seen += re.findall(r'<tr id="revision-(\d+)"', page)
        older = re.search(r'<a href="([^"]+)">Older</a>', page)
        address = older[1] if older else ""
    with transaction() as session:
        target = session.scalars(select(Target).where(Target.name == "norms")).one()
        places = session.scalars(
            select(Revision.ordinal).where(Revision.target_id == target.id, Revision.ordinal.is_not(None))
        ).all()
    assert seen == [str(place) for place in sorted((place or 0 for place in places), reverse=True)]
    page = big("/targets/norms").text
    assert 'class="cell slower" href="/runs/' in page
    assert re.search(r"/compare\?base=\w{40}&amp;head=\w{40}", page)


def test_open_pull_requests_are_listed_with_their_newest_head(big: Get) -> None:
    page = big("/targets/norms").text
    with transaction() as session:
        opened = session.scalars(select(Pull.number).where(Pull.closed_at.is_(None))).all()
    shown = {int(number) for number in re.findall(r'href="/targets/norms/pulls/(\d+)"', page)}
    assert shown
    assert shown <= set(opened)


def test_a_target_in_trouble_says_what_to_do(big: Get) -> None:
    with transaction() as session:
        world_target = session.scalars(select(Target).where(Target.name == "brand-new")).one()
        assert session.scalar(select(func.count()).where(Revision.target_id == world_target.id)) == 0
    said = words(big("/targets/brand-new"))
    assert "brand-new: no revisions yet" in said
    assert "kernelwatch run start brand-new REVISION" in said
    with transaction() as session:
        session.execute(update(Target).where(Target.name == "brand-new").values(paused_at=clock(session)))
    said = words(big("/targets/brand-new"))
    assert "no revisions yet; paused" in said
    assert "kernelwatch target resume brand-new" in said


@pytest.mark.parametrize(
    ("path", "scheme", "size"),
    [("norms", "light", WIDE), ("norms", "dark", PHONE), ("hostile", "light", PHONE), ("brand-new", "dark", WIDE)],
    ids=["wide", "dark phone", "hostile phone", "empty"],
)
def test_the_page_fits_and_can_be_read(page: Page, big: Get, path: str, scheme: str, size: dict[str, int]) -> None:
    with transaction() as session:
        name = (
            path if path != "hostile" else session.scalars(select(Target.name).where(Target.name.contains("<"))).one()
        )
    page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
    page.set_viewport_size(size)  # type: ignore[arg-type]
    with reachable() as address:
        page.goto(address)
        page.goto(f"{address}/targets/" + page.evaluate("name => encodeURIComponent(name)", name))
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert page.evaluate("document.querySelectorAll('*').length") <= 3000
        assert size is PHONE or page.evaluate("document.documentElement.scrollHeight") <= 3000
        assert page.evaluate(CONTRAST) == []
        assert barriers(page) == {}


def mean(ratio: float, cases: int = 4, digest: str = "a") -> SotaMean:
    return SotaMean(log(ratio) * cases, cases, digest)


def run(number: int, state: str = "done", **known: object) -> RecentRun:
    done = {"done": state == "done", "failed": state == "failed"}
    return RecentRun(number, "h200", "c" * 40, state, 1.0, None, DeviceResult(**(done | known)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("newest", "before", "expected"),
    [
        (run(2, slower=3, mean=mean(1.1)), run(1, mean=mean(1.0)), ("slower", "3 slower", 1.1)),
        (run(2, faster=1), run(1), ("faster", "1 faster", None)),
        (run(2, mean=mean(1.0)), run(1, mean=mean(1.0, digest="b")), ("steady", "", None)),
        (run(2, newly_broken=2, slower=1), run(1), ("slower", "1 slower, 2 newly wrong", None)),
        (run(2, "failed"), run(1), ("failed", "failed", None)),
        (run(2, "held"), run(1), ("unmeasured", "needs approval", None)),
        (run(2, "leased"), run(1), ("unmeasured", "running", None)),
    ],
)
def test_a_cell_says_what_a_revision_did(newest: RecentRun, before: RecentRun, expected: tuple[object, ...]) -> None:
    lines = [MainlineRevision(n, "c" * 40, None, "", "", 0.0, {"h200": one}) for n, one in ((2, newest), (1, before))]
    [(_, cells)] = rows(lines, 1)
    cell = cells["h200"]
    assert (cell.tone, cell.text, cell.step and round(cell.step, 6)) == expected


def lately(ratio: float, then: float | None, **target: object) -> TargetLately:
    usual = {"name": "norms", "kind": TargetKind.GIT, "poll_failures": 0, "paused_at": None}
    now = run(1, mean=mean(ratio))
    revision = StripRevision(1, "c" * 40, 1.0, {"h200": now.result})
    earlier = {"h200": EarlierRun(None, 0, mean(then))} if then else {}
    return TargetLately(Target(**(usual | target)), (revision,), (now,), earlier)


@pytest.mark.parametrize(
    ("one", "regressions", "expected"),
    [
        (lately(1.21, 1.0), 145, "21.0 % slower than a week ago on h200; 145 open regressions"),
        (lately(0.9, 1.0), 0, "10.0 % faster than a week ago on h200; no open regressions"),
        (lately(1.0, 1.001), 1, "as fast as a week ago; 1 open regression"),
        (lately(1.0, None), 0, "no open regressions"),
        (lately(1.0, None, poll_failures=5), 0, "no open regressions; not polled"),
        (lately(1.0, None, paused_at=1.0, poll_failures=5), 0, "no open regressions; paused"),
    ],
)
def test_the_verdict_says_the_week_and_what_is_open(one: TargetLately, regressions: int, expected: str) -> None:
    assert verdict(one, regressions, 0) == expected
