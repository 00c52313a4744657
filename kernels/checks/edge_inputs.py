"""Inputs at the edges of the definition.

Rows of zeros, with a large mean, with most of their energy in the first or in the last element, with inf and with nan.
"""

import math

import torch
from torch import Tensor

from ..cases import Case, Direction
from .inputs import EPS, Inputs, make, statistics

EDGES = ("zeros", "mean", "first", "last", "inf", "nan")
MEAN = 1e3  # a variance computed as E[x²] - E[x]² loses six of fp32's seven digits here
# Of an element, times the root of the columns: it makes 64 of 65 parts of a row's sum of squares.  A kernel that leaves
# three of thousands of ordinary columns out of its sums is wrong by less than a rounding of bf16.
LARGE = 8.0
NUMBER = 1 << 21  # of the input set that is changed into this one; no other check uses it


def edge_inputs(case: Case, device: torch.device, seed: int) -> Inputs:
    """A set in the shape of the case, so that nothing is compiled for it.  `Oracle.judge_edges` judges the outputs.

    inf and nan are in x; for a backward pass in dy, because statistics of such an x are not valid inputs.  If there are
    fewer rows than edges, the seed decides which edges appear.
    """
    inputs = make(case, device, seed, NUMBER)
    last = case.rows - 1
    where = sorted({last * number // (len(EDGES) - 1) for number in range(len(EDGES))}) if case.rows else []
    for number, row in enumerate(where):
        _put(inputs, EDGES[(seed + number) % len(EDGES)], row)
    if case.direction is Direction.BWD:
        tensors = {**inputs.tensors, **statistics(case, inputs["x"])}
        return Inputs(case, tensors, EPS)
    return inputs


def _put(inputs: Inputs, edge: str, row: int) -> None:
    middle = inputs.case.cols // 2
    if edge in ("first", "last"):
        column = 0 if edge == "first" else -1
        _row(inputs, "x", row)[column] = LARGE * math.sqrt(inputs.case.cols)
        if "mask" in inputs.tensors:
            inputs["mask"][row, column] = 1
        return
    if edge in ("zeros", "mean"):
        if "residual" in inputs.tensors:
            _row(inputs, "residual", row).zero_()
        x = _row(inputs, "x", row)
        x.copy_(x * 0.0 if edge == "zeros" else x + MEAN)
        return
    if "mask" in inputs.tensors:  # to multiply inf by 0 and to leave it out differ
        inputs["mask"][row, middle] = 1
    poisoned = "dy" if inputs.case.direction is Direction.BWD else "x"
    _row(inputs, poisoned, row)[middle] = math.inf if edge == "inf" else math.nan


def _row(inputs: Inputs, name: str, row: int) -> Tensor:
    """[columns] of an input, in its memory."""
    tensor = inputs[name]
    return tensor[divmod(row, inputs.case.heads)] if inputs.case.heads else tensor[row]
