"""Optional: time plans near the default ones on this device, and keep the best in a file for those who ask for it.

    python -m kernels.norms.tuning rmsnorm.fwd.32768x4096.bf16 …        or  --suite NAME

The search is small and goes one step at a time: from the default plan to the best of those that differ from it in one
field, and on from there, at most `STEPS` times and while it gains.  The best of many is partly the luckiest: it is
timed a second time before it is taken, and what the search ends with once more, beside the default plan.
What it finds is of one device and one stack, and is used only where KERNELWATCH_TUNED names the file or `use` was
called; elsewhere it says so and changes nothing.
A plan is found per norm, direction, columns and dtypes.  It is for all numbers of rows, so that a row's bits do not
depend on how many there are; cases that differ in their rows alone are tuned together.
"""

import argparse
import functools
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from ..cases import DTYPE_BYTES, OPS, Case, Direction, Metric
from ..suites import SUITES
from . import plans
from .plans import BackwardPlan, ForwardPlan, Sum

if TYPE_CHECKING:
    import torch

FORMAT = 1
STEPS = 3
LEAST_GAIN = 0.01  # what is less may be noise
MOST_LOSS = 0.01  # at any number of rows, whatever is gained at others
ROUNDS = 8
GRAPH_S = 5e-4  # of one replay: two plans hold the outputs of all their input sets
MOST_ELEMENTS = 65536  # that a CTA has at once: the registers of an SM
GROUPS = (8, 16, 32)
VARIABLE = "KERNELWATCH_TUNED"
HELP = "delete it, or write it anew with `python -m kernels.norms.tuning`"

Ratio = Callable[[Case, ForwardPlan, ForwardPlan], float]


class Unreadable(ValueError):
    """A file of plans that is none.  The message says what is wrong and how to mend it."""


@dataclass(frozen=True)
class Place:
    """Where a plan was the best.  Elsewhere another may be."""

    device: str
    capability: str
    torch: str
    triton: str
    driver: str

    def __str__(self) -> str:
        return f"{self.device} ({self.capability}) with torch {self.torch}, Triton {self.triton}, driver {self.driver}"


@dataclass(frozen=True)
class Found:
    plan: ForwardPlan
    ratio: float  # its time over the default plan's, timed beside it


Store = dict[Place, dict[str, Found]]


# -- who asks ---------------------------------------------------------------------------------------------------------

_used: Path | None = None


def use(path: str | os.PathLike[str] | None) -> None:
    """Take plans from this file from now on; None: from none, as long as the variable names none."""
    global _used
    _used = None if path is None else Path(path)
    _here.cache_clear()


def tuned(
    direction: Direction, x: "torch.Tensor", weight: "torch.Tensor | None", *, center: bool
) -> ForwardPlan | None:
    """The plan found for rows like x's, on its device and this stack, where somebody asked for such.

    `center` as for the default plans: backward also where there is a bias.  Raises Unreadable.
    """
    path = _used or os.environ.get(VARIABLE)
    if not path:
        return None
    dtypes = [_short(each.dtype) for each in (x, x if weight is None else weight)]
    found = _here(Path(path), x.device).get(key("layernorm" if center else "rmsnorm", direction, x.shape[1], *dtypes))
    return found.plan if found else None


@functools.cache
def _here(path: Path, device: "torch.device") -> Mapping[str, Found]:
    if not path.exists():
        raise Unreadable(f"there are no tuned plans in {path}: write them with `python -m kernels.norms.tuning`")
    store, here = read(path), place(device)
    if here is None:
        return {}
    if here not in store:
        known = "; ".join(map(str, store)) or "nothing"
        warnings.warn(f"{path} has plans for {known}, and not for {here}: the default plans are used", stacklevel=3)
    return store.get(here, {})


def key(norm: str, direction: str, cols: int, dtype: str, weight_dtype: str) -> str:
    """Dtypes as in a case: those of rows and of weights, once where they are the same."""
    mixed = "" if weight_dtype == dtype else f"-{weight_dtype}"
    return f"{norm}.{direction}.{cols}.{dtype}{mixed}"


def key_of(case: Case) -> str:
    norm = "layernorm" if _center(case) else "rmsnorm"
    return key(norm, case.direction, case.cols, case.dtype, case.weight_dtype)


def _center(case: Case) -> bool:
    """As the kernels choose their plans: the backward pass of a bias has a sum of its own as LayerNorm's."""
    op = OPS[case.op]
    return op.norm == "layernorm" or (case.direction is Direction.BWD and op.bias)


def _short(dtype: "torch.dtype") -> str:
    from ..checks.inputs import DTYPES

    return next(short for short, known in DTYPES.items() if known is dtype)


def place(device: "torch.device") -> Place | None:
    """None where there is no GPU, and plans matter to nobody."""
    import torch
    import triton

    if device.type != "cuda":
        return None
    about = torch.cuda.get_device_properties(device)
    return Place(about.name, f"{about.major}.{about.minor}", torch.__version__, triton.__version__, _driver_version())


def _driver_version() -> str:
    try:
        return Path("/sys/module/nvidia/version").read_text().strip()
    except OSError:
        return "unknown"


# -- the file ---------------------------------------------------------------------------------------------------------


def default_path() -> Path:
    """Where the tuner writes unless it is told otherwise."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "kernelwatch" / "norms.json"


def read(path: Path) -> Store:
    """Raises Unreadable."""
    try:
        stored = json.loads(path.read_text())
        if stored["format"] != FORMAT:
            raise ValueError(f"its format is {stored['format']}, and this is {FORMAT}")
        return {
            Place(**entry["place"]): {
                name: Found(_plan(name, each["plan"]), float(each["ratio"])) for name, each in entry["plans"].items()
            }
            for entry in stored["entries"]
        }
    except (ValueError, TypeError, KeyError, AttributeError) as trouble:
        raise Unreadable(f"{path} is no file of tuned plans ({type(trouble).__name__}: {trouble}): {HELP}") from trouble


def write(path: Path, store: Store) -> None:
    """All at once: whoever reads meanwhile sees the file before or after."""
    entries = [
        {"place": asdict(at), "plans": {name: asdict(found) for name, found in sorted(plans_there.items())}}
        for at, plans_there in store.items()
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
        json.dump({"format": FORMAT, "entries": entries}, file, indent=1)
    os.replace(file.name, path)


def _plan(name: str, stored: Mapping[str, Any]) -> ForwardPlan:
    """Raises ValueError or TypeError for one that no kernel could be launched with."""
    _, direction, cols, _ = name.split(".")
    plan: ForwardPlan
    if direction == Direction.BWD:
        plan = BackwardPlan(**{**stored, "sum": Sum(stored["sum"])})
    else:
        plan = ForwardPlan(**stored)
    if not is_valid(plan, int(cols)):
        raise ValueError(f"{name}: {plan} is not possible")
    return plan


# -- what is tried ----------------------------------------------------------------------------------------------------


def is_valid(plan: ForwardPlan, cols: int) -> bool:
    """Can the kernels be launched with it, as far as numbers say?"""
    sizes = (plan.rows, plan.block, plan.warps, plan.ctas)
    if not all(type(size) is int and size > 0 and size & (size - 1) == 0 for size in sizes):
        return False
    if not all(type(number) is int for number in (plan.team, plan.programs, plan.stages)):
        return False
    registers = plan.registers
    fits = (
        plan.warps <= 32
        and 1 <= plan.team <= plans.MOST_IN_TEAM
        and plan.block * (plan.team - 1) < cols <= plan.block * plan.team
        and plan.rows * plan.block <= MOST_ELEMENTS * plan.ctas
        and (plan.rows == 1 or plan.team == plan.ctas == 1)
        and plan.team <= 32 * plan.warps
        and plan.stages >= 1
        and plan.programs >= (1 if plan.team > 1 else 0)
        and plan.weights in ("held", "early", "late")
        and plan.keep in ("fp32", "packed", "cached")
        and (registers is None or (type(registers) is int and 0 < registers <= plans.MOST_REGISTERS))
        and type(plan.exchange) is bool
    )
    if isinstance(plan, BackwardPlan):
        fits = (
            fits
            and type(plan.held) is type(plan.group) is int
            and plan.programs >= 1
            and plan.held >= 1
            and plan.rows % plan.held == 0
            and (plan.group > 0 if plan.sum is Sum.TREE else plan.group == 0)
            and (plan.ctas == 1 or plan.sum is Sum.SEPARATE)
        )
    return fits


def neighbourhood(plan: ForwardPlan, cols: int, size: int) -> list[ForwardPlan]:
    """Plans that differ from this one in one field, without those that are not possible.  `size`: bytes of an element.

    Rows and warps halved and doubled; programs of an SM one less and one more, and forward none (one for each tile);
    stages one less and one more, up to three; weights and rows kept in each way, packed where they have 16 bits;
    backward each way to sum, trees in groups of `GROUPS`, and rows of sums halved and doubled.
    """
    changes: dict[str, Iterable[Any]] = {
        "rows": (plan.rows // 2, plan.rows * 2),
        "warps": (plan.warps // 2, plan.warps * 2),
        "programs": sorted({0, 1, plan.programs - 1, plan.programs + 1}),
        "stages": (plan.stages - 1, min(plan.stages + 1, 3)),
        "weights": ("held", "early", "late"),
        "keep": ("fp32", "packed", "cached") if size == 2 else ("fp32", "cached"),
    }
    near = [replace(plan, **{name: value}) for name, values in changes.items() for value in values]
    if isinstance(plan, BackwardPlan):
        near = [replace(each, held=min(each.held, each.rows)) for each in near if isinstance(each, BackwardPlan)]
        near += [replace(plan, held=held) for held in (plan.held // 2, plan.held * 2)]
        near += [replace(plan, sum=way, group=0) for way in (Sum.SEPARATE, Sum.LAST)]
        near += [replace(plan, sum=Sum.TREE, group=group) for group in GROUPS]
    return [each for each in dict.fromkeys(near) if each != plan and is_valid(each, cols)]


def tune(
    cases: Sequence[Case], ratio: Ratio, tell: Callable[[str], None] = lambda _: None
) -> Iterator[tuple[str, Found | None]]:
    """The best plan for each kind of case, one after the other; None where that is the default plan.

    `ratio` gives the time of one plan over that of another, or raises.
    """
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(key_of(case), []).append(case)
    for name, group in kinds.items():
        yield name, _best(name, group, ratio, tell)


def _best(name: str, cases: Sequence[Case], ratio: Ratio, tell: Callable[[str], None]) -> Found | None:
    first, size = cases[0], DTYPE_BYTES[cases[0].dtype]
    center = _center(first)
    default: ForwardPlan
    if first.direction is Direction.BWD:
        default = plans.backward(first.cols, center=center, size=size)
    else:
        default = plans.forward(first.cols, center=center, size=size)

    def over(plan: ForwardPlan, other: ForwardPlan) -> float:
        """Mean over the numbers of rows; infinite where the plan can not be taken."""
        try:
            times = [ratio(case, plan, other) for case in cases]
        except Exception as trouble:  # too many registers, wrong numbers: whatever it is, it is not taken
            tell(f"{name}: {plan} cannot be taken: {str(trouble).splitlines()[:1]}")
            return math.inf
        return math.exp(sum(map(math.log, times)) / len(times)) if max(times) <= 1 + MOST_LOSS else math.inf

    best = default
    for _ in range(STEPS):
        tried = {plan: over(plan, best) for plan in neighbourhood(best, first.cols, size)}
        nearest = min(tried, key=tried.__getitem__, default=best)
        if tried.get(nearest, 1.0) > 1 - LEAST_GAIN or over(nearest, best) > 1 - LEAST_GAIN:
            break
        best = nearest
    found = Found(best, over(best, default)) if best != default else None
    if found is None or found.ratio > 1 - LEAST_GAIN:
        tell(f"{name}: nothing near is better than the default plan, {default}")
        return None
    tell(f"{name}: {found.ratio:.3f} of the default plan's time with {best}")
    return found


# -- on a device ------------------------------------------------------------------------------------------------------


class OnDevice:
    """Times two plans in turns, on inputs that lie cold in memory.  Raises Wrong where the first computes otherwise."""

    def __init__(self, device: "torch.device") -> None:
        import torch

        self.device = device
        cuda: Any = torch.cuda
        self.stream: Any = cuda.Stream(self.device)
        self._about: Any = torch.cuda.get_device_properties(device)
        self._case: Case | None = None
        self._sets: list[Any] = []

    def __call__(self, case: Case, plan: ForwardPlan, other: ForwardPlan) -> float:
        import torch

        from ..checks.oracle import named
        from ..checks.outputs import judged
        from ..contender.clocks import CudaClock

        with torch.no_grad(), torch.cuda.stream(self.stream):
            sets = self._inputs(case)
            calls = [[call_of(case, each, inputs) for inputs in sets] for each in (plan, other)]
            judged(self._oracle, sets[0], named(case, calls[0][0]()))
            clocks = [CudaClock(each, self.stream, case, GRAPH_S) for each in calls]
            ratios = []
            for number in range(ROUNDS):
                order = (0, 1) if number % 2 else (1, 0)
                took = {which: median(clocks[which].turn(1, 3)) for which in order}
                ratios.append(took[0] / took[1])
        return median(ratios)

    def _inputs(self, case: Case) -> list[Any]:
        from ..arena.sizes import sets_needed
        from ..cases import BY_ROW
        from ..checks.inputs import make_sets
        from ..checks.oracle import Oracle

        if case != self._case:
            by_row = sum(name in BY_ROW for name in case.inputs)
            each = case.rows * (case.stride or case.cols) * DTYPE_BYTES[case.dtype] * by_row
            l2, memory = int(self._about.L2_cache_size), int(self._about.total_memory)
            self._sets = []
            self._sets = make_sets(case, self.device, 1, sets_needed(case, each, l2, memory, GRAPH_S))
            self._case, self._oracle = case, Oracle(self._sets[0])
        return self._sets


def call_of(case: Case, plan: Any, inputs: Any) -> Callable[[], Any]:
    """A call of the kernels with this plan, giving its outputs as a provider does."""
    from ..checks.inputs import DTYPES
    from .backward import backward
    from .forward import forward

    op, given = OPS[case.op], inputs.tensors
    function: Callable[[], Any]
    if case.direction is Direction.FWD:
        function = functools.partial(forward, **given, eps=inputs.eps, center=op.norm == "layernorm", plan=plan)
    else:
        bias_dtype = DTYPES[case.weight_dtype] if op.bias else None
        function = functools.partial(backward, **{"weight": None, **given}, bias_dtype=bias_dtype, plan=plan)

    def call() -> Any:
        outputs = tuple(output for output in function() if output is not None)
        return outputs if len(outputs) > 1 else outputs[0]

    return call


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.norms.tuning", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="such as rmsnorm.fwd.32768x4096.bf16-fp32")
    parser.add_argument("--suite", choices=SUITES, help="all cases of a suite that can be tuned")
    parser.add_argument("--file", type=Path, help=f"instead of {VARIABLE} or {default_path()}")
    given = parser.parse_args(arguments)
    try:
        cases = list(_cases(given.cases, given.suite))
    except ValueError as trouble:
        parser.error(str(trouble))
    path = given.file or Path(os.environ.get(VARIABLE) or default_path())
    device = _device()
    here = place(device)
    if here is None:
        parser.error("plans are timed on a GPU, and there is none")
    store = read(path) if path.exists() else {}
    at_hand = store.setdefault(here, {})
    for name, found in tune(cases, OnDevice(device), _tell):
        at_hand.pop(name, None)
        if found:
            at_hand[name] = found
        write(path, store)  # after each: they take minutes, and may be interrupted
    _tell(f"written to {path} for {here}; used where {VARIABLE} names it")


def _device() -> "torch.device":
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _cases(texts: Sequence[str], suite: str | None) -> Iterator[Case]:
    """Raises ValueError.  Of a suite what can not be tuned is left out, of what is named it is refused."""
    if not texts and suite is None:
        raise ValueError("no cases: name some, or a suite")
    for text in [*texts, *(SUITES[suite] if suite else ())]:
        case = Case.parse(text)
        if case.metric is Metric.KERNEL and case.direction is not Direction.FWDBWD:
            yield case
        elif text in texts:
            raise ValueError(f"{text}: forward and backward are tuned apart, each in the kernel lane")


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
