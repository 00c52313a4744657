"""The arena: contenders take turns on one device, and nobody's turn is ever the first for long.  No torch in here.

Each contender is a process of its own, and a launch is one set of fresh processes.  Running in turn matters more than
anything else: all of one and then all of the other leaves 2 to 4 % of drift in the ratio, whatever the count, and in a
fixed order the second of two equal contenders ran up to 4 % faster (H200, November).
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Protocol

from . import messages, telemetry
from .channel import ContenderLost
from .words import Case, Role

RESTARTS = 3  # of one contender in one launch; a process that dies more often says nothing new
KEEP_GOING_EVERY_S = 1.0
LONGEST_REASON = 2000  # characters; with the last lines of a log

_EXTRA = ("errors", "sets", "calls", "l2_resident", "prepare_s")  # of the answer to prepare
MEASURED, INVALID, FAILED, UNSUPPORTED = "measured", "invalid", "failed", "unsupported"


class Line(Protocol):
    """What the arena needs of a channel."""

    def ask(
        self, message: Mapping[str, Any], limit_s: float, meanwhile: Callable[[], None] = ..., /
    ) -> dict[str, Any]: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Contender:
    label: str  # "head:norms", unique in the launch
    role: Role
    provider: Mapping[str, Any] = field(hash=False)
    start: Callable[[], Line] = field(hash=False)


@dataclass(frozen=True)
class Pace:
    """How much is measured, and how long it may take.  Each round has `warm` untimed and `timed` timed samples."""

    rounds: int = 20
    warm: int = 2
    timed: int = 5
    start_limit_s: float = 180
    prepare_limit_s: float = 240
    turn_limit_s: float = 60


@dataclass
class Cell:
    """One contender at one case: the median of each round in microseconds, None where the round did not count."""

    state: str
    reason: str | None = None
    samples: list[float | None] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def becomes(self, state: str, reason: str) -> None:
        """No longer measured: a time that was taken on the way is nobody's business."""
        self.state, self.reason = state, reason
        self.samples.clear()


@dataclass
class Launch:
    """What one launch saw.  `stacks` are in the order of the contenders."""

    cells: dict[tuple[str, Case], Cell] = field(default_factory=dict)
    stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    telemetry: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)


def order(labels: Sequence[str], round_number: int, start: int = 0) -> list[str]:
    """Who goes when: reversed every second round, rotated every second one.

    Over `2 * len(labels)` rounds everybody stands twice in each place, once in each direction.
    """
    turned = (round_number // 2 + start) % max(1, len(labels))
    rotated = [*labels[turned:], *labels[:turned]]
    return rotated[::-1] if round_number % 2 else rotated


def run_launch(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    pace: Pace,
    *,
    device: str,
    seed: int,
    core: int | None = None,
    progress: Callable[[str], None] = lambda _: None,
    keep_going: Callable[[], None] = lambda: None,
    watch: Callable[[], dict[str, Any]] | None = None,
    deadline: float = math.inf,
) -> Launch:
    """Measure every case with every contender, in fresh processes.

    `device` is "cpu" or "cuda"; `core` pins all contenders to one core.  `keep_going` is called between turns and about
    every second of a longer wait; what it raises ends the launch, with every process ended.  `watch` reads the device
    around each round (by default NVML on "cuda"); a round with a reason in it is dropped for everybody and repeated.
    No case begins after `deadline`, a time of the monotonic clock: what was measured until then is returned.
    """
    session = _Session(contenders, pace, device, seed, core, keep_going, watch)
    try:
        session.open()
        for number, case in enumerate(cases, 1):
            if time.monotonic() > deadline:
                break
            progress(f"{number}/{len(cases)} {case}")
            session.measure(case)
        started = session.launch.stacks
        session.launch.stacks = {one.label: started[one.label] for one in contenders if one.label in started}
        return session.launch
    finally:
        session.close()


@dataclass(eq=False)
class _Player:
    contender: Contender
    channel: Line | None = None
    starts: int = 0
    lost: str = ""  # why it is not there
    hopeless: bool = False  # it answered, and can not run at all: starting it again gives the same

    @property
    def label(self) -> str:
        return self.contender.label

    def drop(self, reason: str) -> None:
        self.lost = reason
        if self.channel is not None:
            self.channel.close()
            self.channel = None


class _Session:
    def __init__(
        self,
        contenders: Sequence[Contender],
        pace: Pace,
        device: str,
        seed: int,
        core: int | None,
        keep_going: Callable[[], None],
        watch: Callable[[], dict[str, Any]] | None,
    ) -> None:
        self.players = [_Player(contender) for contender in contenders]
        self.pace, self.device, self.seed, self.core = pace, device, seed, core
        self.keep_going, self.watch = keep_going, watch
        self.random = random.Random(seed)  # noqa: S311  an order, not a secret
        # Who starts and allocates when, and who follows whom in a round, must differ from launch to launch: in a fixed
        # order equal code in two places differed by 1.4 to 1.8 %, the same way in every launch (H200, November).
        self.random.shuffle(self.players)
        self.reading: dict[str, Any] = {}  # of the device, when it was last looked at
        self.launch = Launch()
        self.pool = ThreadPoolExecutor(max(1, len(self.players)), thread_name_prefix="arena")

    # -- starting and ending ------------------------------------------------------------------------------------------

    def open(self) -> None:
        began = time.monotonic()
        self._start(self.players)
        self._spent("start", began)
        self._note("launch")

    def close(self) -> None:
        for player in self.players:
            if player.channel is not None:
                player.channel.close()
        self.pool.shutdown(wait=True)

    def _start(self, players: Sequence[_Player]) -> None:
        """Processes are started here and not in the pool: a sandbox ends with the thread that started it."""
        for player in players:
            player.starts += 1
            player.channel = player.contender.start()
        threads = 1 if self.device == "cpu" else 4
        asked = {p: messages.start(p.contender.provider, self.device, threads, self.core) for p in players}
        for player, answer in self._asked(asked, self.pace.start_limit_s).items():
            if player.channel is None:
                player.hopeless = player.starts > 1  # lost twice before its first word
                continue
            if not answer.get("ready"):
                player.hopeless = True
                player.drop(_reason(answer) or "did not get ready")
                continue
            device = _mapping(answer.get("device"))
            self.launch.stacks[player.label] = {**_mapping(answer.get("stack")), "device": device}
            if self.watch is None and self.device == "cuda":
                self.watch = telemetry.watch(device.get("uuid"))

    def _start_again(self) -> None:
        missing = [p for p in self.players if p.channel is None and not p.hopeless and p.starts <= RESTARTS]
        if missing:
            self._start(missing)

    # -- asking -------------------------------------------------------------------------------------------------------

    def _asked(self, questions: Mapping[_Player, dict[str, Any]], limit_s: float) -> dict[_Player, dict[str, Any]]:
        """Ask several at once, and keep going meanwhile.  Who is lost is dropped and answers with an error."""
        waiting: dict[_Player, Future[dict[str, Any]]] = {
            player: self.pool.submit(player.channel.ask, question, limit_s)
            for player, question in questions.items()
            if player.channel is not None
        }
        while wait(waiting.values(), timeout=KEEP_GOING_EVERY_S).not_done:
            self.keep_going()
        self.keep_going()
        return {player: self._answer(player, future.result) for player, future in waiting.items()}

    def _answer(self, player: _Player, answered: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        try:
            answer = answered()
        except ContenderLost as lost:
            player.drop(str(lost))
            return {"error": str(lost)}
        if answer.get("broken"):
            player.drop(_reason(answer) or "said that it is broken")
        return answer

    def _ask_slow(self, questions: Mapping[_Player, dict[str, Any]]) -> dict[_Player, dict[str, Any]]:
        """What is not timed: on a CPU all at once, on a GPU one after the other, since they share its memory."""
        if self.device == "cpu":
            return self._asked(questions, self.pace.prepare_limit_s)
        one_by_one = ({player: question} for player, question in questions.items())
        return {p: a for one in one_by_one for p, a in self._asked(one, self.pace.prepare_limit_s).items()}

    def _ask_quick(self, player: _Player, question: Mapping[str, Any]) -> dict[str, Any]:
        channel = player.channel
        if channel is None:
            return {"error": player.lost}
        return self._answer(player, lambda: channel.ask(question, self.pace.turn_limit_s, self.keep_going))

    # -- measuring ----------------------------------------------------------------------------------------------------

    def measure(self, case: Case) -> None:
        began = time.monotonic()
        self._start_again()
        began = self._spent("start", began)
        cells = self._prepared(case)
        self.launch.cells |= {(player.label, case): cell for player, cell in cells.items()}
        began = self._spent("prepare", began)
        self._note(f"before {case}")
        self._rounds(cells)
        self._note(f"after {case}")
        began = self._spent("rounds", began)
        self._check(cells)
        self._spent("check", began)

    def _prepared(self, case: Case) -> dict[_Player, Cell]:
        present = [player for player in self.players if player.channel is not None]
        answers = self._ask_slow(dict.fromkeys(present, messages.prepare(case, self.seed)))
        return {player: self._cell(player, answers.get(player)) for player in self.players}

    def _cell(self, player: _Player, answer: Mapping[str, Any] | None) -> Cell:
        if answer is None:
            again = "" if player.hopeless else f"not started again after {RESTARTS} restarts: "
            return Cell(FAILED, f"{again}{player.lost}")
        state = answer.get("state")
        return Cell(
            state if state in (MEASURED, INVALID, UNSUPPORTED) else FAILED,
            _reason(answer),
            facts=_mapping(answer.get("facts")),
            extra={key: answer[key] for key in _EXTRA if key in answer},
        )

    def _rounds(self, cells: Mapping[_Player, Cell]) -> None:
        by_label = {player.label: player for player in cells}
        start = self.random.randrange(max(1, len(cells)))
        spare = self.pace.rounds // 2  # rounds that may be repeated because the device was throttled
        done = number = 0
        while done < self.pace.rounds:
            # in each round the same who are still in it, so that places stay balanced among them
            present = [player.label for player, cell in cells.items() if cell.state == MEASURED]
            if not present:
                return
            for label in order(present, number, start):
                self.keep_going()
                self._turn(by_label[label], cells[by_label[label]])
            number += 1
            if self._spoiled(cells) and spare > 0:
                spare -= 1
                continue
            done += 1

    def _turn(self, player: _Player, cell: Cell) -> None:
        answer = self._ask_quick(player, messages.turn(self.pace.warm, self.pace.timed))
        taken = answer.get("samples")
        if not isinstance(taken, list) or not taken or not all(_is_time(us) for us in taken):
            cell.becomes(FAILED, _reason(answer) or f"answered a turn with {str(answer)[:100]}")
            return
        cell.samples.append(statistics.median(taken))

    def _spoiled(self, cells: Mapping[_Player, Cell]) -> bool:
        """Was the device throttled since it was last looked at?  Then this round counts for nobody."""
        if self.watch is None:
            return False
        before, self.reading = self.reading, self.watch()
        if not (reasons := telemetry.spoiled(self.reading, before)):
            return False
        self.launch.telemetry.append({"when": "dropped a round", "reasons": reasons, **self.reading})
        for cell in cells.values():
            if cell.state == MEASURED:
                cell.samples[-1] = None
        return True

    def _check(self, cells: Mapping[_Player, Cell]) -> None:
        right = {player: messages.CHECK for player, cell in cells.items() if player.channel and cell.state == MEASURED}
        answers = self._ask_slow(right)
        for player, cell in cells.items():
            if (answer := answers.get(player)) and answer.get("state") != MEASURED:
                state = answer.get("state") if answer.get("state") in (INVALID, FAILED) else FAILED
                cell.becomes(str(state), _reason(answer) or "gave no reason")
            self._ask_quick(player, messages.FREE)

    # -- keeping notes ------------------------------------------------------------------------------------------------

    def _note(self, when: str) -> None:
        self.reading = self.watch() if self.watch is not None else {"host": telemetry.host()}
        self.launch.telemetry.append({"when": when, **self.reading})

    def _spent(self, what: str, began: float) -> float:
        now = time.monotonic()
        self.launch.seconds[what] = self.launch.seconds.get(what, 0.0) + now - began
        return now


def _reason(answer: Mapping[str, Any]) -> str | None:
    said = answer.get("reason") or answer.get("error")
    return str(said)[:LONGEST_REASON] if said else None


def _mapping(value: object) -> dict[str, Any]:
    """What a contender said, where it must be an object; strangers may say anything."""
    return value if isinstance(value, dict) else {}


def _is_time(us: object) -> bool:
    return isinstance(us, int | float) and not isinstance(us, bool) and math.isfinite(us) and us > 0
