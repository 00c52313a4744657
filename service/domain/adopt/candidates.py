"""What was found in a checkout: benchmarks and kernels, each with its entry of a recipe or with what it lacks."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from kernels.cases import FunctionCase

MAX_CASES = 4
NO_MODULE = "the name of its file or folder is no Python name, so it cannot be imported; rename it"
MAX_LABEL = 40  # characters; the name of the function needs the rest of a case
MAX_NAME = 70
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

    @property
    def cases(self) -> list[str]:
        return list(self.entry["cases"]) if self.entry else []


def slug(text: str) -> str:
    """A text as a part of the name of a function."""
    plain = re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:MAX_NAME]
    return plain if re.match(r"[A-Za-z_]", plain) else f"_{plain}"


def is_label(text: str) -> bool:
    """Whether a case can be named so."""
    try:
        return len(text) <= MAX_LABEL and FunctionCase.parse(f"name/{text}").label == text
    except ValueError:
        return False


def spread(items: Sequence[Item]) -> list[Item]:
    """At most four: the first, the last, and others evenly between."""
    if len(items) <= MAX_CASES:
        return list(items)
    return [items[round(step * (len(items) - 1) / (MAX_CASES - 1))] for step in range(MAX_CASES)]
