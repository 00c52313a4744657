"""Training over two ranks: processes on a CPU, their facts as those of one training, and how they end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks.kernels.published.arms import fused_norm, llama, parallel, training  # noqa: E402
from benchmarks.kernels.published.arms.llama import LlamaSize  # noqa: E402
from benchmarks.kernels.published.arms.parallel import ParallelTraining, RankFailed, Sharded, combined  # noqa: E402
from benchmarks.kernels.published.arms.server import NotSupported  # noqa: E402

if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
    pytest.skip("this torch has no gloo", allow_module_level=True)

TINY = "llama.1x256.1x16.fp32.fsdp2"
SIZE = LlamaSize.parse(TINY)
# Starts the ranks of one arm, prints their pids, and waits.
ARM = f"""
import sys, time
from benchmarks.kernels.published.arms.parallel import ParallelTraining
one = ParallelTraining({TINY!r}, {{"way": "eager"}}, "cpu", 1)
print(*(channel._process.pid for channel in one._ranks._channels), flush=True)
time.sleep(60)
"""


@pytest.fixture
def opened() -> Iterator[Callable[[str], ParallelTraining]]:
    found = []

    def opens(way: str) -> ParallelTraining:
        found.append(ParallelTraining(TINY, {"way": way}, "cpu", 1))
        return found[-1]

    yield opens
    for one in found:
        one._ranks.close()


def pids(one: ParallelTraining) -> list[int]:
    return [channel._process.pid for channel in one._ranks._channels]


def runs(pid: int) -> bool:
    """Ended processes whose parent does not wait for them do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def both_sequences(number: int) -> tuple[Any, ...]:
    """The batches of both ranks as one."""
    (first, *_), (second, *_) = (
        llama.batches(SIZE, "cpu", training.SEED + rank, training.STEPS)[number : number + 1] for rank in range(2)
    )
    return (*(torch.cat(pair) for pair in zip(first[:2], second[:2], strict=True)), *first[2:])


def loss_of_both(weights: list[Any], number: int) -> Any:
    return llama.loss(LlamaSize(SIZE.layers, SIZE.width, 2, SIZE.sequence, SIZE.dtype), weights, both_sequences(number))


@pytest.fixture(scope="module")
def losses_of_one() -> list[float]:
    """The losses of the same training without ranks, by torch's own backward pass."""
    fused_norm.enable_on_cpu()
    weights = llama.parameters(SIZE, "cpu", training.SEED)
    optimizer = torch.optim.AdamW(weights, lr=training.LEARNING_RATE)
    found = []
    for number in range(training.STEPS):
        optimizer.zero_grad()
        loss = loss_of_both(weights, number)
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.parametrize(
    "way", ["eager", *(pytest.param(way, marks=pytest.mark.long) for way in ("make-fx", "regional"))]
)
def test_two_ranks_train_like_one_with_the_sequences_of_both(
    way: str, opened: Callable[[str], ParallelTraining], losses_of_one: list[float]
) -> None:
    one = opened(way)

    assert one.facts["losses"] == pytest.approx(losses_of_one, rel=1e-5)
    assert one.facts["repeats"] == {"loss": None, "gradients": None, "weights": None}
    assert len(set(one.facts["digests"]["weights"])) == training.STEPS
    assert one.facts["ranks"] == 2
    assert one.facts.get("tagged") == (6 if way == "regional" else None)
    assert all(us > 0 for us in one.turn(1, 2))
    assert one.check() is None


def test_the_expected_parts_are_those_of_the_whole_model() -> None:
    fused_norm.enable_on_cpu()
    weights = llama.parameters(SIZE, "cpu", training.SEED)
    loss = loss_of_both(weights, 0)
    gradients = torch.autograd.grad(loss, weights)

    parts = [Sharded(SIZE, "cpu", number, "not used").expected() for number in range(2)]

    assert float(sum(part[0] for part in parts)) == pytest.approx(float(loss.detach()))
    for whole, *halves in zip(gradients, *(part[1:] for part in parts), strict=True):
        torch.testing.assert_close(torch.cat(halves), whole)


def test_facts_of_ranks_become_those_of_one_training() -> None:
    def facts(**changes: Any) -> dict[str, Any]:
        known = {"tokens": 16, "compile_s": 2.0, "peak_bytes": 10, "losses": [1.0, 2.0]}
        return {**known, "digests": {"loss": ["a", "b"]}, "repeats": {"loss": None}, **changes}

    slower = facts(compile_s=3.0, peak_bytes=12, losses=[3.0, None], repeats={"loss": 7})
    both = combined([facts(), slower])

    assert (both["tokens"], both["compile_s"], both["peak_bytes"]) == (16, 3.0, 12)
    assert both["losses"] == [4.0, None]  # a loss that is not finite makes the sum so
    assert both["repeats"] == {"loss": 7}
    others = combined([facts(), facts(digests={"loss": ["a", "c"]})])["digests"]["loss"]
    assert [mine == other for mine, other in zip(both["digests"]["loss"], others, strict=True)] == [True, False]


def test_a_host_with_too_few_gpus_is_named() -> None:
    with pytest.raises(NotSupported, match="needs 64 GPUs; this process sees"):
        ParallelTraining(TINY.replace("fsdp2", "fsdp64"), {"way": "eager"}, "cuda", 1)


def test_a_model_without_ranks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"add \.fsdp2"):
        ParallelTraining(TINY.removesuffix(".fsdp2"), {"way": "eager"}, "cpu", 1)


def test_the_reason_of_a_rank_is_reported() -> None:
    with pytest.raises(RankFailed, match=r"rank 0: ValueError: there is no way 'magic'.*rank 1: ValueError"):
        ParallelTraining(TINY, {"way": "magic"}, "cpu", 1)


@pytest.mark.long
def test_a_lost_rank_ends_the_others(opened: Callable[[str], ParallelTraining]) -> None:
    one = opened("eager")
    first, second = pids(one)
    os.kill(first, signal.SIGSTOP)  # without the end of the other it would never answer
    os.kill(second, signal.SIGKILL)

    with pytest.raises(RankFailed, match="rank 1: killed by SIGKILL"):
        one.turn(1, 1)

    assert not runs(first)
    assert not one._ranks.store.parent.exists()


@pytest.mark.long
def test_ranks_end_with_the_process_of_the_arm(tmp_path: Path) -> None:
    # The folder of the ranks is in TMPDIR, and a killed process removes nothing.
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    arm = subprocess.Popen([sys.executable, "-c", ARM], stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert arm.stdout is not None
        ranks = [int(pid) for pid in arm.stdout.readline().split()]
        assert len(ranks) == 2
        for pid in ranks:
            os.kill(pid, signal.SIGSTOP)  # a stopped process cannot notice the end of its input
    finally:
        arm.kill()
        arm.wait()
        assert arm.stdout is not None
        arm.stdout.close()

    deadline = time.monotonic() + 10
    while any(map(runs, ranks)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in ranks if runs(pid)]


@pytest.mark.parametrize(("text", "limit", "shown"), [("short", 9, "short"), ("beginning end", 9, "beg … end")])
def test_a_long_reason_keeps_its_beginning_and_its_end(text: str, limit: int, shown: str) -> None:
    assert parallel._shortened(text, limit) == shown
