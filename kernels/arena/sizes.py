"""Number of input sets that rotate, and of calls that are timed together on a GPU.  Pure, torch-free.

Both depend only on the case and the device, never on a contender's speed: each replay of a graph has a fixed cost of
1.3 to 2.9 us, and equal code with 23 calls in one place and 46 in another differed by up to 1.8 % (H200, November).
"""

import math

from ..cases import AnyCase, Case, Direction, FunctionCase

GRAPH_S = 2e-3  # target time of one replay of a CUDA graph, for the same reason; the arena may ask for less
NOMINAL_BYTES_S = 4e12  # of a good kernel on a current GPU
NOMINAL_FLOP_S = 5e14
# Fixed time of a call; a backward pass has a second kernel for the gradients of the weights.
NOMINAL_LAUNCH_S = {Direction.FWD: 2e-6, Direction.BWD: 6e-6, Direction.FWDBWD: 8e-6}
# One input set for each call of the graph.  Memory addresses cause most of the variation between processes: with 54
# sets instead of 3 the ratio at 32768x1024 spread by 0.07 % instead of 0.16 %, with 28 instead of 2 at 8192x8192 by
# 0.04 % instead of 0.12 %.  Three times the L2 are not enough to be cold: a kernel that loads with evict_first keeps
# its outputs in the L2, and took 5.6 us at 4096x1024 with 3 times the L2 and 6.3 us from 12 times on, while another
# kernel took 6.67 us with both (H200, November).
MAX_SETS = 768
MAX_SET_BYTES = 5 << 30
MAX_MEMORY_SHARE = 1 / 16  # of the device, for inputs; outputs take as much, and several contenders share the device
COLD = 12  # times the L2
SETS_ON_CPU = 2  # that rotate there, where caches stay warm
# Of a pass on a CPU, in which no two calls have the same numbers: long enough to tell its CPU time from the fixed cost
# of a turn, with calls as fast as those of the fastest kernels.
PASS_S = 2e-3
CPU_BYTES_S, CPU_LAUNCH_S = 16e9, 2e-6
MAX_PASS_BYTES = 16 << 20  # of all inputs and outputs: with more, a pass waits for memory, and a turn for caches


def max_calls(case: AnyCase, graph_s: float = GRAPH_S) -> int:
    """How many calls of a good kernel fit into `graph_s`."""
    direction = Direction.FWD if isinstance(case, FunctionCase) else case.direction
    nominal_s = NOMINAL_LAUNCH_S[direction] + case.least_bytes / NOMINAL_BYTES_S
    if isinstance(case, FunctionCase):  # may compute more than it moves; a norm does not
        nominal_s = max(nominal_s, case.flops / NOMINAL_FLOP_S)
    return max(2, min(MAX_SETS, int(graph_s / nominal_s)))


def calls_in_graph(case: AnyCase, sets: int, graph_s: float = GRAPH_S) -> int:
    """The largest multiple of `sets` up to `max_calls`; `sets` if they are more."""
    return max(1, max_calls(case, graph_s) // sets) * sets


def sets_needed(
    case: AnyCase, set_bytes: int, l2_bytes: int | None, memory_bytes: int | None = None, graph_s: float = GRAPH_S
) -> int:
    """Number of input sets: one for each call of the graph if memory allows; on a CPU SETS_ON_CPU."""
    if l2_bytes is None:
        return SETS_ON_CPU
    allowed = min(MAX_SET_BYTES, int(MAX_MEMORY_SHARE * (memory_bytes or 16 * MAX_SET_BYTES))) // set_bytes
    return max(2, min(max_calls(case, graph_s), allowed))


def sets_of_pass(case: Case) -> int:
    """Number of input sets of a single pass of a fast kernel on a CPU."""
    calls = math.ceil(PASS_S / (CPU_LAUNCH_S + case.least_bytes / CPU_BYTES_S))
    return max(SETS_ON_CPU, min(MAX_SETS, calls, MAX_PASS_BYTES // case.least_bytes))


def device_bytes(case: Case, memory_bytes: int, graph_s: float = GRAPH_S) -> int:
    """About how much memory of a GPU a contender needs at a case: inputs, outputs, and half as much for its work."""
    sets = sets_needed(case, case.set_bytes, 1, memory_bytes, graph_s)
    outputs = max(0, case.least_bytes - case.set_bytes)
    return 3 * (sets * case.set_bytes + calls_in_graph(case, sets, graph_s) * outputs) // 2


def stays_in_l2(set_bytes: int, sets: int, l2_bytes: int) -> bool:
    """Can inputs of a call still be in the L2 from its last turn?"""
    return sets * set_bytes < COLD * l2_bytes
