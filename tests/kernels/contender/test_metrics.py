"""The metrics other than kernel: call, block, compile, memory, and those that count."""

import gc
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from kernels.arena import protocol
from kernels.arena.session import Pace, run_trial
from kernels.blocks import Shape
from kernels.cases import Case
from kernels.checks.inputs import make
from kernels.checks.outputs import Wrong
from kernels.checks.references import BY_KEY
from kernels.contender.prepared import prepare
from kernels.metrics import caches
from kernels.metrics.bench import Bench
from kernels.metrics.block import BlockInputs, BlockOracle, full_precision, step, transformer
from kernels.metrics.caches import TritonCaches, empty_caches
from kernels.metrics.call import CallClock
from kernels.metrics.compilations import compilations
from kernels.metrics.memory import MemoryClock
from kernels.providers import Unsupported

# Importing the compiler warns of what torch itself does, for instance torch.jit.script_method.
compiles = pytest.mark.filterwarnings("ignore::DeprecationWarning")
CPU = torch.device("cpu")
MIB = 1 << 20
ROOT = Path(__file__).parents[3]

# Norms that a block must tell from a right one.
TARGET = """
import torch

KEPT = {}


def norm(x, weight, eps, of=lambda x: x.square().mean(-1, keepdim=True)):
    x32 = x.float()
    return (x32 * torch.rsqrt(of(x32) + eps) * weight).to(x.dtype)


def right(x, weight, eps):
    return norm(x, weight, eps)


def forgets_eps(x, weight, eps):
    return norm(x, weight, 0.0)


def divides_by_one_less(x, weight, eps):
    return norm(x, weight, eps, of=lambda x: x.square().sum(-1, keepdim=True) / (x.shape[-1] - 1))


def drops_the_last_column(x, weight, eps):
    return norm(x, weight, eps) * (torch.arange(x.shape[-1]) < x.shape[-1] - 1)


def has_no_gradient_through_the_mean(x, weight, eps):
    return norm(x, weight, eps, of=lambda x: x.detach().square().mean(-1, keepdim=True))


def gives_nan(x, weight, eps):
    return norm(x, weight, eps).index_fill(0, torch.tensor([5]), float("nan"))


def writes(x, weight, eps):
    weight.data.mul_(1.01)
    return norm(x, weight, eps)


def keeps_by_pointer(x, weight, eps):
    with torch.no_grad():
        kept = KEPT.setdefault((x.data_ptr(), weight.data_ptr()), norm(x, weight, eps))
    return kept + (norm(x, weight, eps) - norm(x, weight, eps).detach())


def keeps_by_content(x, weight, eps):
    key = x.data_ptr(), x[0, 0].item(), x[-1, -1].item()
    if key not in KEPT:
        KEPT[key] = norm(x, weight, eps)
    return KEPT[key]


def hides_nan(x, weight, eps):
    return norm(x, weight, eps).nan_to_num()


FOR_ANY_SHAPE = []


def noted(graph, examples):
    FOR_ANY_SHAPE.append(any(isinstance(example, torch.SymInt) for example in examples))
    return graph


@torch.compile(backend=noted)
def notes_its_graphs(x, weight, eps):
    return norm(x, weight, eps)


@torch.compile(backend="eager")
def compiled_by_itself(x, weight, eps):
    return norm(x, weight, eps)


@torch.compile(backend="eager")
def breaks_twice(x, weight, eps):
    y = x * 1.0
    torch._dynamo.graph_break()
    y = norm(y, weight, eps)
    print("", end="")
    return y + 0.0


@torch.compile(backend="eager", dynamic=True)
def for_any_rows(x, weight, eps):
    return norm(x, weight, eps)


@torch.compile(backend="eager", dynamic=False)
def for_each_number_of_rows(x, weight, eps):
    return norm(x, weight, eps)


def for_many_rows(x, weight, eps):
    if len(x) < 8:
        raise ValueError("needs 8 rows")
    return for_each_number_of_rows(x, weight, eps)


def breaks(x, weight, eps):
    y = x * 1.0
    torch._dynamo.graph_break()
    return norm(y, weight, eps)


def one_kernel(x, weight, eps):
    return torch.compile(norm, dynamic=False)(x, weight, eps)


def a_kernel_on_each_side_of_a_break(x, weight, eps):
    return torch.compile(breaks, dynamic=False)(x, weight, eps)
"""


@pytest.fixture(autouse=True, scope="module")
def frozen() -> Iterator[None]:
    """Collect no garbage among what was imported, as in a contender: with torch that is half a second each time."""
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_target_of_norms.py").write_text(TARGET)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_target_of_norms", raising=False)


def bench_of(provider: str) -> Bench:
    """A contender's bench in this process: built in, or a function of the target."""
    try:
        spec = protocol.built_in(provider)
        return Bench(spec, CPU, threads=1)
    except Unsupported:
        function = f"a_target_of_norms:{provider}"
        calls = {"rmsnorm.fwd": function, "rmsnorm.fwdbwd": function}
        return Bench(protocol.targets_own(provider, calls), CPU, threads=1)


# -- call ------------------------------------------------------------------------------------------------------------


def test_a_call_is_timed_by_itself_and_what_hits_one_is_not_the_callees():
    steady = partial(time.sleep, 0.002)
    clock = CallClock([steady, steady, steady, steady, partial(time.sleep, 0.06)], stream=None)

    samples = clock.turn(warm=1, timed=3)

    assert len(samples) == 3
    assert all(2_000 < us < 30_000 for us in samples)


def test_no_garbage_is_collected_meanwhile():
    seen = []
    clock = CallClock([lambda: seen.append(gc.isenabled())], stream=None)
    seen.clear()
    clock.turn(warm=0, timed=2)

    assert gc.isenabled()
    assert len(seen) == 2 * clock.calls
    assert not any(seen)


def test_results_cached_by_content_are_detected(norms):
    at = prepare(bench_of("keeps_by_content"), Case.parse("rmsnorm.fwd.1024x1024.fp32.call"), seed=1)
    at.turn(warm=0, timed=1)

    with pytest.raises(Wrong, match="does less on numbers it has seen before"):
        at.check()


@pytest.mark.parametrize("metric", ["call", "memory"])
def test_every_metric_checks_edges(norms, metric):
    at = prepare(bench_of("hides_nan"), Case.parse(f"rmsnorm.fwd.16x128.fp32.{metric}"), seed=1).describe()

    assert (at["state"], at["inexact"]) == ("invalid", True)
    assert at["reason"].startswith("y is finite in a row with inf or nan")


@compiles
def test_what_a_target_compiled_before_makes_no_difference(norms):
    bench = bench_of("notes_its_graphs")
    for rows in (8, 16, 24):
        prepare(bench, Case.parse(f"rmsnorm.fwd.{rows}x128.fp32.call"), seed=1)

    assert sys.modules["a_target_of_norms"].FOR_ANY_SHAPE == [False] * 3


# -- memory ----------------------------------------------------------------------------------------------------------


def one_output(x):
    return lambda: x * 2


def by_fp32(x):
    """A copy of twice the size, changed in place, then the output."""
    return lambda: x.float().mul_(2).to(x.dtype)


def two_after_each_other(x):
    return lambda: x * (x * 2).sum()


def with_a_buffer(x):
    buffer = torch.empty_like(x)
    return lambda: torch.mul(x, 2, out=buffer)


def with_a_buffer_and_an_output(x):
    buffer = torch.empty_like(x)
    return lambda: torch.mul(x, 2, out=buffer) + 1


SHARED = torch.empty(512, 1024, dtype=torch.bfloat16)


def with_a_buffer_of_the_process(x):
    return lambda: torch.mul(x, 2, out=SHARED)


@pytest.mark.parametrize(
    ("bind", "mib"),
    [
        (one_output, 1),
        (by_fp32, 3),
        (two_after_each_other, 1),
        (with_a_buffer, 1),
        (with_a_buffer_and_an_output, 2),
        (with_a_buffer_of_the_process, 1),
    ],
)
def test_the_most_that_a_call_holds(bind, mib):
    inputs = make(Case.parse("rmsnorm.fwd.512x1024.bf16"), CPU, seed=1)
    clock = MemoryClock(lambda given: bind(given["x"]), [inputs], [bind(inputs["x"])], on_gpu=False)

    samples = clock.turn(warm=0, timed=2)

    assert samples[0] == samples[1]
    assert samples[0] == pytest.approx(mib * MIB, abs=64)  # but for scalars
    assert clock.facts == {"output_bytes": MIB}


# -- compile ---------------------------------------------------------------------------------------------------------


def files_below(folder: str) -> set[tuple[str, int]]:
    return {(str(path), path.stat().st_mtime_ns) for path in Path(folder).rglob("*") if path.is_file()}


@compiles
def test_the_first_call_is_compiled_anew_each_time_and_no_cache_is_touched(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    at = prepare(bench_of("inductor"), Case.parse("rmsnorm.fwd.64x256.fp32.compile"), seed=1)
    ordinary, environment = files_below(str(tmp_path)), dict(os.environ)
    counted = torch._dynamo.utils.counters["inductor"]
    counted.clear()

    samples = [at.turn(warm=0, timed=1) for _ in range(2)]

    assert counted["fxgraph_cache_miss"] == 2
    assert counted["fxgraph_cache_hit"] == 0
    assert all(us > 50_000 for [us] in samples)
    assert files_below(str(tmp_path)) == ordinary
    assert dict(os.environ) == environment
    facts = at.describe()["facts"]
    assert (facts["graphs"], facts["graph_breaks"], facts["kernels"]) == (1, 0, 1)
    assert (facts["recompiles"], facts["recompiled_at_rows"]) == (2, [32, 63])
    assert facts["guards"] > 0
    at.check()
    assert counted["fxgraph_cache_hit"] > 0  # the usual cache is back


@compiles
def test_graphs_their_breaks_and_guards_are_counted():
    @torch.compile(backend="eager")
    def breaks(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    first, second = compilations(partial(breaks, torch.ones(8))), compilations(partial(breaks, torch.ones(8)))

    assert (first["graphs"], first["graph_breaks"]) == (2, 1)
    assert first["guards"] > 0
    assert second == {"graphs": 0, "graph_breaks": 0, "guards": 0}


def test_what_compiles_nothing_says_so():
    with pytest.raises(Unsupported, match="eager compiles nothing"):
        prepare(bench_of("eager"), Case.parse("rmsnorm.fwd.8x128.fp32.compile"), seed=1)


@compiles
def test_a_target_may_compile_by_itself(norms):
    at = prepare(bench_of("compiled_by_itself"), Case.parse("rmsnorm.fwd.8x128.fp32.compile"), seed=1)

    facts = at.describe()["facts"]
    assert (facts["graphs"], facts["recompiles"]) == (1, 1)  # the first other number of rows makes it for any
    at.turn(warm=0, timed=1)
    at.check()


def test_caches_of_triton_and_quack_are_empty_for_a_while(monkeypatch):
    def compile_norm(columns): ...

    compile_norm.cache, compile_norm.cache_clear = {1024: "kernel"}, lambda: None
    quack, quack_cache = ModuleType("quack.rmsnorm"), ModuleType("quack.cache")
    quack.compile_norm, quack_cache.CACHE_DIR = compile_norm, "where it was"
    monkeypatch.setitem(sys.modules, "quack.rmsnorm", quack)
    monkeypatch.setitem(sys.modules, "quack.cache", quack_cache)
    of_function, of_autotuner = {0: ({"bf16": "kernel"}, {}, "sm_90")}, {"4096": "4 warps"}
    caches = TritonCaches((of_function,), (of_autotuner,))
    before = {name: os.environ.get(name) for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")}

    with empty_caches(caches):
        assert (of_function, of_autotuner, compile_norm.cache) == ({}, {}, {})
        assert len(caches) == 0
        folder = Path(os.environ["TRITON_CACHE_DIR"]).parent
        assert Path(quack_cache.CACHE_DIR).parent == folder
        assert folder.is_dir()
        of_function[0] = ({"fp32": "another"}, {}, "sm_90")

    assert (len(caches), of_function[0][0], of_autotuner) == (1, {"bf16": "kernel"}, {"4096": "4 warps"})
    assert (compile_norm.cache, quack_cache.CACHE_DIR) == ({1024: "kernel"}, "where it was")
    assert {name: os.environ.get(name) for name in before} == before
    assert not folder.exists()


OF_TRITON = """
import os
from pathlib import Path

import torch

from kernels.metrics import caches
from kernels.metrics.caches import TritonCaches, empty_caches
from kernels.facts.architectures import KNOWN
from kernels.facts.offline.launches import Launches
from kernels.facts.offline.pretend import become, inputs_of
from kernels.providers.ours import Ours
from kernels.cases import Case


def compiled():
    return sorted(Path(os.environ["TRITON_CACHE_DIR"]).rglob("*.cubin"))


case = Case.parse("rmsnorm.fwd.4096x1024.bf16")
with become(KNOWN["sm_90"]):
    launches = Launches(KNOWN["sm_90"])
    call = Ours().ready(case, torch.device("cuda"))(inputs_of(case))
    caches = TritonCaches.of(call)
    usual, kernel = compiled(), launches.seen[-1].kernel
    assert len(caches) == len(usual) == 1
    with empty_caches(caches):
        assert (len(caches), compiled()) == (0, [])
        call()
        assert len(caches) == len(compiled()) == 1
        assert launches.seen[-1].kernel is not kernel
    call()
    assert launches.seen[-1].kernel is kernel
    assert (len(caches), compiled()) == (1, usual)
"""


def test_a_triton_function_is_compiled_again_and_then_has_its_kernel_back(tmp_path):
    """For a GPU that is not there, which is for good: in a process of its own."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", OF_TRITON], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


# -- counts ----------------------------------------------------------------------------------------------------------


@compiles
@pytest.mark.parametrize(
    ("provider", "metric", "count", "facts"),
    [
        ("compiled_by_itself", "breaks", 0, {"graphs": 1}),
        ("breaks_twice", "breaks", 2, {"graphs": 3}),
        ("for_any_rows", "recompiles", 0, {"recompiled_at_rows": [8, 15]}),
        ("for_each_number_of_rows", "recompiles", 2, {"recompiled_at_rows": [8, 15]}),
        ("compiled_by_itself", "recompiles", 1, {}),  # the first other number of rows makes it for any
        ("eager", "kernels", 6, {"kernels": 6}),
        ("inductor", "kernels", 1, {"kernels": 1}),
        ("one_kernel", "kernels", 1, {"kernels": 1}),
        ("a_kernel_on_each_side_of_a_break", "kernels", 2, {"kernels": 2}),
    ],
)
def test_counts_are_exact(norms, provider, metric, count, facts):
    at = prepare(bench_of(provider), Case.parse(f"rmsnorm.fwd.16x128.fp32.{metric}"), seed=1)

    assert at.turn(warm=0, timed=2) == [count, count]
    assert at.describe()["facts"].items() >= facts.items()
    at.check()


@compiles
def test_a_graph_break_has_its_reason(norms):
    at = prepare(bench_of("breaks_twice"), Case.parse("rmsnorm.fwd.16x128.fp32.breaks"), seed=1)

    by_hand, by_builtin = sorted(at.describe()["facts"]["break_reasons"])
    assert by_hand == "Call to `torch._dynamo.graph_break()`"
    assert "print" in by_builtin or "builtin" in by_builtin


@compiles
@pytest.mark.parametrize(
    ("provider", "metric", "reason"),
    [
        ("eager", "breaks", "eager does not use torch.compile here"),
        ("eager", "recompiles", "eager compiles nothing here"),
        ("for_many_rows", "recompiles", "does not take other numbers of rows: ValueError: needs 8 rows"),
    ],
)
def test_what_cannot_be_counted_says_why(norms, provider, metric, reason):
    with pytest.raises(Unsupported, match=reason):
        prepare(bench_of(provider), Case.parse(f"rmsnorm.fwd.8x128.fp32.{metric}"), seed=1)


@compiles
def test_a_session_keeps_counts_of_zero(contender):
    cases = [Case.parse(f"rmsnorm.fwd.16x128.fp32.{metric}") for metric in ("breaks", "kernels")]
    inductor = contender("inductor", protocol.built_in("inductor"))

    trial = run_trial([inductor], cases, Pace(rounds=4), device="cpu", seed=1)

    assert [trial.cells["inductor", case].samples for case in cases] == [[0], [1]]


# -- block -----------------------------------------------------------------------------------------------------------

BLOCK = Case.parse("rmsnorm.fwdbwd.128x256.bf16.block")


def test_its_shape_and_model_flops():
    llama_3_8b = Shape(tokens=8192, sequence=2048, columns=4096)
    assert (llama_3_8b.heads, llama_3_8b.inner) == (32, 11008)
    weights = 4 * 4096**2 + 3 * 4096 * 11008
    assert llama_3_8b.flops == 8192 * (6 * weights + 12 * 4096 * 2048 // 2)


def test_torch_counts_as_many_flops_in_its_matrices():
    shape = Shape.of(BLOCK)
    inputs = BlockInputs.make(BLOCK, shape, CPU, seed=1)
    call = step(transformer(BLOCK, shape)(BY_KEY[BLOCK.key]), inputs.tensors, inputs.gradients)

    with FlopCounterMode(display=False) as counted:
        call()

    in_matrices = sum(
        count for operator, count in counted.get_flop_counts()["Global"].items() if "attention" not in str(operator)
    )
    attention = 128 * 12 * 256 * 128 // 2
    assert shape.flops - attention == in_matrices


@pytest.mark.parametrize(
    "case",
    [
        "rmsnorm.fwdbwd.128x256.bf16.block",
        "rmsnorm.fwdbwd.128x256.fp32.block",
        "rmsnorm_residual.fwdbwd.128x256.bf16-fp32.block",
        "layernorm.fwdbwd.128x256.fp32.block",
    ],
)
def test_a_block_is_measured(case):
    at = prepare(bench_of("eager"), Case.parse(case), seed=1)

    described = at.describe()
    assert described["facts"]["tokens"] == 128
    assert described["facts"]["flops"] == Shape(128, 128, 256).flops
    parameters = 851_968 * (2 if "bf16" in case else 4)
    assert described["facts"]["peak_bytes"] > parameters  # their gradients at least
    assert {"y", "dx", "dqkv", "ddown"} <= described["errors"].keys()
    assert all(us > 0 for us in at.turn(warm=1, timed=3))
    at.check()


@pytest.mark.parametrize(
    ("norm", "reason"),
    [
        ("forgets_eps", "y of the block is wrong by "),
        ("divides_by_one_less", "of the block is wrong by "),
        ("drops_the_last_column", "y of the block is wrong by "),
        ("has_no_gradient_through_the_mean", "dx of the block is wrong by "),
        ("gives_nan", "y of the block has values that are not finite"),
        ("writes", "changed the block's weight_1 and weight_2"),
    ],
)
def test_a_wrong_norm_makes_a_wrong_block(norms, norm, reason):
    with pytest.raises(Wrong, match=reason):
        prepare(bench_of(norm), BLOCK, seed=1)


def test_outputs_of_another_kind_are_wrong():
    inputs = BlockInputs.make(BLOCK, Shape.of(BLOCK), CPU, seed=1)
    oracle = BlockOracle(inputs)
    y, *gradients = step(transformer(BLOCK, Shape.of(BLOCK))(BY_KEY[BLOCK.key]), inputs.tensors, inputs.gradients)()

    assert oracle.judge([y, *gradients]).reason is None
    assert oracle.judge([y.float(), *gradients]).reason == (
        "y of the block is torch.float32 (128, 256) on cpu instead of torch.bfloat16 (128, 256) on cpu"
    )
    assert "instead of" in oracle.judge([y[:1], *gradients]).reason  # which would be compared with every row
    assert oracle.judge([torch.nn.Parameter(y), *gradients]).reason == (
        "y of the block is a Parameter, not a plain tensor"
    )


def test_numbers_that_only_change_places_are_noticed():
    inputs = BlockInputs.make(BLOCK, Shape.of(BLOCK), CPU, seed=1)
    before = inputs.fingerprint()

    assert inputs.changed(before) == []
    inputs.tensors["qkv"].copy_(inputs.tensors["qkv"].flip(0))
    inputs.tensors["weight_2"].copy_(inputs.tensors["weight_2"].flip(0))

    assert inputs.changed(before) == ["weight_2", "qkv"]


def test_a_kept_result_is_found_after_the_timing(norms):
    at = prepare(bench_of("keeps_by_pointer"), Case.parse("rmsnorm.fwdbwd.128x256.fp32.block"), seed=1)
    at.turn(warm=0, timed=1)

    with pytest.raises(Wrong, match="after the timing, with other numbers in its inputs: y of the block is wrong"):
        at.check()


@pytest.mark.parametrize("newer", [False, True])
def test_a_target_that_likes_tf32_does_not_loosen_what_is_right(newer):
    """`fp32_precision` came with torch 2.9, and torch refuses to tell its older setting once it was used."""
    at = prepare(bench_of("eager"), BLOCK, seed=1)
    matmul = torch.backends.cuda.matmul
    try:
        if newer:
            matmul.fp32_precision = "tf32"
        else:
            torch.set_float32_matmul_precision("high")
        with full_precision():
            assert matmul.fp32_precision == "ieee"
            assert not matmul.allow_tf32
        at.check()
        assert matmul.fp32_precision == "tf32"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_a_block_of_tokens_that_are_not_whole_sequences_is_refused():
    with pytest.raises(Unsupported, match="3000 tokens are not a whole number of sequences of 2048"):
        prepare(bench_of("eager"), Case.parse("rmsnorm.fwdbwd.3000x128.bf16.block"), seed=1)


@compiles
@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("inductor", range(12, 40)),
        # By day tests/kernels/test_modes.py tells the regions of a block from the rest.
        pytest.param("inductor-regional", range(2, 10), marks=pytest.mark.long),
    ],
)
def test_torch_compile_takes_the_whole_block_or_only_its_norms(tmp_path, monkeypatch, name, kernels):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    at = prepare(bench_of(name), BLOCK, seed=1)

    facts = at.describe()["facts"]
    assert facts["kind"] == "generated"
    assert facts["kernels"] in kernels
    at.turn(warm=0, timed=1)
    at.check()


# -- all of them -----------------------------------------------------------------------------------------------------


def test_every_metric_in_a_session(contender):
    cases = [Case.parse(f"rmsnorm.fwd.64x256.fp32.{metric}") for metric in ("call", "memory", "compile")]
    cases.append(BLOCK)
    trial = run_trial([contender("eager", protocol.built_in("eager"))], cases, Pace(rounds=2), device="cpu", seed=1)

    call, memory, compile_, block = (trial.cells["eager", case] for case in cases)
    assert (call.state, memory.state, block.state) == ("measured", "measured", "measured")
    assert len(call.samples) == len(block.samples) == 2
    assert memory.samples == [memory.samples[0]]
    assert memory.samples[0] >= memory.facts["output_bytes"] == 64 * 256 * 4
    assert (compile_.state, compile_.samples) == ("unsupported", [])
    assert block.facts["flops"] == Shape(128, 128, 256).flops


def test_what_torch_compile_has_not_met_is_not_forgotten(monkeypatch):
    """A reset on a GPU imports Inductor, so a process that only imported dynamo does without."""
    import torch._dynamo

    torch._dynamo.reset()
    resets = []
    monkeypatch.setattr(torch._dynamo, "reset", lambda: resets.append(1))
    caches.forget_graphs()
    assert resets == []

    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    caches.forget_graphs()
    assert resets == [1]
