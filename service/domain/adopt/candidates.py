"""What was found in a checkout: benchmarks and kernels, each with its entry of a recipe or with what it lacks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from kernels.cases import Metric

MAX_CASES = 4
NO_MODULE = "the name of its file or folder is no Python name, so it cannot be imported; rename it"
_LABEL = re.compile(r"[\w=,+-][\w=,+.-]*", re.ASCII)
_METRIC_SUFFIX = re.compile(rf".*\.({'|'.join(Metric)})")
_MAX_LABEL = 60
Item = TypeVar("Item")


class CandidateKind(StrEnum):
    PERF_REPORT = "perf_report benchmark"
    OPERATOR = "tritonbench operator"
    TEST = "pytest-benchmark test"
    HELION = "helion kernel"
    NORM = "norm"


@dataclass(frozen=True)
class Candidate:
    """A benchmark or kernel.  It is measured unless it lacks something, and left out if it has no entry."""

    kind: CandidateKind
    path: str
    line: int
    title: str  # its name in the source
    name: str = ""  # of the function in the recipe, or `op.direction` of a norm
    entry: Mapping[str, Any] = field(default_factory=dict)  # of the recipe, besides the name
    folder: str = ""  # that its module is imported from
    lacks: str = ""
    notes: Sequence[str] = ()

    @property
    def taken(self) -> bool:
        return bool(self.entry) and not self.lacks


def slug(text: str) -> str:
    """A text as a part of the name of a function."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def is_label(text: str) -> bool:
    """Whether a case can be named so."""
    return bool(_LABEL.fullmatch(text)) and len(text) <= _MAX_LABEL and not _METRIC_SUFFIX.fullmatch(text)


def spread(items: Sequence[Item]) -> list[Item]:
    """At most four: the first, the last, and others evenly between."""
    if len(items) <= MAX_CASES:
        return list(items)
    return [items[round(step * (len(items) - 1) / (MAX_CASES - 1))] for step in range(MAX_CASES)]
