"""How far the cases of a mainline are behind SOTA, and since which of its revisions.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from service.db.models import Gap, Revision, Run
from service.domain.policy.policy import Policy
from service.domain.text import short
from service.domain.verdicts import sota
from service.domain.verdicts.samples import Name
from service.ledger.locking import lock


@dataclass(frozen=True)
class Distance:
    """How a case stands beside SOTA, which is called `sota`; `moved` is a confirmed head over parent."""

    now: sota.Standing
    sota: str
    moved: float | None = None


@dataclass(frozen=True)
class _Known:
    """A gap as another run left it, with the place of that run's revision on the mainline."""

    gap: Gap
    ordinal: int | None
    standing: sota.Standing


def note_gaps(
    session: Session, run: Run, revision: Revision, found: Mapping[Name, Distance], policy: Policy
) -> dict[Name, str]:
    """Keep since when each case is behind; the sentences to show at those that are, or that perhaps still are.

    A gap is closed by evidence alone: a session that left it open changes nothing.
    From here on whoever records a run of the same mainline waits: of two the second sees what the first left.
    """
    lock(session, run.target_id)
    known = {(one.gap.provider, one.gap.case): one for one in _known(session, run)}
    told = {}
    for name, distance in found.items():
        last = known.get(name)
        if last is not None and _is_later(last.ordinal, revision.ordinal):
            continue  # how an older revision stands is no news of how the case stands
        if distance.now.is_open:
            if last is not None and last.gap.behind_sota:
                told[name] = sota.still_open(distance.now, last.standing, distance.sota)
            continue
        gap = last.gap if last else Gap(target_id=run.target_id, device=run.device, provider=name[0], case=name[1])
        _becomes(gap, run, distance.now)
        session.add(gap)
        if distance.now.behind:
            before = last.standing if last else None
            told[name] = sota.told(distance.now, before, distance.sota, distance.moved, name[1], policy)
    return told


def _becomes(gap: Gap, run: Run, now: sota.Standing) -> None:
    if not (gap.behind_sota and now.behind):
        gap.since_run_id, gap.ratio_then = (run.id, now.ratio) if now.behind else (None, None)
    gap.behind_sota, gap.last_run_id, gap.ratio_now = now.behind, run.id, now.ratio
    gap.own, gap.sota, gap.stack_id = now.own, now.sota, now.stack


def _is_later(ordinal: int | None, than: int | None) -> bool:
    return ordinal is not None and than is not None and ordinal > than


def _known(session: Session, run: Run) -> Iterator[_Known]:
    last_run, last, since_run, since = aliased(Run), aliased(Revision), aliased(Run), aliased(Revision)
    rows = (
        select(Gap, last.ordinal, last.sha, since.sha)
        .join(last_run, last_run.id == Gap.last_run_id)
        .join(last, last.id == last_run.revision_id)
        .outerjoin(since_run, since_run.id == Gap.since_run_id)
        .outerjoin(since, since.id == since_run.revision_id)
        .where(Gap.target_id == run.target_id, Gap.device == run.device)
    )
    for gap, ordinal, sha, first in session.execute(rows):
        named = (short(sha), gap.ratio_now, gap.own, gap.sota, gap.stack_id, gap.behind_sota)
        yield _Known(gap, ordinal, sota.Standing(*named, short(first) if first else None))
