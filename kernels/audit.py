"""Does a contender's own clock agree with the driver's?  Pure: what turns took, seen from inside and from outside.

A target shares its process with the clock and could turn it back.  The driver can not see single calls, but it sees
how long a turn took from question to answer: what the contender claims, and what asking costs.  Asking costs everybody
about the same, so the least of all contenders is what it costs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

# Of what is claimed, on top of what asking costs.  On a GPU turns of 15 ms came 0.3 to 1 ms late (H200, November); on a
# CPU the scheduler has a word in it.
ROOM = {"cuda": 0.15, "cpu": 1.0}
ROOM_S = {"cuda": 2e-3, "cpu": 20e-3}  # a turn


@dataclass
class Turns:
    """All turns of one contender at one case, in seconds."""

    count: int = 0
    waited: float = 0.0  # by the driver
    claimed: float = 0.0

    def add(self, waited: float, claimed: float) -> None:
        self.count += 1
        self.waited += waited
        self.claimed += claimed

    @property
    def unclaimed(self) -> float:
        """A turn."""
        return (self.waited - self.claimed) / max(1, self.count)


def disagreement(mine: Turns, all_turns: Iterable[Turns], device: str) -> str | None:
    """Why a contender's times can not be true, when they can not."""
    if not mine.count:
        return None
    asking = max(0.0, min(each.unclaimed for each in all_turns if each.count))
    missing = mine.unclaimed - asking
    claimed = mine.claimed / mine.count
    if missing <= ROOM[device] * claimed + ROOM_S[device]:
        return None
    return (
        f"its clock disagrees with the driver's: a turn of {claimed * 1e3:.3g} ms by its own account took "
        f"{(claimed + missing) * 1e3:.3g} ms"
    )
