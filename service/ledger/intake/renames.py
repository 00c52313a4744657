"""Carry on the history of a provider under its new name: `formerly` in its recipe.

Without it a renamed provider begins anew: what was open is closed as removed, and the trend ends.
"""

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import KernelTextRow, Measurement, Run, Series, Target, VerdictRow
from service.domain.policy.recipes import Recipe
from service.ledger.access import audit

_OWN = (Role.HEAD, Role.PARENT, Role.LAST_GOOD, Role.PINNED, Role.CONTROL)


def carry_on(session: Session, target: Target, recipe: Recipe) -> None:
    """Rename what is stored of each provider that has another name now; not where both names have a history.

    The caller holds the lock of the target.
    """
    for name, provider in recipe.providers.items():
        former = provider.formerly
        if former is not None and _has_history(session, target, former) and not _has_history(session, target, name):
            _rename(session, target, former, name)


def _has_history(session: Session, target: Target, provider: str) -> bool:
    known = select(Series.id).where(Series.target_id == target.id, Series.provider == provider).limit(1)
    return session.scalar(known) is not None


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
