"""What a driver and a contender say to each other: JSON lines, one answer to each request.  No torch in here.

| request | answer |
|---|---|
| `start` with provider, device, threads, core, memory | `ready` (else a `reason`), `stack`, `device`, `tunes` |
| `prepare` with case, seed, thorough, graph_s, alone, repeats, known | `state`, `reason`, `facts`, `calls` … |
| `turn` with warm and timed | `samples` in the unit of the metric (us per call, bytes), and the `calls` in each |
| `ceilings` | `ceilings`: what the GPU can do at best, GB/s of a copy and TFLOP/s of a matrix product |
| `check` | `state` and `reason`: are the outputs still right, after the timing and for changed inputs? |
| `free` | `ok` |
| `telemetry` | what the device and the host say of themselves |
| `compile` with case and those ahead, where the device is an architecture (`sm_90`) | `state`, `reason`, `facts` |
| `texts` with case, kernel (its index) and kind (sass, ttgir, ptx, generated) | `text` |

Any answer may instead be `{"error": reason}`; `broken` beside it or beside a state: this process can not go on.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ..cases import Case
from .repeatability import ENOUGH, Repeats
from .sizes import GRAPH_S

KERNELS = Path(__file__).resolve().parent.parent  # this package, as a sandbox sees it too
CONTENDER = KERNELS / "contender" / "__main__.py"  # started by its path, under whatever interpreter a stack has
MAX_LINE = 1 << 20  # bytes; a longer answer is a fault of the contender, not something to keep


class ProviderSpec(TypedDict):
    """Which implementation a contender runs: `calls` maps `op.direction` to `module:function`, None if built in."""

    name: str
    calls: dict[str, str] | None
    compile: bool
    builtin: bool


def built_in(name: str) -> ProviderSpec:
    """One that kernelwatch brings: eager, inductor, quack, liger or triton."""
    return {"name": name, "calls": None, "compile": False, "builtin": True}


def targets_own(name: str, calls: Mapping[str, str], *, compile: bool = False) -> ProviderSpec:
    """One that the target's recipe names."""
    return {"name": name, "calls": dict(calls), "compile": compile, "builtin": False}


def start(
    provider: Mapping[str, Any], device: str, threads: int, core: int | None, memory: float = 1.0
) -> dict[str, Any]:
    """`memory` is the share of a GPU's memory that it may take: the others hold their tensors at the same time."""
    asked = {"provider": dict(provider), "device": device, "threads": threads, "core": core, "memory": memory}
    return {"do": "start", **asked}


def prepare(
    case: Case,
    seed: int,
    *,
    thorough: bool = True,
    graph_s: float = GRAPH_S,
    alone: bool = True,
    repeats: int = ENOUGH,
    known: Mapping[str, Repeats] | None = None,
) -> dict[str, Any]:
    """Unless it is `alone` on the device, a contender that would time candidates answers `needs_device` instead.

    `repeats` is how many calls are compared bit by bit; fewer where `known` says how that code repeats.
    """
    asked = {
        "case": str(case),
        "seed": seed,
        "thorough": thorough,
        "graph_s": graph_s,
        "alone": alone,
        "repeats": repeats,
    }
    estimates = {code: estimate.facts for code, estimate in (known or {}).items()}
    return {"do": "prepare", **asked, "known": estimates}


def turn(warm: int, timed: int) -> dict[str, Any]:
    return {"do": "turn", "warm": warm, "timed": timed}


def compile(case: Case, ahead: Sequence[Case] = ()) -> dict[str, Any]:
    """Facts of a case without a GPU, from a contender that was started with an architecture as its device.

    With the cases that will be asked next in `ahead`, the machine code of all of them is read in one go: 200 cases took
    half the time with eight at a time.  A crash is then not always that of `case`.
    """
    return {"do": "compile", "case": str(case), "ahead": [str(one) for one in ahead]}


def texts(case: Case, kernel: int, kind: str) -> dict[str, Any]:
    """What a kernel of a compiled case became: "sass", "ttgir", "ptx" or "generated"."""
    return {"do": "texts", "case": str(case), "kernel": kernel, "kind": kind}


CEILINGS = {"do": "ceilings"}
CHECK = {"do": "check"}
FREE = {"do": "free"}
TELEMETRY = {"do": "telemetry"}
