"""Cases are printed and parsed; suites hold cases; and the torch-free part loads no torch."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.suites import SUITES
from kernels.words import DTYPE_BYTES, OPS, Case, Direction

dtypes = st.sampled_from(sorted(DTYPE_BYTES))
cases = st.builds(
    Case,
    st.sampled_from(sorted(OPS)),
    st.sampled_from(Direction),
    st.integers(1, 1 << 24),
    st.integers(1, 1 << 20),
    dtypes,
    dtypes,
)


@given(cases)
def test_a_case_is_read_as_it_is_printed(case):
    assert Case.parse(str(case)) == case


@pytest.mark.parametrize(
    ("text", "printed", "least_bytes"),
    [
        ("rmsnorm.fwd.32768x4096.bf16", "rmsnorm.fwd.32768x4096.bf16", 2 * 32768 * 4096 * 2 + 4096 * 2),
        ("rmsnorm.fwd.8x4.bf16-fp32", "rmsnorm.fwd.8x4.bf16-fp32", 2 * 8 * 4 * 2 + 4 * 4),
        ("rmsnorm.bwd.8x4.bf16-bf16", "rmsnorm.bwd.8x4.bf16", 3 * 8 * 4 * 2 + 2 * 4 * 4 + 8 * 4),
        ("layernorm.fwd.8x4.fp32", "layernorm.fwd.8x4.fp32", 2 * 8 * 4 * 4 + 2 * 4 * 4),
        ("layernorm.bwd.8x4.fp32", "layernorm.bwd.8x4.fp32", 3 * 8 * 4 * 4 + 3 * 4 * 4 + 2 * 8 * 4),
    ],
)
def test_cases(text, printed, least_bytes):
    case = Case.parse(text)
    assert (str(case), case.least_bytes) == (printed, least_bytes)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rmsnorm", "is not a case"),
        ("softmax.fwd.8x8.bf16", "unknown op 'softmax'; known: rmsnorm"),
        ("rmsnorm.fwd.8x8.int8", "unknown dtype 'int8'"),
        ("rmsnorm.fwd.0x8.bf16", "rows must be"),
        ("rmsnorm.sideways.8x8.bf16", "is not a case"),
    ],
)
def test_what_is_not_a_case(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Case.parse(text)


@pytest.mark.parametrize("name", SUITES)
def test_suites_hold_cases_once_each(name):
    parsed = [Case.parse(text) for text in SUITES[name]]
    assert parsed
    assert len(set(parsed)) == len(parsed)


def test_the_service_side_loads_no_torch():
    program = """
import sys
import kernels.arena, kernels.channel, kernels.messages, kernels.suites, kernels.telemetry, kernels.words
heavy = {"torch", "triton", "numpy"} & set(sys.modules)
assert not heavy, heavy
"""
    subprocess.run([sys.executable, "-c", program], check=True)
