"""Filters of lists as values, and the conditions that they are in a query."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sqlalchemy import ColumnElement, not_, or_
from sqlalchemy.orm import InstrumentedAttribute

from kernels.cases import Metric
from service.db.models import Measurement, Run, Target, VerdictRow
from service.domain.metrics import metric_of
from service.domain.states import Purpose, RunState


@dataclass(frozen=True)
class RunFilter:
    """Which runs; None and empty do not limit."""

    target: Target | None = None
    device: str | None = None
    states: Collection[RunState] = ()
    purpose: Purpose | None = None
    pull: int | None = None
    revision: str | None = None  # a sha or its beginning, or a version
    since: float | None = None  # when they were queued
    until: float | None = None  # queued before

    def conditions(self) -> list[ColumnElement[bool]]:
        """Conditions on the columns of runs; the revision needs a join."""
        limits = {Run.device: self.device, Run.purpose: self.purpose, Run.pull: self.pull}
        wanted = [column == value for column, value in limits.items() if value is not None]
        if self.target is not None:
            wanted.append(Run.target_id == self.target.id)
        if self.states:
            wanted.append(Run.state.in_(self.states))
        if self.since is not None:
            wanted.append(Run.created_at >= self.since)
        if self.until is not None:
            wanted.append(Run.created_at < self.until)
        return wanted


@dataclass(frozen=True)
class CaseFilter:
    """Which cases of which providers; None does not limit."""

    provider: str | None = None
    op: str | None = None
    metric: Metric | None = None
    case: str | None = None  # with * and ? as in file names

    def on(self, table: type[Measurement | VerdictRow]) -> tuple[ColumnElement[bool], ...]:
        """Conditions for a query of measurements or verdicts."""
        return tuple(self._conditions(table.provider, table.case))

    def _conditions(
        self, provider: InstrumentedAttribute[str], case: InstrumentedAttribute[str]
    ) -> Iterator[ColumnElement[bool]]:
        if self.provider is not None:
            yield provider == self.provider
        if self.op is not None:
            yield case.startswith(f"{self.op}.", autoescape=True)
        if self.metric is not None:
            yield _has_metric(case, self.metric)
        if self.case is not None:
            yield case.like(_pattern(self.case), escape="\\")

    def fits(self, provider: str, case: str) -> bool:
        """The same for a case that was read already."""
        return (
            self.provider in (None, provider)
            and (self.op is None or case.startswith(f"{self.op}."))
            and (self.metric is None or metric_of(case) is self.metric)
            and (self.case is None or fnmatchcase(case, self.case.replace("[", "[[]")))
        )


def _has_metric(case: InstrumentedAttribute[str], metric: Metric) -> ColumnElement[bool]:
    """The metric is the end of a printed case, except *kernel*."""
    if metric is not Metric.KERNEL:
        return case.endswith(f".{metric.value}")
    return not_(or_(*(case.endswith(f".{other.value}") for other in Metric if other is not Metric.KERNEL)))


def _pattern(glob: str) -> str:
    """`rmsnorm.*.bf16` as LIKE has it."""
    escaped = re.sub(r"([\\%_])", r"\\\1", glob)
    return escaped.replace("*", "%").replace("?", "_")
