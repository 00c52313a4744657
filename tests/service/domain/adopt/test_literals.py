"""Constant expressions: what they are worth, and which are left alone."""

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.adopt import sources
from service.domain.adopt.literals import NotConstant, Symbol

MODULE = """\
import itertools
import torch
import triton
from somewhere import HAS_FLASH, SIZES

BATCHES = [1, 8]
DTYPES = {"half": torch.float16}
GROWN = [1]
GROWN.append(2)
LOOP = LOOP2
LOOP2 = LOOP
if triton:
    PERHAPS = 3


def reference(x):
    return x
"""


def value(expression: str):
    module = sources.parsed("m.py", MODULE)
    assert isinstance(module, sources.Module)
    return module.value(ast.parse(expression, mode="eval").body)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("[2**i for i in range(10, 13)]", [1024, 2048, 4096]),
        ("[128 * i for i in range(2, 5)]", [256, 384, 512]),
        ("[(b, d) for b in BATCHES for d in (64, 128) if b * d < 1000]", [(1, 64), (1, 128), (8, 64)]),
        ("list(itertools.product(BATCHES, [3]))", [(1, 3), (8, 3)]),
        ("[list(_) for _ in itertools.product([1], [2])]", [[1, 2]]),
        ("[*BATCHES, 1 << 4]", [1, 8, 16]),
        ("BATCHES[-1]", 8),
        ("BATCHES[:1]", [1]),
        ("sorted(zip([2, 1], 'ab'))", [(1, "b"), (2, "a")]),
        ("f'softmax-{BATCHES[0]}'", "softmax-1"),
        ("'A' if len(BATCHES) > 1 and not [] else 'B'", "A"),
        ("list(DTYPES.keys())", ["half"]),
        ("'Torch'.lower()", "torch"),
        ("[triton.next_power_of_2(1000), triton.cdiv(10, 4)]", [1024, 3]),
        ("{'M': 4096, 'causal': True}", {"M": 4096, "causal": True}),
        ("torch.bfloat16", Symbol("torch.bfloat16")),
        ("reference", Symbol("reference")),
    ],
)
def test_a_constant_expression_has_a_value(expression, expected):
    assert value(expression) == expected


@pytest.mark.parametrize(
    "expression",
    [
        "unknown",
        "GROWN",
        "LOOP",
        "PERHAPS",
        "[1] if HAS_FLASH else [2]",
        "HAS_FLASH and [1]",
        "torch.float16 == torch.float32",
        "torch.cuda.is_available()",
        "[x for x in SIZES]",
        "open('/etc/passwd').read()",
        "__import__('os').system('true')",
        "().__class__.__base__.__subclasses__()",
        "'{0.__class__}'.format(1)",
        "9**9**9",
        "1 << 10**9",
        "[0] * 10**9",
        "'a' * 10**9",
        "list(range(10**9))",
        "[i for i in range(10**4) for j in range(10**4)]",
        "list(itertools.product(range(9999), range(9999)))",
        "'%1000000000d' % 1",
        "[[0] * 9999] * 9999",
        "sum([[1]], [])",
        "'a'.replace('a', 'b' * 9999)",
        "len([x for x in range(9999) for y in BATCHES for z in range(9)])",
        r"'\ud800'",
        r"f'a\ud800{1}'",
        "1 / 0",
        "[1][7]",
        "(lambda: 1)()",
        "[a for a, b in [1]]",
    ],
)
def test_what_only_running_the_code_would_show_is_not_constant(expression):
    with pytest.raises(NotConstant):
        value(expression)


NUMBERS = st.integers(-3, 40).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS | st.sampled_from(["'ab'", "True", "None", "x", "BATCHES"]),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "//", "%", "**", "<<", "<", "in", "and"]), inner).map(
            lambda parts: f"({' '.join(parts)})"
        ),
        st.lists(inner, max_size=3).map(lambda parts: f"[{', '.join(parts)}]"),
        st.tuples(inner, inner).map(lambda parts: f"[{parts[0]} for x in range({parts[1]})]"),
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} if {parts[1]} else {parts[2]})"),
        st.tuples(st.sampled_from(["len", "sum", "max", "list", "str", "sorted"]), inner).map(
            lambda parts: f"{parts[0]}({parts[1]})"
        ),
        st.tuples(inner, inner).map(lambda parts: f"{parts[0]}[{parts[1]}]"),
    ),
    max_leaves=8,
)


@given(EXPRESSIONS)
def test_a_value_is_that_of_python(expression):
    try:
        expected = value(expression)
    except NotConstant:
        return
    assert expected == eval(expression, {"BATCHES": [1, 8]})
