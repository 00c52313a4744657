"""One clock for each metric of a case."""

from collections.abc import Sequence

from ..arena.sizes import calls_in_graph
from ..cases import Case, Metric
from ..checks.inputs import Inputs
from ..providers.base import Bind
from .bench import Bench
from .call import CallClock
from .clocks import Call, Clock, CpuClock, CudaClock
from .compile import CompileClock
from .counts import BreaksClock, KernelsClock, RecompilesClock
from .memory import MemoryClock


def clock_of(
    case: Case, bench: Bench, bind: Bind, sets: Sequence[Inputs], calls: Sequence[Call], graph_s: float
) -> Clock:
    """The clock of the case's metric.  `calls` are the bound input sets, each of which ran before.

    A clock may have `facts`, which are added to those of the case.

    Raises: Unsupported, and what the calls raise.
    """
    match case.metric:
        case Metric.KERNEL:
            return (
                CpuClock(calls)
                if bench.stream is None
                else CudaClock(calls, bench.stream, calls_in_graph(case, len(calls), graph_s))
            )
        case Metric.CALL:
            return CallClock(calls, bench.stream)
        case Metric.MEMORY:
            return MemoryClock(bind, sets, calls, on_gpu=bench.stream is not None)
        case Metric.COMPILE:
            return CompileClock(bench, case, sets, calls)
        case Metric.RECOMPILES:
            return RecompilesClock(bench, case, sets, calls)
        case Metric.BREAKS:
            return BreaksClock(bench, case, sets, calls)
        case Metric.KERNELS:
            return KernelsClock(bench, case, sets, calls)
        case Metric.BLOCK:
            raise ValueError(f"{case}: use PreparedBlock for the block metric")
