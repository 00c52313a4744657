"""The hard limits of a recipe's `[facts]` table: which facts of compiled code end a check with a failure."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


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
