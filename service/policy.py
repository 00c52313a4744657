"""The policy: what counts as a change that somebody should hear of.  Plain numbers, validated with the recipe."""

from pydantic import BaseModel, ConfigDict, Field, model_validator


class Policy(BaseModel):
    """Thresholds are relative times: 0.02 means 2 %.  `looks` are launch counts after which the cases are looked at."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    smallest_change: float = Field(0.02, gt=0, lt=1, description="Below this nobody acts on it.")
    confidence: float = Field(0.95, gt=0.5, lt=1)
    looks: tuple[int, ...] = Field(
        (3, 5, 8),
        description="Launches after which undecided cases get more, up to the last; again for fresh ones that confirm.",
    )
    rounds: int = Field(20, ge=4, le=200)
    control_limit: float = Field(0.02, gt=0, lt=1, description="A/A beyond this makes the session's case inconclusive.")
    behind: float = Field(0.05, gt=0, lt=10, description="Slower than SOTA by more than this is *behind SOTA*.")
    blocking: bool = Field(False, description="A regression fails the check instead of only being reported.")

    @model_validator(mode="after")
    def _looks_grow(self) -> "Policy":
        if not self.looks or self.looks[0] < 2 or list(self.looks) != sorted(set(self.looks)) or self.looks[-1] > 32:
            raise ValueError("looks must be growing numbers from 2 to 32, e.g. [3, 5, 8]")
        return self
