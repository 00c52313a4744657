"""What is measured of a case: each lane has a clock of its own."""

from collections.abc import Sequence
from typing import Any

from ..clocks import Call, Clock, CpuClock, CudaClock
from ..providers import Unsupported
from ..words import Case, Lane


def clock_of(case: Case, calls: Sequence[Call], stream: Any) -> Clock:
    """The clock of the case's lane, with the calls warmed up.  `stream` is None on a CPU.

    Raises Unsupported, and what the calls raise.
    """
    if case.lane is not Lane.KERNEL:
        raise Unsupported(f"the lane {case.lane} is not measured yet")
    return CpuClock(calls) if stream is None else CudaClock(calls, stream, case.least_bytes)
