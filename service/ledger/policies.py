"""The operator's policy, which holds for every target whose recipe says nothing else, and the versions of policies.

It is one TOML file with the keys of a recipe's `[policy]`, named by KERNELWATCH_POLICY and read once by each process.
Every verdict refers to the version that made it.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session, selectinload

from service.db.engine import clock
from service.db.models import PolicyRow, Run, VerdictRow
from service.db.paging import ResultPage, paged
from service.domain.policy.policy import NOTHING, Policy, Written, read
from service.domain.policy.recipes import Recipe
from service.domain.states import RunState
from service.errors import BadInput, NotFound
from service.ledger.locking import insert_if_absent
from service.settings import settings

SAMPLE = 200  # runs, the newest, of which `uses` reads the version


def effective(recipe: Recipe, device: str) -> Policy:
    """The effective policy of a target on a device: its recipe over the server's policy over the defaults."""
    return recipe.policy_on(device, server_policy())


def server_policy() -> Written:
    """The operator's policy; empty without a file.  Raises BadInput that names its mistakes."""
    named = settings().policy
    return NOTHING if named is None else _read_once(named)


def policy_file(file: Path) -> Written:
    """The policy in a file.  Raises BadInput when it is not there, or not valid."""
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(f"The policy {file} cannot be read: {getattr(error, 'strerror', None) or error}.") from None
    return read(text, str(file))


_read_once = cache(policy_file)


def version_of(session: Session, policy: Policy) -> PolicyRow:
    """The row of this version, inserted where it is new.  Another method with the same numbers is another version."""
    values = policy.model_dump(mode="json")
    insert_if_absent(
        session, PolicyRow, "digest", {"digest": policy.digest, "values": values, "created_at": clock(session)}
    )
    return session.execute(select(PolicyRow).where(PolicyRow.digest == policy.digest)).scalar_one()


def listed(session: Session, cursor: str | None = None, limit: int = 50) -> ResultPage[PolicyRow]:
    """The versions, the newest first."""
    return paged(session, select(PolicyRow), (PolicyRow.id,), cursor, limit)


def one(session: Session, digest: str) -> PolicyRow:
    """One version.  Raises NotFound."""
    row = session.execute(select(PolicyRow).where(PolicyRow.digest == digest)).scalar_one_or_none()
    if row is None:
        raise NotFound("policy", digest)
    return row


def before(session: Session, row: PolicyRow) -> PolicyRow | None:
    """The version that was first used before this one; None for the first of all."""
    return session.scalar(select(PolicyRow).where(PolicyRow.id < row.id).order_by(PolicyRow.id.desc()).limit(1))


def uses(session: Session) -> Mapping[int, Sequence[Run]]:
    """The newest measured runs by the id of the version that judged them, with their targets; at most SAMPLE."""
    newest = select(Run.id).where(Run.state == RunState.DONE).order_by(Run.id.desc()).limit(SAMPLE).subquery()
    version = (
        select(VerdictRow.policy_id).where(VerdictRow.run_id == Run.id, VerdictRow.policy_id.is_not(None)).limit(1)
    )
    query = select(Run, version.scalar_subquery()).where(Run.id.in_(select(newest.c.id))).order_by(Run.id.desc())
    runs = defaultdict[int, list[Run]](list)
    for run, policy_id in session.execute(query.options(selectinload(Run.target))):
        if policy_id is not None:
            runs[policy_id].append(run)
    return runs
