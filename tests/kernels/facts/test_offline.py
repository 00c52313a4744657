"""Facts without a GPU: a contender process compiles kernels with planted properties."""

import pytest

from kernels.arena import protocol
from kernels.cases import Case

TARGET = """
import os, sys
import torch, triton, triton.language as tl


@triton.jit
def _copy(X, Y, N, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    tl.store(Y + row * N + cols, tl.load(X + row * N + cols, cols < N), cols < N)


# The same again, on other lines and under another name.
@triton.jit
def _again(X, Y, N, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    # with a comment
    tl.store(Y + row * N + cols, tl.load(X + row * N + cols, cols < N), cols < N)


@triton.jit
def _norm(X, Y, N, BLOCK: tl.constexpr):
    row, cols = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(X + row * N + cols).to(tl.float32)
    tl.store(Y + row * N + cols, (x * tl.rsqrt(tl.sum(x * x, 0) / N)).to(Y.dtype.element_ty))


@triton.jit
def _staged(X, Y, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(X + row * N + cols).to(tl.float32)
        tl.store(Y + row * N + cols, (x / tl.sum(x, 0)).to(Y.dtype.element_ty))


@triton.autotune([triton.Config({"STAGES": stages}, num_warps=16) for stages in (1, 2, 12)], key=["N"])
@triton.heuristics({"BLOCK": lambda given: triton.next_power_of_2(given["N"])})
@triton.jit
def _tuned(X, Y, M, N, BLOCK: tl.constexpr, STAGES: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        x = tl.load(X + row * N + cols).to(tl.float32)
        tl.store(Y + row * N + cols, (x / tl.sum(x, 0)).to(Y.dtype.element_ty))


_tuned_backwards = triton.autotune(
    [triton.Config({"STAGES": stages}, num_warps=16) for stages in (12, 2, 1)], key=["N"]
)(_tuned.fn)


@triton.jit
def _nonsense(X, Y, N, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    x = tl.inline_asm_elementwise("no.such.instruction $0, $1;", "=r,r", [tl.load(X + cols)], dtype=X.dtype.element_ty,
                                  is_pure=True, pack=2)
    tl.store(Y + cols, x)


def _launched(kernel, x, *more, **options):
    y = torch.empty_like(x)
    kernel[lambda meta: (x.shape[0], 1)](x, y, x.shape[1], triton.next_power_of_2(x.shape[1]), *more, **options)
    return y


def copy(x, weight, eps):
    return _launched(_copy, x)


def again(x, eps):
    return _launched(_again, x)


def wide(x, weight, eps):
    return _launched(_copy, x, num_warps=8)


def spills(x, weight, eps):
    return _launched(_norm, x, num_warps=1)


def overflows(x, weight, bias, eps):
    y = torch.empty_like(x)
    _staged[(132,)](x, y, *x.shape, x.shape[1], 12, num_warps=16)
    return y


def tuned(x, weight, eps):
    y = torch.empty_like(x)
    _tuned[(132,)](x, y, *x.shape)
    return y


def tuned_backwards(x, eps):
    y = torch.empty_like(x)
    _tuned_backwards[(132,)](x, y, *x.shape)
    return y


def nothing(dy, x, weight, rstd, eps):
    return dy, weight


def falls_back(x, bias, eps):
    try:
        overflows(x, None, bias, eps)
    except triton.runtime.errors.OutOfResources:
        pass
    raise KeyError("columns")


def refused(x, eps):
    return _launched(_nonsense, x)


@torch.library.custom_op("planted::copy", mutates_args=())
def registered(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return _launched(_copy, x)


@registered.register_fake
def _(x, weight, eps):
    return torch.empty_like(x)


def through(x, weight, bias, eps):
    return registered(x, weight, eps)


def moves(dy, x, rstd, eps):
    # whatever way a tensor gets there, it is on the device
    ways = [torch.zeros(3).cuda(), torch.zeros(3).to("cuda"), torch.ones(3).to(device=torch.device("cuda")),
            torch.tensor([1.0], device="cuda"), torch.zeros(3, 4, device="cuda")[1:, ::2]]
    torch.manual_seed(1)
    assert all(way.device == x.device == torch.device("cuda", 0) for way in ways), ways
    return _launched(_copy, x)


def looks(x, bias, eps):
    return x if x.sum().item() > 0 else -x


def breaks(x, bias, eps):
    if x.shape[0] == 7:
        sys.exit(3)
    raise KeyError("columns")


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, eps):
        ctx.save_for_backward(x, weight)
        return _launched(_copy, x)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return _launched(_again, dy), (dy * x).sum(0), None


def differentiable(x, weight, eps):
    return Norm.apply(x, weight, eps)
"""
CALLS = {
    "rmsnorm.fwd": "copy",
    "rmsnorm_noweight.fwd": "again",
    "layernorm_nobias.fwd": "wide",
    "rmsnorm_bias.fwd": "overflows",
    "layernorm.fwd": "through",
    "rmsnorm_noweight_bias.fwd": "looks",
    "layernorm_noweight.fwd": "breaks",
    "layernorm_noweight_nobias.fwd": "refused",
    "rmsnorm.fwdbwd": "differentiable",
    "rmsnorm_noweight.bwd": "moves",
}
OWN = protocol.targets_own("planted", {key: f"planted:{name}" for key, name in CALLS.items()})
OTHERS = protocol.targets_own(
    "planted",
    {
        "rmsnorm.fwd": "planted:tuned",
        "rmsnorm_noweight.fwd": "planted:tuned_backwards",
        "layernorm_nobias.fwd": "planted:spills",
        "rmsnorm.bwd": "planted:nothing",
        "rmsnorm_noweight_bias.fwd": "planted:falls_back",
    },
)


@pytest.fixture(scope="module")
def start(open_contender, tmp_path_factory):
    folder = tmp_path_factory.mktemp("planted")
    (folder / "planted.py").write_text(TARGET)

    def started(provider, architecture="sm_90"):
        channel = open_contender(PYTHONPATH=str(folder), TRITON_CACHE_DIR=str(folder / "triton"))
        ready = channel.ask(protocol.start(provider, architecture, 1, None), 120)
        assert ready["ready"] is True, ready
        assert ready["device"] == {"kind": architecture}
        return channel

    return started


@pytest.fixture(scope="module")
def own(start):
    return start(OWN)


def compiled(channel, text):
    answer = channel.ask(protocol.compile(Case.parse(text)), 120)
    assert "error" not in answer, answer
    return answer


def kernel(channel, text):
    answer = compiled(channel, text)
    assert (answer["state"], answer["reason"]) == ("compiled", None)
    [only] = answer["facts"]["kernels"]
    return only


def test_facts_of_a_kernel(own):
    facts = compiled(own, "rmsnorm.fwd.64x4096.bf16")["facts"]

    assert (facts["arch"], facts["count"], facts["extern"]) == ("sm_90", 1, 0)
    [one] = facts["kernels"]
    assert one["name"] == "_copy"
    assert one["loads"] == one["stores"] == {"16": 4}  # 4096 x 2 bytes by 128 threads
    assert (one["warps"], one["grid"], one["settings"]) == (4, [64, 1, 1], {"BLOCK": 4096})
    assert (one["spills"], one["stack"], one["shared_static"], one["shared_dynamic"]) == (0, 0, 0, 0)
    assert (one["shared_limit"], one["occupancy"], one["limited_by"]) == (232448, 1.0, "warps")
    assert 8 < one["registers"] <= 32
    assert 12 < one["instructions"] < 100


@pytest.mark.parametrize(
    ("shape", "bytes_a_load"),
    [("64x4096", "16"), ("64x4088", "2"), ("64x4095", "2")],
)
def test_wide_loads_are_lost_where_16_does_not_divide_the_columns(own, shape, bytes_a_load):
    assert list(kernel(own, f"rmsnorm.fwd.{shape}.bf16")["loads"]) == [bytes_a_load]


def test_the_hash_does_not_depend_on_names_and_lines(own):
    one, other = (kernel(own, f"{op}.fwd.64x4096.bf16") for op in ("rmsnorm", "rmsnorm_noweight"))

    assert (one["name"], other["name"]) == ("_copy", "_again")
    assert one["sass"] == other["sass"]


def test_the_grid_is_part_of_the_code_and_not_of_the_machine_code(own):
    few, many = (compiled(own, f"rmsnorm.fwd.{rows}x4096.bf16")["facts"] for rows in (64, 128))

    assert few["kernels"][0]["sass"] == many["kernels"][0]["sass"]
    assert few["code"] != many["code"]


def test_another_configuration_is_seen(own):
    before, after = (kernel(own, f"{op}.fwd.64x4096.bf16") for op in ("rmsnorm", "layernorm_nobias"))

    assert (before["warps"], after["warps"]) == (4, 8)
    assert before["sass"] != after["sass"]
    assert (before["loads"], after["loads"]) == ({"16": 4}, {"16": 2})


def test_shared_memory_over_the_limit_is_a_fact_and_ends_the_case(own):
    answer = compiled(own, "rmsnorm_bias.fwd.64x16384.bf16")

    assert answer["state"] == "failed"
    [refused] = answer["facts"]["refused"]
    asked = refused["shared_dynamic"]
    assert asked > 11 * 16384 * 2  # a row for each stage but one
    assert answer["reason"] == answer["facts"]["over"] == f"shared memory: asks for {asked} bytes of 232448"
    assert answer["facts"]["kernels"] == []


def test_errors_of_ptxas_are_reported(own):
    answer = compiled(own, "layernorm_noweight_nobias.fwd.8x256.bf16")

    assert answer["state"] == "failed"
    assert answer["reason"].startswith("ptxas: Unknown modifier '.such' (line ")


def test_a_registered_operator_is_entered(own):
    inside, direct = (compiled(own, f"{op}.fwd.64x4096.bf16")["facts"] for op in ("layernorm", "rmsnorm"))

    assert inside["kernels"] == direct["kernels"]
    assert inside["code"] == direct["code"]


def test_forward_and_backward_are_found_in_order(own):
    facts = compiled(own, "rmsnorm.fwdbwd.64x4096.bf16")["facts"]

    assert [one["name"] for one in facts["kernels"]] == ["_copy", "_again"]
    assert facts["extern"] == 2  # dy * x, and the sum


def test_tensors_get_to_the_device_in_every_way(own):
    answer = compiled(own, "rmsnorm_noweight.bwd.8x64.bf16")

    assert (answer["state"], answer["reason"]) == ("compiled", None)


def test_code_that_reads_numbers_is_not_compiled_without_a_gpu(own):
    answer = compiled(own, "rmsnorm_noweight_bias.fwd.8x64.bf16")

    assert answer["state"] == "unsupported"
    assert answer["reason"].startswith("reads the numbers in a tensor")


@pytest.mark.parametrize(
    ("rows", "reason"), [(8, "KeyError: 'columns' (planted.py:"), (7, "called sys.exit(3) (planted.py:")]
)
def test_exceptions_are_reported_with_their_place(own, rows, reason):
    answer = compiled(own, f"layernorm_noweight.fwd.{rows}x64.bf16")

    assert answer["state"] == "failed"
    assert answer["reason"].startswith(reason)


def test_what_the_recipe_does_not_name_is_unsupported(own):
    assert compiled(own, "layernorm.bwd.8x64.bf16")["state"] == "unsupported"


def test_texts(own):
    case = Case.parse("rmsnorm.fwd.64x4096.bf16")
    texts = {kind: own.ask(protocol.texts(case, 0, kind), 60)["text"] for kind in ("sass", "ttgir", "ptx", "generated")}

    assert "LDG.E.128" in texts["sass"]
    assert "/*0" not in texts["sass"]
    assert "tt.func public @_copy" in texts["ttgir"]
    assert "loc(" not in texts["ttgir"]
    assert ".visible .entry _copy(" in texts["ptx"]
    assert texts["generated"].startswith("def _copy(X, Y, N, BLOCK: tl.constexpr):")
    assert "has no sass of kernel 1" in own.ask(protocol.texts(case, 1, "sass"), 60)["error"]


def test_cases_ahead_have_the_same_answers_as_alone(own):
    one, other = (Case.parse(f"rmsnorm.fwd.{shape}.fp32") for shape in ("8x512", "8x768"))

    together = own.ask(protocol.compile(one, [other]), 60)
    ahead = own.ask(protocol.compile(other), 60)
    alone = compiled(own, "rmsnorm.fwd.8x512.fp32")

    assert together["facts"] == alone["facts"]
    assert ahead["facts"]["kernels"][0]["settings"] == {"BLOCK": 1024}
    assert ahead["facts"]["kernels"][0]["sass"] != alone["facts"]["kernels"][0]["sass"]


def test_an_autotuner_leaves_its_choice_to_a_gpu_and_spills_are_counted(start):
    """Another process and the other architecture."""
    channel = start(OTHERS, "sm_100")

    tuned = kernel(channel, "rmsnorm.fwd.4096x16384.bf16")
    spilled = kernel(channel, "layernorm_nobias.fwd.64x16384.bf16")

    assert (tuned["candidates"], tuned["settings"]) == (3, {"BLOCK": 16384, "STAGES": 1})
    assert [choice["settings"]["STAGES"] for choice in tuned["choices"]] == [1, 2, 12]
    assert tuned["choices"][2]["over"].startswith("shared memory: asks for ")
    assert "refused" not in compiled(channel, "rmsnorm.fwd.4096x16384.bf16")["facts"], "trying is what it is for"
    again = kernel(channel, "rmsnorm_noweight.fwd.4096x16384.bf16")
    assert again["choices"] != tuned["choices"]
    alike = {name: value for name, value in tuned.items() if name not in ("choices", "name")}
    assert {name: again[name] for name in alike} == alike, "another order of the configurations is no change"
    assert "over" not in tuned["choices"][1]
    assert spilled["spills"] > 100
    assert spilled["stack"] > 0

    launched = compiled(channel, "rmsnorm.bwd.64x16384.bf16")
    assert (launched["state"], launched["reason"]) == ("failed", "launched no kernel")
    other = compiled(channel, "rmsnorm_noweight_bias.fwd.64x16384.bf16")
    assert (other["state"], "over" in other["facts"], len(other["facts"]["refused"])) == ("failed", False, 1)
    assert other["reason"].startswith("KeyError")


def test_an_unknown_architecture(open_contender):
    ready = open_contender().ask(protocol.start(OWN, "sm_77", 1, None), 60)

    assert ready["ready"] is False
    assert "unknown architecture sm_77; use one of sm_80" in ready["error"]
