"""How a whole run stands beside its baseline: the geometric mean of each op and direction.  Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from kernels.words import Lane


@dataclass(frozen=True)
class Summary:
    """The geometric mean over cases of head over baseline, with its interval over launches."""

    provider: str
    op: str
    direction: str
    lane: Lane
    cases: int
    ratio: float
    low: float
    high: float
    launches: int

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Self:
        return cls(**{**stored, "lane": Lane(stored["lane"])})
