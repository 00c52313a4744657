"""What counts as right: float64 decides, and nobody may be much worse than one honest rounding."""

import re

import pytest
import torch

from kernels import references
from kernels.inputs import DTYPES, SMALL_ROW_EVERY, changed, fingerprint, fresh_values, make, refill
from kernels.messages import built_in
from kernels.oracle import Oracle, WrongShape, named
from kernels.providers import open_provider
from kernels.words import DTYPE_BYTES, Case

CPU = torch.device("cpu")
CASES = [
    f"{op}.{direction}.{shape}.{dtypes}"
    for op in ("rmsnorm", "layernorm")
    for direction in ("fwd", "bwd")
    for shape in ("200x96", "1x1", "3x1152")
    for dtypes in ("fp32", "bf16-fp32", "bf16", "fp16")
]


def reference(case, inputs):
    return named(case, references.BY_KEY[case.key](*inputs.arguments))


@pytest.mark.parametrize("text", CASES)
def test_the_definition_rounded_once_is_right(text):
    case = Case.parse(text)
    first, second = make(case, CPU, 1, 0), make(case, CPU, 1, 1)
    oracle = Oracle(first)

    for inputs in (first, second):
        assert oracle.judge(inputs, reference(case, inputs)).reason is None


@pytest.fixture
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as contenders on a CPU run
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "text", ["layernorm.bwd.512x512.bf16-fp32", "layernorm.bwd.64x128.fp32", "rmsnorm.bwd.8x64.fp32"]
)
def test_torchs_own_sums_are_right_whatever_the_numbers(text, one_thread):
    case = Case.parse(text)
    eager = open_provider(built_in("eager")).ready(case, CPU)
    for seed in range(96 if case.rows < 100 else 12):
        inputs = make(case, CPU, seed)
        assert Oracle(inputs).judge(inputs, named(case, eager(inputs)())).reason is None


def truncated(y):
    """bf16 by cutting off instead of rounding: twice the error of an honest rounding."""
    return (y.view(torch.int32) & -65536).view(torch.float32).bfloat16()


def rounded_twice(inputs):
    x = inputs["x"].float()
    normal = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + inputs.eps)
    return (normal.bfloat16() * inputs["weight"].bfloat16()).bfloat16()


@pytest.mark.parametrize(
    ("spoil", "complaint"),
    [
        (
            lambda i, y: truncated(references.BY_KEY["rmsnorm.fwd"](i["x"].float(), i["weight"], i.eps)),
            "is wrong by",
        ),
        (lambda i, y: rounded_twice(i), "is wrong by"),
        (lambda i, y: y * 1.02, "is wrong by 2.*, 1.5 times a rounded fp32 reference would be"),
        (lambda i, y: y.index_fill(0, torch.tensor([199]), 0), "is wrong by 1.0e[+]00"),
        (lambda i, y: references.BY_KEY["rmsnorm.fwd"](i["x"], i["weight"], 1e-5), "is wrong by"),
        (lambda i, y: y.index_fill(1, torch.tensor([0]), torch.inf), "has 200 values that are not finite"),
    ],
)
def test_what_is_wrong(spoil, complaint):
    case = Case.parse("rmsnorm.fwd.200x96.bf16")
    inputs = make(case, CPU, 1)
    y = reference(case, inputs)["y"]

    finding = Oracle(inputs).judge(inputs, {"y": spoil(inputs, y)})

    assert finding.reason is not None
    assert re.search(complaint, finding.reason)


@pytest.mark.parametrize("shape", ["1x4096", "2x4096", "16x4096", "60x4096", "61x4096"])
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
def test_eps_is_missed_however_few_rows_there_are(shape, dtype):
    case = Case.parse(f"rmsnorm.fwd.{shape}.{dtype}")
    sets = [make(case, CPU, 1, number) for number in range(2)]
    oracle = Oracle(sets[0])

    for eps in (0.0, 1e-5):
        reasons = [
            oracle.judge(inputs, {"y": references.BY_KEY["rmsnorm.fwd"](inputs["x"], inputs["weight"], eps)}).reason
            for inputs in sets
        ]
        assert any(reasons), eps


def test_a_wrong_weight_gradient_is_wrong():
    case = Case.parse("rmsnorm.bwd.200x96.fp32")
    inputs = make(case, CPU, 1)
    outputs = reference(case, inputs)
    outputs["dweight"] = outputs["dweight"].bfloat16().float()

    assert Oracle(inputs).judge(inputs, outputs).reason.startswith("dweight is wrong by")


def test_a_gradient_may_be_kept_more_exactly_than_its_weight():
    case = Case.parse("rmsnorm.bwd.200x96.bf16")
    inputs = make(case, CPU, 1)
    dx, dweight = references.BY_KEY["rmsnorm.bwd"](*(inputs[n].float() for n in ("dy", "x", "weight", "rstd")), 0.0)

    assert Oracle(inputs).judge(inputs, named(case, (dx.bfloat16(), dweight))).reason is None


class Lazy(torch.Tensor): ...


@pytest.mark.parametrize(
    ("returned", "complaint"),
    [
        (None, "returned nothing instead of [(]dx, dweight[)]"),
        (torch.zeros(4, 8), "returned a Tensor instead"),
        ((torch.zeros(4, 8),), "returned a tuple of 1 instead"),
        ((torch.zeros(4, 8), None), "dweight is nothing instead of a tensor"),
        ((torch.zeros(8, 4), torch.zeros(8)), "dx has the shape [(]8, 4[)]"),
        ((torch.zeros(4, 8), torch.zeros(1, 8)), "dweight has the shape"),
        ((torch.zeros(4, 8).double(), torch.zeros(8)), "dx is fp64 instead of fp32"),
        ((torch.zeros(4, 8).as_subclass(Lazy), torch.zeros(8)), "dx is a Lazy, not a plain tensor"),
    ],
)
def test_what_is_not_even_the_right_thing(returned, complaint):
    with pytest.raises(WrongShape, match=complaint):
        named(Case.parse("rmsnorm.bwd.4x8.fp32"), returned)


def test_inputs_are_the_same_for_everybody_with_the_same_seed():
    case = Case.parse("layernorm.bwd.200x96.bf16-fp32")
    one, same, other = make(case, CPU, 1), make(case, CPU, 1), make(case, CPU, 2)

    assert list(one.tensors) == ["dy", "x", "weight", "mean", "rstd"]
    assert all(torch.equal(one[name], same[name]) for name in one.tensors)
    assert not torch.equal(one["x"], other["x"])
    assert one["x"][SMALL_ROW_EVERY - 1].abs().max() < 0.02
    assert one["rstd"].dtype is torch.float32


def test_new_numbers_come_unseen():
    case = Case.parse("rmsnorm.fwd.20x96.bf16")
    inputs = make(case, CPU, 1)
    x, before = inputs["x"], fingerprint(inputs)
    version, address, old = x._version, x.data_ptr(), x.clone()

    assert changed(inputs, before) == []
    refill(inputs, fresh_values(case, inputs, 1, 99))

    assert (x._version, x.data_ptr()) == (version, address)
    assert not torch.equal(x, old)
    assert changed(inputs, before) == ["x"]


def test_every_dtype_has_a_size():
    assert {name: dtype.itemsize for name, dtype in DTYPES.items()} == DTYPE_BYTES
