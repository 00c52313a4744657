"""Compare a contender's claims with what the driver saw.  Pure.

A target shares its process with the clock and could manipulate it, or let other processes work for it.  The driver
cannot see single calls, but it sees how long each turn takes from request to answer, and on a CPU how much CPU time all
processes of the contender take: the time that the contender claims, plus an overhead.  The overhead is about the same
for all contenders; those that run no code of the target show how large it is.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from ..cases import BY_ROW, DTYPE_BYTES, Case
from .sizes import PASS_S, sets_of_pass

# Allowed difference, as a share of the claimed time plus a constant per turn.  On a GPU turns of 15 ms took 0.3 to 1 ms
# more (H200, November); on a CPU the scheduler adds to that.
TOLERANCE = {"cuda": 0.15, "cpu": 1.0}
TOLERANCE_S = {"cuda": 2e-3, "cpu": 20e-3}
# Where the CPU time of all processes is known: what a turn may take above the claim, in CPU time and in wall time.  An
# honest turn of 8 ms took 1.5 ms more CPU time than those of a trusted contender, as caches were cold (November).  A
# busy scheduler adds to wall time only, and who waits gains nothing, because no other process runs.
MAX_EXTRA = 0.1
MAX_EXTRA_CPU_S, MAX_EXTRA_WALL_S = 2e-3, 20e-3
# The share of a turn that other programs may take outside the timed samples: up to 0.46 was seen in medians of six
# turns, at a load of 11 on two cores (November).
MAX_BUSY = 0.4
MAX_OVERHEAD_S = {"cuda": 10e-3, "cpu": 50e-3}
# What a single pass over the input sets may take, relative to the claim, in CPU time: it runs once, after other
# contenders.  The fastest of three passes of honest contenders took up to 2.1 times the claim, beside eight other
# programs on two cores (November).
MAX_PASS = 2.5
MIN_PASS_S = PASS_S / 4  # unless all sets take part
# The slowest that restoring inputs is believed to be, where calls overwrite them: bytes that are read and written per
# second, and per tensor.  On an H200 3.0e12 bytes/s, and 1.9 us for each tensor of 1 MiB (November).
RESTORED_BYTES_S = {"cuda": 1.5e12, "cpu": 1.5e9}
RESTORED_TENSOR_S = {"cuda": 1e-6, "cpu": 20e-6}
MAX_WAIT_US = 400.0  # of a small launch on an idle GPU
# CPU time in all pauses of a case together.  Stopping and waking costs an honest contender 5 ms of it (November); one
# that runs on takes all of the others' turns, hundreds of milliseconds.  Beside a GPU there are more cores and more
# threads to stop: 20.2 ms of an honest provider on an H200 (November).
MAX_FROZEN_S = {"cuda": 60e-3, "cpu": 20e-3}


@dataclass
class Turns:
    """All turns of one contender at one case, in seconds.  `trusted`: it runs no code of the target."""

    trusted: bool = False
    waited: list[float] = field(default_factory=list)  # measured by the driver
    claimed: list[float] = field(default_factory=list)  # by the contender
    cpu: list[float] = field(default_factory=list)  # of all its processes during its turns; empty if unknown

    def add(self, waited: float, claimed: float, cpu: float | None = None) -> None:
        self.waited.append(waited)
        self.claimed.append(claimed)
        if cpu is not None:
            self.cpu.append(cpu)

    @property
    def unclaimed(self) -> float:
        """The median, because single turns may be late, while a manipulated clock affects all turns."""
        return _excess(self.waited, self.claimed)

    @property
    def unclaimed_cpu(self) -> float:
        return _excess(self.cpu, self.claimed)

    @property
    def interrupted(self) -> float:
        """Median time of a turn in which other programs used the processor, or it waited; 0 if unknown."""
        return max(0.0, _excess(self.waited, self.cpu))


@dataclass
class Passes(Turns):
    """Turns with a single pass over the input sets, whose outputs are judged: their number of calls is no claim."""

    sets: int = 0
    expected: float = 0.0  # seconds of a pass by its other turns; 0 if unknown

    def expect(self, samples: Sequence[float | None], sets: int) -> None:
        """`samples`: us of a call in its other turns."""
        self.sets = sets
        known = [sample for sample in samples if sample is not None]
        self.expected = median(known) * sets / 1e6 if known else 0.0


def _excess(more: Sequence[float], less: Sequence[float]) -> float:
    return median(one - other for one, other in zip(more, less, strict=True)) if more and less else 0.0


def believed_restoring(claimed_s: object, case: Case, device: str, calls: int) -> float:
    """What a turn of `calls` calls is granted for restoring its inputs, of what it claims for that, in seconds."""
    tensors = calls * sum(name in BY_ROW for name in case.inputs)
    moved = 2 * tensors * case.rows * case.cols * DTYPE_BYTES[case.dtype]
    most = moved / RESTORED_BYTES_S[device] + tensors * RESTORED_TENSOR_S[device]
    return max(0.0, min(claimed_s, most)) if isinstance(claimed_s, int | float) else 0.0


def ran_while_frozen(cpu_s: float, device: str) -> str | None:
    """Why a contender may have slowed down others, by its CPU time during their turns; None if it rested."""
    if cpu_s <= MAX_FROZEN_S[device]:
        return None
    return f"it used {cpu_s * 1e3:.3g} ms of CPU time while it was frozen for the turns of others"


def left_work(waits_us: Sequence[float]) -> str | None:
    """Whether its turns usually left work on the device, which slows down the next ones; None if they did not."""
    if not waits_us or median(waits_us) <= MAX_WAIT_US:
        return None
    return f"it left work on the device: after its turns a small launch took {median(waits_us):.0f} us"


def disagreement(own: Turns, all_turns: Iterable[Turns], device: str) -> str | None:
    """Why a contender's times cannot be true; None if they can."""
    if not own.claimed:
        return None
    measured = [turns for turns in all_turns if turns.claimed]
    references = [turns for turns in measured if turns.trusted] or measured
    claimed = median(own.claimed)
    tolerance = TOLERANCE[device] * claimed + TOLERANCE_S[device]
    if device == "cpu" and own.cpu:
        tolerance = MAX_EXTRA * claimed + MAX_EXTRA_CPU_S
        overhead = _overhead(turns.unclaimed_cpu for turns in references)
        if (missing := own.unclaimed_cpu - min(overhead, MAX_OVERHEAD_S[device])) > tolerance:
            actual = claimed + missing
            return (
                f"its processes used {actual * 1e3:.3g} ms of CPU time in a turn of {claimed * 1e3:.3g} ms by its own "
                "account"
            )
        # Other programs make turns longer than their CPU time, in the timed samples or outside them.
        busy = min(_busy(turns) for turns in references)
        tolerance += MAX_EXTRA_WALL_S - MAX_EXTRA_CPU_S + min(busy, MAX_BUSY) * max(claimed, median(own.waited) / 2)
    overhead = _overhead(turns.unclaimed for turns in references)
    missing = own.unclaimed - min(overhead, MAX_OVERHEAD_S[device])
    if own.unclaimed >= -tolerance and missing <= tolerance:
        return None
    actual = max(0.0, claimed + (missing if missing > 0 else own.unclaimed))
    return (
        f"its clock disagrees with the driver's: a turn of {claimed * 1e3:.3g} ms by its own account took "
        f"{actual * 1e3:.3g} ms"
    )


def too_few_sets(own: Passes, case: Case) -> str | None:
    """Whether a contender has fewer input sets in a pass than its speed asks for; None if it has enough."""
    most = sets_of_pass(case)
    if not own.claimed or own.sets >= most or not 0 < own.expected < MIN_PASS_S:
        return None
    return f"has {own.sets} of {most} input sets, although it claims {own.expected * 1e6:.4g} us for all"


def too_fast(own: Passes, all_passes: Iterable[Passes]) -> str | None:
    """Whether a contender claims less than its calls take where each output may be judged; None if it does not."""
    others = [one for one in all_passes if one is not own and one.cpu and one.expected]
    if not own.cpu or not own.expected or not others:
        return None
    overhead = _overhead(one.unclaimed_cpu for one in others)
    # The fastest pass: its outputs count as well, and other programs on the host slow down many of them.
    took = min(own.cpu) - overhead
    # Caches are cold in a pass, which costs each call about the same; slower clocks cost all of them the same share.
    cold = median((min(one.cpu) - overhead - one.expected) / one.sets for one in others) * own.sets
    factor = median((min(one.cpu) - overhead) / one.expected for one in others)
    judged = min(took, took - cold, took / max(1.0, factor))
    if judged <= MAX_PASS * own.expected:
        return None
    return f"claims {own.expected * 1e6:.4g} us for calls that took {judged * 1e6:.4g} us while all outputs counted"


def _overhead(of_references: Iterable[float]) -> float:
    return max(0.0, min(of_references))


def _busy(turns: Turns) -> float:
    """The share of a turn in which other programs had the processor."""
    return turns.interrupted / max(median(turns.waited), 1e-9)
