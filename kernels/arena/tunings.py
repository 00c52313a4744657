"""What autotuners chose in the trials of a session, and which choices are stable.  Torch-free."""

from collections.abc import Mapping

from ..cases import AnyCase, Metric, Role
from .pool import Contender
from .protocol import SEVERAL

MAX_KERNELS = 16  # whose configuration is kept
MAX_TEXT = 200  # characters of a name or a configuration
# What these measure does not include tuning; a compilation does, and counts are of it.
REUSING = (Metric.KERNEL, Metric.CALL, Metric.BLOCK)

Choice = Mapping[str, str]  # by kernel, its configuration


class Tunings:
    """The choices of each revision and provider at each case, of trials that timed candidates."""

    def __init__(self) -> None:
        self._choices: dict[tuple[Role, str, AnyCase], list[Choice]] = {}

    def add(self, contender: Contender, case: AnyCase, choice: Choice) -> None:
        self._choices.setdefault(_at(contender, case), []).append(choice)

    def stable(self, contender: Contender, case: AnyCase) -> Choice:
        """The choice that two tunings or more all made; empty if there is none.

        A kernel with several configurations has none that could be reused, and a cut text names none.
        """
        first, *others = self._choices.get(_at(contender, case), ()) or ({},)
        agreed = bool(others) and all(other == first for other in others) and case.metric in REUSING
        return first if agreed and not any(SEVERAL in text or len(text) == MAX_TEXT for text in first.values()) else {}


def _at(contender: Contender, case: AnyCase) -> tuple[Role, str, AnyCase]:
    """The control is a copy of the parent: both are tunings of one revision."""
    role = Role.PARENT if contender.role is Role.CONTROL else contender.role
    return role, str(contender.provider["name"]), case
