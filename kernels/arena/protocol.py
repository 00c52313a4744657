"""The protocol between driver and contender: JSON lines, one answer to each request.  Torch-free.

| request | answer |
|---|---|
| `start` with provider, device, threads, core, memory | `ready` (or `reason`), `stack`, `replaced`, `device`, `tunes` |
| `prepare` with case, seed, thorough, graph_s, alone, repeats, known, reuse | `state`, `reason`, `inexact`, `facts` … |
| `turn` with warm, timed, once | `samples` in the unit of the metric (us per call, bytes), `calls` in each, `outputs` |
| `judge` with case, seed and pool_seed | `ready`, and where there are numbers for the turns of others |
| `verdicts` with draws | `verdicts`: why each output is wrong, or null |
| `ceilings` | `ceilings`: measured GB/s of a copy and TFLOP/s of a matrix product |
| `idle` | `waited_us`: how long the device lets a small launch wait |
| `check` | `state` and `reason`: whether the outputs are right after the timing, for changed inputs |
| `free` | `ok` |
| `telemetry` | state of the device and of the host |
| `compile` with case and the next cases, if the device is an architecture (`sm_90`) | `state`, `reason`, `facts` |
| `texts` with case, kernel (its index) and kind (sass, ttgir, ptx, generated, trace) | `text` |

An answer to `prepare` or `check` with `inexact` is invalid for its numbers alone: the contender is ready for turns.
Any answer may be `{"error": reason}` instead.  `broken` in an answer: the process cannot be used any more.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from ..cases import AnyCase, Case, CompileMode, Rounding
from ..functions import Function
from .repeatability import FULL_REPEATS, Repeats
from .sizes import GRAPH_S

KERNELS = Path(__file__).resolve().parent.parent  # this package; a sandbox mounts it at the same path
CONTENDER = KERNELS / "contender" / "__main__.py"  # started by its path with the interpreter of a stack
SEVERAL = " | "  # between the configurations of a kernel in `tuned`, if its autotuner chose several at one case
MAX_LINE = 1 << 20  # bytes of an answer; a longer one is an error of the contender


class CompileSpec(TypedDict):
    """A mode of torch.compile, with patches of Inductor's configuration by name."""

    mode: str
    options: dict[str, str | int | float | bool]


class ProviderSpec(TypedDict):
    """The implementation that a contender runs: a built-in one, or functions of the target.

    `calls` maps `op.direction` to `module:function`, `functions` names to `kernels.functions.Function.as_json`.
    `builtin` is a name of BUILT_IN_PROVIDERS.  With `of_revision` a built-in provider uses the torch, Triton, Quack or
    Liger in the revision's tree, so that it runs code of the target.
    """

    name: str  # of the series
    calls: dict[str, str] | None
    functions: dict[str, dict[str, Any]]
    compile: CompileSpec | None
    builtin: str | None
    of_revision: bool
    rounding: str  # a value of cases.Rounding
    inplace: bool  # it writes its outputs into its inputs


def built_in(name: str) -> ProviderSpec:
    """A provider of kernelwatch, by its name in BUILT_IN_PROVIDERS, in the base stack."""
    return _spec(name, builtin=name)


def of_revision(name: str, builtin: str) -> ProviderSpec:
    """The built-in provider `builtin` with what the revision's tree has of its stack, as the series `name`."""
    return _spec(name, builtin=builtin, of_revision=True)


def targets_own(
    name: str,
    calls: Mapping[str, str],
    *,
    functions: Iterable[Function] = (),
    compile: CompileSpec | None = None,
    rounding: Rounding = Rounding.AFTER_WEIGHT,
    inplace: bool = False,
) -> ProviderSpec:
    """A provider that the target's recipe defines."""
    given = {one.name: one.as_json for one in functions}
    return _spec(name, calls=dict(calls), functions=given, compile=compile, rounding=rounding, inplace=inplace)


def _spec(
    name: str,
    *,
    calls: dict[str, str] | None = None,
    functions: dict[str, dict[str, Any]] | None = None,
    compile: CompileSpec | None = None,
    builtin: str | None = None,
    of_revision: bool = False,
    rounding: Rounding = Rounding.AFTER_WEIGHT,
    inplace: bool = False,
) -> ProviderSpec:
    return {
        "name": name,
        "calls": calls,
        "functions": functions or {},
        "compile": compile,
        "builtin": builtin,
        "of_revision": of_revision,
        "rounding": rounding.value,
        "inplace": inplace,
    }


DEFAULT_COMPILE: CompileSpec = {"mode": CompileMode.DEFAULT.value, "options": {}}  # torch.compile(function)


def start(
    provider: Mapping[str, Any], device: str, threads: int, core: int | None, memory: float = 1.0
) -> dict[str, Any]:
    """`memory` is the share of a GPU's memory that it may allocate; all contenders hold tensors at the same time."""
    return {
        "do": "start",
        "provider": dict(provider),
        "device": device,
        "threads": threads,
        "core": core,
        "memory": memory,
    }


def prepare(
    case: AnyCase,
    seed: int,
    *,
    thorough: bool = True,
    graph_s: float = GRAPH_S,
    alone: bool = True,
    repeats: int = FULL_REPEATS,
    known: Mapping[str, Repeats] | None = None,
    inexact: str | None = None,
    reuse: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Unless it is `alone` on the device, a contender that would time candidates answers `needs_device` instead.

    `repeats`: how many calls to compare bit by bit; fewer if `known` (by hash of the code) has an estimate.  `inexact`:
    why an earlier trial called its numbers not exact enough, if one did.  `reuse`: by kernel, the configuration that an
    autotuner launches without timing candidates.
    """
    return {
        "do": "prepare",
        "case": str(case),
        "seed": seed,
        "thorough": thorough,
        "graph_s": graph_s,
        "alone": alone,
        "repeats": repeats,
        "known": {code: estimate.facts for code, estimate in (known or {}).items()},
        "inexact": inexact,
        "reuse": dict(reuse or {}),
    }


def turn(warm: int, timed: int, *, once: bool = False) -> dict[str, Any]:
    """With `once`, a sample on a CPU is a single pass over the input sets."""
    return {"do": "turn", "warm": warm, "timed": timed, "once": once}


def judge(case: Case, seed: int, pool_seed: int) -> dict[str, Any]:
    """For a process that runs no code of the target: `pool_seed` is unknown to the contenders."""
    return {"do": "judge", "case": str(case), "seed": seed, "pool_seed": pool_seed}


def verdicts(draws: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {"do": "verdicts", "draws": list(draws)}


def compile(case: Case, ahead: Sequence[Case] = ()) -> dict[str, Any]:
    """Facts of a case without a GPU, from a contender whose device is an architecture.

    The machine code of `case` and of the next cases, `ahead`, is read at once: 200 cases took half the time in groups
    of eight.  A crash may then be caused by any case of the group.
    """
    return {"do": "compile", "case": str(case), "ahead": [str(one) for one in ahead]}


def texts(case: AnyCase, kernel: int, kind: str) -> dict[str, Any]:
    """The code of a kernel of the compiled or prepared case; `kind`: sass, ttgir, ptx, generated or trace."""
    return {"do": "texts", "case": str(case), "kernel": kernel, "kind": kind}


CEILINGS = {"do": "ceilings"}
IDLE = {"do": "idle"}
CHECK = {"do": "check"}
FREE = {"do": "free"}
TELEMETRY = {"do": "telemetry"}
