"""Inputs: equal for all contenders, different in each set, with guarded gaps between rows."""

import pytest
import torch

from kernels.cases import BY_ROW, DTYPE_BYTES, OPS, Case, Direction
from kernels.checks import inputs as module
from kernels.checks.edge_inputs import EDGES, edge_inputs
from kernels.checks.inputs import (
    ANY_DTYPE,
    DTYPES,
    SMALL_ROW_EVERY,
    changed,
    fingerprint,
    fresh_values,
    make,
    make_sets,
    refill,
    statistics,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(("op", "direction"), [(op, way) for op, flags in OPS.items() for way in flags.directions])
def test_every_op_gets_what_it_takes(op, direction):
    case = Case.parse(f"{op}.{direction}.70x96.fp32-bf16")
    inputs = make(case, CPU, 1)

    assert tuple(inputs.tensors) == case.inputs
    for name, tensor in inputs.tensors.items():
        shape, dtype = ((70,), "fp32") if name in ("mean", "rstd") else ((96,), "bf16")
        if name in BY_ROW:
            shape, dtype = (70, 96), "fp32"
        if name in ("mask", "matrix"):
            shape, dtype = {"mask": ((70, 96), "uint8"), "matrix": ((96, 96), "fp32")}[name]
        assert (tuple(tensor.shape), tensor.dtype) == (shape, ANY_DTYPE[dtype]), name
        assert tensor.isfinite().all()
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % 64 == 0
    assert inputs.arguments[-1] == 1e-6


def test_the_same_seed_gives_the_same_inputs():
    case = Case.parse("layernorm.bwd.200x96.bf16-fp32")
    one, same, other, next_set = make(case, CPU, 1), make(case, CPU, 1), make(case, CPU, 2), make(case, CPU, 1, 1)

    assert all(torch.equal(one[name], same[name]) for name in one.tensors)
    assert not torch.equal(one["x"], other["x"])
    assert not torch.equal(one["x"], next_set["x"])


@pytest.mark.parametrize("text", ["rmsnorm.fwd.1x96.bf16", "layernorm_residual.bwd.7x33s40.fp32"])
def test_a_set_is_the_same_however_many_are_made_with_it(text, monkeypatch):
    case = Case.parse(text)
    monkeypatch.setattr(module, "_pool_size", lambda case, device: 6)  # as on a GPU; here each is made alone

    sets = make_sets(case, CPU, 1, 14)

    assert len(sets) == 14
    for number, inputs in enumerate(sets):
        alone = make(case, CPU, 1, number)
        for name, tensor in inputs.tensors.items():
            assert torch.equal(tensor, alone[name])
            assert tensor.stride() == alone[name].stride()
    memories = {inputs[name].untyped_storage().data_ptr() for inputs in sets for name in case.inputs}
    assert len(memories) == 14 * len(case.inputs)
    assert len({float(inputs["x"].double().sum()) for inputs in sets}) == 14


def test_some_rows_are_so_small_that_eps_matters():
    case = Case.parse("rmsnorm_residual.fwd.200x96.bf16-fp32")
    inputs = make(case, CPU, 1)
    rms = (inputs["x"].double() + inputs["residual"].double()).square().mean(1).sqrt()

    small = (rms < 0.01).nonzero().flatten().tolist()

    assert small == [SMALL_ROW_EVERY - 1, 2 * SMALL_ROW_EVERY - 1, 3 * SMALL_ROW_EVERY - 1]
    lone = [make(Case.parse("rmsnorm.fwd.1x96.bf16"), CPU, 1, number)["x"].abs().max() for number in range(4)]
    assert [bool(largest < 0.02) for largest in lone] == [False, True, False, True]


def test_statistics_are_those_of_x():
    inputs = make(Case.parse("layernorm.bwd.200x96s128.bf16-fp32"), CPU, 1)
    x = inputs["x"].double()

    assert torch.allclose(inputs["mean"].double(), x.mean(1), rtol=1e-7)
    assert torch.allclose(inputs["rstd"].double(), (x.var(1, correction=0) + 1e-6).rsqrt(), rtol=1e-7)
    again = statistics(inputs.case, inputs["x"])
    assert all(torch.equal(again[name], inputs[name]) for name in ("mean", "rstd"))


# -- strided rows -----------------------------------------------------------------------------------------------------


def whole(inputs, name):
    case = inputs.case
    return inputs[name].as_strided((case.tokens, case.stride), (case.stride, 1))


def test_between_strided_rows_lies_nan():
    inputs = make(Case.parse("rmsnorm_residual.bwd.7x33s40.bf16"), CPU, 1)

    for name in ("dy", "dresidual_out", "x"):
        assert inputs[name].stride() == (40, 1)
        assert inputs[name].isfinite().all()
        assert whole(inputs, name)[:, 33:].isnan().all()
    assert inputs["weight"].is_contiguous()


def test_heads_lie_next_to_each_other_and_nan_between_tokens():
    inputs = make(Case.parse("layernorm_residual.bwd.50x4x33s140.bf16-fp32"), CPU, 1)
    x = inputs["x"].double().reshape(200, 33)

    for name in ("dy", "dresidual_out", "x"):
        assert (inputs[name].shape, inputs[name].stride()) == ((50, 4, 33), (140, 33, 1))
        assert inputs[name].isfinite().all()
        assert whole(inputs, name)[:, 132:].isnan().all()
    assert torch.allclose(inputs["mean"].double(), x.mean(1), rtol=1e-6)
    assert torch.allclose(inputs["rstd"].double(), (x.var(1, correction=0) + 1e-6).rsqrt(), rtol=1e-6)
    assert (x.abs().amax(1) < 0.01).nonzero().flatten().tolist() == [60, 121, 182]


@pytest.mark.parametrize("dtype", ["bf16", "fp32", "fp64"])
@pytest.mark.parametrize("shape", ["7x33s40", "7x33s35", "1x8s9", "7x3x11s35", "1x2x4s9"])
def test_writes_between_rows_are_detected(shape, dtype):
    inputs = make(Case.parse(f"rmsnorm.bwd.{shape}.{dtype}"), CPU, 1)
    before = fingerprint(inputs)
    assert changed(inputs, before) == []

    whole(inputs, "x")[-1, -1] = 0.0

    assert changed(inputs, before) == ["x"]


@pytest.mark.parametrize("shape", ["20x96", "20x3", "5x1", "3x7"])
def test_every_bit_counts(shape):
    case = Case.parse(f"layernorm.bwd.{shape}.bf16")
    for name in case.inputs:
        inputs = make(case, CPU, 1)
        before = fingerprint(inputs)
        flat = inputs[name].view(torch.int16 if inputs[name].element_size() == 2 else torch.int32).view(-1)
        flat[flat.numel() // 2] ^= 1
        assert changed(inputs, before) == [name]


def test_two_rows_in_each_others_place_are_seen():
    inputs = make(Case.parse("rmsnorm.fwd.20x96.bf16"), CPU, 1)
    before = fingerprint(inputs)

    inputs["x"][[3, 5]] = inputs["x"][[5, 3]]

    assert changed(inputs, before) == ["x"]


# -- new numbers ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "fresh"),
    [
        ("rmsnorm.fwd.20x96.bf16", "x"),
        ("rmsnorm.bwd.20x96.bf16", "dy"),
        ("layernorm_residual.fwdbwd.20x96s100.bf16", "x"),
    ],
)
def test_new_numbers_come_unseen(text, fresh):
    case = Case.parse(text)
    inputs = make(case, CPU, 1)
    tensor, before = inputs[fresh], fingerprint(inputs)
    version, address, old = tensor._version, tensor.data_ptr(), tensor.clone()

    refill(inputs, fresh_values(case, inputs, 1, 99))

    assert inputs.fresh == fresh
    assert (tensor._version, tensor.data_ptr()) == (version, address)
    assert not torch.equal(tensor, old)
    assert changed(inputs, before) == [fresh]
    assert torch.equal(tensor, fresh_values(case, inputs, 1, 99))
    assert not torch.equal(tensor, fresh_values(case, inputs, 2, 99))


# -- edges ------------------------------------------------------------------------------------------------------------


def edge_of(inputs, row):
    poisoned = inputs["dy" if inputs.case.direction is Direction.BWD else "x"][row]
    x = inputs["x"][row].double()
    if poisoned.isnan().any():
        return "nan"
    if poisoned.isinf().any():
        return "inf"
    if not x.any():
        return "zeros"
    if x.mean() > 900:
        return "mean"
    large = (x > 7 * len(x) ** 0.5).nonzero().flatten().tolist()
    return {(0,): "first", (len(x) - 1,): "last"}.get(tuple(large))


@pytest.mark.parametrize("key", ["rmsnorm.fwd", "layernorm_residual.fwdbwd", "layernorm.bwd"])
def test_each_edge_has_its_row_and_most_rows_have_none(key):
    inputs = edge_inputs(Case.parse(f"{key}.24x96.bf16"), CPU, 1)
    found = [edge_of(inputs, row) for row in range(24)]

    assert sorted(edge for edge in found if edge) == sorted(EDGES)
    assert (found[0] is None, found[-1] is None) == (False, False)
    if "mean" in inputs.tensors:
        assert all(inputs[name].isfinite().all() for name in ("mean", "rstd"))
        assert torch.equal(inputs["mean"], statistics(inputs.case, inputs["x"])["mean"])


def test_the_seed_says_which_edge_a_lone_row_has():
    case = Case.parse("rmsnorm.fwd.1x96.fp32")
    assert [edge_of(edge_inputs(case, CPU, seed), 0) for seed in range(len(EDGES))] == list(EDGES)


def test_every_dtype_has_a_size():
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == DTYPE_BYTES
