"""Measurements as benchmarks of other tools: github-action-benchmark and Bencher."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kernels.cases import Role
from kernelwatch.client.models import RunDocument
from service.domain.metrics import metric_of
from service.domain.states import CellState
from service.domain.text import one_line


@dataclass(frozen=True)
class Benchmark:
    """The median of a revision at a case; `low` to `high` is the interval of its ratio to the baseline, as amounts."""

    device: str
    provider: str
    case: str
    unit: str  # us, bytes or count
    median: float
    low: float | None = None
    high: float | None = None
    note: str = ""


def of_run(run: RunDocument) -> Iterator[Benchmark]:
    """What the revision of a run took."""
    verdicts = {(one.provider, one.case): one for one in run.verdicts if one.baseline_kind == "parent"}
    for one in run.measurements:
        if one.role != Role.HEAD or one.state != CellState.MEASURED or one.median is None:
            continue
        verdict = verdicts.get((one.provider, one.case))
        low = high = None
        # The ratio of counts is not their quotient.
        if verdict and verdict.ratio and verdict.low and verdict.high and not metric_of(one.case).counts:
            low, high = one.median * verdict.low / verdict.ratio, one.median * verdict.high / verdict.ratio
        result = [one_line(f"{verdict.outcome}: {verdict.summary}")] if verdict else []
        note = "\n".join([*result, run.url])
        yield Benchmark(run.device, one.provider, one.case, one.unit, one.median, low, high, note)


def of_action(one: Benchmark) -> dict[str, Any]:
    """An entry of `customSmallerIsBetter`."""
    entry = {"name": f"{one.device} {one.provider} {one.case}", "value": one.median, "unit": one.unit}
    between = {"range": f"{one.low:.6g} to {one.high:.6g}"} if one.low is not None and one.high is not None else {}
    return entry | between | ({"extra": one.note} if one.note else {})


def metric_format(benchmarks: Iterable[Benchmark]) -> dict[str, Any]:
    """The Bencher Metric Format.  Bencher's own measure of times is in nanoseconds; a device is a testbed there."""
    return {f"{one.provider} {one.case}": _measure(one) for one in benchmarks}


def _measure(one: Benchmark) -> dict[str, Any]:
    name, factor = ("latency", 1000.0) if one.unit == "us" else (metric_of(one.case).value, 1.0)
    values = {"value": one.median, "lower_value": one.low, "upper_value": one.high}
    return {name: {key: value * factor for key, value in values.items() if value is not None}}
