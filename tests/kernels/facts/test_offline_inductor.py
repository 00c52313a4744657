"""torch.compile without a GPU: known regressions of Inductor."""

import pytest
import torch

from kernels.arena import protocol
from kernels.cases import Case
from kernels.facts.offline.backwards import grad


@pytest.fixture(scope="module")
def inductor(open_contender, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inductor")
    channel = open_contender(TORCHINDUCTOR_CACHE_DIR=str(folder), TRITON_CACHE_DIR=str(folder / "triton"))
    assert channel.ask(protocol.start(protocol.built_in("inductor"), "sm_90", 1, None), 120)["ready"]
    return channel


def facts(channel, text):
    answer = channel.ask(protocol.compile(Case.parse(text)), 200)
    assert (answer.get("state"), answer.get("reason")) == ("compiled", None), answer
    return answer["facts"]


def test_a_norm_is_one_kernel(inductor):
    found = facts(inductor, "rmsnorm.fwd.4096x1024.bf16")

    [one] = found["kernels"]
    assert found["extern"] == 0
    assert one["name"].startswith("triton_per_fused_")
    assert (one["grid"], one["settings"]["XBLOCK"]) == ([4096, 1, 1], 1)
    assert list(one["loads"]) == ["16"]
    generated = inductor.ask(protocol.texts(Case.parse("rmsnorm.fwd.4096x1024.bf16"), 0, "generated"), 60)["text"]
    assert "async_compile.triton(" in generated


@pytest.mark.parametrize("region", ["fp8", "silu_gate", "residual_dropout"])
def test_a_region_is_one_kernel(inductor, region):
    found = facts(inductor, f"rmsnorm_{region}.fwd.4096x1024.bf16")

    assert (len(found["kernels"]), found["extern"]) == (1, 0)


def test_a_linear_layer_is_not_fused_with_its_norm(inductor):
    found = facts(inductor, "rmsnorm_linear.fwd.4096x1024.bf16")

    assert (len(found["kernels"]), found["extern"]) == (1, 1)


def test_wide_rows_of_many_spill(inductor):
    """pytorch 185814: the block of rows grows with their number and not with their width."""
    first = facts(inductor, "rmsnorm.bwd.131072x16384.bf16")["kernels"][0]

    assert first["settings"]["XBLOCK"] == 2
    assert first["spills"] > 1000


def test_more_of_them_do_not_fit_and_the_kernel_that_does_is_found(inductor):
    found = facts(inductor, "rmsnorm.bwd.262144x16384.bf16")

    [refused] = found["refused"]
    assert refused["over"] == "shared memory: asks for 295184 bytes of 232448"
    assert refused["settings"]["NUM_STAGES"] == 2
    assert found["kernels"][0]["settings"]["NUM_STAGES"] == 1  # as Inductor falls back on a GPU
    assert found["kernels"][0]["spills"] > 1000


def test_the_same_gradient_is_one_pass_or_three_kernels(inductor):
    """What Inductor fuses depends on the number of rows: 4096 are too few for it (2.13)."""
    few, many = (facts(inductor, f"rmsnorm.bwd.{rows}x1024.bf16-fp32") for rows in (4096, 65536))

    assert (few["count"], many["count"]) == (3, 1)


def test_a_compiled_function_of_a_module_does_not_depend_on_the_cases_before(open_contender, tmp_path):
    """torch.compile makes sizes dynamic once it has seen two of them."""
    (tmp_path / "whole.py").write_text("import torch\n@torch.compile\ndef norm(x, weight, eps):\n    return x.sin()\n")
    channel = open_contender(PYTHONPATH=str(tmp_path), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "inductor"))
    own = protocol.targets_own("whole", {"rmsnorm.fwd": "whole:norm"})
    assert channel.ask(protocol.start(own, "sm_90", 1, None), 120)["ready"]
    cases = [f"rmsnorm.fwd.{rows}x1024.bf16" for rows in (64, 96, 64)]

    first, _, again = (facts(channel, f"{case}") for case in cases)
    last = facts(channel, "rmsnorm.fwd.128x1024.bf16")
    fresh = open_contender(PYTHONPATH=str(tmp_path), TORCHINDUCTOR_CACHE_DIR=str(tmp_path / "other"))
    assert fresh.ask(protocol.start(own, "sm_90", 1, None), 120)["ready"]

    assert again["code"] == first["code"]
    assert last["code"] == facts(fresh, "rmsnorm.fwd.128x1024.bf16")["code"]


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor, weight, offset):
        ctx.save_for_backward(x, weight)
        ctx.factor = factor
        return x * weight * factor + offset, x + weight

    @staticmethod
    def backward(ctx, first, second):
        x, weight = ctx.saved_tensors
        return first * weight * ctx.factor + second, None, first * x * ctx.factor + second, first


def test_the_way_back_walked_in_python_is_autograds():
    generator = torch.Generator().manual_seed(1)
    x, weight, offset = (torch.randn(5, dtype=torch.float64, generator=generator) for _ in range(3))
    x.requires_grad_(), weight.requires_grad_()
    scaled, added = Twice.apply(x * x, 3.0, weight, offset)
    y = torch.nn.functional.layer_norm(scaled, (5,), weight, weight) * added + x
    gradients = (torch.ones_like(y), added.detach())

    expected = torch.autograd.grad((y, scaled), (x, weight), gradients, retain_graph=True)
    found = grad((y, scaled), (x, weight), gradients)

    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    with pytest.raises(RuntimeError, match="appears to not have been used"):
        grad(y, torch.ones(5, requires_grad=True))
    assert grad(y, (x, torch.ones(5, requires_grad=True)), allow_unused=True)[1] is None
