"""Configurations that changed: with a commit, with the stack, or with neither, where an autotuner chose again.

A run measures its revision and the parent.  What differs between them is the commit's.  Both may have been measured
before, in sessions of their own; the newest of those is what this session is compared with: with the same stack the
autotuner chose again, and with another one the stack did it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.engine import clock
from service.db.models import WATCHED, ConfigurationDrift, Measurement, Revision, Run
from service.domain.codefacts.history import drifted
from service.domain.series import SeriesKey
from service.domain.states import MovedBy, RunState
from service.domain.text import one_line
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import ContenderResult
from service.ledger.notices import happenings
from service.ledger.notices.record import subscribers
from service.ledger.series import series_ids

MAX_TEXT = 400  # of a configuration, as in the fact `config`

_Chosen = tuple[int, str, str]  # the earlier run, its configuration, and that of this session
_Move = tuple[MovedBy, Name]
_Facts = Mapping[Name, Mapping[str, Any]]


def note_drifts(session: Session, run: Run, revision: Revision, taken: Sequence[ContenderResult]) -> None:
    """Keep the changes that this session of the mainline shows, and notify those who subscribed to them."""
    heads, parents = (_facts(taken, role) for role in (Role.HEAD, Role.PARENT))
    found = dict[_Move, _Chosen]()
    for sha, now in ((run.baseline, parents), (revision.sha, heads)):
        if sha is not None and now:
            found |= _against_earlier(session, run, sha, now)
    found |= _by_the_commit(run, heads, parents)
    if not found:
        return
    at = clock(session)
    key_of = {name: SeriesKey.of(run.target_id, run.device, *name) for _, name in found}
    series = series_ids(session, key_of.values())
    rows = {
        (by, name): ConfigurationDrift(
            series_id=series[key_of[name]],
            run_id=run.id,
            earlier_run_id=earlier,
            moved_by=by,
            at=at,
            before=one_line(before, MAX_TEXT),
            now=one_line(after, MAX_TEXT),
        )
        for (by, name), (earlier, before, after) in found.items()
    }
    session.add_all(rows.values())
    if subscribers(session, run.target_id):
        for (_, name), row in rows.items():
            happenings.configuration_moved(session, run, name, row)


def _facts(taken: Sequence[ContenderResult], role: Role) -> _Facts:
    return {(one.provider, str(one.case)): one.facts for one in taken if one.role is role}


def _by_the_commit(run: Run, heads: _Facts, parents: _Facts) -> dict[_Move, _Chosen]:
    """Where head and parent ran different configurations in this session."""
    found = {}
    for name, facts in heads.items():
        if moved := drifted(parents.get(name, {}), facts):
            found[MovedBy.COMMIT, name] = (run.id, *moved)
    return found


def _against_earlier(session: Session, run: Run, sha: str, now: _Facts) -> dict[_Move, _Chosen]:
    """Where this session ran another configuration than the newest earlier one of the same revision.

    One with the same stack counts before one with another.
    """
    for by, stack in (
        (MovedBy.NOTHING, Run.stack_id == run.stack_id),
        (MovedBy.STACK, Run.stack_id != run.stack_id),
    ):
        earlier = _newest_before(session, run, sha, stack)
        if earlier is not None:
            return {(by, name): chosen for name, chosen in _moved_since(session, earlier, now).items()}
    return {}


def _newest_before(session: Session, run: Run, sha: str, stack: ColumnElement[bool]) -> int | None:
    return session.scalar(
        select(func.max(Run.id))
        .join(Revision, Revision.id == Run.revision_id)
        .where(Revision.target_id == run.target_id, Revision.sha == sha, Run.device == run.device)
        .where(Run.state == RunState.DONE, Run.id != run.id, stack, WATCHED)
    )


def _moved_since(session: Session, earlier: int, now: _Facts) -> dict[Name, _Chosen]:
    rows = session.execute(
        select(Measurement.provider, Measurement.case, Measurement.facts).where(
            Measurement.run_id == earlier, Measurement.role == Role.HEAD.value
        )
    )
    found = {}
    for provider, case, facts in rows:
        moved = drifted(facts, now.get((provider, case), {}))
        if moved:
            found[provider, case] = (earlier, *moved)
    return found
