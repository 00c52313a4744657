"""Facts of what ran on a GPU, and that compiling without one finds the same machine code."""

import shutil

import pytest
import torch

from kernels import messages
from kernels.words import Case

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("nvidia-smi") is None, reason="needs an NVIDIA GPU; run it on a machine that has one"
    ),
]
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
        channel = open_contender(TORCHINDUCTOR_CACHE_DIR=own, TRITON_CACHE_DIR=own)
        ready = channel.ask(messages.start(messages.built_in(name), device, 4, None), 180)
        assert ready["ready"] is True, ready
        return channel

    return start


def ran(channel, case):
    prepared = channel.ask(messages.prepare(case, 1), 300)
    assert prepared["state"] == "measured", prepared
    channel.ask(messages.FREE, 60)
    return prepared["facts"]


def test_what_runs_is_what_was_compiled_without_a_gpu(started):
    with_a_gpu, without = started("triton", "cuda"), started("triton", architecture())

    for case in CASES:
        here, there = ran(with_a_gpu, case), without.ask(messages.compile(case), 120)
        assert there["state"] == "compiled", there
        for one, other in zip(here["triton"], there["facts"]["kernels"], strict=True):
            assert (one["name"], one["sass"]) == (other["name"], other["sass"])
            # what is known without loading is what loading says
            assert one["registers"] == other["registers"]
            assert (one["shared"], one["shared_static"]) == (other["shared_dynamic"], other["shared_static"])
            assert (one["occupancy"], one["limited_by"]) == (other["occupancy"], other["limited_by"])
            assert (one["spills"] > 0) == (other["spills"] > 0)


def test_inductor_is_lowered_without_a_gpu_as_with_one(started):
    with_a_gpu, without = started("inductor", "cuda"), started("inductor", architecture())

    for case in CASES:
        here, there = ran(with_a_gpu, case), without.ask(messages.compile(case), 300)
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
