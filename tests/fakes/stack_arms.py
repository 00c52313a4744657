"""The arms of an isolation with known times."""

from collections.abc import Mapping
from random import Random

from kernels.cases import Case, Role
from service.domain.isolation.evaluation import CONTROL, FROM, TO, IsolatedCase, backward, forward
from service.domain.states import CellState
from service.domain.verdicts.session_result import ContenderResult

CASE = "rmsnorm.fwd.32768x4096.bf16"
Times = float | CellState
COMPONENTS = ("triton", "torch")


def result(times: Times, trials: int, noise: float, seed: str) -> ContenderResult:
    """An arm that takes `times` 200 us; or that has this state instead."""
    case = Case.parse(CASE)
    if isinstance(times, CellState):
        return ContenderResult(Role.RIVAL, "norms", case, times, "it says so", tuple(() for _ in range(trials)))
    random = Random(seed)
    rounds = tuple(tuple(200 * times * (1 + random.gauss(0, noise)) for _ in range(8)) for _ in range(trials))
    return ContenderResult(Role.RIVAL, "norms", case, CellState.MEASURED, None, rounds)


def session(arms: Mapping[str, Times], trials: int = 4, noise: float = 0.002) -> IsolatedCase:
    taken = {name: result(times, trials, noise, name) for name, times in arms.items()}
    return IsolatedCase("norms", CASE, taken)


def arms(
    total: Times,
    triton: tuple[Times, Times],
    torch: tuple[Times, Times],
    control: float = 1.0,
) -> dict[str, Times]:
    """Times relative to the old stack; of a component of the arm `from+C`, and of the arm `to-C`."""
    found: dict[str, Times] = {FROM: 1.0, TO: total, CONTROL: control}
    for name, (ahead, back) in (("triton", triton), ("torch", torch)):
        found |= {forward(name): ahead, backward(name): back}
    return found
