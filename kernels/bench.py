"""One provider on one device: at each case its inputs, its bound calls, its clock and its oracle."""

import gc
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from . import facts
from .clocks import Call, sets_needed
from .inputs import BY_ROW, DTYPES, changed, fingerprint, fresh_values, make, refill
from .lanes import clock_of
from .oracle import Oracle, named
from .providers import Provider, forward_backward, open_provider
from .providers.eager import Eager
from .words import DTYPE_BYTES, Case, Direction, Lane

CHECKED = 2  # input sets whose outputs are looked at: with one, a buffer that is used again would go unnoticed
OTHER_NUMBERS = 1 << 20  # sets from here on are those for the check after the timing


class Wrong(Exception):
    """An output that is not what it should be.  The message is the reason shown to people."""


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

    def prepare(self, case: Case, seed: int) -> "AtCase":
        """Compile, check and get the clock ready.  Raises what the provider raises, and Wrong."""
        self.free()
        with self.working():
            return AtCase(self, case, seed)

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
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


class AtCase:
    """A provider made ready for one case, found right once.

    Inputs come in sets with different numbers.  Two sets are checked before the clock starts.  After the timing the
    numbers of the last sets are changed where they lie, unseen, and the outputs have to follow: whoever gave back a
    result that was kept, or left the kernel out of the graph, is wrong then.
    """

    def __init__(self, bench: Bench, case: Case, seed: int) -> None:
        self.bench, self.case, self.seed = bench, case, seed
        provider = bench.provider
        if case.direction is Direction.FWDBWD:
            bind = forward_backward(case, provider.differentiable(case, bench.device))
        else:
            bind = provider.ready(case, bench.device)
        by_row = [name for name in case.inputs if name in BY_ROW]
        row_bytes = case.rows * (case.stride or case.cols) * DTYPE_BYTES[case.dtype] * len(by_row)
        count = sets_needed(row_bytes, bench.l2_bytes) if case.lane is Lane.KERNEL else CHECKED
        # on a GPU the inputs must not fit, nor do the outputs then: the clock keeps as many, of about the same size
        self.l2_resident = None if bench.l2_bytes is None else count * row_bytes <= bench.l2_bytes
        self.sets = [make(case, bench.device, seed, number) for number in range(count)]
        watched = {*range(CHECKED), *range(count)[-CHECKED:]}
        self._prints = {number: fingerprint(self.sets[number]) for number in watched}
        calls: list[Call] = [bind(inputs) for inputs in self.sets]
        self.facts = facts.gather(
            calls[0],
            compiled=bench.provider.compiled,
            pinned=bench.provider.pinned,
            cuda=bench.device.type == "cuda",
        )
        self.oracle = Oracle(self.sets[0])
        self.errors = self._right_before(calls)
        self.facts["repeatable"] = self._repeatable(calls[0])
        self._inputs_untouched()
        self.clock = clock_of(case, bench, bind, self.sets, calls)

    def describe(self) -> dict[str, Any]:
        return {
            "facts": {**self.facts, **getattr(self.clock, "facts", {})},
            "errors": self.errors,
            "sets": len(self.sets),
            "calls": self.clock.calls,
            "l2_resident": self.l2_resident,
        }

    def turn(self, warm: int, timed: int) -> list[float]:
        with self.bench.working():
            return self.clock.turn(warm, timed)

    def check(self) -> None:
        """Raises Wrong, or what the provider raises."""
        if torch.get_num_threads() != self.bench.threads:
            raise Wrong(f"changed the number of threads from {self.bench.threads} to {torch.get_num_threads()}")
        with self.bench.working():
            self._inputs_untouched()
            for number in () if self._remembers() else self._prints:
                refill(self.sets[number], fresh_values(self.case, self.sets[number], self.seed, OTHER_NUMBERS + number))
            self._poison()
            for number, output in self.clock.again():
                outputs = named(self.case, output)
                if reason := self.oracle.judge(self.sets[number], outputs).reason:
                    raise Wrong(f"after the timing, with other numbers in its inputs: {reason}")

    def _remembers(self) -> bool:
        """Autograd's backward pass works on what its forward pass kept, and does not see that the inputs changed."""
        return isinstance(self.bench.provider, Eager) and self.bench.provider.remembers

    def _right_before(self, calls: Sequence[Call]) -> dict[str, float]:
        self._poison()
        returned = [call() for call in calls[:CHECKED]]
        errors: dict[str, float] = {}
        for inputs, output in zip(self.sets, returned, strict=False):
            finding = self.oracle.judge(inputs, named(self.case, output))
            if finding.reason:
                raise Wrong(finding.reason)
            errors = {name: max(error, errors.get(name, 0.0)) for name, error in finding.errors.items()}
        return errors

    def _repeatable(self, call: Call) -> bool:
        """Bit by bit the same, twice in a row.  Not being so is allowed, and worth knowing."""
        first = {name: tensor.clone() for name, tensor in named(self.case, call()).items()}
        second = named(self.case, call())
        return all(torch.equal(first[name], second[name]) for name in first)

    def _inputs_untouched(self) -> None:
        for number, before in self._prints.items():
            if names := changed(self.sets[number], before):
                raise Wrong(f"changed its input {' and '.join(names)}")

    def _poison(self) -> None:
        """Leave NaN in the memory that outputs are likely to get: what a kernel forgets to write must look wrong."""
        nowhere: list[Tensor] = []
        for name in self.case.outputs:
            shape = (self.case.rows, self.case.cols) if name in ("y", "dx") else (self.case.cols,)
            dtype = DTYPES[self.case.dtype if name in ("y", "dx") else self.case.weight_dtype]
            nowhere += [torch.full(shape, math.nan, dtype=dtype, device=self.bench.device) for _ in range(CHECKED)]
        nowhere.clear()


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return "cpu"
