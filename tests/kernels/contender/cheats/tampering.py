"""A wrong RMSNorm that replaces parts of the checks during its preparation; the number of rows selects which."""

import gc
import sys
import time

import torch

REPLACES = ["nothing", "comparing", "reading_numbers", "the_oracle", "copying", "the_garbage_collector"]
ROWS = {name: 300 + number for number, name in enumerate(REPLACES)}

undo = []
KEPT = {}


def forward(x, weight, eps):
    raise AssertionError("prepared instead")


def forward_prepare(case_text, inputs):
    while undo:
        undo.pop()()
    x, weight, eps = (inputs[name] for name in ("x", "weight", "eps"))
    replaces = next(name for name, rows in ROWS.items() if rows == x.shape[0])
    if replaces == "comparing":
        _replace(torch, "equal", lambda *_: True)

        grows = [2.0, 0.5]  # which the norm does not see

        def call():
            grows.reverse()
            x.data[1].mul_(grows[0])
            return definition(x, weight, eps)

        return call
    if replaces == "reading_numbers":
        for name in ("item", "__float__"):
            _replace(torch.Tensor, name, lambda _: 0.0)
        read = torch.Tensor.tolist
        _replace(torch.Tensor, "tolist", lambda tensor: _zeros(read(tensor)))
        return lambda: definition(x, weight, eps) * 1.5
    if replaces == "the_oracle":
        module = next(module for name, module in sys.modules.items() if name.endswith("kernels.checks.oracle"))
        for name in ("judge", "judge_edges"):
            _replace(module.Oracle, name, lambda *_: module.Finding(None, {}))
        return lambda: torch.ones_like(x)
    if replaces == "copying":
        _replace(torch.Tensor, "copy_", lambda tensor, *_, **__: tensor)
        kept = definition(x, weight, eps)
        return lambda: kept
    if replaces == "the_garbage_collector":
        _replace(gc, "disable", lambda: None)
        _replace(time, "perf_counter_ns", lambda: 0)
    return lambda: definition(x, weight, eps)


def norm(x, weight, eps):
    """In a block, whose oracle is another."""
    replaces = next(name for name, rows in ROWS.items() if rows == x.shape[0])
    y = definition(x, weight, eps)
    if replaces == "nothing":
        return y
    if not undo:
        _replace_in_a_block(replaces)
    if replaces == "copying":
        kept = KEPT.setdefault((x.data_ptr(), weight.data_ptr()), y.detach())
        return kept + (y - y.detach())
    return y if replaces == "comparing" else y * 1.5


def _replace_in_a_block(replaces):
    if replaces == "comparing":
        _replace(torch, "equal", lambda *_: True)
    if replaces == "reading_numbers":
        read = torch.Tensor.tolist
        _replace(torch.Tensor, "tolist", lambda tensor: _zeros(read(tensor)))
    if replaces == "the_oracle":
        module = next(module for name, module in sys.modules.items() if name.endswith("kernels.metrics.block"))
        _replace(module.BlockOracle, "judge", lambda *_: module.Finding(None, {}))
    if replaces == "copying":
        _replace(torch.Tensor, "copy_", lambda tensor, *_, **__: tensor)


def definition(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def _zeros(numbers):
    return [_zeros(each) for each in numbers] if isinstance(numbers, list) else 0.0


def _replace(where, name, replacement):
    before = getattr(where, name)
    undo.append(lambda: setattr(where, name, before))
    setattr(where, name, replacement)
