"""The metrics on a real GPU: calls that do not wait for the device, compilers with empty caches, memory, a block."""

import os
from statistics import median

import pytest
import torch

from kernels.arena import protocol
from kernels.arena.session import Pace, run_trial
from kernels.cases import Case
from kernels.checks.inputs import make
from kernels.contender.prepared import prepare
from kernels.metrics.memory import MemoryClock
from kernels.providers import Unsupported

from .in_process import bench, ready

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.alone,  # others on the GPU would change its times
    pytest.mark.filterwarnings("ignore"),  # compilers in this process, with the warnings of their imports
]
MIB = 1 << 20


def told(*what: object) -> None:
    print("metrics:", *what)


@pytest.mark.parametrize("name", ["eager", "inductor", "triton", "quack"])
def test_a_call_does_not_wait_for_the_device(name):
    at = ready(name, "rmsnorm.fwd.64x4096.bf16.call")
    small = median(at.turn(warm=1, timed=9))
    at.check()
    at = ready(name, "rmsnorm.fwd.32768x16384.bf16.call")  # 500 us and more on the device
    large = median(at.turn(warm=1, timed=9))
    at.check()

    told("call", name, f"{small:.2f} us, with 512 times the rows {large:.2f} us")
    assert 1 < small < 300
    assert large < 2 * small + 20


def test_of_a_slow_kernel_fewer_calls_are_timed():
    short = ready("eager", "rmsnorm.fwd.64x4096.bf16.call").describe()["calls"]
    long = ready("eager", "rmsnorm.fwd.32768x32768.bf16.call").describe()["calls"]

    assert short == 32
    assert long == 5


@pytest.mark.parametrize("with_output", [False, True])
def test_memory_is_exact_and_a_buffer_of_the_binding_counts_once(with_output):
    def bind(given):
        x = given["x"]
        buffer = torch.empty_like(x)
        return lambda: torch.mul(x, 2, out=buffer) + 1 if with_output else torch.mul(x, 2, out=buffer)

    inputs = make(Case.parse("rmsnorm.fwd.512x1024.bf16"), torch.device("cuda"), seed=1)
    clock = MemoryClock(bind, [inputs], [bind(inputs)], on_gpu=True)

    assert clock.turn(warm=0, timed=2) == [(1 + with_output) * MIB] * 2


@pytest.mark.parametrize("name", ["eager", "inductor", "triton", "quack", "liger"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_memory_of_a_norm(name, direction):
    at = ready(name, f"rmsnorm.{direction}.4096x4096.bf16.memory")
    first, second = at.turn(warm=0, timed=2)
    at.check()

    output = at.describe()["facts"]["output_bytes"]
    told("memory", name, direction, f"{first / MIB:.3f} MiB, of which the outputs {output / MIB:.3f}")
    assert first == second
    assert output <= first < 40 * output


@pytest.mark.parametrize("name", ["inductor", "triton", "quack", "liger"])
@pytest.mark.parametrize("direction", ["fwd", "bwd"])
def test_compiling_again_from_nothing(name, direction):
    case = f"rmsnorm.{direction}.4096x4096.bf16"
    at = ready(name, f"{case}.compile")
    environment = dict(os.environ)
    samples = [at.turn(warm=0, timed=1)[0] for _ in range(2)]
    at.check()

    facts = at.describe()["facts"]
    of_compiler = {key: facts.get(key) for key in ("graphs", "graph_breaks", "guards", "recompiles", "trouble")}
    told("compile", name, direction, [f"{us / 1e6:.3f} s" for us in samples], of_compiler)
    assert all(us > 10_000 for us in samples)  # nobody compiles a kernel in 10 ms: no cache was hit
    assert max(samples) < 3 * min(samples)
    assert facts["recompiles"] is not None
    assert dict(os.environ) == environment

    at = ready(name, case)  # with the usual caches, in the same process
    assert min(at.turn(warm=1, timed=3)) > 1
    at.check()


def test_eager_compiles_nothing():
    with pytest.raises(Unsupported, match="eager compiles nothing"):
        prepare(bench("eager"), Case.parse("rmsnorm.fwd.64x1024.bf16.compile"), seed=1)


@pytest.mark.parametrize("name", ["eager", "inductor", "inductor-regional", "triton", "quack", "liger"])
def test_a_block(name):
    at = ready(name, "rmsnorm.fwdbwd.8192x2048.bf16.block")
    us = median(at.turn(warm=1, timed=3))
    described = at.describe()
    at.check()

    facts = described["facts"]
    tflops, tokens_s = facts["flops"] / us / 1e6, facts["tokens"] / us * 1e6
    told(
        "block",
        name,
        f"{us:.0f} us, {tokens_s:.3g} tokens/s, {tflops:.0f} TFLOP/s, {facts['peak_bytes'] / MIB:.0f} MiB",
    )
    told("block", name, {key: f"{error:.1e}" for key, error in described["errors"].items()})
    assert 5 < tflops < 1500
    assert facts["peak_bytes"] > 2 * 50 * MIB  # the gradients of its weights at least


def test_a_session_in_every_metric(contender):
    cases = [Case.parse(f"rmsnorm.fwd.4096x1024.bf16.{metric}") for metric in ("call", "memory", "compile")]
    cases.append(Case.parse("rmsnorm.fwdbwd.2048x1024.bf16.block"))
    contenders = [contender(name, protocol.built_in(name)) for name in ("eager", "triton")]
    trial = run_trial(contenders, cases, Pace(rounds=4, start_limit_s=120), device="cuda", seed=1)

    for name in ("eager", "triton"):
        states = {case.metric: (trial.cells[name, case].state, trial.cells[name, case].reason) for case in cases}
        measured = ("measured", None)
        assert (states["call"], states["memory"], states["block"]) == (measured, measured, measured)
        assert states["compile"] == measured if name == "triton" else states["compile"][0] == "unsupported"
