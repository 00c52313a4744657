"""The policy: which changes and facts are reported, and its layers from server to recipe.  Pure."""

import hashlib
import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from kernels.cases import Metric
from service.domain.metrics import metric_of
from service.domain.policy.toml_errors import TomlMistake, mistakes
from service.domain.states import GateAction, GateKind
from service.domain.stats import counts
from service.errors import BadInput

# Smallest change of the other metrics, where the recipe sets none: the host's time of a call varies
# more than the device's, a compiler's still more, and how many bytes a call holds does not vary at all.
# Of counts it is a number of things.
METRICS: Mapping[Metric, float] = {
    Metric.CALL: 0.05,
    Metric.BLOCK: 0.02,
    Metric.COMPILE: 0.20,
    Metric.MEMORY: 0.01,
    Metric.RECOMPILES: 1,
    Metric.BREAKS: 1,
    Metric.KERNELS: 1,
}

# Part of every version of a policy: raise it when the same numbers make other verdicts than before.
METHOD = 5

# Less would call nearly every control off.  It also refuses what was written when the limit was no share: 0.02 for 2 %.
MIN_CONTROL = 0.1
CONTROL_LIMIT = "Share of the smallest change; an A/A control beyond it makes the case inconclusive."


class CommentWhen(StrEnum):
    FINDINGS = "findings"  # not before there is something to say; the check says that nothing changed
    ALWAYS = "always"


# What `blocking` is short for: the actions of the kinds that `[policy.gate]` does not name.
GATES: Mapping[bool, Mapping[GateKind, GateAction]] = {
    False: {
        GateKind.REGRESSION: GateAction.WARN,
        GateKind.BEHIND_SOTA: GateAction.PASS,
        GateKind.INCONCLUSIVE: GateAction.WARN,
        GateKind.INVALID: GateAction.FAIL,
        GateKind.FAILED: GateAction.WARN,
        GateKind.UNREPEATABLE: GateAction.WARN,
        GateKind.SLOWER_THAN_WRONG: GateAction.WARN,
        GateKind.NEW_FAR_BEHIND: GateAction.WARN,
    },
    True: {
        GateKind.REGRESSION: GateAction.FAIL,
        GateKind.BEHIND_SOTA: GateAction.WARN,
        GateKind.INCONCLUSIVE: GateAction.FAIL,
        GateKind.INVALID: GateAction.FAIL,
        GateKind.FAILED: GateAction.FAIL,
        GateKind.UNREPEATABLE: GateAction.WARN,
        GateKind.SLOWER_THAN_WRONG: GateAction.FAIL,
        GateKind.NEW_FAR_BEHIND: GateAction.WARN,
    },
}

ROUNDS = (
    "Per trial; most of the variance is between trials.  By default 8, and of kernels on a GPU 4.  "
    "Compilation and memory have 1, a block at most 10, and on a GPU every case of a trial of more than 60 at most 4."
)


class MetricPolicy(BaseModel):
    """Overrides for the cases of one metric."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    smallest_change: float = Field(gt=0, le=counts.MAX_DIFFERENCE, description="Relative; of counts a whole number.")
    control_limit: float | None = Field(None, ge=MIN_CONTROL, le=1)

    @model_validator(mode="before")
    @classmethod
    def _from_a_number(cls, given: Any) -> Any:
        """`call = 0.05` is short for a table."""
        return given if isinstance(given, Mapping) else {"smallest_change": given}


class CasePolicy(BaseModel):
    """Overrides for the cases that a pattern names: `[policy.cases."rmsnorm.bwd.*"]`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    smallest_change: float | None = Field(None, gt=0, lt=1)
    smallest_change_ns: float | None = Field(None, ge=0)
    smallest_change_count: int | None = Field(None, ge=1, le=counts.MAX_DIFFERENCE)
    control_limit: float | None = Field(None, ge=MIN_CONTROL, le=1)
    behind_sota: float | None = Field(None, gt=0, lt=10)
    far_behind_sota: float | None = Field(None, gt=0, lt=100)
    leak: float | None = Field(None, gt=0, lt=1)
    quarantine: str | None = Field(None, min_length=3, description="Why it is quarantined: measured, but never alarms.")
    gate: Mapping[GateKind, GateAction] = {}


class Bisecting(BaseModel):
    """The budget of bisections."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    automatic: bool = Field(True, description="Bisect automatically if several revisions may be to blame.")
    max_runs: int = Field(24, ge=3, le=200, description="Maximum steps of one bisection.")
    max_runs_per_day: int = Field(
        48, ge=0, le=2000, description="Maximum steps of all automatic bisections of a target in 24 hours."
    )


class Calibrating(BaseModel):
    """Equal code against itself: how often this machine would alarm without cause."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    every_h: float = Field(24, ge=0, le=24 * 31, description="Hours between two calibrations of a worker; 0 for never.")
    nominal: float = Field(0.05, gt=0, lt=0.5, description="Level of the test: how often equal code differs by chance.")
    min_comparisons: int = Field(20, ge=5, le=1000, description="Minimum comparisons of a case before its quarantine.")


class Policy(BaseModel):
    """Thresholds are relative: 0.02 means 2 %.  Cases are judged after the numbers of trials in `screening`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    smallest_change: float = Field(0.01, gt=0, lt=1, description="The smallest relative change that matters.")
    smallest_change_short: float = Field(0.02, gt=0, lt=1, description="The same for cases faster than short_us.")
    short_us: float = Field(100, ge=0, description="Cases that take less than this are short.")
    smallest_change_ns: float = Field(50, ge=0, description="The smallest absolute change that matters.")
    confidence: float = Field(0.95, gt=0.5, lt=1, description="Confidence level of all intervals.")
    alpha: float = Field(0.05, gt=0, lt=0.5, description="Level of the screening: how often equal code is suspected.")
    fdr: float = Field(0.01, gt=0, lt=0.5, description="False discovery rate of reported changes.")
    beta: float = Field(0.05, gt=0, lt=0.5, description="Type II error rate for a change of exactly `smallest_change`.")
    screening: tuple[int, ...] = Field(
        (3, 5, 8, 12, 16), description="Trials after which each case is decided or gets more; the last is the maximum."
    )
    confirmation: tuple[int, ...] = Field((2, 5, 8, 12), description="The same for the confirmation trials.")
    rounds: int | None = Field(None, ge=4, le=200, description=ROUNDS)
    control_limit: float = Field(0.5, ge=MIN_CONTROL, le=1, description=CONTROL_LIMIT)
    behind_sota: float = Field(0.05, gt=0, lt=10, description="Slower than SOTA by more than this is *behind SOTA*.")
    far_behind_sota: float = Field(
        0.5, gt=0, lt=100, description="A new case that is slower than SOTA by more than this is *far behind*."
    )
    behind_sota_fdr: float = Field(0.01, gt=0, lt=0.5, description="False discovery rate of *behind SOTA*.")
    leak: float = Field(0.03, gt=0, lt=1, description="Slower than the pinned baseline by more than this is a leak.")
    blocking: bool = Field(False, description="Use the stricter actions for all kinds not in `gate`.")
    gate: Mapping[GateKind, GateAction] = Field({}, description="Action of the check for each kind of finding.")
    comment: CommentWhen = Field(CommentWhen.FINDINGS, description="When a pull request gets its first comment.")
    metrics: Mapping[Metric, MetricPolicy] = Field({}, description="Overrides for metrics other than the kernel's.")
    cases: Mapping[str, CasePolicy] = Field({}, description="Overrides by pattern of cases; the last match applies.")
    bisect: Bisecting = Bisecting()
    calibrate: Calibrating = Calibrating()
    _case: str | None = PrivateAttr(None)  # the case that this policy is resolved for (`at`)

    @field_validator("metrics", mode="before")
    @classmethod
    def _known(cls, metrics: Any) -> Any:
        for name in metrics if isinstance(metrics, Mapping) else ():
            if name == Metric.KERNEL:
                raise ValueError("the kernel metric has no table of its own: set its keys under [policy]")
            if name not in list(METRICS):
                raise ValueError(f"unknown metric {name!r}; known: {', '.join(METRICS)}")
        return metrics

    @field_validator("metrics")
    @classmethod
    def _in_its_unit(cls, metrics: Mapping[Metric, MetricPolicy]) -> Mapping[Metric, MetricPolicy]:
        for metric, own in metrics.items():
            if metric.counts and (own.smallest_change < 1 or own.smallest_change % 1):
                raise ValueError(f"{metric} is a count: write the smallest change as a whole number from 1, e.g. 1")
            if metric.counts and own.control_limit is not None:
                raise ValueError(f"{metric} is a count, and counts have no control_limit: copies must be equal")
            if not metric.counts and own.smallest_change >= 1:
                raise ValueError(f"the smallest change of {metric} is relative: less than 1, e.g. 0.05 for 5 %")
        return metrics

    @model_validator(mode="after")
    def _steps_grow(self) -> Self:
        for name in ("screening", "confirmation"):
            steps: tuple[int, ...] = getattr(self, name)
            if not steps or steps[0] < 2 or list(steps) != sorted(set(steps)) or steps[-1] > 32:
                raise ValueError(f"{name} must be increasing numbers from 2 to 32, e.g. [3, 5, 8]")
        return self

    @property
    def digest(self) -> str:
        """Names this version of the policy: the same numbers, judged by the same method, have the same name."""
        content = [METHOD, self.model_dump(mode="json"), list(self.cases)]  # of the patterns that fit, the last counts
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()

    def at(self, case: str) -> Self:
        """The policy for this case, with the overrides of its metric and of patterns that match it.

        Raises ValueError for a policy that is already the one of another case.
        """
        if self._case is not None:
            if self._case != case:
                raise ValueError(f"This is the policy of {self._case}, not of {case}.")
            return self
        metric, named, own = metric_of(case), self._named(case), dict[str, Any]()
        change = self.smallest_change_in(metric)
        if metric.counts:  # one limit for every kind of baseline: relative limits do not apply
            limit = self.smallest_change_of(case)
            own = dict.fromkeys(("smallest_change", "smallest_change_short", "behind_sota", "leak"), limit)
            own["smallest_change_ns"] = 0.0
        elif metric is not Metric.KERNEL:
            limits = self.metrics.get(metric)
            own = {"smallest_change": change, "smallest_change_short": change}
            own["control_limit"] = (limits and limits.control_limit) or self.control_limit
            # The limits of `behind_sota` and `leak` are at least the smallest change.
            own |= {"behind_sota": max(self.behind_sota, change), "leak": max(self.leak, change)}
        if named is not None and not metric.counts:
            own |= named.model_dump(exclude_none=True, exclude={"quarantine", "gate"})
            if named.smallest_change is not None:
                own["smallest_change_short"] = named.smallest_change
        if named is not None:
            own["gate"] = {**self.gate, **named.gate}
        resolved = self.model_copy(update=own)
        resolved._case = case
        return resolved

    def action(self, kind: GateKind) -> GateAction:
        """The gate's action for a finding of this kind; call it on the policy of the case (`at`)."""
        return self.gate.get(kind, GATES[self.blocking][kind])

    def action_at(self, case: str, kind: GateKind) -> GateAction:
        """`at(case).action(kind)`, without resolving the rest of the policy: reports ask for every alarm."""
        named = self._named(case) if self._case is None else None
        own = named.gate.get(kind) if named else None
        return own or self.action(kind)

    def quarantined(self, case: str) -> str | None:
        """The reason why the recipe quarantines this case, or None."""
        named = self._named(case)
        return named.quarantine if named else None

    def smallest_change_at(self, case: str, value: float) -> float:
        """The smallest change that matters at a case whose baseline takes `value` (in its metric's unit), relative.

        Timer, clock and placement grow as the kernel shrinks, so short ones need more, and no nanosecond is acted on.
        """
        limits = self.at(case)
        if not metric_of(case).varies or value <= 0:
            return limits.smallest_change
        short = value < limits.short_us
        share = max(limits.smallest_change, limits.smallest_change_short) if short else limits.smallest_change
        return max(share, limits.smallest_change_ns / 1e3 / value)

    def smallest_change_of(self, case: str) -> float:
        """`at(case).smallest_change`, without resolving the rest of the policy: documents ask for every verdict."""
        if self._case is not None:
            return self.at(case).smallest_change
        metric, named = metric_of(case), self._named(case)
        if metric.counts:
            return counts.limit((named and named.smallest_change_count) or int(self.smallest_change_in(metric)))
        own = named.smallest_change if named else None
        return self.smallest_change_in(metric) if own is None else own

    def smallest_change_in(self, metric: Metric) -> float:
        """The smallest change that matters in a metric, if its case has no limits of its own; of counts a number."""
        if metric is Metric.KERNEL:
            return self.smallest_change
        return (self.metrics.get(metric) or self._usual(metric)).smallest_change

    def _named(self, case: str) -> CasePolicy | None:
        policies = [own for pattern, own in self.cases.items() if fnmatchcase(case, pattern)]
        return policies[-1] if policies else None

    def _usual(self, metric: Metric) -> MetricPolicy:
        """A machine on which kernels are that noisy times nothing better; bytes and counts are the same on all."""
        if not metric.varies:
            return MetricPolicy.model_validate(METRICS[metric])
        return MetricPolicy(smallest_change=max(METRICS[metric], self.smallest_change))


class FactsPolicy(BaseModel):
    """The only place where facts fail a check.  A violation that the base has too is not reported."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spills_allowed: int = Field(0, ge=0, description="Maximum spill instructions, unless the base has as many.")
    over_limit: bool = Field(True, description="Fail if a kernel needs more than the architecture has.")
    refused: Literal["report", "fail"] = Field(
        "fail", description="If a kernel no longer fits and the case launches another one instead."
    )
    broken: Literal["report", "fail"] = Field("fail", description="If a case no longer compiles.")
    more_kernels: Literal["report", "fail"] = Field("report", description="If a case needs more kernels than before.")
    registers_growth: float | None = Field(None, gt=0, description="Largest growth of registers: 0.25 is a quarter.")


Table = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """A policy as somebody wrote it: what holds everywhere, and what differs on single devices."""

    shared: Table = field(default_factory=dict)
    devices: Mapping[str, Table] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Table]:
        """The policy of each named device and of all others, not yet validated."""
        return {name: over(self.shared, own) for name, own in self.devices.items()}

    def on(self, device: str, server: "Written") -> Policy:
        """The policy of a device: this one over the server's.  Both are valid, and so what they make together is."""
        table: Table = {}
        for layer in (server.shared, server.devices.get(device, {}), self.shared, self.devices.get(device, {})):
            table = over(table, layer)
        return Policy.model_validate(table)


NOTHING = Written()  # an empty policy


def split(table: Table) -> Written:
    """A table with the keys of `[policy]`, the devices' own tables apart."""
    return Written({key: value for key, value in table.items() if key != "devices"}, table.get("devices", {}))


def read(text: str, name: str) -> Written:
    """A text with the keys of `[policy]`, or a recipe, whose `[policy]` it is.

    Raises BadInput that names it by `name`, and the line of each mistake.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"The policy {name} is not TOML: {error}.") from None
    inside = ("policy",) if "policy" in table else ()
    table = table["policy"] if inside else table
    devices = table.get("devices", {}) if isinstance(table, dict) else None
    if not isinstance(devices, dict):
        raise BadInput(f"The policy {name} must be a table, and its devices a table of tables.")
    written = split(table)
    mistakes = _mistakes(text, inside, written.shared)
    # What is wrong for all devices is not said once more for each.
    for device, whole in (written if not mistakes else NOTHING).tables.items():
        mistakes += _mistakes(text, (*inside, "devices", device), whole)
    if mistakes:
        raise BadInput(f"The policy {name} has mistakes.\n" + "\n".join(map(str, mistakes)))
    return written


def _mistakes(text: str, where: tuple[str, ...], table: Any) -> list[TomlMistake]:
    try:
        Policy.model_validate(table)
    except ValidationError as error:
        return mistakes(text, error, Policy, where)
    return []


def over(below: Table, own: Any) -> Any:
    """`own` where it says something, and `below` where it does not: metric by metric, and case by case.

    What a metric or a case inherits is at least as noisy on a noisier device as its kernels are; bytes and
    counts are as they were.  What is no table is left as it is, to be refused.
    """
    if not isinstance(own, Mapping):
        return own
    merged = {**below, **own}
    for name in ("metrics", "cases", "gate", "bisect", "calibrate"):
        theirs, ours = below.get(name), own.get(name, {})
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
            kept = {key: value for key, value in theirs.items() if key not in ours}
            if raised := _RAISED.get(name):
                kept = {key: value if key.endswith(_EXACT) else raised(value, own) for key, value in kept.items()}
            merged[name] = kept | dict(ours)  # of the patterns that fit a case the last counts: the nearest
    return merged


def _raised_case(limits: Any, own: Table) -> Any:
    if not isinstance(limits, Mapping) or not isinstance(limits.get("smallest_change"), int | float):
        return limits
    floor = own.get("smallest_change")
    return {**limits, "smallest_change": max(limits["smallest_change"], floor if isinstance(floor, int | float) else 0)}


def _raised_metric(limits: Any, own: Table) -> Any:
    """Raise the limit of a metric; values that are not numbers are kept, so that validation refuses them."""
    return _raised_case(limits if isinstance(limits, Mapping) else {"smallest_change": limits}, own)


_EXACT = tuple(metric.value for metric in Metric if not metric.varies)
_RAISED = {"metrics": _raised_metric, "cases": _raised_case}
