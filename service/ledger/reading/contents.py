"""What a run measured and decided, as rows of columns.

Statements are made once, and of columns: making them, and objects of their rows, takes longer than the database.
"""

from collections import namedtuple
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import BindParameter, bindparam, select
from sqlalchemy.orm import Session

from service.db.models import Measurement, PolicyRow, RegressionRow, Run, VerdictRow
from service.reports.report import RunContents

OF_RUN: BindParameter[int] = bindparam("run_id")
measured, decided, _policies = Measurement.__table__.c, VerdictRow.__table__.c, PolicyRow.__table__.c
# Of the tables, not of the classes: who may not know of a run does not get as far as its contents.
OF_MEASUREMENT = tuple(column for column in measured if column.name not in ("id", "run_id", "samples"))
OF_VERDICT = tuple(column for column in decided if column.name not in ("id", "run_id", "policy_id"))
MEASUREMENTS = select(*OF_MEASUREMENT).where(measured.run_id == OF_RUN)
VERDICTS = (
    select(*OF_VERDICT, _policies.digest.label("policy_version"))
    .outerjoin_from(VerdictRow.__table__, PolicyRow.__table__, _policies.id == decided.policy_id)
    .where(decided.run_id == OF_RUN)
)
_REGRESSIONS = select(RegressionRow).where(RegressionRow.run_id == OF_RUN).order_by(RegressionRow.id)
# In the order of the index that finds the verdicts of a run.  In that of their ids, PostgreSQL read all 6 million
# verdicts for a run without any, in 3 s.
_POLICY = select(PolicyRow).where(
    PolicyRow.id
    == select(VerdictRow.policy_id)
    .where(VerdictRow.run_id == OF_RUN, VerdictRow.policy_id.is_not(None))
    .order_by(VerdictRow.provider, VerdictRow.case, VerdictRow.baseline_kind)
    .limit(1)
    .scalar_subquery()
)


def _stored(*columns: str) -> Any:
    """A class of tuples, whose columns are read ten times as fast as those of a Row; the last may be missing."""
    return namedtuple("Stored", columns, defaults=[None])


_Measurement = _stored(*(column.name for column in OF_MEASUREMENT))
_Verdict = _stored(*(column.name for column in OF_VERDICT), "policy_version")


def contents(
    session: Session,
    run: Run,
    measurements: Iterable[Any],
    verdicts: Iterable[Any],
    telemetry: Mapping[str, Any] | None,
) -> RunContents:
    """The contents of a run that these rows are of."""
    of_run = {"run_id": run.id}
    return RunContents(
        [_Measurement(*row) for row in measurements],
        [_Verdict(*row) for row in verdicts],
        session.scalars(_REGRESSIONS, of_run).all(),
        telemetry or {},
        session.scalar(_POLICY, of_run),
    )


def read_contents(session: Session, run: Run) -> RunContents:
    """All that a run measured and decided, in the order in which it was stored; its telemetry must be loaded."""
    of_run = {"run_id": run.id}
    measurements = session.execute(MEASUREMENTS.order_by(measured.id), of_run).all()
    verdicts = session.execute(VERDICTS.order_by(decided.id), of_run).all()
    return contents(session, run, measurements, verdicts, run.telemetry)
