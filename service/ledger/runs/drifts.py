"""Configurations that changed although neither the revision nor the stack did: an autotuner chose again.

A run measures its revision and the parent.  Both may have been measured before, in sessions of their own; the newest of
those is what this session is compared with.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.engine import clock
from service.db.models import WATCHED, ConfigurationDrift, Measurement, Revision, Run
from service.domain.codefacts.history import drifted
from service.domain.series import SeriesKey
from service.domain.states import RunState
from service.domain.text import one_line
from service.domain.verdicts.samples import Name
from service.domain.verdicts.session_result import ContenderResult
from service.ledger.notices import happenings
from service.ledger.notices.record import subscribers
from service.ledger.series import series_ids

MAX_TEXT = 400  # of a configuration, as in the fact `config`

_Chosen = tuple[int, str, str]  # the earlier run, its configuration, and that of this session


def note_drifts(session: Session, run: Run, revision: Revision, taken: Sequence[ContenderResult]) -> None:
    """Keep the drifts that this session of the mainline shows, and notify those who subscribed to them."""
    found = dict[Name, _Chosen]()
    for role, sha in ((Role.PARENT, run.baseline), (Role.HEAD, revision.sha)):
        now = {(one.provider, str(one.case)): one.facts for one in taken if one.role is role}
        if sha is not None and now:
            found |= _against_earlier(session, run, sha, now)
    if not found:
        return
    at = clock(session)
    key_of = {name: SeriesKey.of(run.target_id, run.device, *name) for name in found}
    series = series_ids(session, key_of.values())
    rows = {
        name: ConfigurationDrift(
            series_id=series[key_of[name]],
            run_id=run.id,
            earlier_run_id=earlier,
            at=at,
            before=one_line(before, MAX_TEXT),
            now=one_line(after, MAX_TEXT),
        )
        for name, (earlier, before, after) in found.items()
    }
    session.add_all(rows.values())
    if subscribers(session, run.target_id):
        for name, row in rows.items():
            happenings.configuration_drifted(session, run, name, row)


def _against_earlier(
    session: Session, run: Run, sha: str, now: Mapping[Name, Mapping[str, Any]]
) -> dict[Name, _Chosen]:
    """What the newest earlier session of a revision chose, where this one chose differently with the same stack."""
    earlier = session.scalar(
        select(func.max(Run.id))
        .join(Revision, Revision.id == Run.revision_id)
        .where(Revision.target_id == run.target_id, Revision.sha == sha, Run.device == run.device)
        .where(Run.state == RunState.DONE, Run.id != run.id, Run.stack_id == run.stack_id, WATCHED)
    )
    if earlier is None:
        return {}
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
