"""Does a contender's own clock agree with the driver's?  Pure: what turns took, seen from inside and from outside.

A target shares its process with the clock and could turn it back.  The driver can not see single calls, but it sees how
long each turn took from question to answer: what the contender claims, and what asking costs.  Asking costs everybody
about the same; who runs nothing of the target's says how much.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import median

# Of what is claimed, on top of what asking costs.  On a GPU turns of 15 ms came 0.3 to 1 ms late (H200, November); on a
# CPU the scheduler has a word in it.
ROOM = {"cuda": 0.15, "cpu": 1.0}
ROOM_S = {"cuda": 2e-3, "cpu": 20e-3}  # a turn
MAX_ASKING_S = {"cuda": 10e-3, "cpu": 50e-3}


@dataclass
class Turns:
    """All turns of one contender at one case, in seconds.  `trusted` runs nothing of the target's."""

    trusted: bool = False
    waited: list[float] = field(default_factory=list)  # by the driver
    claimed: list[float] = field(default_factory=list)

    def add(self, waited: float, claimed: float) -> None:
        self.waited.append(waited)
        self.claimed.append(claimed)

    @property
    def unclaimed(self) -> float:
        """Of the usual turn: one that came late accuses nobody, and who lies does it in all of them."""
        return median(waited - claimed for waited, claimed in zip(self.waited, self.claimed, strict=True))


def disagreement(mine: Turns, everybodys: Iterable[Turns], device: str) -> str | None:
    """Why a contender's times can not be true, when they can not."""
    if not mine.claimed:
        return None
    claimed, room = median(mine.claimed), ROOM[device] * median(mine.claimed) + ROOM_S[device]
    taken = [each for each in everybodys if each.claimed]
    asking = min((each.unclaimed for each in taken if each.trusted), default=min(each.unclaimed for each in taken))
    missing = mine.unclaimed - min(max(0.0, asking), MAX_ASKING_S[device])
    if mine.unclaimed >= -room and missing <= room:
        return None
    took = max(0.0, claimed + (missing if missing > 0 else mine.unclaimed))
    return (
        f"its clock disagrees with the driver's: a turn of {claimed * 1e3:.3g} ms by its own account took "
        f"{took * 1e3:.3g} ms"
    )
