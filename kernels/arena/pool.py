"""The arena's side of the contenders' processes: start, ask, lose and restart them.  Torch-free."""

import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from ..cases import AnyCase, Role
from . import protocol
from .channel import ContenderLost

# Both count from the last case that was measured.
RESTARTS = 3  # of a contender after its process was lost; more losses show nothing new
REPLACEMENTS = 12  # of processes that reported that they cannot go on: a failed capture costs a process
MAX_MEMORY_SHARE = 0.95  # of a GPU's memory for all contenders; each also has a CUDA context of half a gigabyte
KEEP_GOING_EVERY_S = 1.0
MAX_WAITING = 256  # processes
MAX_REASON = 2000  # characters; with the last lines of a log


class Connection(Protocol):
    """The interface of a channel that the arena uses."""

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = ..., /
    ) -> dict[str, Any]: ...

    def freeze(self) -> None: ...

    def thaw(self) -> None: ...

    def cpu_s(self) -> float | None: ...

    def read(self, address: int, count: int, /) -> bytearray: ...

    def write(self, address: int, data: bytearray | memoryview, /) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    label: str  # "head:norms", unique in the trial
    role: Role
    provider: Mapping[str, Any] = field(hash=False)
    start: Callable[[], Connection] = field(hash=False)
    cases: frozenset[AnyCase] | None = None  # at which it takes part; None for all

    def takes(self, case: AnyCase) -> bool:
        """Does it take part at this case?"""
        return self.cases is None or case in self.cases

    @property
    def trusted(self) -> bool:
        """Runs no code of the target."""
        return bool(self.provider.get("builtin")) and not self.provider.get("of_revision")

    @property
    def witness(self) -> bool:
        """Takes part at no case: on a GPU it measures the ceilings, and shows whether a turn left work there."""
        return self.trusted and self.cases == frozenset()


@dataclass(eq=False)
class Started:
    """A process that was asked to get ready."""

    channel: Connection
    answer: Future[dict[str, Any]]  # to `start`; raises ContenderLost


class ProcessPool:
    """Starts the processes of contenders, also before their trial, and asks each at once to get ready.

    Getting ready means to import torch, what the provider needs and the target, and to create a CUDA context: 7 to 12 s
    (H200, November).  Processes of later trials do this while cases are prepared and checked; they are frozen during
    turns.  Each may use the memory of the device divided by `together`.  With the processes of several trials that is
    more than the device has, so that cases which do not fit prepare one after the other (see `run_trials`).
    """

    def __init__(self, device: str, together: int, core: int | None = None) -> None:
        self._device, self._core = device, core
        self._memory = MAX_MEMORY_SHARE / max(1, together)
        self._random = random.Random(0)  # noqa: S311  an order, not a secret
        self._waiting: dict[str, list[Started]] = {}
        self._threads = ThreadPoolExecutor(MAX_WAITING, thread_name_prefix="start")

    def fill(self, contenders: Sequence[Contender], depth: int = 1) -> None:
        """Start processes until `depth` of each of these contenders wait."""
        for _ in range(depth):
            for contender in self._random.sample(contenders, len(contenders)):
                waiting = self._waiting.setdefault(contender.label, [])
                if len(waiting) < depth:
                    waiting.append(self._start(contender))

    def take(self, contender: Contender) -> Started:
        """The process that waited longest, or a new one."""
        waiting = self._waiting.get(contender.label)
        return waiting.pop(0) if waiting else self._start(contender)

    def freeze(self) -> None:
        """Stop the waiting processes while others are measured; one that does not stop is ended."""
        for waiting in self._waiting.values():
            for started in tuple(waiting):
                try:
                    started.channel.freeze()
                except ContenderLost:
                    waiting.remove(started)
                    started.channel.close()

    def thaw(self) -> None:
        for waiting in self._waiting.values():
            for started in waiting:
                started.channel.thaw()

    def drop(self) -> None:
        """End the waiting processes."""
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop().channel.close()

    def close(self) -> None:
        """End the waiting processes, and start no more."""
        self.drop()
        self._threads.shutdown(wait=True)

    def _start(self, contender: Contender) -> Started:
        # The process is not started in a thread of the pool: a sandbox ends with the thread that started it.
        channel = contender.start()
        threads = 1 if self._device == "cpu" else 4
        request = protocol.start(contender.provider, self._device, threads, self._core, self._memory)
        # No time limit while it waits, because it is frozen meanwhile; who takes it sets a limit.
        return Started(channel, self._threads.submit(channel.ask, request, math.inf))


@dataclass(eq=False)
class ContenderProcess:
    contender: Contender
    channel: Connection | None = None
    starts: int = 0
    losses: int = 0  # since a case was last measured
    replaced: int = 0  # likewise
    silent: int = 0  # processes in a row that were lost before their first answer
    lost: str = ""  # why there is no process
    hopeless: bool = False  # it answered that it cannot run; starting it again would give the same answer
    stack: dict[str, Any] | None = None  # its versions and its device, once it was ready
    tunes: bool = False  # times candidates on the device during its preparation
    witness_s: float = 0.0  # CPU time in the turns of others, when it was asked whether the device is idle

    @property
    def label(self) -> str:
        return self.contender.label

    @property
    def may_start_again(self) -> bool:
        return not self.hopeless and self.losses <= RESTARTS and self.replaced <= REPLACEMENTS

    @property
    def gone(self) -> str:
        """Why a case begins without this contender."""
        if self.hopeless:
            return self.lost
        return f"not started again after {max(self.losses, self.replaced)} processes were lost: {self.lost}"

    def freeze(self) -> None:
        """Stop its processes; one that does not stop is lost."""
        if self.channel is not None:
            try:
                self.channel.freeze()
            except ContenderLost as lost:
                self.losses += 1
                self.drop(str(lost))

    def thaw(self) -> None:
        if self.channel is not None:
            self.channel.thaw()

    @contextmanager
    def witnessing(self) -> Iterator[None]:
        """Let a frozen one run for a moment; the driver asked for this CPU time, so that it does not count."""
        before = self.cpu_s
        self.thaw()
        try:
            yield
        finally:
            self.freeze()
            after = self.cpu_s
            self.witness_s += after - before if before is not None and after is not None else 0.0

    @property
    def cpu_s(self) -> float | None:
        """CPU time of all its processes so far, without that as a witness; None if that is unknown."""
        spent = None if self.channel is None else self.channel.cpu_s()
        return None if spent is None else spent - self.witness_s

    def drop(self, reason: str) -> None:
        self.lost = reason
        if self.channel is not None:
            self.channel.close()
            self.channel = None


class ContenderProcesses:
    """The processes of the trials that run side by side, of each a list in the order of starting."""

    def __init__(
        self, trials: Sequence[Sequence[Contender]], pool: ProcessPool, keep_going: Callable[[], None]
    ) -> None:
        self.by_trial = [[ContenderProcess(contender) for contender in contenders] for contenders in trials]
        self.all = [process for processes in self.by_trial for process in processes]
        self._pool = pool
        self._keep_going = keep_going
        self._threads = ThreadPoolExecutor(max(1, len(self.all)), thread_name_prefix="arena")

    def close(self) -> None:
        for process in self.all:
            if process.channel is not None:
                process.channel.close()
        self._threads.shutdown(wait=True)

    def start_missing(self, limit_s: float) -> None:
        started: dict[ContenderProcess, Started] = {}
        for process in self.all:
            if process.channel is None and process.may_start_again:
                process.starts += 1
                started[process] = self._pool.take(process.contender)
                process.channel = started[process].channel
        deadline = time.monotonic() + limit_s
        waiting = {one.answer for one in started.values()}
        while waiting and (left := deadline - time.monotonic()) > 0:
            waiting = wait(waiting, timeout=min(left, KEEP_GOING_EVERY_S)).not_done
            self._keep_going()
        for process, one in started.items():
            if one.answer in waiting:
                process.losses += 1
                process.drop(f"no answer to 'start' in {limit_s:g} s")
            self._note_start(process, {} if process.channel is None else self._answer(process, one.answer.result))

    def _note_start(self, process: ContenderProcess, answer: Mapping[str, Any]) -> None:
        if process.channel is None:
            process.silent += 1
            process.hopeless = process.silent > 1  # a process that waited in the pool may have ended meanwhile
            return
        process.silent = 0
        if not answer.get("ready"):
            process.hopeless = True
            process.drop(reason_of(answer) or "did not get ready")
            return
        process.tunes = bool(answer.get("tunes"))
        replaced = {"replaced": found} if (found := mapping(answer.get("replaced"))) else {}
        process.stack = {**mapping(answer.get("stack")), **replaced, "device": mapping(answer.get("device"))}

    def ask_all(
        self, requests: Mapping[ContenderProcess, Mapping[str, Any]], limit_s: float, at_once: int | None = None
    ) -> dict[ContenderProcess, dict[str, Any]]:
        """Ask several processes together.  A lost one is dropped, and its answer is an error."""
        processes = [process for process in requests if process.channel is not None]
        group_size = at_once or max(1, len(processes))
        answers: dict[ContenderProcess, dict[str, Any]] = {}
        for first in range(0, len(processes), group_size):
            waiting: dict[ContenderProcess, Future[dict[str, Any]]] = {
                process: self._threads.submit(process.channel.ask, requests[process], limit_s)
                for process in processes[first : first + group_size]
                if process.channel is not None
            }
            while wait(waiting.values(), timeout=KEEP_GOING_EVERY_S).not_done:
                self._keep_going()
            self._keep_going()
            answers |= {process: self._answer(process, future.result) for process, future in waiting.items()}
        return answers

    def ask(
        self, process: ContenderProcess, request: Mapping[str, Any], limit_s: float
    ) -> tuple[dict[str, Any], float]:
        """The answer, and how many seconds it took."""
        channel = process.channel
        if channel is None:
            return {"error": process.lost}, 0.0
        began = time.perf_counter()
        answer = self._answer(process, lambda: channel.ask(request, limit_s, self._keep_going))
        return answer, time.perf_counter() - began

    def _answer(self, process: ContenderProcess, receive: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = receive()
        except ContenderLost as lost:
            process.losses += 1
            process.drop(str(lost))
            return {"error": str(lost)}
        if answer.get("broken"):
            process.replaced += 1
            process.drop(reason_of(answer) or "reported that it cannot go on")
        return answer


def reason_of(answer: Mapping[str, Any]) -> str | None:
    reason = answer.get("reason") or answer.get("error")
    return str(reason)[:MAX_REASON] if reason else None


def mapping(value: object) -> dict[str, Any]:
    """A contender's value if it is an object, else an empty one: code of the target may answer anything."""
    return value if isinstance(value, dict) else {}
