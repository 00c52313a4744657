"""Inputs at the edges of the definition: a row of zeros, one far from zero, one with inf and one with nan."""

import math

import torch
from torch import Tensor

from ..cases import Case, Direction
from .inputs import EPS, Inputs, make, statistics

EDGES = ("zeros", "mean", "inf", "nan")
MEAN = 1e3  # a variance as the mean square less the square of the mean loses six of fp32's seven digits to it
NUMBER = 1 << 21  # of the set that is made into this one: nobody has seen it


def edge_inputs(case: Case, device: torch.device, seed: int) -> Inputs:
    """A set of the case's own shape, so that nothing is compiled for it; `Oracle.judge_edges` judges the outputs.

    inf and nan are in x, backwards in dy, since statistics of such an x would be no honest input.  Where there are
    fewer rows than edges, the seed says which.
    """
    inputs = make(case, device, seed, NUMBER)
    last = case.rows - 1
    where = sorted({0, last // 3, last - last // 3, last}) if case.rows else []
    for number, row in enumerate(where):
        _put(inputs, EDGES[(seed + number) % len(EDGES)], row)
    if case.direction is Direction.BWD:
        tensors = {**inputs.tensors, **statistics(case, inputs["x"])}
        return Inputs(case, tensors, EPS)
    return inputs


def _put(inputs: Inputs, edge: str, row: int) -> None:
    middle = inputs.case.cols // 2
    if edge in ("zeros", "mean"):
        if "residual" in inputs.tensors:
            inputs["residual"][row] = 0.0
        x: Tensor = inputs["x"][row]
        x.copy_(x * 0.0 if edge == "zeros" else x + MEAN)
        return
    poisoned = "dy" if inputs.case.direction is Direction.BWD else "x"
    inputs[poisoned][row, middle] = math.inf if edge == "inf" else math.nan
