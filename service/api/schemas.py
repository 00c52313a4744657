"""What the API answers with.  Times are RFC 3339; a number that is not finite is null."""

import math
from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from sqlalchemy import inspect

from service.db.models import Measurement, PolicyRow, Revision, Run, Target
from service.domain import roofline
from service.domain.metrics import metric_of
from service.domain.states import CellState, FoundBy, Purpose, RegressionState, RunState, TargetKind
from service.ledger import queries
from service.reports.report import readable
from service.reports.schema import moment
from service.reports.views import Regressed

Item = TypeVar("Item")


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _moment(value: Any) -> Any:
    return moment(value) if isinstance(value, int | float) else value


Moment = Annotated[datetime, BeforeValidator(_moment)]
Number = Annotated[float | None, BeforeValidator(_finite)]


def _version(value: Any) -> Any:
    return value.digest if isinstance(value, PolicyRow) else value


Version = Annotated[str | None, BeforeValidator(_version)]


class Answer(BaseModel):
    model_config = ConfigDict(from_attributes=True)


class Problem(BaseModel):
    """What went wrong, and how to mend it."""

    detail: str


class Page(BaseModel, Generic[Item]):
    """Some of many; `next` is the cursor of the following page, null on the last."""

    items: list[Item]
    next: str | None = None


class TargetOut(Answer):
    """A watched repository or package."""

    name: str
    kind: TargetKind
    location: str
    package: str | None
    branch: str | None
    forge: str | None
    trusted: bool
    allow_unsandboxed: bool
    created_at: Moment
    poll_at: Moment
    poll_failures: int
    poll_error: str | None
    paused_at: Moment | None = Field(description="No new revisions are taken since then.")
    devices: list[str] = Field(description="What its recipe wants measured.")

    @classmethod
    def of(cls, target: Target) -> "TargetOut":
        return cls.model_validate({**columns(target), "devices": _devices(target)})


class TargetWhole(TargetOut):
    """A target with its recipe."""

    recipe: str | None
    open_regressions: int
    behind_sota: int


class RevisionOut(Answer):
    """One commit, or one release."""

    sha: str
    short: str
    parent: str | None
    ordinal: int | None = Field(description="Place on the mainline, oldest 0; null off it.")
    subject: str
    author: str
    committed_at: Moment
    paths: list[str]


class SpeedOut(Answer):
    """How near a time comes to what the device can do at best; null where that says nothing or is not known."""

    copy_share: Number = Field(description="Of the session's ceiling, the bandwidth of a plain copy.")
    l2_resident: bool = Field(description="The inputs stay in L2: then the GB/s are not those of the memory.")
    cycles: Number = Field(description="Of the SM clock, as it was read while this was measured.")
    tokens_s: Number
    utilisation: Number = Field(
        description="Of a bf16 or fp16 block: its FLOP/s, of the session's ceiling, a matrix product."
    )


class MeasurementOut(Answer):
    """One contender at one case.  `median` is in `unit`: us, or bytes in the memory metric."""

    contender: str
    role: str
    provider: str
    case: str
    state: CellState
    reason: str | None
    median: Number
    unit: str
    gb_s: Number
    trials: int
    rounds: int
    facts: dict[str, Any]
    speed: SpeedOut

    @classmethod
    def of(cls, row: Measurement, best: Mapping[str, float]) -> "MeasurementOut":
        known = {name: getattr(row, name) for name in cls.model_fields if name != "speed"}
        speed = roofline.speed(row.case, row.median, row.gb_s, row.facts or {}, best)
        return cls.model_validate(known | {"speed": SpeedOut.model_validate(speed)})


class VerdictOut(Answer):
    """Candidate against baseline; `ratio` is time over time, or bytes over bytes: 1.05 is 5 % more."""

    provider: str
    case: str
    baseline_kind: str = Field(
        description=(
            "`parent`; `last_good`: the last revision that was not slow; `pinned`: the pinned baseline: "
            "`sota` and `best`: then `behind_sota` is what matters, and `outcome` only a direction."
        )
    )
    baseline: str | None = Field(description="Who that is: a commit, a release or a provider.")
    outcome: str
    ratio: Number
    low: Number
    high: Number
    trials: int
    rounds: int
    confirmed: bool
    behind_sota: bool
    suspected: bool = Field(description="The first trials looked like a change.")
    p: Number = Field(description="Of the fresh trials where there are any, else of the first.")
    q: Number = Field(description="p among the family of the run (Benjamini-Hochberg).")
    smallest_change: Number = Field(description="The smallest change that mattered at this case, relative.")
    doubt: str | None = Field(
        description="Why equal code of the session leaves it inconclusive: control, offset or machine."
    )
    cause_kind: str | None = Field(description="code, baseline, stack, machine, noise or unknown.")
    cause_text: str | None = Field(
        description="The cause in words.", examples=["slower because the kernel now spills 50 registers at N=16384"]
    )
    cause_certain: bool | None = Field(description="The facts leave no alternative.")
    cause_by: str | None = Field(
        description="What of the code the cause rests on.", examples=["traffic", "spills", "configuration"]
    )
    policy: Version = Field(description="The version of the policy that made it.")
    control: Number = Field(description="The A/A control's ratio at this case, beside a comparison with the parent.")
    reason: str


class RunOut(Answer):
    """One revision on one device."""

    id: int
    target: str
    revision: str
    subject: str
    baseline: str | None
    pull: int | None
    device: str
    suite: str
    purpose: Purpose
    bisection_id: int | None = Field(description="Whose step it is.")
    last_good: str | None = Field(description="The last revision that was not slow, where the baseline is.")
    pinned: str | None = Field(description="The pinned baseline.")
    state: RunState
    stage: str | None
    reason: str | None
    priority: int
    attempt: int
    max_attempts: int
    worker: str | None
    trusted: bool
    sandboxed: bool | None
    repeated: bool = Field(description="Measured once more, as the controls of its first session were off.")
    created_at: Moment
    started_at: Moment | None
    finished_at: Moment | None

    @classmethod
    def of(cls, run: Run) -> "RunOut":
        return cls.model_validate(_run(run))


class SummaryOut(Answer):
    """The geometric mean over cases of head over baseline, with its interval over trials."""

    provider: str
    op: str
    direction: str
    metric: str
    cases: int
    ratio: Number
    low: Number
    high: Number
    trials: int


class RunWhole(RunOut):
    """A run; `measurements` and `verdicts` are there when `expand` names them."""

    log: str | None
    stack: dict[str, Any] | None
    telemetry: dict[str, Any] | None
    ceilings: dict[str, float] = Field(description="What the device did at best in this session; empty on a CPU.")
    summary: list[SummaryOut] = Field(description="One for each op and direction.")
    measurements: list[MeasurementOut] | None = None
    verdicts: list[VerdictOut] | None = None

    @classmethod
    def whole(cls, run: Run, expand: frozenset[str]) -> "RunWhole":
        best, measured = roofline.ceilings(run.telemetry), "measurements" in expand
        more = {
            "log": run.log,
            "stack": run.stack.versions if run.stack else None,
            "telemetry": run.telemetry,
            "ceilings": best,
            "summary": run.summary or [],
            "measurements": [MeasurementOut.of(row, best) for row in run.measurements] if measured else None,
            "verdicts": [VerdictOut.model_validate(row) for row in run.verdicts] if "verdicts" in expand else None,
        }
        return cls.model_validate(_run(run) | more)


class RegressionOut(Answer):
    """A confirmed regression of the mainline."""

    id: int
    target: str
    device: str
    provider: str
    case: str
    ratio: float
    low: Number
    high: Number
    state: RegressionState
    found_by: FoundBy
    run: int
    revision: str
    opened_at: Moment
    fixed_at: Moment | None
    fixed_by: str | None = Field(description="The revision that mended it.")
    incident_id: int | None
    culprit: str | None = Field(description="The revision that is blamed.")
    cause_kind: str | None
    cause_text: str | None = Field(description="The cause in words.")
    assignee: str | None
    due_at: Moment | None
    reason: str | None = Field(description="Why it was accepted or dismissed.")
    until: Moment | None = Field(description="When an acknowledgement ends; null for never.")

    @classmethod
    def of(cls, found: Regressed) -> "RegressionOut":
        return cls.model_validate(cls.names(found))

    @staticmethod
    def names(found: Regressed) -> dict[str, Any]:
        """The columns, with what they point at by the names that people know."""
        mended = found.fixed_by.revision.sha if found.fixed_by else None
        named = {"target": found.target, "run": found.run.id, "revision": found.run.revision.sha, "fixed_by": mended}
        return columns(found.row) | named


class GapOut(Answer):
    """A mainline case that runs behind SOTA: how far then and now, in times of what SOTA takes."""

    target: str
    device: str
    provider: str
    case: str
    ratio_now: Number
    ratio_then: Number
    own: Number
    sota: Number
    unit: str = Field(description="Of `own` and `sota`: us, or bytes.")
    since: str | None = Field(description="The revision from which it is behind.")
    run: int = Field(description="The latest run of the mainline that measured it.")

    @classmethod
    def of(cls, found: queries.Trailing) -> "GapOut":
        since = found.since.sha if found.since else None
        unit = metric_of(found.gap.case).unit
        named = {"target": found.target, "since": since, "run": found.gap.last_run_id, "unit": unit}
        return cls.model_validate(columns(found.gap) | named)


class PointOut(Answer):
    """One mainline revision of a series."""

    run_id: int
    revision: str
    subject: str
    ordinal: int
    at: Moment
    state: CellState
    median: Number
    gb_s: Number
    sota: Number = Field(description="The median of SOTA in the same run.")
    outcome: str | None
    ratio: Number
    low: Number
    high: Number
    stack_id: int | None
    stack_change: list[str] = Field(description="What changed in the stack since the point before; empty: nothing.")


class SeriesOut(BaseModel):
    """One case over the mainline, oldest first.  A change of stack is an event of its own."""

    target: str
    case: str
    provider: str
    device: str
    metric: str
    unit: str = Field(description="Of `median` and `sota`: us, or bytes.")
    points: list[PointOut]


class WorkerOut(Answer):
    """A process that owns a device."""

    name: str
    device: str
    description: str
    sandbox: str | None = Field(description="Why the sandbox cannot work there; null when it works.")
    started_at: Moment
    seen_at: Moment
    run_id: int | None
    here: bool


def columns(row: Any) -> dict[str, Any]:
    """What was loaded of a row."""
    loaded = inspect(row).dict
    return {column.key: loaded[column.key] for column in row.__mapper__.column_attrs if column.key in loaded}


def _run(run: Run) -> dict[str, Any]:
    names = {"target": run.target.name, "revision": run.revision.sha, "subject": run.revision.subject}
    return columns(run) | names


def _devices(target: Target) -> list[str]:
    recipe = readable(target.recipe.text) if target.recipe else None
    return list(recipe.devices) if recipe else []


def revision(row: Revision) -> RevisionOut:
    return RevisionOut.model_validate(row)
