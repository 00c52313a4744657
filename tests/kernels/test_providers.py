"""Providers: what each can do where, and Liger's operators over the releases."""

from types import SimpleNamespace

import pytest
import torch

from kernels import messages, references
from kernels.inputs import make
from kernels.oracle import Oracle, named
from kernels.providers import Unsupported, liger, open_provider
from kernels.providers.base import by_name
from kernels.words import BUILT_IN_PROVIDERS, OPS, Case

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "text",
    [
        f"{op}.{direction}.65x96.{dtypes}"
        for op in ("rmsnorm", "layernorm")
        for direction in ("fwd", "bwd")
        for dtypes in ("fp32", "bf16-fp32", "bf16")
    ],
)
@pytest.mark.filterwarnings("ignore:Mismatch dtype between input and weight")
def test_eager_is_right(text):
    case = Case.parse(text)
    inputs = make(case, CPU, 1)

    with torch.no_grad():
        call = open_provider(messages.built_in("eager")).ready(case, CPU)(inputs)
        call()
        outputs = named(case, call())

    assert Oracle(inputs).judge(inputs, outputs).reason is None


@pytest.mark.parametrize("name", ["quack", "liger", "triton"])
def test_gpu_providers_say_so(name):
    with pytest.raises(Unsupported, match="GPU"):
        open_provider(messages.built_in(name)).ready(Case.parse("rmsnorm.fwd.8x8.bf16"), CPU)


# Liger's signatures as they were released; the bodies are the definition.


def forward_05(X, W, eps, offset, casting_mode):
    assert (offset, casting_mode) == (0.0, "gemma")
    return references.BY_KEY["rmsnorm.fwd"](X, W, eps), X, None, 1024, 4, 1


def forward_06(X, W, eps, offset, casting_mode, row_mode):
    assert row_mode is None
    return forward_05(X, W, eps, offset, casting_mode)


def backward_05(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place):
    assert (offset, casting_mode, BLOCK_SIZE, num_warps, in_place) == (0.0, 1, 128, 4, False)
    return references.BY_KEY["rmsnorm.bwd"](dY, X, W, RSTD, 0.0)


def backward_06(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode):
    assert row_mode is None
    return backward_05(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place)


def backward_085(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode, needs_dw=None):
    assert needs_dw is None
    return backward_06(dY, X, W, RSTD, offset, casting_mode, BLOCK_SIZE, num_warps, in_place, row_mode)


@pytest.mark.parametrize(
    ("forward", "backward"), [(forward_05, backward_05), (forward_06, backward_06), (forward_06, backward_085)]
)
def test_liger_over_its_releases(forward, backward):
    operators = SimpleNamespace(
        rms_norm_forward=forward, rms_norm_backward=backward, calculate_settings=lambda cols: (128, 4)
    )
    for text, function in (
        ("rmsnorm.fwd.65x96.bf16-fp32", liger.forward(operators, OPS["rmsnorm"])),
        ("rmsnorm.bwd.65x96.bf16-fp32", liger.backward(operators, OPS["rmsnorm"])),
    ):
        case = Case.parse(text)
        inputs = make(case, CPU, 1)
        outputs = named(case, by_name(function)(inputs)())
        assert Oracle(inputs).judge(inputs, outputs).reason is None


@pytest.mark.parametrize("name", BUILT_IN_PROVIDERS)
def test_every_provider_that_a_recipe_may_name_is_there(name):
    assert open_provider(messages.built_in(name)).name == name


def test_a_provider_that_nobody_knows_is_answered_with_those_that_are_known():
    with pytest.raises(Unsupported, match=f"known: {', '.join(BUILT_IN_PROVIDERS)}"):
        open_provider(messages.built_in("quark"))
