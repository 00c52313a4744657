"""One provider on one device: at each case its inputs, its bound calls, its clock and its oracle."""

import gc
import os
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial

# Taken before any code of a target is loaded, which might replace it.
from time import perf_counter, process_time, thread_time
from typing import Any, Protocol

import torch

from ..arena.repeatability import ENOUGH, FEWEST, Repeats
from ..arena.sizes import GRAPH_S, sets_needed, stays_in_l2
from ..cases import BY_ROW, DTYPE_BYTES, Case, Direction, Metric
from ..checks import caching
from ..checks.determinism import GraphBits, graph_bits, repeat
from ..checks.edge_inputs import edge_inputs
from ..checks.inputs import Inputs, fresh_values, make_sets, refill
from ..checks.oracle import Oracle, named
from ..checks.outputs import Outputs, Untouched, Wrong, finite, judged, own_memory, poison, snapshot, still_judges
from ..facts import gather
from ..providers import Provider, forward_backward, open_provider
from ..providers.base import Bind
from .clocks import Call, CudaClock
from .metrics import clock_of
from .metrics.caches import forget_graphs

__all__ = ["OTHER_NUMBERS", "Bench", "Prepared", "PreparedCase", "Wrong"]

CHECKED = 2  # input sets whose outputs are looked at: with one, a buffer that is used again would go unnoticed
OTHER_NUMBERS = 1 << 20  # sets from here on are those for the check after the timing

_any_of = random.SystemRandom().randrange
NOTHING_KNOWN: Mapping[str, Repeats] = {}
IN_A_GRAPH = "its CUDA graph computes something else than its calls: "
AFTERWARDS = "after the timing, with other numbers in its inputs: "

# What was used is given back to the driver when it is more than this share of the device's memory: the other contenders
# may need it.  Below that giving back and asking again would cost more than it is worth: a cudaFree waits for the
# device, and input sets of some gigabytes are hundreds of pieces.
KEPT_MEMORY = 1 / 16
LEFT_BYTES = 1 << 28  # still held when a case is over: only then is it worth 30 ms to look for cycles

# CPU time of all threads over that of the threads it was given.  On a busy machine the time that passed says nothing.
MORE_CPU, MORE_CPU_S = 1.2, 10e-3


class Prepared(Protocol):
    """A provider made ready for one case."""

    def describe(self) -> dict[str, Any]: ...
    def turn(self, warm: int, timed: int) -> list[float]: ...
    def check(self) -> None: ...


class Bench:
    def __init__(self, spec: Mapping[str, Any], device: torch.device, threads: int) -> None:
        self.device, self.threads = device, threads
        self.stream: Any = None
        torch.set_num_threads(threads)
        if device.type == "cuda":
            device = self.device = torch.device("cuda", 0)
            cuda: Any = torch.cuda
            cuda.init()
            self.stream = cuda.Stream()
        # Not above, since it needs this module; and before the target's code, which might replace what it takes.
        from .metrics.block import PreparedBlock

        self._at_block = PreparedBlock
        self.provider: Provider = open_provider(spec)
        self.provider.warm()

    def describe(self) -> dict[str, Any]:
        if self.device.type == "cpu":
            return {"kind": "cpu", "name": _processor(), "cores": len(os.sched_getaffinity(0)), "threads": self.threads}
        about = torch.cuda.get_device_properties(self.device)
        return {
            "kind": "cuda",
            "name": about.name,
            "uuid": str(getattr(about, "uuid", "")) or None,
            "capability": f"{about.major}.{about.minor}",
            "sms": about.multi_processor_count,
            "l2_bytes": about.L2_cache_size,
            "memory_bytes": about.total_memory,
        }

    @property
    def l2_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return int(torch.cuda.get_device_properties(self.device).L2_cache_size)

    @property
    def memory_bytes(self) -> int | None:
        if self.device.type == "cpu":
            return None
        return int(torch.cuda.get_device_properties(self.device).total_memory)

    def prepare(
        self,
        case: Case,
        seed: int,
        *,
        thorough: bool = True,
        graph_s: float = GRAPH_S,
        repeats: int = ENOUGH,
        known: Mapping[str, Repeats] = NOTHING_KNOWN,
    ) -> Prepared:
        """Compile, check and get the clock ready.  Raises what the provider raises, and Wrong.

        When not `thorough`, what cannot change from launch to launch is not looked at again.  `graph_s` is about how
        long a CUDA graph of the kernel metric takes, on a good kernel.  A thorough preparation calls up to `repeats`
        times on the same inputs; FEWEST times where `known`, by the hash of the code, says already how it repeats.
        """
        self.free()
        forget_graphs()  # a target may call torch.compile itself, and no case must depend on those before it
        with self.working():
            if case.metric is Metric.BLOCK:
                return self._at_block(self, case, seed, thorough=thorough)
            return PreparedCase(self, case, seed, thorough=thorough, graph_s=graph_s, repeats=repeats, known=known)

    def provider_at(self, case: Case) -> Bind:
        """How the provider binds input sets at a case.  Raises what the provider raises."""
        if case.direction is Direction.FWDBWD:
            return forward_backward(case, self.provider.differentiable(case, self.device))
        return self.provider.ready(case, self.device)

    def has_its_threads(self) -> None:
        """Raises Wrong where the target has changed how many there are."""
        if torch.get_num_threads() != self.threads:
            raise Wrong(f"changed the number of threads from {self.threads} to {torch.get_num_threads()}")

    @contextmanager
    def working(self) -> Iterator[None]:
        """No gradients, and on a GPU everything on the one stream that is captured later."""
        torch.set_num_threads(self.threads)  # the target may have changed it
        with torch.no_grad():
            if self.device.type == "cpu":
                yield
                return
            with torch.cuda.stream(self.stream):
                yield
            self.stream.synchronize()

    def is_broken(self) -> bool:
        if self.device.type == "cpu":
            return False
        try:
            torch.cuda.synchronize()
        except RuntimeError:
            return True
        return False

    def free(self) -> None:
        """Give back what an earlier case used, where it is much."""
        if self.device.type == "cpu":
            gc.collect(1)
            return
        cuda: Any = torch.cuda
        if cuda.memory_allocated() > LEFT_BYTES:
            gc.collect()
        if cuda.memory_reserved() > KEPT_MEMORY * (self.memory_bytes or 0):
            cuda.empty_cache()


class PreparedCase:
    """A provider made ready for one case, found right once.

    Inputs come in sets with different numbers.  Some are checked before the clock starts.  After the timing the numbers
    are changed where they lie, unseen, and the outputs have to follow: whoever gave back a result that was kept, or
    left the kernel out of the graph, is wrong then.  A `thorough` preparation also gathers facts, calls again and again
    beside other work, compares the clock's calls with plain ones, and after the timing times numbers never seen.
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
    ) -> None:
        self.bench, self.case, self.seed, self.thorough, self.graph_s = bench, case, seed, thorough, graph_s
        self.facts: dict[str, Any] = {}
        self.spent: dict[str, float] = {}
        with self._spending("bind"):
            bind = bench.provider_at(case)
        with self._spending("inputs"):
            self._make_inputs()
        with self._spending("bind"):
            self.calls: list[Call] = [bind(inputs) for inputs in self.sets]
        if thorough:
            with self._spending("facts"):  # compiles as well
                self._gather_facts()
        self.errors: dict[str, float] = {}
        # What is exact is computed once for what is allowed and for the first outputs that are judged.
        self.oracle = Oracle(self.sets[0 if thorough else -1])
        if thorough:
            with self._spending("oracle"):
                self.errors = self._right_before()
                self._right_at_the_edges(bind)
        if thorough and case.metric is Metric.KERNEL:
            with self._spending("repeat"):
                self._repeat(repeats, known)
        with self._spending("clock"):
            self.clock = clock_of(case, bench, bind, self.sets, self.calls, graph_s)
        self.facts |= getattr(self.clock, "facts", {})
        if thorough and isinstance(self.clock, CudaClock):
            with self._spending("repeat"):
                self._right_in_the_graph(self.clock)
        self.cpu_s = self.own_cpu_s = 0.0  # of all threads, and of those it was given, in all turns on a CPU

    def describe(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "errors": self.errors,
            "sets": len(self.sets),
            "calls": self.clock.calls,
            "l2_resident": self.l2_resident,
            "spent": {step: round(seconds, 5) for step, seconds in self.spent.items()},
        }

    def turn(self, warm: int, timed: int) -> list[float]:
        with self.bench.working(), self._watching_threads():
            return self.clock.turn(warm, timed)

    def check(self) -> None:
        """Raises Wrong, or what the provider raises."""
        self.bench.has_its_threads()
        if self.cpu_s > MORE_CPU * self.own_cpu_s + MORE_CPU_S:
            raise Wrong(
                f"worked in the background: {self.cpu_s:.3g} s of CPU time, {self.own_cpu_s:.3g} of them its own"
            )
        with self.bench.working():
            self.untouched.check()
            if self.thorough and self._shows_what_is_kept():
                self._as_fast_on_new_numbers()
            watched = self.untouched.numbers[-1]
            self._renew(watched)
            self.untouched.notices(watched)
            self._right_after()

    # -- before the timing --------------------------------------------------------------------------------------------

    def _make_inputs(self) -> None:
        case, bench = self.case, self.bench
        by_row = sum(name in BY_ROW for name in case.inputs)
        one_set = case.rows * (case.stride or case.cols) * DTYPE_BYTES[case.dtype] * by_row
        l2, memory = bench.l2_bytes, bench.memory_bytes
        count = sets_needed(case, one_set, l2, memory, self.graph_s) if case.metric is Metric.KERNEL else CHECKED
        self.l2_resident = None if l2 is None else stays_in_l2(one_set, count, l2)
        self.sets = make_sets(case, bench.device, self.seed, count)
        watched = {*range(CHECKED), *range(count)[-CHECKED:]} if self.thorough else {count - 1}
        self.untouched = Untouched(self.sets, sorted(watched))

    def _gather_facts(self) -> None:
        provider, on_gpu = self.bench.provider, self.bench.stream is not None
        self.facts = gather.gather(self.calls[0], compiled=provider.compiled, pinned=provider.pinned, cuda=on_gpu)
        self.facts |= provider.facts()

    def _right_before(self) -> dict[str, float]:
        """The errors, by output."""
        poison(self.case, self.bench.device, CHECKED)
        returned: list[tuple[Inputs, Any]] = []
        seen: list[Outputs] = []
        for number, call in enumerate(self.calls[:CHECKED]):
            returned.append((self.sets[number], call()))
            seen.append(self._at_once(returned[-1][1]))
        own_memory(self.case, returned)
        self.untouched.check()
        errors: dict[str, float] = {}
        for number, outputs in enumerate(seen):
            found = judged(self.oracle, self.sets[number], outputs).errors
            errors = {name: max(error, errors.get(name, 0.0)) for name, error in found.items()}
        return errors

    def _at_once(self, returned: Any) -> Outputs:
        """On a CPU a copy: what is finished later must not count.  On a GPU the stream keeps the order."""
        return snapshot(self.case, returned) if self.bench.stream is None else named(self.case, returned)

    def _right_at_the_edges(self, bind: Bind) -> None:
        inputs = edge_inputs(self.case, self.bench.device, self.seed)
        outputs = named(self.case, bind(inputs)())
        if reason := self.oracle.judge_edges(inputs, outputs).reason:
            raise Wrong(reason)

    def _repeat(self, calls: int, known: Mapping[str, Repeats]) -> None:
        before = known.get(self.facts.get("code") or "")
        if before is not None and before.repeatable is not None:
            calls = FEWEST
        found = repeat(self.case, self.calls[0], self.bench.stream, calls)
        self.facts |= found.facts

    def _right_in_the_graph(self, clock: CudaClock) -> None:
        """What the clock times is right, and how its bits compare with those of a call is a fact.

        Whether other bits are wrong depends on how surely the code repeats, for which the driver knows more.
        """
        numbers = []
        for number, output in clock.again():
            judged(self.oracle, self.sets[number], snapshot(self.case, output), IN_A_GRAPH)
            numbers.append(number)
        compared = [graph_bits(self.case, partial(clock.replay, each), self.calls[each]) for each in numbers]
        self.facts["graph_bits"] = str(max(compared, key=list(GraphBits).index))

    # -- after the timing ---------------------------------------------------------------------------------------------

    def _shows_what_is_kept(self) -> bool:
        """Is all that a call does in its time?  On a GPU the metric call has the host's part alone."""
        return self.case.metric is Metric.KERNEL or (self.case.metric is Metric.CALL and self.bench.stream is None)

    def _as_fast_on_new_numbers(self) -> None:
        found = caching.take(self.case, self.sets, self.calls, self.clock, self.seed)
        found.check()
        judged(self.oracle, self.sets[found.number], found.outputs, AFTERWARDS)

    def _renew(self, number: int) -> None:
        """Other numbers for a set, unseen."""
        refill(self.sets[number], fresh_values(self.case, self.sets[number], self.seed, OTHER_NUMBERS + number))

    def _right_after(self) -> None:
        poison(self.case, self.bench.device, CHECKED)
        seen: list[tuple[Inputs, Outputs]] = []
        returned: list[tuple[Inputs, Any]] = []
        for number, output in self.clock.again(self._renew):
            returned.append((self.sets[number], output))
            seen.append((self.sets[number], self._at_once(output)))
        own_memory(self.case, returned)
        if self.bench.stream is None or self.thorough:
            for inputs, outputs in reversed(seen):  # the last first: what is exact of it serves for what is allowed
                judged(self.oracle, inputs, outputs, AFTERWARDS)
        else:
            self._one_right_and_all_finite(seen)
        still_judges(self.case, self.bench.device, self.seed)

    def _one_right_and_all_finite(self, seen: Sequence[tuple[Inputs, Outputs]]) -> None:
        """In a later launch on a GPU float64 decides on one set, drawn now; what was left out of the graph is NaN."""
        inputs, outputs = seen[_any_of(len(seen))]
        judged(Oracle(inputs), inputs, outputs, AFTERWARDS)
        for _, others in seen:
            finite(others, AFTERWARDS)

    # -- meanwhile ----------------------------------------------------------------------------------------------------

    @contextmanager
    def _watching_threads(self) -> Iterator[None]:
        """On a CPU everybody is given as many threads; work in the background would be time of others' cores."""
        if self.bench.stream is not None or self.case.metric not in (Metric.KERNEL, Metric.CALL):
            yield  # compilers and profilers have threads of their own
            return
        cpu, own = process_time(), thread_time()
        yield
        self.cpu_s += process_time() - cpu
        self.own_cpu_s += self.bench.threads * (thread_time() - own)

    @contextmanager
    def _spending(self, step: str) -> Iterator[None]:
        began = perf_counter()
        try:
            yield
            if self.bench.stream is not None:
                self.bench.stream.synchronize()
        finally:
            self.spent[step] = self.spent.get(step, 0.0) + perf_counter() - began


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"
