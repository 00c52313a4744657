"""What is measured of a case: each metric has a clock of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...cases import Case, Metric
from ...checks.inputs import Inputs
from ...providers.base import Bind
from ..clocks import Call, Clock, CpuClock, CudaClock
from .call import CallClock
from .compile import CompileClock
from .memory import MemoryClock

if TYPE_CHECKING:
    from ..prepared import Bench


def clock_of(
    case: Case, bench: "Bench", bind: Bind, sets: Sequence[Inputs], calls: Sequence[Call], graph_s: float
) -> Clock:
    """The clock of the case's metric; `calls` are the input sets bound, and have run before.

    A clock may have `facts` of its own, which join those of the case.  Raises Unsupported, and what the calls raise.
    """
    match case.metric:
        case Metric.KERNEL:
            return CpuClock(calls) if bench.stream is None else CudaClock(calls, bench.stream, case, graph_s)
        case Metric.CALL:
            return CallClock(calls, bench.stream)
        case Metric.MEMORY:
            return MemoryClock(bind, sets, calls, on_gpu=bench.stream is not None)
        case Metric.COMPILE:
            return CompileClock(bench, case, sets, calls)
        case Metric.BLOCK:
            raise ValueError(f"{case}: a block is measured by itself, not by the calls of its norm")
