"""One provider at one case: its inputs, its bound calls, its clock and its checks."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

# Imported before any code of a target runs, which might replace these functions.
from time import perf_counter
from typing import Any

from torch import Tensor

from ..arena.repeatability import FULL_REPEATS, MIN_REPEATS, Repeats
from ..arena.sizes import GRAPH_S, sets_needed, sets_of_pass, stays_in_l2
from ..cases import AnyCase, Case, FunctionCase, Metric
from ..checks.edge_inputs import edge_inputs
from ..checks.error_bounds import rounds_in_between
from ..checks.inputs import Inputs, by_rows, fresh_values, make_sets, refill
from ..checks.oracle import FAR, Oracle, named, require_rows
from ..checks.outputs import (
    Inexact,
    Outputs,
    Untouched,
    Wrong,
    fill_with_nan,
    require_correct,
    require_correct_edges,
    require_finite,
    require_own_memory,
    require_working_oracle,
    snapshot,
)
from ..errors import INVALID, MAX_REASON
from ..facts import gather
from ..facts.texts import observed_text
from ..facts.timeline import KIND, timeline
from ..facts.trace import Seen
from ..metrics import caching, clock_of
from ..metrics.bench import OTHER_NUMBERS, Bench, CpuAudit, Prepared
from ..metrics.block import PreparedBlock
from ..metrics.caches import forget_graphs
from ..metrics.clocks import Call, CpuClock, CudaClock, NotCaptured, random_index
from ..metrics.determinism import GraphBits, graph_bits, repeat
from ..providers.base import Bind
from ..providers.inplace import restored
from .functions import PreparedFunction
from .judging import addresses

CHECKED = 2  # input sets whose outputs are checked: with one, a buffer that is used again would go unnoticed

NOTHING_KNOWN: Mapping[str, Repeats] = {}
IN_A_GRAPH = "its CUDA graph computes something else than its calls: "
IN_TURNS = "after a turn: "
ROWS_OF_A_TURN = 4
AFTERWARDS = "after the timing, with other numbers in its inputs: "


def prepare(
    bench: Bench,
    case: AnyCase,
    seed: int,
    *,
    thorough: bool = True,
    graph_s: float = GRAPH_S,
    repeats: int = FULL_REPEATS,
    known: Mapping[str, Repeats] = NOTHING_KNOWN,
    inexact: str | None = None,
) -> Prepared:
    """Compile and check a case and get its clock ready.

    Without `thorough`, skip what cannot change from trial to trial.  `graph_s`: about how many seconds a CUDA graph of
    the kernel metric takes with a good kernel.  `repeats`: how many calls on the same inputs a thorough preparation
    compares; MIN_REPEATS where `known` (by hash of the code) already says whether that code repeats.  `inexact`: why an
    earlier trial called its numbers not exact enough.

    Raises: Wrong, and what the provider raises.
    """
    bench.free()
    forget_graphs()  # a target may call torch.compile itself, and no case may depend on earlier ones
    with bench.working():
        if isinstance(case, FunctionCase):
            return PreparedFunction(bench, case, seed, thorough=thorough, graph_s=graph_s)
        if case.metric is Metric.BLOCK:
            return PreparedBlock(bench, case, seed, thorough=thorough)
        return PreparedCase(
            bench, case, seed, thorough=thorough, graph_s=graph_s, repeats=repeats, known=known, inexact=inexact
        )


def _by_rows(tensor: Tensor) -> Tensor:
    """[rows, columns] with the elements of a row next to each other; a vector is one row."""
    rows = tensor.detach().unsqueeze(0) if tensor.ndim == 1 else by_rows(tensor.detach())
    return rows if rows.stride(1) == 1 else rows.contiguous()


class PreparedCase:
    """A provider that is ready for one case and passed the checks once.

    Input sets have different numbers.  Some outputs are checked before the clock starts.  After the timing the numbers
    are changed in place, without the target's knowledge, and the outputs have to follow: this catches a cached result
    and a kernel that is missing in the graph.  A `thorough` preparation also gathers facts, compares repeated calls
    while other work runs, compares the clock's calls with plain ones, and after the timing times new numbers.

    Where the first outputs are not exact enough, `inexact` says why.  The calls can be timed all the same, for what
    their time says about another implementation; then their outputs are not compared with float64 again.
    """

    def __init__(
        self,
        bench: Bench,
        case: Case,
        seed: int,
        *,
        thorough: bool,
        graph_s: float,
        repeats: int,
        known: Mapping[str, Repeats],
        inexact: str | None = None,
    ) -> None:
        self.bench = bench
        self.case = case
        self.seed = seed
        self.thorough = thorough
        self.graph_s = graph_s
        self.facts: dict[str, Any] = {}
        self._seen = Seen()
        self.errors: dict[str, float] = {}
        self.inexact = inexact
        self.spent: dict[str, float] = {}
        self._audit = CpuAudit(bench)
        self._wrong_in_turns: str | None = None
        with self._spending("bind"):
            bind = bench.provider_at(case)
        with self._spending("inputs"):
            self._make_inputs()
        with self._spending("bind"):
            self.calls: list[Call] = [bind(inputs) for inputs in self.sets]
        if thorough:
            with self._spending("facts"):  # compiles as well
                self._gather_facts()
        # The exact result of this set serves both for the allowed errors and for the first outputs that are judged.
        self.oracle = Oracle(self.sets[0 if thorough else -1], bench.provider.rounding)
        if thorough:
            with self._spending("oracle"), self._noting_inexact():
                self._check_first_outputs()
                self._check_edges(bind)
        if thorough and case.metric is Metric.KERNEL:
            with self._spending("repeat"):
                self._compare_repeats(repeats, known)
        try:
            self._make_clock(bind)
        except Exception as error:
            if self.inexact and not isinstance(error, NotCaptured):
                raise Inexact(self.inexact, self.errors) from error
            raise

    def describe(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "errors": self.errors,
            "sets": len(self.sets),
            "calls": self.clock.calls,
            "l2_resident": self.l2_resident,
            **({"inputs": addresses([inputs[inputs.fresh] for inputs in self.all_sets])} if self.judged else {}),
            "spent": {step: round(seconds, 5) for step, seconds in self.spent.items()},
            **({"state": INVALID, "reason": self.inexact[:MAX_REASON], "inexact": True} if self.inexact else {}),
        }

    def text(self, kernel: int, kind: str) -> str:
        """The code of a kernel that the call launched, or the timeline of a few calls.

        Raises KeyError or IndexError where the code was not observed.
        """
        if kind == KIND:
            with self.bench.working():
                return timeline(restored(self.calls[0]), self.bench.stream)
        return observed_text(self._seen, kernel, kind)

    @property
    def judged(self) -> bool:
        """Are the outputs of its turns judged by another process?"""
        return isinstance(self.clock, CpuClock)

    def turn(self, warm: int, timed: int, *, once: bool = False) -> list[float]:
        with self.bench.working(), self._audit.counting(self.case.metric):
            if isinstance(self.clock, CpuClock):
                return self.clock.turn(warm, timed, once=once)
            if isinstance(self.clock, CudaClock):
                return self._turn_of_graph(self.clock, warm, timed)
            return self.clock.turn(warm, timed)

    def _turn_of_graph(self, clock: CudaClock, warm: int, timed: int) -> list[float]:
        """A turn whose last replay has to fill outputs of a drawn set: a graph could be replaced after its check."""
        number, output = clock.forget_one()
        samples = clock.turn(warm, timed)
        if self.inexact:
            return samples
        count = min(self.case.rows, ROWS_OF_A_TURN)
        rows = sorted({random_index(self.case.rows) for _ in range(count)})
        wrong = require_rows(self.sets[number], named(self.case, output), rows, self.oracle.rounding)
        self._wrong_in_turns = self._wrong_in_turns or wrong
        return samples

    def kept(self) -> list[list[list[int]]]:
        """Where the driver finds outputs of the last turn: of each set, those of each output."""
        if not isinstance(self.clock, CpuClock):
            return []
        outputs = [[_by_rows(one) for one in named(self.case, returned).values()] for returned in self.clock.kept]
        self._handed_over = outputs  # alive until the next turn
        return [addresses(each) for each in outputs]

    def check(self) -> None:
        """Raises Wrong, or what the provider raises."""
        self.bench.check_threads()
        self._audit.check()
        with self.bench.working():
            self.untouched.check()
            if self.inexact:
                return
            if self.thorough and self._times_whole_calls():
                self._check_caching()
            watched = self.untouched.numbers[-1]
            self._renew(watched)
            self.untouched.require_change(watched)
            self._check_last_outputs()
        if self._wrong_in_turns:  # what the checks above find says more
            raise Wrong(f"{IN_TURNS}{self._wrong_in_turns}")

    # -- before the timing --------------------------------------------------------------------------------------------

    def _make_inputs(self) -> None:
        case = self.case
        l2_bytes = self.bench.l2_bytes
        count = CHECKED
        if case.metric is Metric.KERNEL:
            count = sets_needed(case, case.set_bytes, l2_bytes, self.bench.memory_bytes, self.graph_s)
        self.l2_resident = None if l2_bytes is None else stays_in_l2(case.set_bytes, count, l2_bytes)
        self.sets = self.all_sets = make_sets(case, self.bench.device, self.seed, count)
        watched = {*range(CHECKED), *range(count)[-CHECKED:]} if self.thorough else {count - 1}
        self.untouched = Untouched(self.sets, sorted(watched))

    def _gather_facts(self) -> None:
        provider = self.bench.provider
        on_gpu = self.bench.stream is not None
        self.facts = gather.gather(
            self.calls[0], compiled=provider.compiled, pinned=provider.pinned, cuda=on_gpu, seen=self._seen
        )
        self.facts |= provider.facts()
        if rounds_in_between(self.case, provider.rounding):
            self.facts["rounding"] = str(provider.rounding)
        if provider.inplace:
            self.facts["inplace"] = True

    @contextmanager
    def _noting_inexact(self) -> Iterator[None]:
        try:
            yield
        except Inexact as wrong:
            self.inexact = str(wrong)
            self._note_errors(wrong.errors)

    def _note_errors(self, errors: Mapping[str, float]) -> None:
        """Keep the largest error of each output."""
        self.errors |= {name: max(error, self.errors.get(name, 0.0)) for name, error in errors.items()}

    def _check_first_outputs(self) -> None:
        fill_with_nan(self.case, self.bench.device, CHECKED)
        returned: list[tuple[Inputs, Any]] = []
        seen: list[Outputs] = []
        for inputs, call in zip(self.sets[:CHECKED], self.calls[:CHECKED], strict=True):
            result = restored(call)()
            returned.append((inputs, result))
            seen.append(self._at_once(result))
        require_own_memory(self.case, returned)
        self.untouched.check()
        for inputs, outputs in zip(self.sets[:CHECKED], seen, strict=True):
            self._note_errors(require_correct(self.oracle, inputs, outputs).errors)

    def _at_once(self, returned: Any) -> Outputs:
        """On a CPU a copy, so that work finished later does not count.  On a GPU the stream keeps the order."""
        return snapshot(self.case, returned) if self.bench.stream is None else named(self.case, returned)

    def _check_edges(self, bind: Bind) -> None:
        inputs = edge_inputs(self.case, self.bench.device, self.seed)
        require_correct_edges(self.oracle, inputs, named(self.case, bind(inputs)()))

    def _make_clock(self, bind: Bind) -> None:
        with self._spending("clock"):
            self.clock = clock_of(self.case, self.bench, bind, self.sets, self.calls, self.graph_s)
        if isinstance(self.clock, CpuClock):
            with self._spending("inputs"):
                self._add_sets(self.clock, bind)
        self.facts |= getattr(self.clock, "facts", {})
        if self.thorough and isinstance(self.clock, CudaClock):
            with self._spending("repeat"):
                self._check_graph(self.clock)

    def _add_sets(self, clock: CpuClock, bind: Bind) -> None:
        """Add input sets for single passes; of a slow kernel a few, and the driver sees that they take long enough.

        Twice as many as fit into a sample now, because other contenders prepare on the same cores.
        """
        count = min(sets_of_pass(self.case), 2 * clock.calls)
        more = make_sets(self.case, self.bench.device, self.seed, count)[len(self.sets) :]
        clock.more = [bind(inputs) for inputs in more]
        for call in clock.more:
            restored(call)()
        self.all_sets = [*self.sets, *more]

    def _compare_repeats(self, calls: int, known: Mapping[str, Repeats]) -> None:
        before = known.get(self.facts.get("code") or "")
        if before is not None and before.repeatable is not None:
            calls = MIN_REPEATS
        self.facts |= repeat(self.case, restored(self.calls[0]), self.bench.stream, calls).facts

    def _check_graph(self, clock: CudaClock) -> None:
        """Check the outputs of the graph, and note how its bits compare with those of a plain call.

        The driver decides whether other bits are wrong: it knows more about how reliably the code repeats.
        """
        numbers = []
        for number, output in clock.again():
            if not self.inexact:
                require_correct(self.oracle, self.sets[number], snapshot(self.case, output), IN_A_GRAPH)
            numbers.append(number)
        compared = [graph_bits(self.case, partial(clock.replay, each), restored(self.calls[each])) for each in numbers]
        self.facts["graph_bits"] = str(max(compared, key=list(GraphBits).index))

    # -- after the timing ---------------------------------------------------------------------------------------------

    def _times_whole_calls(self) -> bool:
        """Does the metric include all the work of a call?  On a GPU the call metric has only the host's part."""
        return self.case.metric is Metric.KERNEL or (self.case.metric is Metric.CALL and self.bench.stream is None)

    def _check_caching(self) -> None:
        found = caching.measure(self.case, self.sets, self.calls, self.clock, self.seed)
        found.check()
        self._require_still_correct(self.oracle, self.sets[found.number], found.outputs)

    def _require_still_correct(self, oracle: Oracle, inputs: Inputs, outputs: Outputs) -> None:
        """Raises Inexact for outputs that are not exact enough, and Wrong for those that are of other numbers."""
        try:
            require_correct(oracle, inputs, outputs, AFTERWARDS)
        except Inexact as wrong:
            if wrong.errors and all(error <= FAR * oracle.limits[name] for name, error in wrong.errors.items()):
                raise
            raise Wrong(str(wrong)) from None

    def _renew(self, number: int) -> None:
        """Write other numbers into a set, without the target's knowledge."""
        refill(self.sets[number], fresh_values(self.case, self.sets[number], self.seed, OTHER_NUMBERS + number))

    def _check_last_outputs(self) -> None:
        fill_with_nan(self.case, self.bench.device, CHECKED)
        seen: list[tuple[Inputs, Outputs]] = []
        returned: list[tuple[Inputs, Any]] = []
        for number, output in self.clock.again(self._renew):
            returned.append((self.sets[number], output))
            seen.append((self.sets[number], self._at_once(output)))
        require_own_memory(self.case, returned)
        if self.bench.stream is None or self.thorough:
            for inputs, outputs in reversed(seen):  # the last first: its exact result also serves for what is allowed
                self._require_still_correct(self.oracle, inputs, outputs)
        else:
            self._check_one_of(seen)
        require_working_oracle(self.case, self.bench.device, self.seed)

    def _check_one_of(self, seen: Sequence[tuple[Inputs, Outputs]]) -> None:
        """In a later trial on a GPU, check one random set against float64, and that no output of the others is NaN."""
        inputs, outputs = seen[random_index(len(seen))]
        self._require_still_correct(Oracle(inputs, self.oracle.rounding), inputs, outputs)
        for _, others in seen:
            require_finite(others, AFTERWARDS)

    # -- meanwhile ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _spending(self, step: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
            if self.bench.stream is not None:
                self.bench.stream.synchronize()
        finally:
            self.spent[step] = self.spent.get(step, 0.0) + perf_counter() - began
