"""Cases are printed and parsed; ops name their inputs and outputs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.cases import DTYPE_BYTES, NORMS, OPS, Case, Direction, Metric

dtypes = st.sampled_from(sorted(DTYPE_BYTES))


@st.composite
def cases(draw):
    metric = draw(st.sampled_from(Metric))
    op, rows = draw(st.sampled_from(sorted(NORMS if metric is Metric.BLOCK else OPS))), draw(st.integers(1, 1 << 24))
    if metric is Metric.BLOCK:
        direction, cols, stride = Direction.FWDBWD, 128 * draw(st.integers(1, 1 << 13)), 0
    else:
        direction, cols = draw(st.sampled_from(OPS[op].directions)), draw(st.integers(1, 1 << 20))
        stride = draw(st.sampled_from([0, cols + 1, 2 * cols]))
    return Case(op, direction, rows, cols, draw(dtypes), draw(dtypes), stride, metric)


@st.composite
def cases_with_heads(draw):
    op, direction = draw(st.sampled_from(sorted(NORMS))), draw(st.sampled_from(Direction))
    heads, cols = draw(st.integers(1, 64)), draw(st.integers(1, 1 << 14))
    rows, stride = heads * draw(st.integers(1, 1 << 18)), heads * cols + draw(st.sampled_from([1, cols]))
    metric = draw(st.sampled_from([one for one in Metric if one is not Metric.BLOCK]))
    return Case(op, direction, rows, cols, draw(dtypes), draw(dtypes), stride, metric, heads)


@given(cases() | cases_with_heads())
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
        # x and the residual in, y and the new residual out
        ("rmsnorm_residual.fwd.8x4.fp32", "rmsnorm_residual.fwd.8x4.fp32", 4 * 8 * 4 * 4 + 4 * 4),
        ("rmsnorm_residual.bwd.8x4.fp32", "rmsnorm_residual.bwd.8x4.fp32", 4 * 8 * 4 * 4 + 2 * 4 * 4 + 8 * 4),
        ("rmsnorm_noweight.bwd.8x4.fp32", "rmsnorm_noweight.bwd.8x4.fp32", 3 * 8 * 4 * 4 + 8 * 4),
        # a byte for each code, and a scale of 4 bytes for each row
        ("rmsnorm_fp8.fwd.8x4.bf16", "rmsnorm_fp8.fwd.8x4.bf16", 8 * 4 * 2 + 4 * 2 + 8 * 4 + 8 * 4),
        (
            "rmsnorm_residual_int8.fwd.8x4.bf16",
            "rmsnorm_residual_int8.fwd.8x4.bf16",
            3 * 8 * 4 * 2 + 4 * 2 + 8 * 4 + 32,
        ),
        ("rmsnorm_silu_gate.fwd.8x4.fp32", "rmsnorm_silu_gate.fwd.8x4.fp32", 3 * 8 * 4 * 4 + 4 * 4),
        ("rmsnorm_linear.fwd.8x4.bf16-fp32", "rmsnorm_linear.fwd.8x4.bf16-fp32", 2 * 8 * 4 * 2 + 4 * 4 + 4 * 4 * 2),
        # a byte for each element of the mask
        ("rmsnorm_residual_dropout.fwd.8x4.fp32", "rmsnorm_residual_dropout.fwd.8x4.fp32", 4 * 8 * 4 * 4 + 16 + 8 * 4),
        # forward and backward one after the other; what lies between the rows is nobody's to read
        (
            "rmsnorm.fwdbwd.8x4s6.fp32.call",
            "rmsnorm.fwdbwd.8x4s6.fp32.call",
            (2 * 8 * 4 * 4 + 4 * 4) + (3 * 8 * 4 * 4 + 2 * 4 * 4 + 8 * 4),
        ),
        # each of two heads is a row, with statistics of its own
        ("rmsnorm.bwd.8x2x4s16.bf16", "rmsnorm.bwd.8x2x4s16.bf16", 3 * 16 * 4 * 2 + 2 * 4 * 4 + 16 * 4),
    ],
)
def test_cases(text, printed, least_bytes):
    case = Case.parse(text)
    assert (str(case), case.least_bytes) == (printed, least_bytes)


@pytest.mark.parametrize(
    ("text", "set_bytes"),
    [
        ("rmsnorm.fwd.8x4.bf16", 8 * 4 * 2),
        ("rmsnorm_residual.bwd.8x4s6.fp32", 3 * 8 * 6 * 4),
        ("rmsnorm.bwd.8x2x4s16.bf16", 2 * 8 * 16 * 2),
        ("rmsnorm_silu_gate.fwd.8x4.bf16", 2 * 8 * 4 * 2),
        ("rmsnorm_linear.fwd.8x4s6.bf16", 8 * 6 * 2 + 4 * 4 * 2),
        ("rmsnorm_residual_dropout.fwd.8x4.bf16", 2 * 8 * 4 * 2 + 8 * 4),
    ],
)
def test_bytes_of_an_input_set(text, set_bytes):
    assert Case.parse(text).set_bytes == set_bytes


@pytest.mark.parametrize(
    ("text", "for_an_element"),
    [
        ("rmsnorm.fwd.8x4.bf16", 4),  # square and add, times rstd, times w
        ("rmsnorm_noweight.fwd.8x4.bf16", 3),
        ("rmsnorm_residual.fwd.8x4.bf16", 5),
        ("layernorm.fwd.8x4.fp32", 7),  # add, minus mean, square and add, times rstd, times w, plus b
        ("rmsnorm.bwd.8x4.bf16", 9),
        ("layernorm.bwd.8x4.bf16", 13),
        ("layernorm_nobias.bwd.8x4.bf16", 12),
        ("rmsnorm_residual.fwdbwd.8x4.bf16", 5 + 10),
        ("rmsnorm_int8.fwd.8x4.bf16", 4 + 1),
        ("rmsnorm_silu_gate.fwd.8x4.bf16", 4 + 5),
        ("rmsnorm_linear.fwd.8x4.bf16", 4 + 2 * 4),
    ],
)
def test_flops(text, for_an_element):
    assert Case.parse(text).flops == 8 * 4 * for_an_element


@pytest.mark.parametrize(
    "text", ["rmsnorm.fwd.64x96.fp32", "layernorm.fwd.64x96.fp32", "layernorm_residual.fwd.64x96.fp32"]
)
def test_the_definition_makes_as_many_flops(text):
    """Counted in plain arithmetic on Python numbers, of which each operation counts itself."""
    case, op, made = Case.parse(text), OPS[Case.parse(text).op], [0]

    class Number(float):
        pass

    for name in ("__add__", "__sub__", "__mul__"):

        def counted(one, other, name=name):
            made[0] += 1
            return Number(getattr(float, name)(one, other))

        setattr(Number, name, counted)
    x = [Number(n % 7 - 3) for n in range(case.cols)]
    if op.residual:
        x = [one + Number(1) for one in x]
    total = squares = Number(0)
    if op.norm == "layernorm":
        for one in x:
            total = total + one
        x = [one - Number(float(total) / case.cols) for one in x]
    for one in x:
        squares = squares + one * one
    rstd = Number((float(squares) / case.cols + 1e-6) ** -0.5)
    y = [one * rstd * Number(2) for one in x]
    y = [one + Number(1) for one in y] if op.bias else y
    assert case.flops == case.rows * made[0]


def test_heads_are_rows_of_three_dimensions():
    case = Case.parse("rmsnorm.bwd.4096x32x128s6144.bf16")

    assert (case.rows, case.tokens, case.heads, case.cols) == (131072, 4096, 32, 128)
    assert (case.width, case.stride) == (4096, 6144)
    assert {case.shape(name) for name in ("dy", "x", "dx")} == {(4096, 32, 128)}
    assert [case.shape(name) for name in ("rstd", "dweight")] == [(131072,), (128,)]
    assert str(case.of_tokens(7)) == "rmsnorm.bwd.7x32x128s6144.bf16"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("rmsnorm", "is not a case"),
        ("softmax.fwd.8x8.bf16", "unknown op 'softmax'; known: rmsnorm"),
        ("rmsnorm.fwd.8x8.int8", "unknown dtype 'int8'"),
        ("rmsnorm.fwd.0x8.bf16", "rows must be"),
        ("rmsnorm.sideways.8x8.bf16", "is not a case"),
        ("rmsnorm.fwd.8x8s8.bf16", "a row stride must be more than the columns"),
        ("rmsnorm.fwd.8x2x8.bf16", "heads need the stride of their tokens; dense ones are rows: write 16x8"),
        ("rmsnorm.fwd.8x2x8s16.bf16", "a row stride must be more than the 2 heads of 8 columns"),
        ("rmsnorm.fwd.8x0x8s16.bf16", "rows must be"),
        ("rmsnorm_fp8.fwd.8x2x8s32.bf16", "heads are for norms alone, and rmsnorm_fp8 is fused"),
        ("rmsnorm.fwdbwd.8x1x128s256.bf16.block", "the block metric needs direction fwdbwd, dense rows"),
        ("rmsnorm.fwd.8x8.bf16.sideways", "unknown metric 'sideways'; known: kernel"),
        ("rmsnorm.fwd.8x128.bf16.block", "the block metric needs direction fwdbwd"),
        ("rmsnorm_fp8.bwd.8x128.bf16", "rmsnorm_fp8 has no bwd; directions: fwd"),
        ("rmsnorm_fp8.fwdbwd.8x128.bf16.block", "rmsnorm_fp8 has no fwdbwd; directions: fwd"),
        ("rmsnorm_fp8.fwd.8x128.bf16.block", "a norm with a backward pass, which rmsnorm_fp8 is not"),
    ],
)
def test_invalid_cases(text, complaint):
    with pytest.raises(ValueError, match=complaint):
        Case.parse(text)


@pytest.mark.parametrize(
    ("key", "inputs", "outputs"),
    [
        ("rmsnorm.fwd", "x weight", "y"),
        ("rmsnorm_noweight.bwd", "dy x rstd", "dx"),
        ("rmsnorm_residual.fwd", "x residual weight", "y residual_out"),
        ("rmsnorm_residual.bwd", "dy dresidual_out x weight rstd", "dx dweight"),
        ("rmsnorm_bias.fwdbwd", "dy x weight bias", "y dx dweight dbias"),
        ("layernorm.bwd", "dy x weight mean rstd", "dx dweight dbias"),
        ("layernorm_nobias.bwd", "dy x weight mean rstd", "dx dweight"),
        ("layernorm_residual_fp8.fwd", "x residual weight bias", "q scale residual_out"),
        ("rmsnorm_silu_gate.fwd", "x weight gate", "y"),
        ("layernorm_linear.fwd", "x weight bias matrix", "y"),
        ("rmsnorm_residual_dropout.fwd", "x residual weight mask", "y residual_out"),
        (
            "layernorm_residual.fwdbwd",
            "dy dresidual_out x residual weight bias",
            "y residual_out dx dweight dbias",
        ),
    ],
)
def test_inputs_and_outputs(key, inputs, outputs):
    case = Case.parse(f"{key}.8x8.bf16")
    assert (" ".join(case.inputs), " ".join(case.outputs)) == (inputs, outputs)
