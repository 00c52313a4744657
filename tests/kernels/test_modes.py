"""Modes of torch.compile for functions of a target: each is right, and its facts say what it compiled."""

import sys

import pytest
import torch

from kernels.arena import protocol
from kernels.cases import Case, CompileMode, Direction, Metric
from kernels.checks.inputs import make
from kernels.checks.oracle import Oracle, named
from kernels.facts.gather import gather
from kernels.metrics.bench import Bench
from kernels.metrics.block import PreparedBlock
from kernels.providers import Broken, Unsupported, forward_backward, open_provider

CPU = torch.device("cpu")
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")
NORMS = """
import torch

def norm(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def grad(dy, x, weight, rstd, eps):
    normal = x.float() * rstd[:, None]
    wdy = dy.float() * weight.float()
    dx = (wdy - normal * (wdy * normal).mean(-1, keepdim=True)) * rstd[:, None]
    return dx.to(x.dtype), (dy.float() * normal).sum(0).to(weight.dtype)
"""
CALLS = {"rmsnorm.fwd": "target_norms:norm", "rmsnorm.bwd": "target_norms:grad", "rmsnorm.fwdbwd": "target_norms:norm"}


@pytest.fixture
def target(tmp_path, monkeypatch):
    """The functions of a target."""
    (tmp_path / "target_norms.py").write_text(NORMS)
    monkeypatch.syspath_prepend(tmp_path)
    sys.modules.pop("target_norms", None)
    return CALLS


def spec_of(calls, mode, options=None):
    return protocol.targets_own("norms", calls, compile={"mode": mode, "options": options or {}})


def provider_of(calls, mode, options=None):
    return open_provider(spec_of(calls, mode, options))


def bench_of(calls, mode, options=None):
    return Bench(spec_of(calls, mode, options), CPU, torch.get_num_threads())


def wrong(provider, case):
    inputs = make(case, CPU, 1)
    with torch.no_grad():
        if case.direction is Direction.FWDBWD:
            call = forward_backward(case, provider.differentiable(case, CPU))(inputs)
        else:
            call = provider.ready(case, CPU)(inputs)
        return Oracle(inputs).judge(inputs, named(case, call())).reason


@pytest.mark.parametrize(
    ("mode", "text", "facts"),
    [
        ("default", "rmsnorm.bwd.16x64.fp32", {}),
        ("dynamic", "rmsnorm.bwd.16x64.fp32", {"graphs": 1, "dynamic_graphs": 1}),
        ("automatic-dynamic", "rmsnorm.fwdbwd.16x64.fp32", {"graphs": 2, "dynamic_graphs": 1}),
        ("max-autotune", "rmsnorm.fwd.16x64.bf16", {}),
    ],
)
@compiles
def test_a_function_of_a_target_is_right_in_each_mode(target, mode, text, facts):
    provider = provider_of(target, mode)

    assert wrong(provider, Case.parse(text)) is None
    assert provider.facts() == facts


@compiles
def test_only_the_function_is_compiled_in_a_region(target):
    provider = provider_of(target, "regional")
    assert wrong(provider, Case.parse("rmsnorm.fwd.16x64.fp32")) is None
    assert "aten.rsqrt.default" in provider.facts()["tagged"]
    assert provider.facts()["untagged"] == []


@compiles
def test_a_block_is_one_graph_of_which_only_the_norms_are_regions(target):
    bench = bench_of(target, "regional")
    with bench.working():
        facts = PreparedBlock(bench, Case.parse("rmsnorm.fwdbwd.128x128.fp32.block"), seed=1).describe()["facts"]

    assert "aten.rsqrt.default" in facts["tagged"]
    assert "aten.rsqrt.default" not in facts["untagged"]
    assert any("mm" in name for name in facts["untagged"])


@compiles
@pytest.mark.parametrize("mode", ["default", pytest.param("dynamic", marks=pytest.mark.long)])
def test_options_reach_the_generated_code(target, mode):
    case = Case.parse("rmsnorm.fwd.16x64.fp32")
    hashes = []
    for options in ({}, {"max_fusion_size": 1}):
        bench = bench_of(target, mode, options)
        with bench.working():
            call = bench.provider_at(case)(make(case, CPU, 1))
            hashes.append(gather(call, compiled=True, pinned=(), cuda=False)["code"])
    assert None not in hashes
    assert hashes[0] != hashes[1]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"triton.persistent_reduction": False},
            r"no Inductor option 'triton\.persistent_reduction'; did you mean "
            r"triton\.persistent_reductions",
        ),
        ({"zzz": 1}, "no Inductor option 'zzz'; torch._inductor.config lists"),
        ({"max_autotune": 3}, "refuses the Inductor options: .*max_autotune, got int should be bool"),
    ],
)
@pytest.mark.parametrize("mode", ["default", "regional"])
def test_an_option_that_this_torch_does_not_have_is_named_with_those_it_has(target, mode, options, said):
    with pytest.raises(Broken, match=rf"torch {torch.__version__.split('+')[0]}.*{said}"):
        provider_of(target, mode, options).ready(Case.parse("rmsnorm.fwd.16x64.fp32"), CPU)


def test_modes_that_time_candidates_say_so(target):
    tuning = {mode for mode in CompileMode if provider_of(target, mode).tunes}
    assert tuning == {"max-autotune", "coordinate-descent"}
    assert provider_of(target, "default", {"coordinate_descent_tuning": True}).tunes
    assert not provider_of(target, "default", {"coordinate_descent_tuning": False}).tunes


@pytest.mark.parametrize("mode", ["dynamic", "automatic-dynamic"])
@pytest.mark.parametrize(
    ("text", "said"),
    [("rmsnorm.fwd.1x96.fp32", "a single row"), ("rmsnorm.fwdbwd.128x128.fp32.block", "a static number of tokens")],
)
def test_what_is_never_dynamic_is_unsupported(target, mode, text, said):
    case = Case.parse(text)
    provider = provider_of(target, mode)
    with pytest.raises(Unsupported, match=said):
        provider.block(case, CPU, lambda norm: norm) if case.metric is Metric.BLOCK else provider.ready(case, CPU)
