"""Optional: search for plans that are faster than the default ones on this device, and store them in a file.

    python -m kernels.norms.tuning rmsnorm.fwd.32768x4096.bf16 …        or  --suite NAME

A greedy local search: from the default plan to the fastest of those that differ from it in one field, and on from
there, at most `STEPS` times and while it gains.  The fastest of many measurements is too optimistic, so a plan is timed
a second time before it is taken, and the result of the search once more against the default plan.  Cases that differ in
their rows alone are tuned together, since a plan is for all numbers of rows.  `tuned_plans` has the file and its use.
"""

import argparse
import functools
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

from ..cases import DTYPE_BYTES, OPS, Case, Direction, Metric
from ..suites import SUITES
from . import tuned_plans
from .plans import BackwardPlan, ForwardPlan, Sum, problem
from .tuned_plans import VARIABLE, Found, default_of, key_of

if TYPE_CHECKING:
    import torch

STEPS = 3
MIN_GAIN = 0.01  # less may be noise
MAX_LOSS = 0.01  # at any number of rows, whatever is gained at others
ROUNDS = 8
GRAPH_S = 5e-4  # of one replay: two plans hold the outputs of all their input sets
GROUPS = (8, 16, 32)

Ratio = Callable[[Case, ForwardPlan, ForwardPlan], float]


class NothingTimed(RuntimeError):
    """No plan could be timed, so nothing is known about which is the fastest."""


def neighbourhood(plan: ForwardPlan, cols: int, size: int) -> list[ForwardPlan]:
    """Valid plans that differ from this one in one field.  size: bytes of an element.

    Rows and warps halved and doubled; programs of an SM one less and one more, 1, and forward 0; stages one less and
    one more, up to three; all values of `weights` and `keep` (packed for 16-bit elements); backward each `sum`, with
    the `GROUPS` of a tree, and `held` halved and doubled.
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
    return [each for each in dict.fromkeys(near) if each != plan and problem(each, cols) is None]


def tune(
    cases: Sequence[Case], ratio: Ratio, log: Callable[[str], None] = lambda _: None, sms: int = 0
) -> Iterator[tuple[str, Found | None]]:
    """(key, plan) for each kind of case; None where nothing is faster than the default plan.

    Raises NothingTimed if no neighbour of a default plan could be timed.

    ratio: gives the time of one plan over that of another for a case, or raises if the first cannot be taken.
    sms: of the device; a case with few rows may have another default plan, with which it is compared.
    """
    kinds: dict[str, list[Case]] = {}
    for case in cases:
        kinds.setdefault(key_of(case), []).append(case)
    for name, group in kinds.items():
        yield name, _best(name, group, ratio, log, sms)


def _best(name: str, cases: Sequence[Case], ratio: Ratio, log: Callable[[str], None], sms: int) -> Found | None:
    first, size = cases[0], DTYPE_BYTES[cases[0].dtype]
    default, defaults = default_of(first), {case: default_of(case, sms) for case in cases}

    timed = False

    def over(plan: ForwardPlan, other: ForwardPlan) -> float:
        """Geometric mean over the cases; infinite if the plan cannot be taken."""
        nonlocal timed
        try:
            times = [ratio(case, plan, defaults[case] if other == default else other) for case in cases]
        except Exception as error:  # too many registers, wrong numbers: whatever it is, the plan is not taken
            log(f"{name}: {plan} cannot be taken: {str(error).splitlines()[:1]}")
            return math.inf
        timed = True
        return geometric_mean(times) if max(times) <= 1 + MAX_LOSS else math.inf

    best = default
    for _ in range(STEPS):
        tried = {plan: over(plan, best) for plan in neighbourhood(best, first.cols, size)}
        if tried and not timed:
            raise NothingTimed(f"{name}: none of {len(tried)} plans could be timed; plans stored before are kept")
        fastest = min(tried, key=tried.__getitem__, default=best)
        if tried.get(fastest, 1.0) > 1 - MIN_GAIN or over(fastest, best) > 1 - MIN_GAIN:
            break
        best = fastest
    found = Found(best, over(best, default)) if best != default else None
    if found is None or found.ratio > 1 - MIN_GAIN:
        log(f"{name}: no neighbour is faster than the default plan, {default}")
        return None
    log(f"{name}: {found.ratio:.3f} of the default plan's time with {best}")
    return found


class OnDevice:
    """A `Ratio`: times two plans in turns, on inputs that are not in the cache.  Raises Wrong for wrong results."""

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

        from ..arena.sizes import calls_in_graph
        from ..checks.oracle import named
        from ..checks.outputs import require_correct
        from ..metrics.clocks import CudaClock

        with torch.no_grad(), torch.cuda.stream(self.stream):
            sets = self._inputs(case)
            calls = [[call_of(case, each, inputs) for inputs in sets] for each in (plan, other)]
            require_correct(self._oracle, sets[0], named(case, calls[0][0]()))
            clocks = [CudaClock(each, self.stream, calls_in_graph(case, len(each), GRAPH_S)) for each in calls]
            ratios = []
            for number in range(ROUNDS):
                order = (0, 1) if number % 2 else (1, 0)
                took = {which: median(clocks[which].turn(1, 3)) for which in order}
                ratios.append(took[0] / took[1])
        return median(ratios)

    def _inputs(self, case: Case) -> list[Any]:
        from ..arena.sizes import sets_needed
        from ..checks.inputs import make_sets
        from ..checks.oracle import Oracle

        if case != self._case:
            l2, memory = int(self._about.L2_cache_size), int(self._about.total_memory)
            self._sets = []
            self._sets = make_sets(case, self.device, 1, sets_needed(case, case.set_bytes, l2, memory, GRAPH_S))
            self._case, self._oracle = case, Oracle(self._sets[0])
        return self._sets


def call_of(case: Case, plan: Any, inputs: Any) -> Callable[[], Any]:
    """A call of the kernels with this plan, which returns its outputs as a provider does."""
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
    from .launching import processors

    parser = argparse.ArgumentParser(prog=tuned_plans.COMMAND, description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="such as rmsnorm.fwd.32768x4096.bf16-fp32")
    parser.add_argument("--suite", choices=SUITES, help="all cases of a suite that can be tuned")
    parser.add_argument("--file", type=Path, help=f"instead of {VARIABLE} or {tuned_plans.default_path()}")
    given = parser.parse_args(arguments)
    try:
        cases = list(_cases(given.cases, given.suite))
    except ValueError as error:
        parser.error(str(error))
    path = given.file or Path(os.environ.get(VARIABLE) or tuned_plans.default_path())
    device = _device()
    here = tuned_plans.place(device)
    if here is None:
        parser.error("plans are timed on a GPU, and there is none")
    store = tuned_plans.read(path) if path.exists() else {}
    found_here = store.setdefault(here, {})
    ratios = []
    try:
        for name, found in tune(cases, OnDevice(device), _print, processors(device)):
            found_here.pop(name, None)
            if found:
                found_here[name] = found
            ratios.append(found.ratio if found else 1.0)
            tuned_plans.write(path, store)  # after each: they take minutes, and may be interrupted
    except NothingTimed as error:
        sys.exit(str(error))
    if ratios:
        _print(summary(ratios))
    _print(f"written to {path} for {here}; used where {VARIABLE} names it")


def summary(ratios: Sequence[float]) -> str:
    """What tuning gains.  ratios: of a plan's time to the default plan's, for each case."""
    shorter = [ratio for ratio in ratios if ratio < 1]
    if not shorter:
        return f"no plan of {len(ratios)} is faster than the default plan"
    return (
        f"{len(shorter)} of {len(ratios)} plans are faster than the default plan: they take"
        f" {geometric_mean(shorter):.3f} of its time (geometric mean), at best {min(shorter):.3f}; all take"
        f" {geometric_mean(ratios):.3f}"
    )


def _device() -> "torch.device":
    import torch

    return torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")


def _cases(texts: Sequence[str], suite: str | None) -> Iterator[Case]:
    """Cases that can be tuned.  Others are left out of a suite; if one is named, this raises ValueError."""
    if not texts and suite is None:
        raise ValueError("no cases: name some, or a suite")
    for text in [*texts, *(SUITES[suite] if suite else ())]:
        case = Case.parse(text)
        if OPS[case.op].region:
            if text in texts:
                raise ValueError(f"{text}: only the plans of norms without a region can be tuned")
        elif case.metric is Metric.KERNEL and case.direction is not Direction.FWDBWD:
            yield case
        elif text in texts:
            raise ValueError(f"{text}: forward and backward are tuned apart, each for the kernel metric")


def _print(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
