"""Functions of a recipe in real contender processes on the CPU: right ones, wrong ones, and benchmarks that exist."""

import json

import pytest

from kernels.arena import protocol
from kernels.arena.function_outputs import differing_outputs
from kernels.arena.session import Contender, Pace, run_trial
from kernels.cases import Role, parse_case
from kernels.functions import Function, Input, Values

pytest.importorskip("triton")
pytestmark = pytest.mark.torch

PACE = Pace(rounds=2, warm=1, timed=3, start_limit_s=120, prepare_limit_s=60, turn_limit_s=30)
MODULE = '''
import pathlib
import torch

OTHER = pathlib.Path(__file__).with_name("other").exists()
KEPT = {}


def softmax(x, dim=-1):
    e = (x - x.amax(dim, keepdim=True)).exp()
    return e / e.sum(dim, keepdim=True)


def wrong(x, dim=-1):
    y = softmax(x, dim)
    y[3, 5] *= 1.5
    return y


def kept(x, dim=-1):
    """Cached by address, as if the numbers never changed."""
    return KEPT.setdefault(x.data_ptr(), softmax(x, dim))


def add_into(x, y):
    x.add_(y)


def add_and_return(x, y):
    return x.add_(y)


def add_wrongly(x, y):
    x.add_(y)
    x[3, 5] += 9
    return x


def masked(x):
    return x.masked_fill(x > 1, float("-inf"))


def several(x, index):
    return {"rows": x[index], "count": index.numel(), "none": None}


def of_revision(x, dim=-1):
    return softmax(x, dim) * (1.5 if OTHER else 1)


def draws(x, dim=-1):
    return torch.nn.functional.dropout(softmax(x, dim), 0.5)


def races(x, dim=-1):
    return softmax(x, dim) + 0.1 * torch.rand_like(x)


def raises(x, dim=-1):
    raise ValueError("no such shape")
'''
REPORT = """
import torch
import triton
from triton.testing import do_bench_cudagraph
from functions import softmax, wrong


def _plot(name, lines):
    return triton.testing.Benchmark(
        x_names=["M", "N"], x_vals=[(8, 64), (16, 128)], line_arg="provider", line_vals=lines, line_names=lines,
        plot_name=name, args={"dtype": torch.float32})


RIGHT, WRONG = ["ours", "torch", "grad", "grad_wrong", "grad_torch", "all"], ["wrong", "graph", "none"]


@triton.testing.perf_report([_plot("softmax", RIGHT), _plot("broken", WRONG)])
def report(M, N, provider, dtype):
    x, ms = torch.randn(M, N, dtype=dtype), 0
    if provider == "all":
        return min(triton.testing.do_bench(lambda: softmax(x), return_mode="all"))
    try:
        if provider.startswith("grad"):
            x.requires_grad_()
            y, dy = (torch.softmax(x, -1) if provider == "grad_torch" else softmax(x)), torch.randn(M, N)
            if provider == "grad_wrong":
                x.register_hook(lambda grad: grad * 1.5)
            def backward():
                y.backward(dy, retain_graph=True)

            backward()
            options = ([25, 100, [x]], {}) if provider == "grad" else ([], {"grad_to_none": [x]})
            ms = triton.testing.do_bench(backward, *options[0], **options[1])
        elif provider == "torch":
            ms = triton.testing.do_bench(lambda: torch.softmax(x, -1), quantiles=[0.5])
        elif provider == "ours":
            ms = triton.testing.do_bench(lambda: wrong(x))
        if provider in ("graph", "ours"):  # a second timer of the line "ours", whose time is returned
            ms = do_bench_cudagraph(lambda: softmax(x))
        elif provider == "wrong":
            fast, ms, slow = triton.testing.do_bench(lambda: wrong(x), quantiles=[0.2, 0.5, 0.8])
    except Exception:
        ms = float("inf")
    return ms


report.run(print_data=True)  # as tutorials do, without asking for __main__


@triton.testing.perf_report(triton.testing.Benchmark(["N"], [8], "provider", ["ours"], ["Ours"], "modules", {}))
def modules(N, provider):
    with torch.no_grad():
        layer, x = torch.nn.Linear(N, N, bias=False), torch.randn(4, N)
    weight = layer.weight
    return triton.testing.do_bench(lambda: layer(x) + weight.sum())


class Operator:
    def get_input_iter(self):
        for rows in (4, 8):
            yield (torch.randn(rows, 32),)

    def ours(self, x):
        return lambda: softmax(x)

    def torch(self, x):
        return lambda: torch.softmax(x, -1)
"""
TESTS = """
import pytest
import torch
from functions import softmax, wrong


@pytest.mark.parametrize("columns", [64, 128])
def test_softmax(benchmark, rows, columns):
    x = torch.randn(rows, columns)
    y = benchmark(softmax, x, dim=-1)
    torch.testing.assert_close(y, torch.softmax(x, -1))


def test_wrong(benchmark):
    x = torch.randn(8, 64)
    torch.testing.assert_close(benchmark.pedantic(wrong, args=(x,), rounds=3), torch.softmax(x, -1))


def test_nothing(benchmark):
    pass


def test_elsewhere(benchmark):
    pytest.skip("needs another machine")
"""

ABOVE = """
import pytest


@pytest.fixture
def rows():
    return 8
"""


def call(name, **keys):
    inputs = {"x": Input(("M", "N"), "fp32")}
    usual = {"sizes": ("M", "N"), "inputs": inputs, "cases": ("8x64",), "reference": "torch:softmax"}
    usual["constants"] = {"dim": -1}
    return Function(**{"name": name, "call": f"functions:{name}", **usual, **keys})


def report(name, line, **keys):
    return Function(**{"name": name, "benchmark": "reports:report", "line": line, "cases": ("8x64",), **keys})


ADDED = {"x": Input(("M", "N"), "fp32"), "y": Input(("M", "N"), "fp32")}
TAKEN = {"x": Input(("M", "N"), "fp32"), "index": Input((4,), "int64", Values.INTEGERS, below="M")}
FUNCTIONS = [
    call("softmax", cases=("8x64", "8x64.call", "8x64.memory")),
    call("wrong"),
    call("kept"),
    call("raises"),
    call("draws", reference=None),
    call("draws/too", call="functions:draws", reference="functions:draws"),
    call("races"),
    call("softmax/error", call="functions:softmax", reference=None, error=0.25),
    call("add_into", inputs=ADDED, constants={}, reference=None),
    call("add_and_return", inputs=ADDED, constants={}, reference="torch:add"),
    call("add_wrongly", inputs=ADDED, constants={}, reference="torch:add"),
    call("add_and_return/parent", call="functions:add_and_return", inputs=ADDED, constants={}, reference=None),
    call("masked", constants={}, reference=None),
    call("several", inputs=TAKEN, constants={}, reference=None),
    call("of_revision", reference=None),
    call("missing"),
    Function("modules", ("8",), benchmark="reports:modules", line="ours"),
    report("report/ours", "ours", plot="softmax", reference="torch"),
    report("report/grad", "grad", plot="softmax", reference="grad_torch"),
    report("report/grad_wrong", "grad_wrong", plot="softmax", reference="grad_torch"),
    report("report/all", "all", plot="softmax", reference="torch"),
    report("report/wrong", "wrong", plot="broken"),
    report("report/graph", "graph", plot="broken", cases=("16x128",)),
    report("report/none", "none", plot="broken"),
    report("report/plots", "ours"),
    report("report/case", "ours", plot="softmax", cases=("4x4",)),
    Function("operator", ("1",), benchmark="reports:Operator", line="ours", reference="torch"),
    Function("tested", ("64",), test="tests/test_speed.py::test_softmax"),
    Function("tested/wrong", ("-",), test="tests/test_speed.py::test_wrong"),
    Function("tested/elsewhere", ("-",), test="tests/test_speed.py::test_elsewhere"),
    Function("tested/nothing", ("-",), test="tests/test_speed.py::test_nothing"),
]
PROVIDER = protocol.targets_own("functions", {}, functions=FUNCTIONS)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    folder = tmp_path_factory.mktemp("functions")
    (folder / "tests").mkdir()
    files = {"functions.py": MODULE, "reports.py": REPORT, "tests/test_speed.py": TESTS, "conftest.py": ABOVE}
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def own(open_contender, tree):
    """A contender of a target that has these files, started once."""
    channel = open_contender(PYTHONPATH=str(tree), KERNELWATCH_CHECKOUT=str(tree))
    assert channel.ask(protocol.start(PROVIDER, "cpu", 1, 0), 120)["ready"] is True
    return channel


def measured(channel, text):
    """State, reason and the answer to `prepare`, of preparing, timing and checking a case."""
    prepared = answer = channel.ask(protocol.prepare(parse_case(text), 1), 60)
    if answer["state"] == "measured":
        assert len(channel.ask(protocol.turn(1, 3), 60)["samples"]) == 3
        answer = channel.ask(protocol.CHECK, 60)
    channel.ask(protocol.FREE, 60)
    return answer["state"], answer["reason"] or "", prepared


@pytest.mark.parametrize(
    "case",
    [
        "softmax/8x64",
        "softmax/8x64.call",
        "softmax/8x64.memory",
        "report/ours/8x64",
        "report/grad/8x64",
        "report/all/8x64",
        "operator/1",
        "add_and_return/8x64",
    ],
)
def test_a_function_is_measured_and_compared_with_its_reference(own, case):
    state, reason, prepared = measured(own, case)

    assert (state, reason) == ("measured", "")
    assert max(prepared["errors"].values()) < 0.01
    assert "reference" in prepared["facts"]


@pytest.mark.parametrize("case", ["draws/8x64", "draws/too/8x64"])
def test_a_call_that_draws_random_numbers_is_compared_with_nothing(own, case):
    state, reason, prepared = measured(own, case)

    assert (state, reason) == ("measured", "")
    assert prepared["facts"]["outputs"] == "vary from call to call"
    assert prepared["sampled"]["outputs"] is None


def test_a_call_has_a_trace_for_perfetto(own):
    own.ask(protocol.prepare(parse_case("softmax/8x64"), 1), 60)
    trace = json.loads(own.ask(protocol.texts(parse_case("softmax/8x64"), 0, "trace"), 60)["text"])
    own.ask(protocol.FREE, 60)

    assert [event["name"] for event in trace["traceEvents"]].count("aten::exp") == 3


@pytest.mark.parametrize(
    "case", ["report/graph/16x128", "add_into/8x64", "several/8x64", "tested/64", "add_and_return/parent/8x64"]
)
def test_without_a_reference_samples_go_to_the_driver(own, case):
    state, reason, prepared = measured(own, case)

    assert (state, reason, prepared["errors"]) == ("measured", "", {})
    assert prepared["facts"]["reference"] == "the parent's result"
    assert all(output["values"] for output in prepared["sampled"]["outputs"])


def test_a_tensor_that_a_call_holds_twice_counts_once(own):
    _, _, prepared = measured(own, "modules/8")

    assert len(prepared["sampled"]["inputs"]) == 2


def test_the_error_of_the_recipe_is_the_limit_of_samples_too(own):
    _, _, prepared = measured(own, "softmax/error/8x64")

    assert [output["limit"] for output in prepared["sampled"]["outputs"]] == [0.25]


def test_the_size_of_an_output_is_that_of_its_finite_elements(own):
    _, _, prepared = measured(own, "masked/8x64")

    [output] = prepared["sampled"]["outputs"]
    assert None in output["values"]
    assert 0.1 < output["size"] < 2


@pytest.mark.parametrize(
    ("case", "state", "reason"),
    [
        ("wrong/8x64", "invalid", "output 0 differs from its reference by 0."),
        ("add_wrongly/8x64", "invalid", "output 0 differs from its reference by"),
        ("races/8x64", "invalid", "its outputs vary from call to call, and those of its reference do not"),
        ("report/grad_wrong/8x64", "invalid", "output 0 differs from its reference by"),
        ("kept/8x64", "invalid", "after the timing, with other numbers in its inputs: output 0 differs"),
        ("raises/8x64", "failed", "ValueError: no such shape"),
        ("missing/8x64", "failed", "functions has no missing that can be called; correct the recipe or define it"),
        ("nowhere/8x64", "unsupported", "the recipe has no function nowhere in functions"),
        ("report/none/8x64", "failed", "called neither triton.testing.do_bench nor do_bench_cudagraph"),
        ("report/plots/8x64", "failed", 'has several plots; write plot = "NAME" of softmax, broken'),
        ("report/case/4x4", "failed", "has no case '4x4'; it has 8x64, 16x128"),
        ("tested/wrong/-", "failed", "tests/test_speed.py::test_wrong did not pass"),
        ("tested/nothing/-", "failed", "has no case '-' that calls the fixture `benchmark`; it has -"),
        ("tested/elsewhere/-", "unsupported", "skips here"),
        ("tested/9", "failed", "has no case '9' that calls the fixture `benchmark`; it has 64, 128"),
    ],
)
def test_what_is_wrong_or_missing_is_told(own, case, state, reason):
    found, told, _ = measured(own, case)

    assert found == state
    assert reason in told


def test_a_head_that_computes_something_else_than_its_parent_is_invalid(open_contender, tree, tmp_path):
    (tmp_path / "functions.py").write_text(MODULE)
    (tmp_path / "reports.py").write_text(REPORT)
    (tmp_path / "other").touch()

    def of(label, role, folder):
        return Contender(label, role, PROVIDER, lambda: open_contender(PYTHONPATH=str(folder)))

    case = parse_case("of_revision/8x64")
    contenders = [of("head", Role.HEAD, tmp_path), of("parent", Role.PARENT, tree), of("control", Role.CONTROL, tree)]
    cells = run_trial(contenders, [case], PACE, device="cpu", seed=1).cells

    assert cells["head", case].state == "invalid"
    assert cells["head", case].reason.startswith("output 0 differs from that of its parent by 0.")
    assert [cells[label, case].state for label in ("parent", "control")] == ["measured", "measured"]


def sampled(values, *, inputs=(1.0,), shape=(8,), size=1.0, dtype="float32"):
    output = {"shape": list(shape), "dtype": dtype, "size": size, "limit": 2e-3, "values": list(values)}
    return {"inputs": list(inputs), "outputs": [output]}


NAN = float("nan")


@pytest.mark.parametrize(
    ("head", "parent", "reason"),
    [
        (sampled([1.0, 2.0]), sampled([1.0, 2.001]), None),
        (sampled([1.0, 2.1]), sampled([1.0, 2.0]), "output 0 differs from that of its parent by 0.0333"),
        (sampled([1.0, NAN]), sampled([1.0, NAN]), None),
        (sampled([1.0, NAN]), sampled([1.0, 2.0]), "other elements that are not finite"),
        (sampled([1.0], shape=(4,)), sampled([1.0]), "has the shape [4], and that of its parent [8]"),
        (sampled([9.0], inputs=[2.0]), sampled([1.0]), None),  # the revision changed the inputs of its benchmark
        ({"inputs": [1.0], "outputs": []}, sampled([1.0]), "returned 0 outputs, and its parent 1"),
        ({"inputs": [1.0], "outputs": None}, sampled([1.0]), "its outputs vary from call to call"),
        ({"inputs": [2.0], "outputs": None}, sampled([1.0]), None),
        (sampled([1.0]), {"inputs": [1.0], "outputs": None}, None),  # both vary, or its parent did
        ("nonsense", sampled([1.0]), None),
        (sampled([1.0]), None, None),
    ],
)
def test_samples_of_two_revisions(head, parent, reason):
    found = differing_outputs(head, parent)

    assert found is None if reason is None else reason in (found or "")
