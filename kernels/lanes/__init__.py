"""What is measured of a case: each lane has a clock of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..clocks import Call, Clock, CpuClock, CudaClock
from ..inputs import Inputs
from ..providers import Unsupported
from ..providers.base import Bind
from ..words import Case, Lane

if TYPE_CHECKING:
    from ..bench import Bench


def clock_of(case: Case, bench: "Bench", bind: Bind, sets: Sequence[Inputs], calls: Sequence[Call]) -> Clock:
    """The clock of the case's lane; `calls` are the input sets bound, and have run before.

    A clock may have `facts` of its own, which join those of the case.  Raises Unsupported, and what the calls raise.
    """
    if case.lane is not Lane.KERNEL:
        raise Unsupported(f"the lane {case.lane} is not measured yet")
    return CpuClock(calls) if bench.stream is None else CudaClock(calls, bench.stream, case.least_bytes)
