"""From the sources of a checkout to a recipe: what is measured, what is left to the reader, and why."""

import re
import sys
import tomllib
from collections.abc import Mapping
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.adopt.candidates import CandidateKind
from service.domain.adopt.recipe import MAX_TAKEN, Candidates, find, written
from service.domain.policy.recipes import parse

SOFTMAX = """
    import torch
    import triton
    from kernels.softmax import softmax

    @triton.testing.perf_report(
        triton.testing.Benchmark(
            x_names=["N"],
            x_vals=[128 * i for i in range(2, 100)],
            line_arg="provider",
            line_vals=["torch", "triton", "naive"],
            line_names=["Torch", "Triton", "Naive"],
            plot_name="softmax-performance",
            args={"M": 4096},
        )
    )
    def benchmark(M, N, provider):
        x = torch.randn(M, N, device="cuda")
        return triton.testing.do_bench(lambda: softmax(x))
"""
ATTENTION = """
    from triton.testing import Benchmark, perf_report

    CONFIGS = [
        Benchmark(["N_CTX"], [2**i for i in range(10, 13)], "provider", ["flash", "eager-bwd"], [], "fwd", {}),
        Benchmark(["N_CTX"], [512, 1024], "provider", ["flash"], [], "d=64 bwd", {}),
    ]

    @perf_report(CONFIGS)
    def bench_attention(N_CTX, provider):
        ...
"""
OPERATOR = """
    from tritonbench.utils.triton_op import BenchmarkOperator, register_benchmark

    class Operator(BenchmarkOperator):
        @register_benchmark(baseline=True)
        def aten(self, x):
            return lambda: x

        @register_benchmark(enabled=HAS_QUACK)
        def quack(self, x):
            return lambda: x

        @register_benchmark()
        def ours(self, x):
            return lambda: x

        def get_input_iter(self):
            for rows in [1024, 2048, 4096]:
                for cols in (256, 512):
                    yield (self.make(rows, cols),)
"""
TESTS = """
    import pytest
    import torch

    DTYPES = [torch.float32, torch.bfloat16]

    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("rows,cols", [(1, 128), (4096, 1024)])
    def test_softmax(benchmark, rows, cols, dtype):
        benchmark(torch.softmax, torch.randn(rows, cols, dtype=dtype), -1)

    class TestNorms:
        def test_plain(self, benchmark):
            benchmark(torch.sum, torch.ones(8))
"""
HELION = """
    import helion
    import torch
    from helion._testing import DEVICE, run_example

    @helion.kernel()
    def softmax(x: torch.Tensor, dim: int = -1) -> torch.Tensor:
        return x

    @helion.kernel
    def lonely(x: torch.Tensor) -> torch.Tensor:
        return x

    def reference(x, dim):
        return torch.softmax(x, dim)

    def check(m: int, n: int) -> None:
        x = torch.randn([m, n], device=DEVICE, dtype=torch.bfloat16)
        run_example({"helion": softmax}, reference, (x, -1))

    def main() -> None:
        check(1024, 512)
        check(4096, 2560)
"""
NORMS = """
    def rms_norm(x, weight, eps=1e-6, *, out=None):
        y = x * weight
        return y

    def rms_norm_backward(dy, x, weight, rstd, eps):
        return dy, weight

    def rms_norm_torch(x, weight, eps):
        return x

    def layer_norm(input, weight, bias, eps):
        return input, weight, bias

    def _rms_norm(x, weight, eps):
        return x

    def rms_norm_of_rows(x, rows, weight, eps):
        return x
"""


def found(files: Mapping[str, str]) -> Candidates:
    """What is found in files, by their paths without `.py`."""
    sources = {f"{path}.py": dedent(text) for path, text in files.items()}
    return find(sources, list(sources))


def entries(candidates: Candidates) -> dict[str, dict[str, object]]:
    return {candidate.name: dict(candidate.entry) for candidate in candidates.taken}


def test_a_perf_report_is_measured_at_four_sizes_against_its_baseline():
    candidates = found({"benchmarks/bench_softmax": SOFTMAX, "kernels/softmax": "", "kernels/__init__": ""})
    assert entries(candidates) == {
        "softmax": {
            "benchmark": "bench_softmax:benchmark",
            "line": "triton",
            "reference": "torch",
            "cases": ["256", "4352", "8576", "12672"],
        }
    }
    [candidate] = candidates.all
    assert (candidate.path, candidate.line) == ("benchmarks/bench_softmax.py", 6)
    assert candidate.notes == ["lines left out: naive"]
    assert candidates.import_paths == [".", "benchmarks"]


def test_each_plot_of_an_object_is_a_function():
    assert entries(found({"bench": ATTENTION})) == {
        "attention/fwd": {
            "benchmark": "bench:bench_attention",
            "plot": "fwd",
            "line": "flash",
            "reference": "eager-bwd",
            "cases": ["1024", "2048", "4096"],
        },
        "attention/d-64-bwd": {
            "benchmark": "bench:bench_attention",
            "plot": "d=64 bwd",
            "line": "flash",
            "cases": ["512", "1024"],
        },
    }


@pytest.mark.parametrize(
    "configurations",
    [
        """
        CONFIGS = [
            triton.testing.Benchmark(["N"], [D * 8], "provider", ["ours"], [], f"d-{D}-{mode}", {})
            for D in (64, 128)
            for mode in ["fwd", "bwd"]
            if (D, mode) != (128, "bwd")
        ]
        """,
        """
        HEADS, MODES = 8, ["fwd", "bwd"]
        CONFIGS = []
        for D in (64, 128):
            for mode in MODES:
                if D == 128 and mode == "bwd":
                    continue_here = False
                else:
                    CONFIGS.append(
                        triton.testing.Benchmark(["N"], [D * HEADS], "provider", ["ours"], [], f"d-{D}-{mode}", {})
                    )
        """,
    ],
)
def test_configurations_may_be_made_in_loops(configurations):
    benchmark = "@triton.testing.perf_report(CONFIGS)\ndef bench_it(N, provider): ..."
    source = "\n".join(["import triton", dedent(configurations), benchmark])
    assert {name: entry["cases"] for name, entry in entries(found({"bench": source})).items()} == {
        "it/d-64-fwd": ["512"],
        "it/d-64-bwd": ["512"],
        "it/d-128-fwd": ["1024"],
    }


@pytest.mark.parametrize(
    ("configurations", "lacks"),
    [
        ("A = B\nB = A\nCONFIGS = A", "a list is made of itself"),
        ("CONFIGS = []\nCONFIGS += CONFIGS", "a list is made of itself"),
        ("CONFIGS = []\nfor i in range(300): CONFIGS.append(i)", "a list has more than 200 elements"),
        (
            "CONFIGS = []\nfor i in range(9999):\n  for j in range(9999):\n    if i < 0: CONFIGS.append(i)",
            "a loop takes long",
        ),
        (
            "CONFIGS = []\nfor i in range(9999):\n  if sum([j for j in range(9999)]) < 0: CONFIGS.append(i)",
            "the expressions of its file take long to compute",
        ),
        ("CONFIGS = make()", "its Benchmark is made by other code"),
    ],
)
def test_configurations_that_have_no_end_are_left_to_the_reader(configurations, lacks):
    benchmark = "@triton.testing.perf_report(CONFIGS)\ndef bench_it(N, provider): ..."
    [candidate] = found({"bench": "\n".join(["import triton", configurations, benchmark])}).all
    assert candidate.lacks == f"{lacks}; write line, cases, and plot if it has several"


def test_lines_that_depend_on_what_is_installed_are_left_out():
    lines = '["triton"] + (["flash"] if HAS_FLASH else []) + OTHERS'
    [candidate] = found({"softmax": SOFTMAX.replace('["torch", "triton", "naive"]', lines)}).all
    assert candidate.entry["line"] == "triton"
    assert candidate.notes == ["further lines are left out, because `HAS_FLASH` is not constant"]


@pytest.mark.parametrize(
    ("before", "after", "entry"),
    [
        ('["torch", "triton", "naive"]', '["ours-fwd", "torch", "torch-fwd"]', {"reference": "torch-fwd"}),
        ('["torch", "triton", "naive"]', '["torch", "cublas"]', {"line": "torch"}),
        (
            "[128 * i for i in range(2, 100)]",
            "[2**i for i in range(10, 40, 4)]",
            {"cases": ["1024", "16384", "262144"]},
        ),
        ('x_names=["N"]', 'x_names=["N", "K"]', {"cases": ["256", "4352", "8576", "12672"]}),
        ("[128 * i for i in range(2, 100)]", "[(1, 2), 8]", {"cases": ["8"]}),
    ],
)
def test_lines_and_sizes_are_chosen_by_plain_rules(before, after, entry):
    [chosen] = entries(found({"softmax": SOFTMAX.replace(before, after)})).values()
    assert chosen | entry == chosen


@pytest.mark.parametrize(
    ("before", "after", "lacks"),
    [
        ("[128 * i for i in range(2, 100)]", "sizes()", "x_vals: `sizes()` is not constant; write cases"),
        ('["torch", "triton", "naive"]', "LINES", "line_vals: `LINES` is not constant; write line"),
        (
            "triton.testing.Benchmark(",
            "configuration(",
            "its Benchmark is made by other code; write line, cases, and plot if it has several",
        ),
        ("[128 * i for i in range(2, 100)]", '[".5", ""]', "x_vals: no value can name a case; write cases"),
    ],
)
def test_what_is_not_constant_is_left_to_the_reader(before, after, lacks):
    candidates = found({"softmax": SOFTMAX.replace(before, after)})
    assert not candidates.taken
    assert lacks in candidates.all[0].lacks
    text = written(candidates, ["cpu"])
    assert f"# {candidates.all[0].lacks}" in text
    assert "function" not in tomllib.loads(text)
    filled = "\n".join(line.removeprefix("# ") if " = " in line or "[[" in line else line for line in text.splitlines())
    assert tomllib.loads(filled)["function"][0]["benchmark"] == "softmax:benchmark"


def test_what_cannot_be_imported_is_left_out():
    inside = "def make():\n" + "\n".join(f"    {line}" for line in dedent(SOFTMAX).splitlines())
    candidates = found({"03-softmax": SOFTMAX, "inside": inside})
    assert {candidate.path: candidate.lacks.partition(",")[0] for candidate in candidates.all} == {
        "03-softmax.py": "the name of its file or folder is no Python name",
        "inside.py": "it is made inside of a function",
    }
    assert not any(candidate.entry for candidate in candidates.all)


def test_an_operator_of_tritonbench_is_measured_against_its_baseline():
    candidates = found({"ops/softmax/operator": OPERATOR, "ops/softmax/__init__": "", "ops/__init__": ""})
    assert entries(candidates) == {
        "softmax": {
            "benchmark": "ops.softmax.operator:Operator",
            "line": "ours",
            "reference": "aten",
            "cases": ["0", "2", "3", "5"],
        }
    }
    assert candidates.all[0].notes == ["methods left out: quack"]


def test_tests_of_pytest_benchmark_are_measured_by_the_ids_of_pytest():
    assert entries(found({"tests/test_perf": TESTS})) == {
        "softmax": {
            "test": "tests/test_perf.py::test_softmax",
            "cases": ["1-128-dtype0", "1-128-dtype1", "4096-1024-dtype0", "4096-1024-dtype1"],
        },
        "TestNorms-test_plain": {"test": "tests/test_perf.py::TestNorms::test_plain", "cases": ["-"]},
    }


@pytest.mark.parametrize(
    ("conftest", "lacks"),
    [
        ("def pytest_generate_tests(metafunc): ...", "pytest_generate_tests of tests/conftest.py makes its parameters"),
        (
            "import pytest\n@pytest.fixture(params=[1, 2])\ndef rows(request): ...",
            "its fixture rows of tests/conftest.py:3 has parameters",
        ),
        (
            "import pytest\n@pytest.fixture(params=[1, 2])\ndef device(): ...\n@pytest.fixture\ndef rows(device): ...",
            "its fixture device of tests/conftest.py:3 has parameters",
        ),
    ],
)
def test_ids_that_fixtures_change_are_left_to_the_reader(conftest, lacks):
    candidates = found({"tests/test_perf": "def test_rows(benchmark, rows): ...", "tests/conftest": conftest})
    assert candidates.all[0].lacks == (
        f"{lacks}; `pytest --collect-only -q tests/test_perf.py::test_rows` lists the ids for cases"
    )


def test_a_fixture_of_their_own_named_benchmark_is_no_benchmark():
    own = "import pytest\n@pytest.fixture\ndef benchmark(): ...\ndef test_it(benchmark): ..."
    assert not found({"test_own": own}).all


def test_a_helion_kernel_gets_the_inputs_of_its_example():
    candidates = found({"examples/softmax": HELION, "examples/__init__": ""})
    assert entries(candidates) == {
        "softmax": {
            "call": "examples.softmax:softmax",
            "sizes": ["M", "N"],
            "inputs": {"x": {"shape": ["M", "N"], "dtype": "bf16"}},
            "constants": {"dim": -1},
            "reference": "examples.softmax:reference",
            "cases": ["1024x512", "4096x2560"],
        }
    }
    assert [candidate.lacks for candidate in candidates.all if candidate.title == "lonely"] == [
        "no example of its file has its inputs; write sizes, inputs and cases"
    ]


@pytest.mark.parametrize(
    ("before", "after", "entry"),
    [
        ("[m, n]", "1024, 512", {"sizes": ["S0", "S1"], "cases": ["1024x512"]}),
        ("reference, (x, -1)", "torch.exp, (x,)", {"reference": "torch:exp"}),
        ("check(4096, 2560)", "check(n=64, m=32)", {"cases": ["1024x512", "32x64"]}),
        (
            "torch.randn([m, n]",
            "torch.rand([m, n]",
            {"inputs": {"x": {"shape": ["M", "N"], "dtype": "bf16", "values": "uniform"}}},
        ),
        (
            "torch.randn([m, n], device=DEVICE, dtype=torch.bfloat16)",
            "torch.randint(0, n, (m,), device=DEVICE)",
            {"inputs": {"x": {"shape": ["M"], "dtype": "int64", "values": "integers", "below": "N"}}},
        ),
    ],
)
def test_inputs_of_helion(before, after, entry):
    chosen = entries(found({"softmax": HELION.replace(before, after)}))["softmax"]
    assert chosen | entry == chosen


@pytest.mark.parametrize(
    ("before", "after", "lacks"),
    [
        ("(x, -1)", "(-1, x)", "the example does not say what x is"),
        ("(x, -1)", "(x, -1, 2)", "its example has other arguments"),
        (
            "torch.randn([m, n]",
            "make([m, n]",
            "`make([m, n], device=DEVICE, dtype=torch.bfloat16)` is no random tensor",
        ),
        ("dtype=torch.bfloat16", "dtype=None", "`torch.randn([m, n], device=DEVICE, dtype=None)` has no plain dtype"),
        ("[m, n]", "[m, -n]", "`n` is not constant"),
        ("check(1024, 512)\n", "check(size())\n", "`size()` is not constant"),
    ],
)
def test_inputs_of_helion_that_are_left_to_the_reader(before, after, lacks):
    [candidate, _] = found({"softmax": HELION.replace(before, after)}).all
    assert candidate.lacks == f"{lacks}; write sizes, inputs and cases"


def test_an_argument_may_have_letters_that_a_key_of_toml_must_not():
    source = re.sub(r"\bx\b", "ü", HELION)
    [function] = tomllib.loads(written(found({"kernel": source}), ["cpu"]))["function"]
    assert list(function["inputs"]) == ["ü"]


def test_functions_that_can_be_called_as_a_norm_become_providers():
    candidates = found({"norms/rms_norm": NORMS, "norms/__init__": ""})
    assert {candidate.title: candidate.name for candidate in candidates.taken} == {
        "rms_norm": "rmsnorm.fwd",
        "rms_norm_backward": "rmsnorm.bwd",
    }
    assert {candidate.title: candidate.lacks for candidate in candidates.all if not candidate.taken} == {
        "rms_norm_torch": "its name is that of something to compare with",
        "layer_norm": "it does not return y; write an adapter",
    }
    recipe = tomllib.loads(written(candidates, ["cpu"]))
    assert recipe["providers"] == {
        "rms_norm": {"rmsnorm": {"fwd": "norms.rms_norm:rms_norm", "bwd": "norms.rms_norm:rms_norm_backward"}}
    }
    assert recipe["suite"] == "first"
    assert len(recipe["suites"]["first"]) == 4


def test_folders_that_would_hide_other_modules_are_no_import_path():
    candidates = found(
        {"fast/bench": SOFTMAX, "slow/bench": SOFTMAX, "torchlike/torch": "", "torchlike/bench_it": SOFTMAX}
    )
    assert {candidate.entry["benchmark"] for candidate in candidates.taken} == {
        "fast.bench:benchmark",
        "slow.bench:benchmark",
        "torchlike.bench_it:benchmark",
    }
    assert candidates.import_paths == ["."]
    assert sorted(entries(candidates)) == ["fast", "it", "slow"]


def test_a_first_recipe_is_bounded_and_takes_from_every_file():
    many = "def test_{}(benchmark): ..."
    candidates = found(
        {
            "test_many": "\n".join(many.format(number) for number in range(MAX_TAKEN)),
            "test_other": many.format("other"),
        }
    )
    assert len(candidates.taken) == MAX_TAKEN
    assert {candidate.path for candidate in candidates.taken} == {"test_many.py", "test_other.py"}
    [left] = [candidate for candidate in candidates.all if not candidate.taken]
    assert left.lacks == f"a first recipe has {MAX_TAKEN}; remove the # to measure it too"


def test_a_check_has_two_cases():
    two = tomllib.loads(written(found({"a": SOFTMAX, "tests/test_perf": TESTS}).first(2), ["cpu"]))
    assert [len(function["cases"]) for function in two["function"]] == [1, 1]
    one = tomllib.loads(written(found({"a": SOFTMAX}).first(2), ["cpu"]))
    assert [function["cases"] for function in one["function"]] == [["4352", "8576"]]


def test_what_does_not_parse_is_named_and_the_rest_is_found():
    candidates = found({"broken": "# perf_report\ndef (:", "softmax": SOFTMAX})
    assert candidates.unreadable == {"broken.py": "line 2: invalid syntax"}
    assert len(candidates.taken) == 1


def test_what_is_nested_too_deep_is_named_and_the_rest_is_found():
    terms = "a + " * (sys.getrecursionlimit() + 100)  # other tests may have raised the limit
    deep = f"pytestmark = {terms}a\ndef test_a(benchmark): ..."
    candidates = found({"test_deep": deep, "softmax": SOFTMAX})
    assert candidates.unreadable == {"test_deep.py": "it is nested too deep"}
    assert len(candidates.taken) == 1


@pytest.mark.parametrize("word", ["def test(", "def test_a(benchmark", "def ", "def rm", "helion.", "perf_repor"])
def test_a_large_file_of_one_word_is_looked_through(word):
    assert not found({"large": word * 100_000}).taken


def test_only_the_named_folder_is_looked_in():
    sources = {"a/bench_x.py": dedent(SOFTMAX), "ab/bench_y.py": dedent(SOFTMAX)}
    assert [candidate.path for candidate in find(sources, list(sources), "a").all] == ["a/bench_x.py"]


SOURCES = st.sampled_from([SOFTMAX, ATTENTION, OPERATOR, TESTS, HELION, NORMS]).map(dedent)
PATHS = st.sampled_from(
    ["a.py", "a/b.py", "a/__init__.py", "src/a/b.py", "1/2.py", "conftest.py", "é/ü.py", "a b/c.py"]
)


@st.composite
def damaged(draw) -> str:
    """A source of which parts were cut, doubled or replaced."""
    text = draw(SOURCES)
    for _ in range(draw(st.integers(0, 4))):
        first, second = sorted(draw(st.tuples(*[st.integers(0, len(text))] * 2)))
        between = draw(st.sampled_from(["", text[first:second], "[]", "None", "*", '"\\x7f\\ud800\\n"', "lambda x: x"]))
        text = text[:first] + between + text[second:]
    return text


@given(st.dictionaries(PATHS, st.text() | damaged(), max_size=3))
def test_any_source_gives_a_recipe_that_can_be_read(sources):
    candidates = find(sources, list(sources))
    text = written(candidates, ["cpu"])
    assert tomllib.loads(text.encode().decode())["devices"] == ["cpu"]
    if candidates.taken:
        recipe = parse(text)
        norms = [candidate for candidate in candidates.taken if candidate.kind is CandidateKind.NORM]
        measured = {f"{norm.name}.{case}" for norm in norms for case in norm.cases}
        measured |= {f"{each.name}/{case}" for each in candidates.taken if each not in norms for case in each.cases}
        assert set(map(str, recipe.cases(recipe.suite_on("cpu")))) == measured
        assert all(provider.calls for name, provider in recipe.providers.items() if name != "functions")
