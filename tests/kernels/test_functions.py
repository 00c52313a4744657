"""Functions of a recipe: their cases, formulas, and what is refused."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cases import Case, FunctionCase, Metric, parse_case
from kernels.functions import Function, Input, Values, evaluated

SOFTMAX = Function(
    name="softmax",
    cases=("8x512.bf16", "8x512.bf16.call"),
    call="kernels.softmax:softmax",
    sizes=("M", "N"),
    inputs={"x": Input(("M", "N")), "index": Input(("M // 2",), "int64", Values.INTEGERS, below="N")},
    constants={"dim": -1},
    reference="torch:softmax",
    bytes="2 * M * N * element",
    flops="5 * M * N",
)


def test_a_case_has_the_work_that_its_formulas_say():
    plain, call = map(SOFTMAX.case, SOFTMAX.cases)

    assert (str(plain), plain.least_bytes, plain.flops) == ("softmax/8x512.bf16", 2 * 8 * 512 * 2, 5 * 8 * 512)
    assert (str(call), call.metric) == ("softmax/8x512.bf16.call", Metric.CALL)


def test_a_formula_is_computed_with_the_sizes_of_each_case():
    taps = {"x": Input(("M // (N - 1)",), "bf16")}
    function = Function("taps", ("8x3",), call="taps:taps", sizes=("M", "N"), inputs=taps)

    assert function.case("8x3").label == "8x3"
    with pytest.raises(ValueError, match="is no formula"):
        function.case("8x1")


def test_a_function_reaches_a_contender_as_json():
    assert Function.of(json.loads(json.dumps(SOFTMAX.as_json))) == SOFTMAX


@pytest.mark.parametrize(
    ("text", "function", "label", "metric"),
    [
        ("softmax/8x512x4096", "softmax", "8x512x4096", Metric.KERNEL),
        ("flash_attention/causal/4x32.bf16.memory", "flash_attention/causal", "4x32.bf16", Metric.MEMORY),
        ("test_speed/-", "test_speed", "-", Metric.KERNEL),
        ("a/p=0.5", "a", "p=0.5", Metric.KERNEL),
    ],
)
def test_names_of_cases_are_free(text, function, label, metric):
    case = parse_case(text)

    assert case == FunctionCase(function, label, metric)
    assert str(case) == text
    assert isinstance(parse_case("rmsnorm.fwd.8x64.fp32"), Case)


@pytest.mark.parametrize("text", ["/8", "a/", "a b/8", "a/8 9", "1a/8", f"a/{'8' * 120}", "a/../b", "a/'; --"])
def test_what_is_no_case_is_refused(text):
    with pytest.raises(ValueError, match="is not a case of a function; write NAME/LABEL"):
        parse_case(text)


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"name": "soft max"}, "name = 'soft max': write letters, digits, - and _"),
        (
            {"test": "tests/test_a.py::test_b"},
            "softmax: write exactly one of call = …, benchmark = …, test = …; it",
        ),
        ({"call": "softmax"}, "softmax: call = 'softmax' is not of the form module:name"),
        ({"line": "ours"}, "softmax: line has no meaning beside call = …; remove it"),
        ({"cases": ()}, "softmax: cases is empty; name at least one"),
        ({"cases": ("8x512.bf16", "8x512.bf16")}, "softmax: cases: 'softmax/8x512.bf16' is listed twice; remove one"),
        ({"cases": ("8.bf16",)}, "softmax: '8.bf16' is not MxN as numbers from 1"),
        ({"cases": ("8x512",)}, "softmax: '8x512' ends without the dtype of x: write 8x512.bf16"),
        ({"cases": ("8x512.fp31",)}, "unknown dtype 'fp31'; known: bf16"),
        ({"cases": ("8x512.bf16.compile",)}, "a function has the metrics kernel, call, memory"),
        ({"error": 2.0}, "softmax: error = 2 must be above 0 and below 1"),
        ({"bytes": "2 * K"}, "softmax: bytes: 'K' is no size; known: M, N, element"),
        ({"bytes": "M ** N"}, "softmax: bytes: 'M ** N' is not allowed in a formula"),
        ({"bytes": "open('x')"}, "is not allowed in a formula"),
        ({"inputs": {"x": Input(("M", "2 *"))}}, "softmax: inputs: x: '2 *' is no formula"),
        ({"bytes": "1e999 * M"}, "softmax: bytes: '1e999 * M' is not from 0 to 2**63 - 1; correct it"),
        ({"flops": "*".join(["1000000"] * 24)}, "is not from 0 to 2**63 - 1; correct it"),
        ({"bytes": "M - N"}, "softmax: bytes: 'M - N' is not from 0 to 2**63 - 1; correct it"),
        ({"inputs": {"x": Input(("M - 9",))}}, "softmax: inputs: x: 'M - 9' is not from 0 to 2**63 - 1"),
        ({"sizes": ("M", "M")}, "softmax: sizes: 'M' is listed twice; rename one"),
        ({"sizes": ()}, 'softmax: a call needs sizes = ["M", …] and inputs = {x = {shape = ["M", …]}}'),
        ({"reference": "softmax"}, "softmax: reference = 'softmax' is not of the form module:function"),
    ],
)
def test_a_mistake_is_told_with_its_remedy(keys, mistake):
    given_keys = {name: getattr(SOFTMAX, name) for name in SOFTMAX.as_json}
    with pytest.raises(ValueError, match=re.escape(mistake)):
        Function(**{**given_keys, **keys})


@pytest.mark.parametrize(
    ("keys", "mistake"),
    [
        ({"dtype": "fp31"}, "dtype = 'fp31' is unknown; known: bf16"),
        ({"values": Values.INTEGERS}, 'values = "integers" and below = "V" belong together'),
        ({"below": 3}, 'values = "integers" and below = "V" belong together'),
    ],
)
def test_a_mistaken_input(keys, mistake):
    with pytest.raises(ValueError, match=mistake):
        Input(("M",), **keys)


@given(st.text(max_size=30))
def test_a_formula_is_a_number_or_refused(text):
    try:
        value = evaluated(text, {"M": 8, "N": 512})
    except ValueError:
        return
    assert isinstance(value, int | float)


@given(st.text(st.sampled_from("ab/x8.=,+-_ \n"), max_size=40))
def test_a_case_is_printed_as_it_was_parsed(text):
    try:
        case = parse_case(text)
    except ValueError:
        return
    assert parse_case(str(case)) == case
