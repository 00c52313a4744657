"""Facts on a real GPU are equal to those of compiling without one."""

import ctypes

import pytest
import torch

from kernels.arena import protocol
from kernels.cases import Case
from kernels.facts import gather
from kernels.facts.graph_kernels import kernels_of_call
from kernels.facts.locations import CHECKOUT
from kernels.norms.modules import rms_norm

pytestmark = pytest.mark.gpu
CASES = [
    Case.parse(text)
    for text in (
        "rmsnorm.fwd.4096x1024.bf16-fp32",
        "rmsnorm.fwd.4096x1152.bf16",
        "rmsnorm.bwd.4096x1024.bf16-fp32",
        "rmsnorm.bwd.4096x16384.bf16",
    )
]


def architecture():
    return "sm_{}{}".format(*torch.cuda.get_device_capability())


@pytest.fixture(scope="module")
def started(open_contender, tmp_path_factory):
    folder = tmp_path_factory.mktemp("caches")

    def start(name, device):
        own = str(folder / device)
        folders = {"TORCHINDUCTOR_CACHE_DIR": own, "TRITON_CACHE_DIR": own, CHECKOUT: str(protocol.KERNELS)}
        channel = open_contender(**folders)
        ready = channel.ask(protocol.start(protocol.built_in(name), device, 4, None), 180)
        assert ready["ready"] is True, ready
        return channel

    return start


def ran(channel, case):
    prepared = channel.ask(protocol.prepare(case, 1), 300)
    assert prepared["state"] == "measured", prepared
    channel.ask(protocol.FREE, 60)
    return prepared["facts"]


def test_the_same_code_runs_as_was_compiled_without_a_gpu(started):
    with_a_gpu, without = started("triton", "cuda"), started("triton", architecture())

    for case in CASES:
        here, there = ran(with_a_gpu, case), without.ask(protocol.compile(case), 120)
        assert there["state"] == "compiled", there
        for one, other in zip(here["triton"], there["facts"]["kernels"], strict=True):
            assert (one["name"], one["sass"]) == (other["name"], other["sass"])
            assert one["source"] == other["source"]
            assert one["source"]["file"].startswith("norms/")
            # what is known without loading is what loading says
            assert one["registers"] == other["registers"]
            assert (one["shared"], one["shared_static"]) == (other["shared_dynamic"], other["shared_static"])
            assert (one["occupancy"], one["limited_by"]) == (other["occupancy"], other["limited_by"])
            assert (one["spills"] > 0) == (other["spills"] > 0)
            # what a run's causes rest on is what a compilation alone knows
            for name in ("grid", "hints", "reads", "writes", "work", "bytes", "blocks"):
                assert one[name] == other[name], (str(case), one["name"], name)
            assert one["bytes"] > 0, one


def test_a_measured_process_gives_the_texts_of_the_code_that_ran(started):
    case = CASES[0]
    for provider in ("triton", "inductor"):
        channel = started(provider, "cuda")
        prepared = channel.ask(protocol.prepare(case, 1), 300)
        assert prepared["state"] == "measured", prepared
        kernels = prepared["facts"]["triton"]
        assert kernels, prepared["facts"]
        for number, kernel in enumerate(kernels):
            for kind, part in (("ttgir", "ttg."), ("ptx", f".entry {kernel['name']}"), ("sass", "EXIT")):
                answer = channel.ask(protocol.texts(case, number, kind), 60)
                assert part in answer.get("text", ""), (provider, kind, str(answer)[:300])
        generated = channel.ask(protocol.texts(case, 0, "generated"), 60)
        assert ("text" in generated) is (provider == "inductor"), str(generated)[:300]
        channel.ask(protocol.FREE, 60)


@pytest.mark.parametrize("text", ["rmsnorm.fwdbwd.4096x1024.bf16-fp32", "layernorm.fwdbwd.512x65536.bf16"])
def test_our_operators_are_replaced_by_their_kernels(started, text):
    with_a_gpu, without = started("triton", "cuda"), started("triton", architecture())

    here, there = ran(with_a_gpu, Case.parse(text)), without.ask(protocol.compile(Case.parse(text)), 120)

    assert here["kind"] == "triton", here
    assert here["kernels"] == len(here["triton"]) == there["facts"]["count"]
    assert not [name for name in here["ops"] if name.startswith("kernelwatch::")]
    assert [one["sass"] for one in here["triton"]] == [one["sass"] for one in there["facts"]["kernels"]]


@pytest.fixture
def stream():
    """Not the default stream, which cannot be captured."""
    own = torch.cuda.Stream()
    own.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(own):
        yield
    own.synchronize()


def hidden(x):
    """Past torch's dispatcher and Triton, as an extension that takes pointers."""
    address, on = ctypes.c_uint64(x.data_ptr()), ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    assert ctypes.CDLL("libcuda.so.1").cuMemsetD8Async(address, ctypes.c_ubyte(0), ctypes.c_size_t(x.nbytes), on) == 0


@pytest.mark.usefixtures("stream")
def test_an_operator_with_a_hidden_launch_stays_unknown():
    library = torch.library.Library("planted", "FRAGMENT")

    def norm(x):
        return rms_norm(x, eps=1e-6)

    def hides(x):
        hidden(torch.empty_like(x))
        return norm(x)

    for name, code in {"norm": norm, "hides": hides}.items():
        library.define(f"{name}(Tensor x) -> Tensor")
        library.impl(name, code, "CUDA")
    x = torch.ones(64, 1024, device="cuda")

    def gathered(call):
        return gather.gather(lambda: call(x), compiled=False, pinned=(), cuda=True)

    plain, known, unknown = (gathered(call) for call in (norm, torch.ops.planted.norm, torch.ops.planted.hides))
    assert (plain["kind"], plain["kernels"]) == ("triton", 1)
    assert known == plain
    assert (unknown["kind"], unknown["code"], unknown["ops"]) == (None, None, ["planted::hides"])
    torch.testing.assert_close(torch.ops.planted.hides(x), x)  # the stream still does what it is asked


@pytest.mark.usefixtures("stream")
def test_kernels_of_a_call_are_listed_and_not_run():
    x, y = torch.ones(64, 1024, device="cuda"), torch.zeros(64, 1024, device="cuda")
    rms_norm(x, eps=1e-6)

    def call():
        rms_norm(x, eps=1e-6)
        hidden(x)
        y.copy_(x)

    assert sorted(kernels_of_call(call)) == ["_forward", "memcpy", "memset"]
    with pytest.raises(RuntimeError, match=r"(?i)captur"):
        kernels_of_call(torch.cuda.current_stream().synchronize)
    assert kernels_of_call(lambda: None) == []
    assert (x + y).sum().item() == 64 * 1024  # nothing of it was done, and the stream is well


def test_inductor_is_lowered_without_a_gpu_as_with_one(started):
    with_a_gpu, without = started("inductor", "cuda"), started("inductor", architecture())

    for case in CASES:
        here, there = ran(with_a_gpu, case), without.ask(protocol.compile(case), 300)
        assert there["state"] == "compiled", there
        kernels = there["facts"]["kernels"]
        assert [one["name"] for one in here["triton"]] == [other["name"] for other in kernels]
        for one, other in zip(here["triton"], kernels, strict=True):
            assert one["sass"]
            assert 0 < one["occupancy"] <= 1
            if other["candidates"] == 1 and one["settings"] == other["settings"]:
                assert one["sass"] == other["sass"]
                assert one["registers"] == other["registers"]


def test_the_timing_table_of_an_autotuner_is_kept(started):
    # wide rows leave one candidate: a row fits a program or does not
    facts = ran(started("inductor-max-autotune", "cuda"), Case.parse("rmsnorm.fwd.8192x512.bf16-fp32"))

    tables = [kernel["timings"] for kernel in facts["triton"] if "timings" in kernel]
    assert tables, "nothing was tuned"
    for table in tables:
        times = [row["ms"] for row in table]
        assert times == sorted(times)
        assert times[0] > 0
        assert len(table) <= 20
