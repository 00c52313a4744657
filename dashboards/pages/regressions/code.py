"""The code of both sides of a regression: what the sources and the facts of the compiler differ in."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog
from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy import select
from sqlalchemy.orm import Session

from dashboards.kernel_code import CodeSides, sides_of
from dashboards.rendering import page
from dashboards.runs import facts
from dashboards.runs.evidence import evidence
from service.api.access import as_reader, in_writers
from service.api.common import Key
from service.db.engine import reading
from service.db.models import Revision, Run, Target
from service.domain.codefacts.comparison import Hunk, hunks
from service.domain.states import RunState, TargetKind
from service.errors import NotFound, ServiceError
from service.ledger import stored_texts
from service.ledger.reading import brief
from service.ledger.regressions import listing
from service.reports.views import RegressionHistory
from service.sources import open_source

log = structlog.get_logger()
router = APIRouter(include_in_schema=False)

MAX_FILES = 8
MAX_REVISIONS = 200  # of which the changed paths are read
MAX_RUNS = 4  # of the head that may have texts
NO_SOURCES = "This machine does not have the sources of both sides."
MAX_BYTES = 256 << 10  # of a file that is compared


@dataclass(frozen=True)
class FileDifference:
    """A file that the revision changed; `trouble` says why it is not compared."""

    path: str
    hunks: tuple[Hunk, ...] = ()
    trouble: str = ""


@router.get("/regressions/{regression_id}/code")
async def regression_code(request: Request, regression_id: Key) -> Response:
    """Show the code of both sides next to each other; the regression's page fetches it when it is opened."""
    return await in_writers(as_reader, request, lambda: _page(regression_id))


def _page(regression_id: int) -> Response:
    facts_row = None
    with reading() as session:
        life = listing.one(session, regression_id)
        row = life.regressed.row
        target = session.get_one(Target, row.target_id)
        base, head, paths = _ends(session, life)
        measured, code_sides = _compiled(session, life, head)
        with suppress(NotFound):
            facts_row = brief.of_case(session, life.regressed.run.id, row.case, row.provider).report.rows[0]
    files, trouble = _files(target, base, head, paths)  # reads files, so that no transaction is open
    text = page(
        "regression_code.html",
        life=life,
        target=target,
        files=files,
        trouble=trouble,
        base=base,
        head=head,
        more=max(0, len(paths) - MAX_FILES),
        facts_row=facts_row,
        evidence=evidence(facts_row, facts.sides(facts_row)) if facts_row else [],
        measured=measured,
        code_sides=code_sides,
    )
    return HTMLResponse(text)


def _compiled(session: Session, life: RegressionHistory, head: str) -> tuple[int, CodeSides]:
    """The newest run of the head of this range that has texts of the case, else the run of the regression."""
    own, row = life.regressed.run, life.regressed.row
    of_head = select(Run).join(Run.revision).where(Run.target_id == row.target_id, Revision.sha == head)
    done = of_head.where(Run.device == own.device, Run.state == RunState.DONE).order_by(Run.id.desc())
    for run in (*session.scalars(done.limit(MAX_RUNS)), own):
        found = sides_of(stored_texts.at_case(session, run, row.case), row.provider)
        if found.kinds:
            return run.id, found
    return own.id, CodeSides(None, (), ())


def _ends(session: Session, life: RegressionHistory) -> tuple[str | None, str, list[str]]:
    """The culprit and its parent, else the whole range; with the paths that changed on the mainline between them."""
    row, slow = life.regressed.row, life.regressed.run.revision
    of_target = select(Revision).where(Revision.target_id == row.target_id)
    culprit = session.scalar(of_target.where(Revision.sha == row.culprit)) if row.culprit else None
    if culprit is not None and culprit.parent:
        return culprit.parent, culprit.sha, list(culprit.paths)
    good = session.scalar(of_target.where(Revision.sha == row.good)) if row.good else None
    changed = [slow]
    if good is not None and good.ordinal is not None and slow.ordinal is not None:
        between = of_target.where(Revision.ordinal > good.ordinal, Revision.ordinal <= slow.ordinal)
        changed = [*session.scalars(between.order_by(Revision.ordinal).limit(MAX_REVISIONS))]
    return row.good, slow.sha, [*dict.fromkeys(path for one in changed for path in one.paths)]


def _files(target: Target, good: str | None, bad: str, paths: Sequence[str]) -> tuple[list[FileDifference], str]:
    """The files that differ between two revisions, as far as this machine has them; else why there are none."""
    if target.kind is not TargetKind.GIT:
        return [], "The target is a package: its releases have no history of files."
    if good is None:
        return [], "The revision that it is slower than is not known."
    try:
        source = open_source(target)
        if not (source.is_kept() and source.has(good) and source.has(bad)):  # reading would ask the origin for it
            return [], NO_SOURCES
        return [_compared(path, source.read(good, path), source.read(bad, path)) for path in paths[:MAX_FILES]], ""
    except ServiceError as error:  # its words may name folders of this machine
        log.info("no sources to compare", target=target.name, error=str(error))
        return [], NO_SOURCES


def _compared(path: str, before: bytes | None, after: bytes | None) -> FileDifference:
    if max(len(before or b""), len(after or b"")) > MAX_BYTES:
        return FileDifference(path, trouble=f"It has more than {MAX_BYTES >> 10} KiB.")
    if b"\0" in (before or b"") or b"\0" in (after or b""):
        return FileDifference(path, trouble="It is no text.")
    found = hunks((before or b"").decode(errors="replace"), (after or b"").decode(errors="replace"))
    return FileDifference(path, found, "" if found else "Both sides are equal.")
