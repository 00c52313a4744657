"""The arena: contenders take turns on one device, and nobody's turn is ever the first for long.  No torch in here.

Each contender is a process of its own, and a trial is one set of fresh processes.  Running in turn matters more than
anything else: all of one and then all of the other leaves 2 to 4 % of drift in the ratio, whatever the count, and in a
fixed order the second of two equal contenders ran up to 4 % faster (H200, November).
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ..cases import Case, Metric, Role
from . import protocol, telemetry
from .clock_audit import Turns, disagreement
from .pool import Contender, ContenderProcess, ContenderProcesses, Line, PrestartPool, mapping, reason_of
from .repeatability import ENOUGH, FEWEST, Repeats, of_facts, together
from .sizes import GRAPH_S, most_calls

__all__ = [
    "NOTHING_KNOWN",
    "Cell",
    "Contender",
    "KnownRepeats",
    "Line",
    "OutOfTime",
    "Pace",
    "PrestartPool",
    "Trial",
    "order",
    "run_trial",
]

# Of the answer to prepare; `sm_mhz` is added: the clock of the device in the case's rounds.
_EXTRA = ("errors", "sets", "calls", "l2_resident", "prepare_s", "spent")
MAX_TUNED, MAX_TUNED = 16, 200  # kernels with a choice of configuration, and characters of each
LARGEST = 1e12  # of a sample: eleven days, or a terabyte
OTHER_BITS = "its CUDA graph computes something else than its calls: other bits"
COMPARED_WITH = (Role.HEAD, Role.PARENT)  # whose repeatability is estimated; of the others a few calls are compared
MEASURED, INVALID, FAILED, UNSUPPORTED = "measured", "invalid", "failed", "unsupported"


KnownRepeats = Mapping[tuple[Case, str], Repeats]  # by case and hash of the code
NOTHING_KNOWN: KnownRepeats = {}


class OutOfTime(Exception):
    """Raised by `keep_going`: the case in hand is given up, and what was measured before it is returned."""


@dataclass(frozen=True)
class Pace:
    """How much is measured, and how long it may take.  Each round has `warm` untimed and `timed` timed samples."""

    rounds: int = 8
    warm: int = 1
    timed: int = 3
    graph_s: float = GRAPH_S  # a sample of the kernel metric on a GPU: one replay of so many calls
    start_limit_s: float = 180
    prepare_limit_s: float = 240
    turn_limit_s: float = 60

    def on(self, metric: Metric) -> "Pace":
        """A sample of the other metrics takes longer, or is the same every time."""
        match metric:
            case Metric.KERNEL | Metric.CALL:
                return self
            case Metric.BLOCK:
                return replace(self, rounds=min(self.rounds, 10), warm=1, timed=min(self.timed, 3))
            case Metric.COMPILE | Metric.MEMORY:
                return replace(self, rounds=1, warm=0, timed=1)


@dataclass
class Cell:
    """One contender at one case: the median of each round in the unit of the metric, None where it did not count."""

    state: str
    reason: str | None = None
    samples: list[float | None] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, str] = field(default_factory=dict)  # by kernel, the configuration that its autotuner chose

    def becomes(self, state: str, reason: str) -> None:
        """No longer measured: a time that was taken on the way is nobody's business."""
        self.state, self.reason = state, reason
        self.samples.clear()


@dataclass
class Trial:
    """What one trial saw.  `stacks` are in the order of the contenders, `ceilings` what the GPU can do at best."""

    cells: dict[tuple[str, Case], Cell] = field(default_factory=dict)
    stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    telemetry: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)


def order(labels: Sequence[str], round_number: int, start: int = 0) -> list[str]:
    """Who goes when: reversed every second round, rotated every second one.

    Over `2 * len(labels)` rounds everybody stands twice in each place, once in each direction.
    """
    turned = (round_number // 2 + start) % max(1, len(labels))
    rotated = [*labels[turned:], *labels[:turned]]
    return rotated[::-1] if round_number % 2 else rotated


def run_trial(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    pace: Pace,
    *,
    device: str,
    seed: int,
    core: int | None = None,
    thorough: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    keep_going: Callable[[], None] = lambda: None,
    once_open: Callable[[], None] = lambda: None,
    uuid: str | None = None,
    watch: telemetry.Watch | None = None,
    deadline: float = math.inf,
    repeats_before: KnownRepeats = NOTHING_KNOWN,
) -> Trial:
    """Measure every case with every contender, in fresh processes.

    `device` is "cpu" or "cuda"; `core` pins all contenders to one core.  A `thorough` trial, the first of a session,
    also gathers facts, measures what the GPU can do at best, and checks what cannot change from trial to trial.
    `keep_going` is called between turns and about every second of a longer wait; what it raises ends the trial, with
    every process ended (`OutOfTime` ends it early, with what was measured).  `once_open` is called when all have
    started.  `watch` reads the device (by default NVML on "cuda", the GPU with this `uuid`); a round with a reason in
    it is dropped for everybody and repeated.  No case begins after `deadline`, a time of the monotonic clock: what was
    measured until then is returned.  `repeats_before` says how code repeated that was measured in earlier runs.

    A contender takes part at its own cases alone: elsewhere it has no turn and no cell, and one that has none of
    these cases is not started.
    """
    contenders = [one for one in contenders if any(map(one.takes, cases))]
    session = _Session(contenders, pace, device, seed, core, thorough, keep_going, uuid, watch, repeats_before)
    try:
        with suppress(OutOfTime):
            session.open()
            once_open()
            for number, case in enumerate(cases, 1):
                if time.monotonic() > deadline:
                    break
                progress(f"{number}/{len(cases)} {case}")
                session.measure(case)
        return session.ended(contenders)
    finally:
        session.close()


class _Session:
    def __init__(
        self,
        contenders: Sequence[Contender],
        pace: Pace,
        device: str,
        seed: int,
        core: int | None,
        thorough: bool,
        keep_going: Callable[[], None],
        uuid: str | None,
        watch: telemetry.Watch | None,
        repeats_before: KnownRepeats,
    ) -> None:
        self.pace, self.device, self.seed, self.thorough = pace, device, seed, thorough
        self.keep_going, self.uuid, self.watch = keep_going, uuid, watch
        self.repeats_before = repeats_before
        self.random = random.Random(seed)  # noqa: S311  an order, not a secret
        # Who starts and allocates when, and who follows whom in a round, must differ from trial to trial: in a fixed
        # order equal code in two places differed by 1.4 to 1.8 %, the same way in every trial (H200, November).
        shuffled = self.random.sample(contenders, len(contenders))
        self.players = ContenderProcesses(shuffled, device, core, keep_going)
        self.reading: dict[str, Any] = {}  # of the device, when it was last looked at
        self.trial = Trial()

    # -- beginning and ending -----------------------------------------------------------------------------------------

    def open(self) -> None:
        began = time.monotonic()
        self.players.start_missing(self.pace.start_limit_s)
        began = self._spent("start", began)
        if self.watch is None and self.device == "cuda":
            self.watch = telemetry.watch(self.uuid or self._trusted_uuid())
        if self.device == "cuda" and self.thorough:
            self._measure_ceilings()
        self._spent("ceilings", began)
        self._note("trial")

    def _trusted_uuid(self) -> str | None:
        """Where no caller says which GPU it is, one that runs nothing of the target's may."""
        trusted = [player.label for player in self.players.all if player.contender.trusted]
        uuids = (self.players.stacks.get(label, {}).get("device", {}).get("uuid") for label in trusted)
        return next((uuid for uuid in uuids if isinstance(uuid, str)), None)

    def _measure_ceilings(self) -> None:
        """By one that runs nothing of the target's, so there are none without such a one."""
        for player in self.players.all:
            if player.contender.trusted and player.channel is not None and not self.trial.ceilings:
                answer, _ = self.players.ask(player, protocol.CEILINGS, self.pace.prepare_limit_s)
                found = mapping(answer.get("ceilings"))
                self.trial.ceilings = {name: best for name, best in found.items() if _is_figure(best)}
                if reason := reason_of(answer):
                    self.trial.telemetry.append({"when": "ceilings", "reason": reason})

    def ended(self, contenders: Sequence[Contender]) -> Trial:
        started = self.players.stacks
        self.trial.stacks = {one.label: started[one.label] for one in contenders if one.label in started}
        return self.trial

    def close(self) -> None:
        self.players.close()

    # -- measuring ----------------------------------------------------------------------------------------------------

    def measure(self, case: Case) -> None:
        began = time.monotonic()
        self.players.start_missing(self.pace.start_limit_s)
        began = self._spent("start", began)
        cells = self._prepared(case)
        began = self._spent("prepare", began)
        self._note(f"before {case}")
        self._rounds(cells, case)
        self._note(f"after {case}")
        began = self._spent("rounds", began)
        self._check(cells)
        self._spent("check", began)
        self.trial.cells |= {(player.label, case): cell for player, cell in cells.items()}

    def _prepared(self, case: Case) -> dict[ContenderProcess, Cell]:
        """Whoever times on the device gets ready alone, and so does a block, for its memory; the others together.

        That an autotuner is about to time candidates shows only then: who says so is asked again when the others are
        ready.  Each has a share of the memory, so that nobody takes what another needs.
        """
        taking = [player for player in self.players.all if player.contender.takes(case)]
        present = [player for player in taking if player.channel is not None]
        alone = [player for player in present if player.tunes or case.metric in (Metric.COMPILE, Metric.BLOCK)]
        at_once = {player: self._question(player, case, alone=False) for player in present if player not in alone}
        limit = self.pace.prepare_limit_s
        answers = self.players.ask_all(at_once, limit)
        alone += [player for player in at_once if answers.get(player, {}).get("needs_device") is True]
        in_turn = {player: self._question(player, case, alone=True) for player in alone}
        answers |= self.players.ask_all(in_turn, limit, 1)
        cells = {player: self._cell(player, answers.get(player), case) for player in taking}
        self._compare_bits(cells, case)
        return cells

    def _question(self, player: ContenderProcess, case: Case, *, alone: bool) -> dict[str, Any]:
        known = {code: repeats for (at, code), repeats in self.repeats_before.items() if at == case}
        return protocol.prepare(
            case,
            self.seed,
            thorough=self.thorough,
            graph_s=self.pace.graph_s,
            alone=alone,
            repeats=ENOUGH if player.contender.role in COMPARED_WITH else FEWEST,
            known=known,
        )

    def _compare_bits(self, cells: Mapping[ContenderProcess, Cell], case: Case) -> None:
        """Other bits in the graph than in a call are wrong only of code that is known to repeat.

        What the same code showed in any process of this trial, or in an earlier run, counts for all of them.
        """
        estimates: dict[str, list[Repeats]] = {}
        for (at, code), before in self.repeats_before.items():
            if at == case:
                estimates[code] = [before]
        own = {player: _estimate(cell) for player, cell in cells.items()}
        for player, cell in cells.items():
            if estimate := own[player]:
                estimates.setdefault(_code(cell, player), []).append(estimate)
        for player, cell in cells.items():
            if own[player] and (found := together(estimates[_code(cell, player)])):
                cell.facts |= found.facts
                if found.repeatable and cell.facts.get("graph_bits") == "other":
                    cell.becomes(INVALID, OTHER_BITS)

    def _cell(self, player: ContenderProcess, answer: Mapping[str, Any] | None, case: Case) -> Cell:
        if answer is None:
            return Cell(FAILED, player.gone)
        state = answer.get("state")
        cell = Cell(
            state if state in (MEASURED, INVALID, UNSUPPORTED) else FAILED,
            reason_of(answer),
            facts=mapping(answer.get("facts")),
            extra={key: answer[key] for key in _EXTRA if key in answer},
            tuned=_texts(answer.get("tuned")),
        )
        most = most_calls(case, self.pace.graph_s)
        in_graph = self.device == "cuda" and case.metric is Metric.KERNEL
        if cell.state == MEASURED and in_graph and not 0 < _count(cell.extra.get("calls")) <= most:
            said = str(cell.extra.get("calls"))[:20]
            cell.becomes(INVALID, f"says that its graph holds {said} calls, of at most {most}")
        return cell

    def _rounds(self, cells: Mapping[ContenderProcess, Cell], case: Case) -> None:
        pace = self.pace.on(case.metric)
        by_label = {player.label: player for player in cells}
        turns = {player: Turns(player.contender.trusted) for player in cells}
        start = self.random.randrange(max(1, len(cells)))
        spare = pace.rounds // 2  # rounds that may be repeated because the device was throttled
        clocks: list[int] = []
        done = number = 0
        while done < pace.rounds:
            # in each round the same who are still in it, so that places stay balanced among them
            present = [player.label for player, cell in cells.items() if cell.state == MEASURED]
            if not present:
                return
            for label in order(present, number, start):
                self.keep_going()
                self._turn(by_label[label], cells[by_label[label]], pace, turns[by_label[label]])
            number += 1
            if self._spoiled(cells):
                if spare > 0:
                    spare -= 1
                    continue
            elif mhz := self.reading.get("gpu", {}).get("sm_mhz"):
                clocks.append(mhz)
            done += 1
        timed = sum(sum(each.claimed) for each in turns.values())
        self.trial.seconds["timed"] = self.trial.seconds.get("timed", 0.0) + timed  # part of the rounds
        for player, cell in cells.items():
            if clocks:
                cell.extra["sm_mhz"] = statistics.median(clocks)
            why = disagreement(turns[player], turns.values(), self.device) if case.metric is Metric.KERNEL else None
            if why and cell.state == MEASURED:
                cell.becomes(INVALID, why)

    def _turn(self, player: ContenderProcess, cell: Cell, pace: Pace, turns: Turns) -> None:
        answer, waited = self.players.ask(player, protocol.turn(pace.warm, pace.timed), pace.turn_limit_s)
        taken = answer.get("samples")
        if not isinstance(taken, list) or not taken or not all(_is_figure(each) for each in taken):
            cell.becomes(FAILED, reason_of(answer) or f"answered a turn with {str(answer)[:100]}")
            return
        cell.samples.append(statistics.median(taken))
        # On a CPU the calls of a sample change when the others are ready; in a graph they cannot.
        calls = cell.extra.get("calls") if self.device == "cuda" else answer.get("calls", cell.extra.get("calls"))
        claimed_us = statistics.fmean(taken) * (pace.warm + pace.timed)
        turns.add(waited, min(claimed_us / 1e6 * max(1, _count(calls)), LARGEST))

    def _spoiled(self, cells: Mapping[ContenderProcess, Cell]) -> bool:
        """Was the device throttled since it was last looked at?  Then this round counts for nobody."""
        if self.watch is None:
            return False
        before, self.reading = self.reading, self.watch.glance()
        if not (reasons := telemetry.spoiled(self.reading, before)):
            return False
        self.trial.telemetry.append({"when": "dropped a round", "reasons": reasons, **self.reading})
        for cell in cells.values():
            if cell.state == MEASURED:
                cell.samples[-1] = None
        return True

    def _check(self, cells: Mapping[ContenderProcess, Cell]) -> None:
        """One after the other where fresh numbers are timed, which a thorough trial does."""
        measured = [player for player, cell in cells.items() if player.channel and cell.state == MEASURED]
        at_once = 1 if self.thorough else None
        answers = self.players.ask_all(dict.fromkeys(measured, protocol.CHECK), self.pace.prepare_limit_s, at_once)
        for player, cell in cells.items():
            if (answer := answers.get(player)) and answer.get("state") != MEASURED:
                state = answer.get("state") if answer.get("state") in (INVALID, FAILED) else FAILED
                cell.becomes(str(state), reason_of(answer) or "gave no reason")
            elif answer:
                player.replaced = 0
        self.players.ask_all(dict.fromkeys(cells, protocol.FREE), self.pace.turn_limit_s)

    # -- keeping notes ------------------------------------------------------------------------------------------------

    def _note(self, when: str) -> None:
        self.reading = self.watch.whole() if self.watch is not None else {"host": telemetry.host()}
        self.trial.telemetry.append({"when": when, **self.reading})

    def _spent(self, what: str, began: float) -> float:
        now = time.monotonic()
        self.trial.seconds[what] = self.trial.seconds.get(what, 0.0) + now - began
        return now


def _estimate(cell: Cell) -> Repeats | None:
    """How a contender says that its calls repeat; a graph that varies is an output of its own."""
    found = of_facts(cell.facts)
    return (
        replace(found, distinct=max(2, found.distinct))
        if found and cell.facts.get("graph_bits") == "varying"
        else found
    )


def _code(cell: Cell, player: ContenderProcess) -> str:
    """The hash of its code; code that has none is nobody else's."""
    code = cell.facts.get("code")
    return code if isinstance(code, str) and code else player.label


def _texts(said: object) -> dict[str, str]:
    """A contender's texts by name, bounded."""
    known = list(mapping(said).items())[:MAX_TUNED]
    return {str(name)[:MAX_TUNED]: str(text)[:MAX_TUNED] for name, text in known}


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < LARGEST


def _count(value: object) -> int:
    """What a contender says is a number of things, 0 where it is none."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < LARGEST else 0
