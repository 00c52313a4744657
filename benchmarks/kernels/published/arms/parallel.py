"""Training of a transformer whose weights are sharded over several ranks, each a process with a device of its own.

Every rank has one part of each weight and of its optimizer's state, and trains with its own sequences.  A step gathers
the weights and scatters the sums of the gradients, as fully sharded data parallelism does.  Both are operators of torch
inside the loss (functional collectives), so that all arms run the same ones: eager, traced, and compiled.  A step keeps
the weights that it gathered until its end.

The process of the arm starts the ranks, which are servers like itself, and asks all of them at the same time.
"""

import ctypes
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.kernels.published.arms import llama
from benchmarks.kernels.published.arms.llama import LlamaSize
from benchmarks.kernels.published.arms.server import NotSupported
from benchmarks.kernels.published.arms.training import SEED, STEPS, Training, through_autograd
from kernels.arena.channel import Channel, ContenderLost, last_lines
from kernels.arena.session import Pace
from kernels.errors import FAILED, INVALID, MAX_REASON, UNSUPPORTED

# A part of what an arm has, so that its answer can say which rank is late.
PREPARE_S, TURN_S = (0.9 * limit_s for limit_s in (Pace.prepare_limit_s, Pace.turn_limit_s))
COLLECTIVE_S = 120  # that a rank waits in one collective, such as for another rank that compiles; then it fails
OTHERS_S = 3  # for the reasons of other ranks, once one has failed
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of prctl
_COLLECTIVES = torch.ops._c10d_functional


class RankFailed(Exception):
    """A rank has failed, or its process has ended.  The message has its reason and the last lines of its log."""


# -- the process of the arm ------------------------------------------------------------------------------------------


class ParallelTraining:
    """One arm: as many ranks as the model says, each of which trains as `training.Training` does.

    A sample is the time of the slowest rank.  Facts are of one rank: the tokens and FLOPs, and the largest peak of the
    memory; the loss is that of all sequences.

    Raises NotSupported, RankFailed, ValueError for a model without ranks.
    """

    unit = "us"

    def __init__(self, case: str, spec: Mapping[str, Any], device: str, seed: int) -> None:
        size = LlamaSize.parse(case)
        if size.ranks < 2:
            raise ValueError(f"{case!r} has one rank; add .fsdp2")
        _require_devices(size.ranks, device)
        self._ranks = Ranks(size.ranks)
        try:
            threads = torch.get_num_threads()
            self._ranks.ask({"do": "start", "device": device, "threads": threads}, PREPARE_S)
            prepare = {"do": "prepare", "case": case, "seed": seed}
            mine = {**spec, "workload": "parallel:rank", "store": str(self._ranks.store)}
            answers = self._ranks.ask_each(
                [{**prepare, "spec": {**mine, "rank": number}} for number in range(size.ranks)], PREPARE_S
            )
        except BaseException:
            self._ranks.close()
            raise
        self.facts: Mapping[str, Any] = combined([one["facts"] for one in answers])

    def turn(self, warm: int, timed: int) -> list[float]:
        answers = self._ranks.ask({"do": "turn", "warm": warm, "timed": timed}, TURN_S)
        return [max(times) for times in zip(*(one["samples"] for one in answers), strict=True)]

    def check(self) -> str | None:
        """Each rank compares its part of the gradients with that of the whole model's."""
        answers = self._ranks.ask({"do": "check"}, PREPARE_S)
        wrong = [f"rank {number}: {one['reason']}" for number, one in enumerate(answers) if one["state"] == INVALID]
        return "; ".join(wrong) or None


def _require_devices(ranks: int, device: str) -> None:
    """Raises NotSupported."""
    distributed = torch.distributed
    if not distributed.is_available():
        raise NotSupported("this torch has no torch.distributed")
    if device == "cpu":
        if not distributed.is_gloo_available():
            raise NotSupported("this torch has no gloo, which connects processes on a CPU")
        return
    if (count := torch.cuda.device_count()) < ranks:
        raise NotSupported(f"needs {ranks} GPUs; this process sees {count}")
    if not distributed.is_nccl_available():
        raise NotSupported("this torch has no NCCL, which connects GPUs")


def combined(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The facts of all ranks as those of one training."""
    digests = {
        what: [_digest(ranks) for ranks in zip(*(one["digests"][what] for one in facts), strict=True)]
        for what in facts[0]["digests"]
    }
    repeats = {what: _first_step([one["repeats"][what] for one in facts]) for what in facts[0]["repeats"]}
    losses = [
        None if None in parts else round(sum(parts), 6) for parts in zip(*(one["losses"] for one in facts), strict=True)
    ]
    peaks = [one["peak_bytes"] for one in facts]
    return {
        **facts[0],
        "ranks": len(facts),
        "compile_s": max(one["compile_s"] for one in facts),
        "peak_bytes": None if None in peaks else max(peaks),
        "losses": losses,
        "digests": digests,
        "repeats": repeats,
    }


def _digest(of_ranks: Sequence[str]) -> str:
    return hashlib.sha256(" ".join(of_ranks).encode()).hexdigest()[:12]


def _first_step(steps: Sequence[int | None]) -> int | None:
    return min((step for step in steps if step is not None), default=None)


class Ranks:
    """The processes of the ranks.  They end with this object, and with the process of the arm.

    They are in its process group, which is what ends an arm.
    """

    def __init__(self, count: int) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kernelwatch-ranks-", ignore_cleanup_errors=True)
        folder = Path(self._folder.name)
        self.store = folder / "store"  # a file, since a port might be taken by another session
        self._logs = [folder / f"rank-{number}.log" for number in range(count)]
        self._channels: list[Channel] = []
        self.close = weakref.finalize(self, _close, self._channels, self._folder)
        for log in self._logs:
            self._channels.append(_start_rank(log))

    def ask(self, message: Mapping[str, Any], limit_s: float) -> list[dict[str, Any]]:
        """The answers of all ranks to the same request.  Raises RankFailed, and ends all ranks then."""
        return self.ask_each([message] * len(self._channels), limit_s)

    def ask_each(self, messages: Sequence[Mapping[str, Any]], limit_s: float) -> list[dict[str, Any]]:
        """The answers to a request for each rank.

        If one fails, the others might wait for it: all are ended then.  Raises RankFailed.
        """
        with ThreadPoolExecutor(max_workers=len(messages)) as pool:
            asked = [pool.submit(self._answer, number, one, limit_s) for number, one in enumerate(messages)]
            try:
                _, waiting = wait(asked, return_when=FIRST_EXCEPTION)
                if waiting:
                    wait(asked, timeout=OTHERS_S)
                failures = [str(error) for one in asked if one.done() and (error := one.exception())]
                if failures:
                    limit = MAX_REASON // len(failures) - 2
                    raise RankFailed("; ".join(_shortened(reason, limit) for reason in failures))
                return [one.result() for one in asked]
            except BaseException:
                self.close()
                raise

    def _answer(self, number: int, message: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        try:
            answer = self._channels[number].ask(message, limit_s)
        except ContenderLost as lost:  # with the last lines of its log
            raise RankFailed(f"rank {number}: {lost}") from None
        if answer.get("state") in (FAILED, UNSUPPORTED):
            lines = last_lines(self._logs[number])
            raise RankFailed(f"rank {number}: {answer.get('reason')}; last lines: {' / '.join(lines) or 'none'}")
        return answer


def _start_rank(log: Path) -> Channel:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        # NVLink multicast needs rights to the fabric that many containers lack; there NCCL fails as it connects.
        "NCCL_NVLS_ENABLE": "0",
    }
    environment.setdefault("NCCL_DEBUG", "WARN")  # its log says why a collective failed
    environment.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the name of a host need not lead to it
    with log.open("a") as errors:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", f"{__package__}.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=environment,
        )
    return Channel(process, log)


def _close(channels: Sequence[Channel], folder: "tempfile.TemporaryDirectory[str]") -> None:
    for one in channels:
        one.close()
    folder.cleanup()


def _shortened(text: str, limit: int) -> str:
    """The beginning has the error, and the end the last line of the log."""
    if len(text) <= limit:
        return text
    half = (limit - 3) // 2
    return f"{text[:half]} … {text[-half:]}"


# -- a rank ----------------------------------------------------------------------------------------------------------


def rank(case: str, spec: Mapping[str, Any], device: str, seed: int) -> Training:
    """The workload of one rank: `spec` has its number in `rank`, and in `store` the file where the ranks meet."""
    size, number = LlamaSize.parse(case), int(spec["rank"])
    mine = device if device == "cpu" else f"cuda:{number}"
    _end_with_parent()
    group = _join(number, size.ranks, mine, str(spec["store"]))
    return Training(Sharded(size, mine, number, group), spec)


def _end_with_parent() -> None:
    """Otherwise a rank that waits for another one would stay if the process of the arm is killed alone."""
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)


def _join(number: int, ranks: int, device: str, store: str) -> str:
    """Meet the other ranks; the name of the group of all."""
    importlib.import_module("torch.distributed._functional_collectives")  # shapes of the operators for tracers
    options: dict[str, Any] = {"backend": "gloo"}
    if device != "cpu":
        torch.cuda.set_device(device)
        options = {"backend": "nccl", "device_id": torch.device(device)}  # connects at once: fails early
    distributed: Any = torch.distributed
    distributed.init_process_group(
        init_method=f"file://{store}",
        rank=number,
        world_size=ranks,
        timeout=timedelta(seconds=COLLECTIVE_S),
        **options,
    )
    return str(distributed.group.WORLD.group_name)


class Sharded:
    """The part of a model that rank `number` has: rows of each weight, and sequences of its own.

    Its loss is its share of the mean over the sequences of all ranks: the sum over the ranks is the loss.
    """

    def __init__(self, size: LlamaSize, device: str, number: int, group: str) -> None:
        self.size, self.device = size, device
        self._number, self._group = number, group

    def weights(self) -> list[Tensor]:
        return [self._part(one.detach()).clone().requires_grad_() for one in self._whole()]

    def batches(self) -> list[tuple[Tensor, ...]]:
        return self._batches_of(self._number)

    def loss(self, weights: Sequence[Tensor], batch: Sequence[Tensor]) -> Tensor:
        ranks, group = self.size.ranks, self._group
        # All begin at once, and a block waits for its own: later ones are gathered while earlier ones compute.
        pending = [_COLLECTIVES.all_gather_into_tensor(one.detach(), ranks, group) for one in weights]
        gathered: Any = _Gathered.apply
        whole = (gathered(*pair, ranks, group) for pair in zip(weights, pending, strict=True))
        return llama.loss(self.size, whole, batch) / ranks

    def expected(self) -> tuple[Tensor, ...]:
        """Without any collective: every rank has the sequences of all."""
        step = through_autograd(lambda weights, batch: llama.loss(self.size, weights, batch) / self.size.ranks)
        weights = self._whole()
        shares = [step(weights, self._batches_of(number)[0]) for number in range(self.size.ranks)]
        gradients = [torch.stack(of_ranks).sum(0) for of_ranks in zip(*(share[1:] for share in shares), strict=True)]
        return (shares[self._number][0], *map(self._part, gradients))

    def _whole(self) -> list[Tensor]:
        return llama.parameters(self.size, self.device, SEED)

    def _part(self, whole: Tensor) -> Tensor:
        return whole.chunk(self.size.ranks)[self._number]

    def _batches_of(self, number: int) -> list[tuple[Tensor, ...]]:
        return llama.batches(self.size, self.device, SEED + number, STEPS)


class _Gathered(torch.autograd.Function):
    """The whole of a weight whose gathering has begun; the gradient of this rank's part is summed over all ranks."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, pending: Tensor, ranks: int, group: str) -> Tensor:
        ctx.ranks, ctx.group = ranks, group
        whole: Tensor = _COLLECTIVES.wait_tensor(pending)
        return whole

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:
        sums = _COLLECTIVES.reduce_scatter_tensor(gradient.contiguous(), "sum", ctx.ranks, ctx.group)
        return _COLLECTIVES.wait_tensor(sums), None, None, None
