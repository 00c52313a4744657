"""The ids of series, and the history of a provider under its new name (`formerly` in its recipe).

Without it a renamed provider begins anew: what was open is closed as removed, and the trend ends.
"""

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from sqlalchemy import ColumnElement, and_, bindparam, exists, select, update
from sqlalchemy.orm import Session, aliased

from kernels.cases import Role
from service.db.models import KernelTextRow, Measurement, RecipeRow, Run, Series, Target, VerdictRow
from service.domain.metrics import SeriesKey
from service.domain.policy.recipes import Recipe
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import SessionResult
from service.ledger.access import audit
from service.ledger.locking import insert_if_absent, lock
from service.reports.report import readable

_OWN = (Role.HEAD, Role.PARENT, Role.LAST_GOOD, Role.PINNED, Role.CONTROL)
_LATELY = 200  # runs: what none of them measured has no history that goes on


def carry_on(session: Session, target: Target, recipe: Recipe) -> None:
    """Rename what is stored of each provider that has another name now.

    Not where a run measured both, or both have something open: these are two providers, whatever the recipe says.
    """
    former = {one.formerly: name for name, one in recipe.providers.items() if one.formerly is not None}
    known = {name for name in former if _has_history(session, target, name)}
    if not known:
        return
    lock(session, target.id)  # a run that ends at this moment stores its results before or after this
    for name in known:
        if not _has_series(session, target, former[name]) and not _together(session, target, name, former[name]):
            _rename(session, target, name, former[name])


def names_now(session: Session, run: Run) -> Mapping[str, str]:
    """By the names that providers had when the run was asked for, those that the target's recipe gave them since."""
    recipe_id = session.get_one(Target, run.target_id).recipe_id
    if recipe_id is None or recipe_id == run.recipe_id:
        return {}
    now, then = (readable(session.get_one(RecipeRow, one).text) for one in (recipe_id, run.recipe_id))
    if now is None or then is None:
        return {}
    return {one.formerly: name for name, one in now.providers.items() if one.formerly and name not in then.providers}


def renamed(result: SessionResult, names: Mapping[str, str]) -> SessionResult:
    """The result with the names that its providers have now."""
    if not names:
        return result

    def named(values: Mapping[Name, str]) -> dict[Name, str]:
        return {(names.get(provider, provider), case): value for (provider, case), value in values.items()}

    own = {f"{role}:{former}": f"{role}:{name}" for role in _OWN for former, name in names.items()}
    return replace(
        result,
        taken=tuple(
            replace(one, provider=names.get(one.provider, one.provider)) if one.role in _OWN else one
            for one in result.taken
        ),
        texts=tuple(replace(one, contender=own.get(one.contender, one.contender)) for one in result.texts),
        last_good=named(result.last_good),
        earlier=named(result.earlier),
    )


def _has_history(session: Session, target: Target, provider: str) -> bool:
    lately = select(Run.id).where(Run.target_id == target.id).order_by(Run.id.desc()).limit(_LATELY)
    measured = exists().where(
        Measurement.run_id.in_(lately), Measurement.provider == provider, Measurement.role.in_(_OWN)
    )
    return _has_series(session, target, provider) or bool(session.scalar(select(measured)))


def _has_series(session: Session, target: Target, provider: str) -> bool:
    return bool(session.scalar(select(exists().where(Series.target_id == target.id, Series.provider == provider))))


def _together(session: Session, target: Target, former: str, name: str) -> bool:
    """Whether a run of the target measured both."""
    one, other = aliased(Measurement), aliased(Measurement)
    both = (
        select(Run.id)
        .join(one, one.run_id == Run.id)
        .join(other, other.run_id == Run.id)
        .where(Run.target_id == target.id, one.provider == former, other.provider == name)
        .where(one.role.in_(_OWN), other.role.in_(_OWN))
    )
    return bool(session.scalar(select(both.exists())))


def _rename(session: Session, target: Target, former: str, name: str) -> None:
    runs = select(Run.id).where(Run.target_id == target.id)
    series = Series.target_id == target.id, Series.provider == former
    session.execute(update(Series).where(*series).values(provider=name))
    for role in _OWN:
        was, now = f"{role}:{former}", f"{role}:{name}"
        of_role = Measurement.run_id.in_(runs), Measurement.role == role.value, Measurement.provider == former
        session.execute(update(Measurement).where(*of_role).values(provider=name, contender=now))
        texts = KernelTextRow.run_id.in_(runs), KernelTextRow.contender == was
        session.execute(update(KernelTextRow).where(*texts).values(contender=now))
    of_run = VerdictRow.run_id.in_(runs), VerdictRow.provider == former
    session.execute(update(VerdictRow).where(*of_run).values(provider=name))
    details = {"provider": name, "formerly": former}
    audit.record(session, "provider.rename", target=target.name, of=f"target {target.name}", details=details)


# The condition for a query that joins `Series`; its parameters are the fields of a key.
IS_SERIES = and_(
    Series.target_id == bindparam("target_id"),
    Series.device == bindparam("device"),
    Series.provider == bindparam("provider"),
    Series.case == bindparam("case"),
    Series.metric == bindparam("metric"),
)


def on_device(target_id: int, device: str) -> ColumnElement[bool]:
    """The condition for all series of a target on a device, in a query that joins `Series`."""
    return and_(Series.target_id == target_id, Series.device == device)


def series_of(session: Session, key: SeriesKey) -> int:
    """The id of a series; the row is inserted if it is absent."""
    return series_ids(session, [key])[key]


def series_ids(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, int]:
    """The ids of several series; absent rows are inserted."""
    known = _known(session, keys)
    absent = sorted(key for key in set(keys) if key not in known)
    # Two transactions that insert the same series wait for each other.  Each takes the target's lock first: otherwise
    # one could wait for the lock while the other, which holds it, waits for a series of the first.
    for target_id in sorted({key.target_id for key in absent}):
        lock(session, target_id)
    for key in absent:
        insert_if_absent(session, Series, tuple(asdict(key)), asdict(key))
    return _known(session, keys) if absent else known


def _known(session: Session, keys: Collection[SeriesKey]) -> dict[SeriesKey, int]:
    rows = session.execute(
        select(Series.id, Series.target_id, Series.device, Series.provider, Series.case, Series.metric)
        .where(Series.target_id.in_({key.target_id for key in keys}), Series.device.in_({key.device for key in keys}))
        .where(Series.case.in_({key.case for key in keys}))
    )
    found = {SeriesKey(*row[1:]): row[0] for row in rows}
    return {key: found[key] for key in keys if key in found}
