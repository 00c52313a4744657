"""Rows of exports: the documents of the API, with the target, run and revision that an address names elsewhere."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import Field

from kernels.cases import Role
from kernelwatch.documents.base import Better, Document, Missing, Moment, Number, moment
from kernelwatch.documents.runs import FactsCheckItem, MeasurementItem, RunItem, VerdictItem
from kernelwatch.documents.targets import RevisionItem
from service.db.models import Measurement, Run, Stack, unpack
from service.domain.metrics import metric_of
from service.domain.states import Equal, Purpose, Rounds


class ExportedRevision(RevisionItem):
    """A revision of a target."""

    target: str


class ExportedRun(RunItem):
    """A run with its stack."""

    stack: dict[str, Any] | None = Field(description="Versions; null before it was measured.")
    stack_digest: str | None


class OfRun(Document):
    """The run that a row belongs to."""

    run_id: int
    target: str
    revision: str = Field(description="The revision of the run.")
    device: str
    purpose: Purpose
    pull: int | None


def run_fields(run: Run) -> dict[str, Any]:
    """The fields of OfRun."""
    return {
        "run_id": run.id,
        "target": run.target.name,
        "revision": run.revision.sha,
        "device": run.device,
        "purpose": run.purpose,
        "pull": run.pull,
    }


class SingleFacts(Document):
    """Facts of the compiled code that have one value; the others are in `facts`."""

    kernels: int | None
    registers: int | None
    spills: int | None
    shared: int | None
    config: str | None
    repeatable: bool | None
    sm_mhz: float | None

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> "SingleFacts":
        """Facts come from contenders: a value of another type is left out."""
        kinds = {name: get_args(field.annotation)[0] for name, field in cls.model_fields.items()}
        return cls.model_construct(**{name: _typed(facts.get(name), kind) for name, kind in kinds.items()})


def _typed(value: Any, kind: type) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    too_large = isinstance(value, int) and abs(value) >= 2**63
    return value if type(value) is kind and not too_large else None


class ExportedMeasurement(MeasurementItem, OfRun):
    """A contender at a case of a run."""

    fact: SingleFacts


class ExportedSample(OfRun):
    """One sample."""

    measured_at: Moment | None = Field(description="When the session began.")
    worker: str | None
    stack: dict[str, Any] | None = Field(description="Versions.")
    contender: str
    role: str
    provider: str
    measured_revision: str | None = Field(
        description="The revision whose code it is: the run's own, or a baseline; null for another provider's code."
    )
    case: str
    metric: str
    unit: str = Field(description="us, bytes or count.")
    phase: str = Field(description="screening, confirmation for the trials that only confirm a suspicion, or apart.")
    trial: int = Field(description="1, 2, … in its phase.")
    round: int = Field(description="1, 2, … in its trial.")
    value: Number = Field(description="In `unit`; null for a round that was lost.")

    @classmethod
    def all_of(cls, row: Measurement, run: Run, stack: Stack | None) -> Iterator["ExportedSample"]:
        """The samples of a contender at a case, in the order in which they were taken in their phase."""
        of_all = run_fields(run) | {
            "measured_at": None if run.started_at is None else moment(run.started_at),
            "worker": run.worker,
            "stack": stack.versions if stack else None,
            "contender": row.contender,
            "role": row.role,
            "provider": row.provider,
            "measured_revision": _measured_revision(row.role, run),
            "case": row.case,
            "metric": metric_of(row.case).value,
            "unit": row.unit,
        }
        fields = {*cls.model_fields}  # one for all: a set of its own is half of a row's memory
        phases: tuple[Sequence[Rounds], ...] = unpack(row.samples) if row.samples else ()
        for phase, trials in zip(("screening", "confirmation", "apart"), phases, strict=False):
            for trial, rounds in enumerate(trials, 1):
                for number, value in enumerate(rounds, 1):
                    yield cls.model_construct(fields, **of_all, phase=phase, trial=trial, round=number, value=value)


def _measured_revision(role: str, run: Run) -> str | None:
    revisions: Mapping[str, str | None] = {
        Role.HEAD: run.revision.sha,
        Role.PARENT: run.baseline,
        Role.LAST_GOOD: run.last_good,
        Role.PINNED: run.pinned,
        Role.CONTROL: run.baseline or run.revision.sha,
    }
    return revisions.get(role)


class ExportedVerdict(VerdictItem, OfRun):
    """A verdict of a run."""


class ExportedFactsCheck(FactsCheckItem):
    """A check of the compiled code of a revision."""

    target: str


class ExportedCalibration(Document):
    """One comparison of equal code."""

    id: int
    run_id: int
    target: str
    device: str
    provider: str
    case: str
    worker: str | None
    kind: Equal = Field(description="Two processes of one build (copy), or two builds of one source (build).")
    ratio: Number
    p: Number = Field(description="Of no difference, two-sided.")
    trials: int
    alarmed: bool = Field(description="It would have been reported as a change.")
    at: Moment


class ExportedIngested(Document):
    """A measurement made elsewhere, with the provenance of its batch."""

    id: int
    batch_id: int
    target: str
    device: str
    provider: str
    case: str
    unit: str = Field(description="Of `median` and `samples`: `us`, `bytes`, `count`, or as it was sent.")
    better: Better
    revision: str = Field(description="As it was sent.")
    median: Number = Field(description="Null where `missing` says why.")
    samples: list[float]
    missing: Missing | None
    tool: str
    machine: str
    measured_at: Moment | None
    stack: dict[str, Any]
    notes: dict[str, Any]
    sent_by: str
    received_at: Moment
