"""How far the cases of a mainline are behind SOTA, and since which of its revisions.

Revisions may be measured in any order, and again: what counts is their place on the mainline.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session, aliased

from service.db.engine import clock
from service.db.models import Gap, GapEvent, Revision, Run
from service.domain.policy.policy import Policy
from service.domain.series import SeriesKey
from service.domain.text import short
from service.domain.verdicts import sota
from service.domain.verdicts.reasons import Reason
from service.domain.verdicts.samples import Name
from service.domain.verdicts.sota import SotaDistance
from service.ledger.locking import lock
from service.ledger.notices import happenings
from service.ledger.series import on_device, series_ids


@dataclass(frozen=True)
class GapNote:
    """Since when a case is behind, and how far it was behind before."""

    reason: Reason
    before: SotaDistance | None


@dataclass(frozen=True)
class _Known:
    """A gap as another run left it, with the place of that run's revision on the mainline."""

    gap: Gap
    ordinal: int | None
    distance: SotaDistance


def note_gaps(
    session: Session, run: Run, revision: Revision, found: Mapping[Name, SotaDistance], policy: Policy
) -> dict[Name, GapNote]:
    """Keep since when each case is behind.  Returns a note for each that is behind, or that perhaps still is.

    Only evidence closes a gap: a session that could not decide changes nothing.  From here on, another transaction
    that records a run of the same mainline waits, so that it sees what this one left.
    """
    lock(session, run.target_id)
    known = {(one.gap.provider, one.gap.case): one for one in _known(session, run, found)}
    key_of = {name: SeriesKey.of(run.target_id, run.device, *name) for name in found if name not in known}
    series = series_ids(session, key_of.values())
    at = clock(session)
    notes = {}
    for name, now in found.items():
        last = known.get(name)
        if last is not None and _is_later(last.ordinal, revision.ordinal):
            continue  # the distance of an older revision is no news
        before = last.distance if last else None
        if now.is_open:
            if before is not None and before.behind:
                notes[name] = GapNote(sota.still_open(now, before), before)
            continue
        gap = last.gap if last else Gap(series_id=series[key_of[name]])
        if last is not None and last.gap.behind_sota is not now.behind:
            happenings.gap_changed(session, run, name, gap.series_id, now.ratio, behind=now.behind)
        if now.behind != (before is not None and before.behind):
            session.add(_event(gap, run, now, before, at))
        _update(gap, run, now)
        session.add(gap)
        if now.behind:
            smallest = policy.smallest_change_at(name[1], now.own)
            notes[name] = GapNote(sota.behind_since(now, before, smallest), before)
    return notes


def _event(gap: Gap, run: Run, now: SotaDistance, before: SotaDistance | None, at: float) -> GapEvent:
    return GapEvent(
        series_id=gap.series_id,
        run_id=run.id,
        at=at,
        behind_sota=now.behind,
        ratio=now.ratio,
        ratio_before=before.ratio if before else None,
        own=now.own,
        sota=now.sota,
    )


def _update(gap: Gap, run: Run, now: SotaDistance) -> None:
    if not (gap.behind_sota and now.behind):
        gap.since_run_id, gap.ratio_then = (run.id, now.ratio) if now.behind else (None, None)
    gap.behind_sota, gap.last_run_id, gap.ratio_now = now.behind, run.id, now.ratio
    gap.own, gap.sota, gap.stack_id = now.own, now.sota, now.stack


def _is_later(ordinal: int | None, than: int | None) -> bool:
    return ordinal is not None and than is not None and ordinal > than


def _known(session: Session, run: Run, found: Mapping[Name, SotaDistance]) -> Iterator[_Known]:
    last_run, last, since_run, since = aliased(Run), aliased(Revision), aliased(Run), aliased(Revision)
    rows = (
        select(Gap, last.ordinal, last.sha, since.sha)
        .join(last_run, last_run.id == Gap.last_run_id)
        .join(last, last.id == last_run.revision_id)
        .outerjoin(since_run, since_run.id == Gap.since_run_id)
        .outerjoin(since, since.id == since_run.revision_id)
        .join(Gap.series)
        .where(on_device(run.target_id, run.device))
    )
    for gap, ordinal, sha, first in session.execute(rows):
        now = found.get((gap.provider, gap.case))
        if now is not None:
            took = (gap.ratio_now, gap.own, gap.sota, gap.stack_id, gap.behind_sota)
            distance = SotaDistance(short(sha), now.provider, *took, since=short(first) if first else None)
            yield _Known(gap, ordinal, distance)
