"""The hard limits of a recipe's `[facts]` table: which facts of compiled code end a check with a failure."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class FactsPolicy(BaseModel):
    """Facts explain, and judge only here.  What was so at the base already is never held against the head."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    spills_allowed: int = Field(0, ge=0, description="Spill instructions of a case that had no more than that before.")
    over_limit: bool = Field(True, description="A kernel that asks for more than the architecture has fails.")
    refused: Literal["report", "fail"] = Field(
        "fail", description="A kernel that no longer fits, where the case trials another in its place."
    )
    broken: Literal["report", "fail"] = Field("fail", description="A case that compiled and no longer does.")
    more_kernels: Literal["report", "fail"] = Field("report", description="More kernels for the same case.")
    registers_growth: float | None = Field(None, gt=0, description="Largest growth of registers: 0.25 is a quarter.")
