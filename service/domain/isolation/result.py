"""The result of isolating the components of a stack.  Pure values."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.isolation.components import Component
from service.domain.isolation.evaluation import CaseIsolation, CaseVerdict, ComponentVerdict
from service.domain.isolation.why import Moved, SwapCause
from service.domain.states import REGRESSED, UNDECIDED


@dataclass(frozen=True)
class StackSide:
    """One of the two stacks; `versions` are those that its contenders reported."""

    name: str
    python: str  # version
    versions: Mapping[str, str] = field(hash=False)


@dataclass(frozen=True)
class Isolation:
    """Everything that one session says about the change from one stack to another."""

    target: str
    revision: str
    device: str
    suite: str
    before: StackSide
    after: StackSide
    components: tuple[Component, ...]
    cases: tuple[CaseIsolation, ...]
    confidence: float
    causes: Mapping[Moved, SwapCause] = field(default_factory=dict, hash=False)
    missing: Mapping[str, str] = field(default_factory=dict, hash=False)  # arms that did not run, with reasons
    notes: tuple[str, ...] = ()
    trials: int = 0
    seconds: float = 0.0

    @property
    def exit_code(self) -> int:
        verdicts = {one.verdict for one in self.cases}
        if verdicts & {CaseVerdict.SLOWER, CaseVerdict.BROKEN}:
            return REGRESSED
        swaps = {effect.verdict for one in self.cases for effect in one.components}
        return UNDECIDED if CaseVerdict.UNDECIDED in verdicts or ComponentVerdict.UNDECIDED in swaps else 0
