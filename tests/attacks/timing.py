"""A trial on the CPU with a hostile head in real contenders, and what it gained."""

import statistics
from dataclasses import dataclass
from pathlib import Path

from kernels.arena import protocol
from kernels.arena.session import Judge, Pace, run_trial
from kernels.cases import Case, Role
from tests.attacks.cheats import HONEST
from workers.machine import environments
from workers.machine.device import DeviceHere
from workers.machine.environments import BaseStack, Environment
from workers.run.baselines import contender

CASE = Case.parse("rmsnorm.fwd.512x2048.fp32")
CPU = DeviceHere("cpu", "cpu")
NORMS = protocol.targets_own("norms", {"rmsnorm.fwd": "norms:f", "rmsnorm.bwd": "norms:b"})
EAGER = protocol.built_in("eager")
PACE = Pace(rounds=6, warm=1, timed=3, start_limit_s=60, prepare_limit_s=60, turn_limit_s=20)


@dataclass(frozen=True)
class Gain:
    """What a head achieved.  The ratios are None where one of the two has no time."""

    state: str
    reason: str
    ratio: float | None  # of the times of head and parent
    control: float | None  # of those of control and parent: about 1, unless something disturbs them
    others: str  # states of parent and control

    def __str__(self) -> str:
        if self.ratio is None:
            return f"{self.state}: {self.reason[:120]}; others {self.others}"
        control = "" if self.control is None else f"; control {self.control:.2f}"
        return f"{self.state}, {self.ratio:.2f} of its parent's time{control}"


def attack(module: str, folder: Path, *, case: Case = CASE, pace: Pace = PACE, sandboxed: bool = True) -> Gain:
    """Measure a head of this text, next to honest parents and SOTA."""
    base = environments.stack("host")

    def revision(name: str, text: str) -> Environment:
        place = folder / name
        (place / "tree").mkdir(parents=True)
        (place / "tree" / "norms.py").write_text(text)
        return Environment(name, base.python, (place / "tree",), base.paths, (*base.read_only, place))

    def opened(role: Role, provider: protocol.ProviderSpec, place: Environment | BaseStack, name: str = "norms"):
        scratch = folder / "scratch"
        return contender(f"{role}:{name}", role, provider, place, CPU, sandboxed=sandboxed, scratch=scratch)

    parent = revision("parent", HONEST)
    contenders = [
        opened(Role.HEAD, NORMS, revision("head", module)),
        opened(Role.PARENT, NORMS, parent),
        opened(Role.CONTROL, NORMS, parent),
        opened(Role.SOTA, EAGER, base, "eager"),
    ]
    judge = Judge(opened(Role.RIVAL, EAGER, base, "judge"))
    try:
        trial = run_trial(contenders, [case], pace, device="cpu", seed=4242, core=1, judge=judge)
    finally:
        judge.close()
    assert judge.trouble is None, judge.trouble
    cells = {label.split(":")[0]: cell for (label, _), cell in trial.cells.items()}
    us = {role: statistics.median(filter(None, cell.samples)) for role, cell in cells.items() if any(cell.samples)}

    def ratio(role: str) -> float | None:
        return us[role] / us["parent"] if role in us and "parent" in us else None

    others = ", ".join(f"{cells[role].state} {cells[role].reason or ''}".strip() for role in ("parent", "control"))
    return Gain(cells["head"].state, cells["head"].reason or "", ratio("head"), ratio("control"), others)
