"""The block metric: forward and backward of a transformer block that uses a provider's norm in both places."""

import gc
import math
from dataclasses import replace
from itertools import pairwise

# Imported before any code of a target runs, which might replace it.
from time import perf_counter_ns
from typing import Any

import torch

from ...blocks import MAX_SEQUENCE, Shape
from ...cases import OPS, Case, Direction
from ...checks.outputs import FAR_OFF, Wrong, fill_with_nan
from ...facts import gather
from ...providers import Unsupported
from ..bench import OTHER_NUMBERS, Bench
from ..clocks import event
from .memory import memory_of
from .steps import BlockInputs, BlockOracle, Step, step
from .transformer import transformer

SAMPLE_S = 20e-3  # a sample has several steps where they are short
MAX_STEPS = 16
FEW_TOKENS = 128


class PreparedBlock:
    """A provider's norm in a transformer block; the counterpart of PreparedCase."""

    def __init__(self, bench: Bench, case: Case, seed: int, thorough: bool = True) -> None:
        self.bench = bench
        self.case = case
        self.seed = seed
        shape = Shape.of(case)
        if shape is None:
            raise Unsupported(f"{case.rows} tokens are not a whole number of sequences of {MAX_SEQUENCE}")
        provider = bench.provider
        on_gpu = bench.stream is not None
        forward = provider.block(case, bench.device, transformer(case, shape))
        self.inputs = BlockInputs.make(case, shape, bench.device, seed)
        self._step = step(forward, self.inputs.tensors, self.inputs.gradients)
        self._before = self.inputs.fingerprint()
        self.facts: dict[str, Any] = {"tokens": shape.tokens, "flops": shape.flops}
        if thorough:
            self.facts |= gather.gather(self._step, compiled=provider.compiled, pinned=provider.pinned, cuda=on_gpu)
            self.facts |= provider.facts()
            _, self.facts["peak_bytes"] = memory_of(self._step, on_gpu)
        self.oracle = BlockOracle(self.inputs)
        self.errors = self._check_outputs()
        bench.free()  # the temporaries of the oracle are larger than the block itself
        self.clock = BlockClock(self._step, bench.stream)

    def describe(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "errors": self.errors,
            "sets": 1,
            "calls": self.clock.calls,
            "l2_resident": None,
        }

    def turn(self, warm: int, timed: int) -> list[float]:
        with self.bench.working():
            return self.clock.turn(warm, timed)

    def check(self) -> None:
        """Raises Wrong, or what the provider raises."""
        self.bench.check_threads()
        with self.bench.working():
            self._check_inputs()
            self.inputs.change(self.seed, OTHER_NUMBERS)
            if "x" not in self.inputs.changed(self._before):
                raise Wrong("the checks were tampered with: new numbers in an input go unnoticed")
            self._before = self.inputs.fingerprint()
            try:
                self._check_outputs()
            except Wrong as wrong:
                raise Wrong(f"after the timing, with other numbers in its inputs: {wrong}") from None
            self._check_oracle()

    def _check_outputs(self) -> dict[str, float]:
        fill_with_nan(self.case, self.bench.device, 2)
        finding = self.oracle.judge(self._step())
        if finding.reason:
            raise Wrong(finding.reason)
        self._check_inputs()
        return finding.errors

    def _check_inputs(self) -> None:
        if names := self.inputs.changed(self._before):
            raise Wrong(f"changed the block's {' and '.join(names)}")

    def _check_oracle(self) -> None:
        """Raises Wrong if the oracle accepts grossly wrong outputs of a block of a few tokens."""
        few = replace(self.case, rows=min(self.case.rows, FEW_TOKENS))
        inputs = BlockInputs.make(few, Shape(few.rows, few.rows, few.cols), self.bench.device, self.seed)
        outputs = [inputs.tensors["x"]] * len(OPS[few.op].outputs(Direction.FWD))
        far_off = [torch.full_like(tensor, FAR_OFF) for tensor in (*outputs, *inputs.tensors.values())]
        if BlockOracle(inputs).judge(far_off).reason is None:
            raise Wrong("the checks were tampered with: a block that is wrong on purpose is called right")


class BlockClock:
    """Times several steps in a row, on a GPU by events; us per step.

    The block runs eagerly, without a CUDA graph, as in a program: if its launches take longer than its kernels, the
    launches decide.  The timed steps queue behind untimed ones, so that they contain only the block's own gaps.
    """

    def __init__(self, call: Step, stream: Any) -> None:
        self._call = call
        self._stream = stream
        self.calls = 1
        call()
        once_us = min(self.turn(1, 2))
        self.calls = max(1, min(MAX_STEPS, math.ceil(SAMPLE_S * 1e6 / once_us)))

    def turn(self, warm: int, timed: int) -> list[float]:
        gc.collect(0)
        gc.disable()
        try:
            for _ in range(warm):
                self._steps()
            return self._by_events(timed) if self._stream is not None else self._on_cpu(timed)
        finally:
            gc.enable()

    def _by_events(self, timed: int) -> list[float]:
        marks = [event() for _ in range(timed + 1)]
        marks[0].record(self._stream)
        for mark in marks[1:]:
            self._steps()
            mark.record(self._stream)
        self._stream.synchronize()
        return [began.elapsed_time(ended) * 1e3 / self.calls for began, ended in pairwise(marks)]

    def _on_cpu(self, timed: int) -> list[float]:
        taken = []
        for _ in range(timed):
            began = perf_counter_ns()
            self._steps()
            taken.append((perf_counter_ns() - began) / 1e3 / self.calls)
        return taken

    def _steps(self) -> None:
        for _ in range(self.calls):
            self._call()
