"""The arena's side of each contender: started, asked, lost, started again.  No torch in here."""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ..cases import Case, Role
from . import protocol
from .channel import ContenderLost

RESTARTS = 3  # of one contender in one trial that were lost; a process that dies more often says nothing new
REPLACEMENTS = 12  # of processes that said themselves that they cannot go on: a failed capture costs a process
OF_MEMORY = 0.95  # of a GPU's, for all together; each has a context of half a gigabyte beside its share
KEEP_GOING_EVERY_S = 1.0
MAX_REASON = 2000  # characters; with the last lines of a log


class Line(Protocol):
    """What the arena needs of a channel."""

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = ..., /
    ) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    label: str  # "head:norms", unique in the trial
    role: Role
    provider: Mapping[str, Any] = field(hash=False)
    start: Callable[[], Line] = field(hash=False)
    cases: frozenset[Case] | None = None  # at which it takes part; None for all

    def takes(self, case: Case) -> bool:
        """Does it take part at this case?"""
        return self.cases is None or case in self.cases

    @property
    def trusted(self) -> bool:
        """Runs nothing of the target's."""
        return bool(self.provider.get("builtin"))


class PrestartPool:
    """Starts the processes of the next trials while this one is measured: they import what is not the target's.

    Importing torch and Quack takes 10 to 15 s of a trial.  No CUDA context is made before the trial begins.  `deep`
    is for how many trials processes wait.
    """

    def __init__(self, contenders: Sequence[Contender], deep: int = 1) -> None:
        self._deep, self._random = deep, random.Random(0)  # noqa: S311  an order, not a secret
        self._waiting: dict[str, list[Line]] = {one.label: [] for one in contenders}
        self._original = {one.label: one for one in contenders}
        self.contenders = [replace(one, start=self._starter(one)) for one in contenders]

    def more(self, contenders: Sequence[Contender]) -> None:
        """Start what is missing of those."""
        for one in self._random.sample(contenders, len(contenders)):
            while len(self._waiting[one.label]) < self._deep:
                self._waiting[one.label].append(self._original[one.label].start())

    def close(self) -> None:
        for waiting in self._waiting.values():
            while waiting:
                waiting.pop().close()

    def _starter(self, contender: Contender) -> Callable[[], Line]:
        waiting = self._waiting[contender.label]
        return lambda: waiting.pop(0) if waiting else contender.start()


@dataclass(eq=False)
class ContenderProcess:
    contender: Contender
    channel: Line | None = None
    starts: int = 0
    losses: int = 0
    replaced: int = 0  # since a case was last measured
    silent: int = 0  # processes in a row that were lost before their first word
    lost: str = ""  # why it is not there
    hopeless: bool = False  # it answered, and can not run at all: starting it again gives the same
    tunes: bool = False  # times candidates on the device while it gets ready

    @property
    def label(self) -> str:
        return self.contender.label

    @property
    def may_start_again(self) -> bool:
        return not self.hopeless and self.losses <= RESTARTS and self.replaced <= REPLACEMENTS

    @property
    def gone(self) -> str:
        """Why it is not there, for a case that begins without it."""
        if self.hopeless:
            return self.lost
        return f"not started again after {max(self.losses, self.replaced)} processes were lost: {self.lost}"

    def drop(self, reason: str) -> None:
        self.lost = reason
        if self.channel is not None:
            self.channel.close()
            self.channel = None


class ContenderProcesses:
    """All contenders of one trial, and the asking of several at once."""

    def __init__(
        self, contenders: Sequence[Contender], device: str, core: int | None, keep_going: Callable[[], None]
    ) -> None:
        self.all = [ContenderProcess(contender) for contender in contenders]
        self.stacks: dict[str, dict[str, Any]] = {}
        self._device, self._core, self._keep_going = device, core, keep_going
        self._pool = ThreadPoolExecutor(max(1, len(self.all)), thread_name_prefix="arena")

    def close(self) -> None:
        for player in self.all:
            if player.channel is not None:
                player.channel.close()
        self._pool.shutdown(wait=True)

    def start_missing(self, limit_s: float) -> None:
        """Processes are started here and not in the pool: a sandbox ends with the thread that started it."""
        players = [player for player in self.all if player.channel is None and player.may_start_again]
        for player in players:
            player.starts += 1
            player.channel = player.contender.start()
        threads, memory = 1 if self._device == "cpu" else 4, OF_MEMORY / max(1, len(self.all))
        asked = {p: protocol.start(p.contender.provider, self._device, threads, self._core, memory) for p in players}
        for player, answer in self.ask_all(asked, limit_s).items():
            if player.channel is None:
                player.silent += 1
                player.hopeless = player.silent > 1  # a process that waited may have ended meanwhile
                continue
            player.silent = 0
            if not answer.get("ready"):
                player.hopeless = True
                player.drop(reason_of(answer) or "did not get ready")
                continue
            player.tunes = bool(answer.get("tunes"))
            self.stacks[player.label] = {**mapping(answer.get("stack")), "device": mapping(answer.get("device"))}

    def ask_all(
        self, questions: Mapping[ContenderProcess, Mapping[str, Any]], limit_s: float, at_once: int | None = None
    ) -> dict[ContenderProcess, dict[str, Any]]:
        """Ask several together, and keep going meanwhile.  Who is lost is dropped and answers with an error."""
        players = [player for player in questions if player.channel is not None]
        answers: dict[ContenderProcess, dict[str, Any]] = {}
        for first in range(0, len(players), at_once or max(1, len(players))):
            group = players[first : first + (at_once or len(players))]
            waiting: dict[ContenderProcess, Future[dict[str, Any]]] = {
                player: self._pool.submit(player.channel.ask, questions[player], limit_s)
                for player in group
                if player.channel is not None
            }
            while wait(waiting.values(), timeout=KEEP_GOING_EVERY_S).not_done:
                self._keep_going()
            self._keep_going()
            answers |= {player: self._answer(player, future.result) for player, future in waiting.items()}
        return answers

    def ask(
        self, player: ContenderProcess, question: Mapping[str, Any], limit_s: float
    ) -> tuple[dict[str, Any], float]:
        """The answer, and how many seconds it took."""
        channel = player.channel
        if channel is None:
            return {"error": player.lost}, 0.0
        began = time.perf_counter()
        answer = self._answer(player, lambda: channel.ask(question, limit_s, self._keep_going))
        return answer, time.perf_counter() - began

    def _answer(self, player: ContenderProcess, answered: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = answered()
        except ContenderLost as lost:
            player.losses += 1
            player.drop(str(lost))
            return {"error": str(lost)}
        if answer.get("broken"):
            player.replaced += 1
            player.drop(reason_of(answer) or "said that it is broken")
        return answer


def reason_of(answer: Mapping[str, Any]) -> str | None:
    said = answer.get("reason") or answer.get("error")
    return str(said)[:MAX_REASON] if said else None


def mapping(value: object) -> dict[str, Any]:
    """What a contender said, where it must be an object; strangers may say anything."""
    return value if isinstance(value, dict) else {}
