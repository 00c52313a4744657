"""Functions of a recipe on a GPU: Triton kernels, benchmarks that exist, and calls that no graph can hold."""

import json

import pytest

from kernels.arena import protocol
from kernels.arena.session import Contender, Pace, run_trial
from kernels.cases import Role, parse_case
from kernels.functions import Function, Input

pytestmark = pytest.mark.gpu

PACE = Pace(rounds=4, warm=1, timed=3, prepare_limit_s=120)
MODULE = '''
import torch
import triton
import triton.language as tl


@triton.jit
def _softmax(x, y, columns, BLOCK: tl.constexpr, TIMES: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + at, mask=at < columns, other=-float("inf")).to(tl.float32)
    for _ in tl.static_range(TIMES):
        values = tl.exp(values - tl.max(values, 0))
        values = values / tl.sum(values, 0)
    tl.store(y + row * columns + at, values, mask=at < columns)


def softmax(x, times=1):
    y = torch.empty_like(x)
    _softmax[(x.shape[0],)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1]), times)
    return y


def of_few(x):
    """Reads a number back, which no graph can hold."""
    return softmax(x) if x.sum().item() < 1e9 else x


@triton.testing.perf_report(triton.testing.Benchmark(
    x_names=["N"], x_vals=[1024, 2048], line_arg="provider", line_vals=["triton", "torch", "backward"],
    line_names=["Triton", "Torch", "Backward"], plot_name="softmax", args={"M": 4096}))
def report(M, N, provider):
    x = torch.randn(M, N, device="cuda", dtype=torch.bfloat16, requires_grad=provider == "backward")
    if provider == "triton":
        return triton.testing.do_bench(lambda: softmax(x))
    if provider == "torch":
        return triton.testing.do_bench(lambda: torch.softmax(x, -1))
    y, dy = torch.softmax(x, -1), torch.randn_like(x)
    return triton.testing.do_bench(lambda: y.backward(dy, retain_graph=True), grad_to_none=[x])
'''
INPUTS = {"x": Input(("M", "N"), "bf16")}


def call(name, **keys):
    usual = {"sizes": ("M", "N"), "inputs": INPUTS, "reference": "torch.nn.functional:softmax", "bytes": "4 * M * N"}
    return Function(**{"name": name, "call": f"triton_functions:{name}", "cases": ("4096x1024",), **usual, **keys})


def report(line, **keys):
    return Function(f"report/{line}", ("1024",), benchmark="triton_functions:report", line=line, **keys)


FUNCTIONS = [
    call("softmax", reference=None),
    call("of_few", reference=None),
    report("triton", reference="torch"),
    report("backward"),
]
PROVIDER = protocol.targets_own("functions", {}, functions=FUNCTIONS)
EAGER = protocol.targets_own("functions", {}, functions=[call("of_few", reference=None, graph=False)])


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "triton_functions.py").write_text(MODULE)
    return folder


def trial(open_contender, tree, text, provider=PROVIDER):
    """The cells of a head and its copy at a case."""
    case = parse_case(text)

    def of(label, role):
        return Contender(label, role, provider, lambda: open_contender(PYTHONPATH=str(tree)))

    cells = run_trial([of("head", Role.HEAD), of("parent", Role.PARENT)], [case], PACE, device="cuda", seed=1).cells
    return cells["head", case], cells["parent", case]


@pytest.mark.parametrize("text", ["softmax/4096x1024", "report/triton/1024", "report/backward/1024"])
def test_a_function_takes_as_long_as_its_copy(open_contender, tree, text):
    head, parent = trial(open_contender, tree, text)

    assert (head.state, head.reason) == (parent.state, parent.reason) == ("measured", None)
    assert head.extra["calls"] > 100, "in a CUDA graph"
    assert sorted(head.samples)[1] == pytest.approx(sorted(parent.samples)[1], rel=0.1)


def test_a_triton_kernel_has_facts(open_contender, tree):
    head, _ = trial(open_contender, tree, "softmax/4096x1024")

    assert head.facts["kind"] == "triton"
    assert head.facts["triton"][0]["name"] == "_softmax"


def test_the_trace_of_a_call_has_its_kernel(open_contender, tree):
    channel, case = open_contender(PYTHONPATH=str(tree)), parse_case("softmax/4096x1024")
    channel.ask(protocol.start(PROVIDER, "cuda", 4, None), 120)
    channel.ask(protocol.prepare(case, 1), 120)
    trace = json.loads(channel.ask(protocol.texts(case, 0, "trace"), 60)["text"])

    kernels = [event["name"] for event in trace["traceEvents"] if event.get("cat") == "kernel"]
    assert kernels == ["_softmax"] * 3


def test_what_no_graph_holds_is_measured_eagerly(open_contender, tree):
    refused, _ = trial(open_contender, tree, "of_few/4096x1024")
    eager, _ = trial(open_contender, tree, "of_few/4096x1024", EAGER)

    assert refused.state == "failed"
    assert "cannot be captured in a CUDA graph" in refused.reason
    assert "graph = false" in refused.reason
    assert (eager.state, eager.reason) == ("measured", None)
