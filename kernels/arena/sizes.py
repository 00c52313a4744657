"""How much of a case is rotated and how many calls are timed together on a GPU.  Pure, and no torch in here.

The case and the device decide, and never a contender's own speed: each replay of a graph has a fixed cost of 1.3 to
2.9 us, and equal code that was given 23 calls here and 46 there differed by up to 1.8 % (H200, November).
"""

from ..cases import Case, Direction

GRAPH_S = 2e-3  # what one replay of a CUDA graph should take, for the same reason; the arena may ask for less
NOMINAL_BYTES_S = 4e12  # of a good kernel on a GPU of today
# What it takes beside moving its bytes; backwards there is a second kernel for the gradients of the weights.
NOMINAL_TRIAL_S = {Direction.FWD: 2e-6, Direction.BWD: 6e-6, Direction.FWDBWD: 8e-6}
# Input sets, one for each call of the graph.  Where memory lies decides what varies from process to process: with 54
# sets instead of 3 the ratio at 32768x1024 spread by 0.07 % instead of 0.16, with 28 instead of 2 at 8192x8192 by 0.04
# instead of 0.12.  And three times the L2 are not enough to be cold: a kernel that asks for its inputs to be evicted
# first keeps its outputs there, and took 5.6 us at 4096x1024 with 3 times the L2 and 6.3 from 12 times on, beside
# another that took 6.67 with both (H200, November).
MAX_SETS = 768
MAX_SET_BYTES = 5 << 30
OF_MEMORY = 1 / 16  # of the device's, for inputs; as much again for outputs, and several contenders hold theirs at once
COLD = 12  # times the L2


def most_calls(case: Case, graph_s: float = GRAPH_S) -> int:
    """As many calls of a good kernel as fit into `graph_s`."""
    nominal_s = NOMINAL_TRIAL_S[case.direction] + case.least_bytes / NOMINAL_BYTES_S
    return max(2, min(MAX_SETS, int(graph_s / nominal_s)))


def calls_in_graph(case: Case, sets: int, graph_s: float = GRAPH_S) -> int:
    """A multiple of the sets, at most `most_calls`, or once through all sets where they are more."""
    return max(1, most_calls(case, graph_s) // sets) * sets


def sets_needed(
    case: Case, set_bytes: int, l2_bytes: int | None, memory_bytes: int | None = None, graph_s: float = GRAPH_S
) -> int:
    """How many input sets to rotate: as many as there are calls in a graph, where there is memory for them.

    Two on a CPU, where caches are part of the work.
    """
    if l2_bytes is None:
        return 2
    allowed = min(MAX_SET_BYTES, int(OF_MEMORY * (memory_bytes or 16 * MAX_SET_BYTES))) // set_bytes
    return max(2, min(most_calls(case, graph_s), allowed))


def stays_in_l2(set_bytes: int, sets: int, l2_bytes: int) -> bool:
    """Is what a call reads likely to be in the L2 still from the time before?"""
    return sets * set_bytes < COLD * l2_bytes
