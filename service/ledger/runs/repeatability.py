"""Evidence of earlier runs that code is bitwise repeatable, by the hash of the code."""

from collections.abc import Iterable

from sqlalchemy import JSON, select, type_coerce
from sqlalchemy.orm import Session

from kernels.arena.repeatability import Repeats, of_facts
from kernels.cases import Case, Role
from service.db.models import Measurement, Run
from service.domain.states import RunState

LATEST_RUNS = 5  # of the target on the device: the parent was measured in one of the last ones, as head or as parent


def repeats_before(session: Session, run: Run, cases: Iterable[Case]) -> dict[tuple[Case, str], Repeats]:
    """The widest estimate of the target's last runs on the device of `run`, by case and hash of the code.

    Each was stored with those of the runs before it, so they are not added up.
    """
    by_text = {str(case): case for case in cases}
    last = (
        select(Run.id)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE, Run.id != run.id)
        .order_by(Run.id.desc())
        .limit(LATEST_RUNS)
    )
    facts = type_coerce(Measurement.facts, JSON)  # the column's own type has no operators for what is inside
    rows = session.execute(
        select(
            Measurement.case,
            facts["code"].as_string(),
            facts["repeats"].as_string(),  # a contender wrote it: what is no number would end the query
            facts["distinct"].as_string(),
        ).where(Measurement.run_id.in_(list(session.scalars(last))), Measurement.role.in_((Role.HEAD, Role.PARENT)))
    )
    found: dict[tuple[Case, str], Repeats] = {}
    for text, code, calls, distinct in rows:
        estimate = of_facts({"repeats": _whole(calls), "distinct": _whole(distinct)})
        if text in by_text and code and estimate:
            name = by_text[text], code
            found[name] = max(found.get(name, estimate), estimate, key=lambda one: (one.distinct, one.calls))
    return found


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 10 else None
