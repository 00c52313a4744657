"""Compare a contender's clock with the driver's.  Pure.

A target shares its process with the clock and could manipulate it.  The driver cannot see single calls, but it sees how
long each turn takes from request to answer: the time that the contender claims, plus an overhead.  The overhead is
about the same for all contenders; those that run no code of the target show how large it is.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

# Allowed difference, as a share of the claimed time plus a constant per turn.  On a GPU turns of 15 ms took 0.3 to 1 ms
# more (H200, November); on a CPU the scheduler adds to that.
TOLERANCE = {"cuda": 0.15, "cpu": 1.0}
TOLERANCE_S = {"cuda": 2e-3, "cpu": 20e-3}
MAX_OVERHEAD_S = {"cuda": 10e-3, "cpu": 50e-3}


@dataclass
class Turns:
    """All turns of one contender at one case, in seconds.  `trusted`: it runs no code of the target."""

    trusted: bool = False
    waited: list[float] = field(default_factory=list)  # measured by the driver
    claimed: list[float] = field(default_factory=list)  # by the contender

    def add(self, waited: float, claimed: float) -> None:
        self.waited.append(waited)
        self.claimed.append(claimed)

    @property
    def unclaimed(self) -> float:
        """The median, because single turns may be late, while a manipulated clock affects all turns."""
        return median(waited - claimed for waited, claimed in zip(self.waited, self.claimed, strict=True))


def disagreement(own: Turns, all_turns: Iterable[Turns], device: str) -> str | None:
    """Why a contender's times cannot be true; None if they can."""
    if not own.claimed:
        return None
    claimed = median(own.claimed)
    tolerance = TOLERANCE[device] * claimed + TOLERANCE_S[device]
    measured = [turns for turns in all_turns if turns.claimed]
    references = [turns for turns in measured if turns.trusted] or measured
    overhead = min(turns.unclaimed for turns in references)
    missing = own.unclaimed - min(max(0.0, overhead), MAX_OVERHEAD_S[device])
    if own.unclaimed >= -tolerance and missing <= tolerance:
        return None
    actual = max(0.0, claimed + (missing if missing > 0 else own.unclaimed))
    return (
        f"its clock disagrees with the driver's: a turn of {claimed * 1e3:.3g} ms by its own account took "
        f"{actual * 1e3:.3g} ms"
    )
