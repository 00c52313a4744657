"""Quarantine cases: they are measured and shown as before, and raise no alarm."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from sqlalchemy import ColumnElement, Select, select, update
from sqlalchemy.orm import Session, contains_eager

from service.db.engine import clock
from service.db.models import Calibration, Measurement, Quarantine, Run, Series, Target
from service.db.paging import ResultPage, paged_rows
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import Policy
from service.domain.regressions.lifecycle import KERNELWATCH
from service.domain.verdicts import calibration
from service.domain.verdicts.calibration import Compared
from service.domain.verdicts.reasons import RECIPE, Quarantined
from service.domain.verdicts.samples import Name
from service.errors import BadInput, NotFound
from service.ledger import audit
from service.ledger.locking import insert_if_absent
from service.ledger.notices import happenings
from service.ledger.targets import on_device, series_of


def quarantined(
    session: Session, target_id: int, device: str, policy: Policy, names: Iterable[Name]
) -> dict[Name, Quarantined]:
    """Which of these cases are quarantined, and why: by the policy, by a person, or because of equal code."""
    return in_force(_standing(session, target_id, device), policy, names)


def in_force(rows: Mapping[Name, Quarantine], policy: Policy, names: Iterable[Name]) -> dict[Name, Quarantined]:
    """The quarantines of these cases by the rows given, and by the policy where there is no row."""
    quarantines = dict[Name, Quarantined]()
    for name in names:
        if (row := rows.get(name)) is not None:
            quarantines[name] = Quarantined(row.by, row.reason)
        elif (why := policy.quarantined(name[1])) is not None:
            quarantines[name] = Quarantined(RECIPE, why)
    return quarantines


def listed(
    session: Session, target: Target | None = None, *, device: str | None = None, released: bool = False
) -> Sequence[tuple[Quarantine, str]]:
    """The open quarantines, or with `released` all of them, newest first, each with the target's name."""
    rows = _named(target, device=device, released=released).order_by(Quarantine.id.desc())
    return [(row, name) for row, name in session.execute(rows)]


def page(
    session: Session,
    target: Target | None = None,
    *,
    device: str | None = None,
    released: bool = False,
    where: Collection[ColumnElement[bool]] = (),
    cursor: str | None = None,
    limit: int = 50,
) -> ResultPage[tuple[Quarantine, str]]:
    """A page of the same; `where` are further conditions."""
    rows = _named(target, device=device, released=released).where(*where)
    return paged_rows(session, rows, (Quarantine.id,), cursor, limit).shown_as(lambda row: (row[0], row[1]))


def _named(target: Target | None, *, device: str | None, released: bool) -> Select[Quarantine, str]:
    rows = select(Quarantine, Target.name).join(Quarantine.series).join(Target, Target.id == Series.target_id)
    wanted = [
        *([Series.target_id == target.id] if target else []),
        *([Series.device == device] if device else []),
        *([] if released else [Quarantine.released_at.is_(None)]),
    ]
    return rows.where(*wanted)


# -- by what equal code did


def review(session: Session, target_id: int, device: str, comparisons: Sequence[Compared], policy: Policy) -> None:
    """Quarantine the cases just compared that raise too many false alarms, and release those that no longer do.

    Only a person releases what a person quarantined.  Comparisons from before a release do not count.
    """
    standing = _standing(session, target_id, device)
    for comparison in sorted(comparisons, key=lambda comparison: (comparison.provider, comparison.case)):
        name = comparison.provider, comparison.case
        row = standing.get(name)
        if row is not None and row.by == KERNELWATCH:
            _release_if_trusted(session, row, policy, comparison.value)
        # Only a comparison that counts against the case can change the decision.
        elif row is None and calibration.matters(
            comparison.ratio, comparison.p, comparison.case, policy, comparison.value
        ):
            _quarantine_if_distrusted(session, SeriesKey.of(target_id, device, *name), policy, comparison.value)


def _quarantine_if_distrusted(session: Session, key: SeriesKey, policy: Policy, value: float) -> None:
    series_id = series_of(session, key)
    released = [row.released_at or 0.0 for row in _earlier(session, series_id)]
    since, most = max(released, default=0.0), calibration.most(policy.calibrate)
    against = _against(session, series_id, key.printed, policy, value, since, most)
    why = calibration.distrusted(against, policy.calibrate)
    if why and quarantine(session, key, KERNELWATCH, why):
        happenings.quarantine_changed(session, key, series_id, why, released=False)


def _release_if_trusted(session: Session, row: Quarantine, policy: Policy, value: float) -> None:
    times = sum(quarantine.by == KERNELWATCH for quarantine in _earlier(session, row.series_id))
    needed = calibration.patience(times, policy.calibrate)
    against = _against(session, row.series_id, row.case, policy, value, row.since, needed)
    if why := calibration.trusted_again(against, times, policy.calibrate):
        _release(session, [row], KERNELWATCH, why)
        happenings.quarantine_changed(session, row.series.key, row.series_id, why, released=True)


def _against(
    session: Session, series_id: int, case: str, policy: Policy, value: float, since: float, most: int
) -> list[bool]:
    """Which of the last comparisons of a case count against it, oldest first, of all workers.

    `value`: what the case takes now; it is not stored with the earlier comparisons.
    """
    if since and since > clock(session):  # the clock was set back: no new comparison would count until it has caught up
        since = 0.0
    rows = session.execute(
        select(Calibration.ratio, Calibration.p)
        .where(Calibration.series_id == series_id, Calibration.at > since)
        .order_by(Calibration.id.desc())
        .limit(most)
    ).all()
    return [calibration.matters(ratio, p, case, policy, value) for ratio, p in reversed(rows)]


def _earlier(session: Session, series_id: int) -> Sequence[Quarantine]:
    rows = select(Quarantine).where(Quarantine.series_id == series_id, Quarantine.released_at.is_not(None))
    return session.execute(rows).scalars().all()


# -- by a person


def quarantine(session: Session, key: SeriesKey, by: str, reason: str) -> bool:
    """Quarantine a case.  Returns False, and changes nothing, if it is quarantined already."""
    values = {"series_id": series_of(session, key), "since": clock(session), "by": by, "reason": reason}
    return (
        insert_if_absent(session, Quarantine, "series_id", values, where=Quarantine.released_at.is_(None)) is not None
    )


def release(session: Session, target: Target, device: str, case: str, provider: str | None, by: str, why: str) -> int:
    """Release a case.  Returns the number of providers released; raises NotFound with the quarantined cases."""
    rows = [
        row
        for name, row in _standing(session, target.id, device).items()
        if name[1] == case and provider in (None, name[0])
    ]
    if not rows:
        standing = ", ".join(f"{name[1]} ({name[0]})" for name in _standing(session, target.id, device)) or "none"
        raise NotFound("quarantine of", case, f"Quarantined on {device}: {standing}.")
    details = {"case": case, "device": device, "reason": why}
    audit.record(session, "quarantine.release", target=target.name, of=f"case {case}", details=details)
    return _release(session, rows, by, why)


def quarantine_by_hand(
    session: Session, target: Target, device: str, case: str, provider: str | None, by: str, reason: str
) -> dict[str, bool]:
    """Quarantine a case of one provider or of all, for a person.  Returns for each whether it is new.

    Raises BadInput if it was never measured.
    """
    names = providers_of(session, target, device, case, provider)
    made = {name: quarantine(session, SeriesKey.of(target.id, device, name, case), by, reason) for name in names}
    details = {"case": case, "device": device, "reason": reason}
    audit.record(session, "quarantine.add", target=target.name, of=f"case {case}", details=details)
    return made


def providers_of(session: Session, target: Target, device: str, case: str, provider: str | None) -> list[str]:
    """The target's providers that were measured at the case.  Raises BadInput if it was never measured."""
    measured = (
        select(Measurement.provider)
        .join(Run)
        .where(Run.target_id == target.id, Run.device == device, Measurement.role == "head", Measurement.case == case)
    )
    measured_names = sorted(session.execute(measured.distinct()).scalars())
    names = [name for name in measured_names if provider in (None, name)]
    if not names:
        by = f" by {provider}; its providers there: {', '.join(measured_names)}" if measured_names else ""
        raise BadInput(f"{case} of target {target.name} was never measured on {device}{by}.")
    return names


def _release(session: Session, rows: Sequence[Quarantine], by: str, why: str) -> int:
    released = session.execute(
        update(Quarantine)
        .where(Quarantine.id.in_([row.id for row in rows]), Quarantine.released_at.is_(None))
        .values(released_at=clock(session), released_by=by, released_why=why)
    )
    return int(released.rowcount)  # type: ignore[attr-defined]


def _standing(session: Session, target_id: int, device: str) -> Mapping[Name, Quarantine]:
    rows = (
        select(Quarantine)
        .join(Quarantine.series)
        .options(contains_eager(Quarantine.series))
        .where(on_device(target_id, device))
    )
    quarantines = session.scalars(rows.where(Quarantine.released_at.is_(None)).order_by(Series.case, Series.metric))
    return {row.name: row for row in quarantines}
