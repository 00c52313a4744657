"""The judge's side: give the driver numbers for the turns of others, and judge rows of their outputs by float64.

Runs in a process that never loads code of the target.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..arena.sizes import sets_of_pass
from ..cases import BY_ROW_OUT, OPS, Case, Rounding
from ..checks.error_bounds import partial_errors
from ..checks.inputs import ANY_DTYPE, DTYPES, Inputs, make_sets
from ..checks.oracle import Oracle, too_far

POOL = 2  # times the numbers of one tensor; each turn gets other parts of it


class Judging:
    """One case: its input sets, equal to those of all contenders, and a pool of other numbers."""

    def __init__(self, case: Case, seed: int, pool_seed: int) -> None:
        device = torch.device("cpu")
        self.case = case
        self.sets = make_sets(case, device, seed, sets_of_pass(case))
        self._oracles = {rounding: Oracle(self.sets[0], rounding) for rounding in Rounding}
        self._numbers = case.rows * case.cols
        self._pool = torch.randn(
            POOL * self._numbers, dtype=DTYPES[case.dtype], generator=torch.Generator().manual_seed(pool_seed)
        )
        if OPS[case.op].norm == "layernorm" and self.sets[0].fresh == "x":
            self._pool += 0.5

    def describe(self) -> dict[str, Any]:
        """Where the driver finds the numbers in the memory of this process."""
        return {
            "ready": True,
            "pool": self._pool.data_ptr(),
            "pool_numbers": self._pool.numel(),
            "inputs": addresses([inputs[inputs.fresh] for inputs in self.sets]),
        }

    def verdict(self, draw: Mapping[str, Any]) -> str | None:
        """Why an output is wrong; None if it is right.  `draw` as `arena.judging.Examination` makes it."""
        before = self.sets[int(draw["set"])]
        first = int(draw["offset"])
        fresh = self._pool[first : first + self._numbers].view(self.case.rows, self.case.cols)
        inputs = Inputs(self.case, {**before.tensors, before.fresh: fresh})
        name = str(draw["output"])
        outputs = {name: self._output(str(draw["dtype"]), draw["data"])}
        if name not in BY_ROW_OUT:
            outputs[name] = outputs[name][0]
        if draw.get("scale"):  # codes and their scale are judged together
            outputs["scale"] = torch.frombuffer(bytearray(base64.b64decode(draw["scale"])), dtype=torch.float32)
        rows = [int(row) for row in draw["rows"]]
        rounding = Rounding(draw["rounding"])
        where = f"rows {', '.join(map(str, rows))}" if name in BY_ROW_OUT else "some column"
        for each in outputs:
            error = partial_errors(inputs, each, outputs, rows, rounding)
            if reason := too_far(each, error, self._oracles[rounding].limits[each], where):
                return reason
        return None

    def _output(self, dtype: str, data: str) -> Tensor:
        return torch.frombuffer(bytearray(base64.b64decode(data)), dtype=ANY_DTYPE[dtype]).view(-1, self.case.cols)


def addresses(tensors: Sequence[Tensor]) -> list[list[int]]:
    """Address, bytes between rows (between tokens with heads), and bytes of an element of each."""
    return [[one.data_ptr(), one.stride(0) * one.element_size(), one.element_size()] for one in tensors]
