"""The policy: what counts as a change that somebody should hear of.  Plain numbers, validated with the recipe."""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from kernels.words import Lane
from service.lanes import lane_of

# What the lanes beside the kernel's take for a change, where the recipe says nothing: the host's time of a call varies
# more than the device's, a compiler's still more, and how many bytes a call holds does not vary at all.
LANES: Mapping[Lane, float] = {Lane.CALL: 0.05, Lane.BLOCK: 0.02, Lane.COMPILE: 0.20, Lane.MEMORY: 0.01}

ROUNDS = (
    "In each launch; what varies is the launch.  Compiling and memory have 1, a block at most 10, "
    "and on a GPU every case of a launch of more than 60 at most 4."
)


class LanePolicy(BaseModel):
    """What differs at the cases of one lane."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    smallest_change: float = Field(gt=0, lt=1)
    control_limit: float | None = Field(None, gt=0, lt=1, description="As smallest_change, where it is not given.")

    @model_validator(mode="before")
    @classmethod
    def _from_a_number(cls, given: Any) -> Any:
        """`call = 0.05` is short for a table."""
        return given if isinstance(given, Mapping) else {"smallest_change": given}


class Policy(BaseModel):
    """Thresholds are relative: 0.02 means 2 %.  `looks` are launch counts after which the cases are looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    smallest_change: float = Field(0.02, gt=0, lt=1, description="Below this nobody acts on it.")
    confidence: float = Field(0.95, gt=0.5, lt=1)
    looks: tuple[int, ...] = Field(
        (3, 5, 8, 12, 16),
        description="Launches after which undecided cases get more, up to the last; again for fresh ones that confirm.",
    )
    rounds: int = Field(8, ge=4, le=200, description=ROUNDS)
    control_limit: float = Field(0.02, gt=0, lt=1, description="A/A beyond this makes the session's case inconclusive.")
    behind: float = Field(0.05, gt=0, lt=10, description="Slower than SOTA by more than this is *behind SOTA*.")
    blocking: bool = Field(False, description="A regression fails the check instead of only being reported.")
    lanes: Mapping[Lane, LanePolicy] = Field({}, description="What differs at lanes other than the kernel's.")

    @field_validator("lanes", mode="before")
    @classmethod
    def _known(cls, lanes: Any) -> Any:
        for name in lanes if isinstance(lanes, Mapping) else ():
            if name == Lane.KERNEL:
                raise ValueError("the kernel's lane has no entry of its own: what stands under [policy] is for it")
            if name not in list(LANES):
                raise ValueError(f"unknown lane {name!r}; known: {', '.join(LANES)}")
        return lanes

    @model_validator(mode="after")
    def _looks_grow(self) -> Self:
        if not self.looks or self.looks[0] < 2 or list(self.looks) != sorted(set(self.looks)) or self.looks[-1] > 32:
            raise ValueError("looks must be growing numbers from 2 to 32, e.g. [3, 5, 8]")
        return self

    def at(self, case: str) -> Self:
        """The policy as it is for this case, whose lane may have limits of its own."""
        lane = lane_of(case)
        if lane is Lane.KERNEL:
            return self
        limits = self.lanes.get(lane) or self._usual(lane)
        change = limits.smallest_change
        own = {"smallest_change": change, "control_limit": limits.control_limit or change}
        # Nobody is behind by less than what is a change at all.
        return self.model_copy(update={**own, "behind": max(self.behind, change)})

    def _usual(self, lane: Lane) -> LanePolicy:
        """A machine on which kernels are that noisy times nothing better; bytes are the same on all."""
        if lane is Lane.MEMORY:
            return LanePolicy.model_validate(LANES[lane])
        change, control = (max(LANES[lane], own) for own in (self.smallest_change, self.control_limit))
        return LanePolicy(smallest_change=change, control_limit=control)
