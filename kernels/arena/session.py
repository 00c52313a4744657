"""The arena: contenders take turns on one device, in an order that changes every round.  Torch-free.

Each contender is one process, and a trial is one set of fresh processes.  Taking turns matters most: running all of one
contender and then all of the other leaves 2 to 4 % of drift in the ratio for any number of samples, and in a fixed
order the second of two equal contenders ran up to 4 % faster (H200, November).
"""

import math
import random
import secrets
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

from ..cases import AnyCase, FunctionCase, Metric, Role, Rounding
from ..errors import FAILED, INVALID, MEASURED, UNSUPPORTED
from . import protocol, telemetry
from .channel import ContenderLost
from .clock_audit import (
    MAX_WAIT_US,
    Passes,
    Turns,
    believed_restoring,
    disagreement,
    left_work,
    ran_while_frozen,
    too_fast,
    too_few_sets,
)
from .code import CodeReader, CompiledText
from .function_outputs import differing_outputs
from .judging import Examination, Judge
from .pool import (
    MAX_MEMORY_SHARE,
    Connection,
    Contender,
    ContenderProcess,
    ContenderProcesses,
    ProcessPool,
    mapping,
    reason_of,
)
from .repeatability import FULL_REPEATS, MIN_REPEATS, Repeats, combine, of_facts
from .sizes import GRAPH_S, MAX_SETS, device_bytes, max_calls
from .tunings import MAX_KERNELS, MAX_TEXT, Tunings

__all__ = [
    "NOTHING_KNOWN",
    "Cell",
    "Connection",
    "Contender",
    "Judge",
    "KnownRepeats",
    "OutOfTime",
    "Pace",
    "ProcessPool",
    "Trial",
    "Tunings",
    "order",
    "run_trial",
    "run_trials",
]

# Copied from the answer to `prepare`; `sm_mhz`, the device's clock during the rounds, is added.
_EXTRA = ("errors", "sets", "calls", "l2_resident", "prepare_s", "spent")
PASS_EVERY = 2  # rounds; a single pass costs about as much as a turn
MAX_LEFT_S = 1.0  # from the end of a turn until the device is idle
MAX_SAMPLE = 1e12  # eleven days, or a terabyte
OTHER_BITS = "its CUDA graph computes something else than its calls: other bits"
FULLY_REPEATED = (Role.HEAD, Role.PARENT)  # whose repeatability is estimated; of the others a few calls are compared

KnownRepeats = Mapping[tuple[AnyCase, str], Repeats]  # by case and hash of the code
NOTHING_KNOWN: KnownRepeats = {}
KnownInexact = Mapping[tuple[str, AnyCase], str]  # by label and case the reason why an earlier trial called it invalid
NONE_INEXACT: KnownInexact = {}


class OutOfTime(Exception):
    """Raised by `keep_going`: drop the current case and return the cases that are complete."""


@dataclass(frozen=True)
class Pace:
    """How much to measure, and time limits.  Each round has `warm` untimed and `timed` timed samples."""

    rounds: int = 8
    kernel_rounds: int | None = None  # of the kernel metric, if others
    warm: int = 1
    timed: int = 3
    graph_s: float = GRAPH_S  # seconds of a sample of the kernel metric on a GPU: one replay of a graph
    start_limit_s: float = 180
    prepare_limit_s: float = 240
    turn_limit_s: float = 60
    counts: bool = False  # samples are counts: whole numbers, 0 included

    def on(self, metric: Metric) -> "Pace":
        """The pace for a metric: samples of some take longer, or do not vary."""
        match metric:
            case Metric.KERNEL:
                return replace(self, rounds=self.kernel_rounds or self.rounds)
            case Metric.CALL:
                return self
            case Metric.BLOCK:
                return replace(self, rounds=min(self.rounds, 10), warm=1, timed=min(self.timed, 3))
            case Metric.COMPILE | Metric.MEMORY:
                return replace(self, rounds=1, warm=0, timed=1)
            case Metric.RECOMPILES | Metric.BREAKS | Metric.KERNELS:
                return replace(self, rounds=1, warm=0, timed=1, counts=True)


@dataclass
class Cell:
    """One contender at one case: the median of each round in the unit of the metric, None for a dropped round."""

    state: str
    reason: str | None = None
    samples: list[float | None] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    tuned: dict[str, str] = field(default_factory=dict)  # by kernel, the configuration that the autotuner chose
    reused: bool = False  # it chose so in earlier trials, and timed no candidates in this one
    texts: tuple[CompiledText, ...] = ()  # of a thorough trial, where the code is not that of the other revisions
    inexact: bool = False  # invalid for its numbers alone
    apart: list[float | None] = field(default_factory=list)  # samples of the rounds with inexact contenders

    def becomes(self, state: str, reason: str) -> None:
        """Change to a state other than measured, and discard the samples."""
        self.state = state
        self.reason = reason
        self.samples.clear()


@dataclass
class Trial:
    """The results of one trial.  `stacks` are in the order of the contenders; `ceilings`: see `contender.ceilings`."""

    cells: dict[tuple[str, AnyCase], Cell] = field(default_factory=dict)
    stacks: dict[str, dict[str, Any]] = field(default_factory=dict)
    telemetry: list[dict[str, Any]] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    ceilings: dict[str, float] = field(default_factory=dict)


def order(labels: Sequence[str], round_number: int, start: int = 0) -> list[str]:
    """The order of turns in a round: rotated every two rounds, and reversed in every second one.

    Over `2 * len(labels)` rounds each contender has each place twice, once in each direction.
    """
    shift = (round_number // 2 + start) % max(1, len(labels))
    rotated = [*labels[shift:], *labels[:shift]]
    return rotated[::-1] if round_number % 2 else rotated


def run_trial(
    contenders: Sequence[Contender], cases: Sequence[AnyCase], pace: Pace, *, seed: int, **options: Any
) -> Trial:
    """A single trial, with the options of `run_trials`."""
    return run_trials(contenders, cases, pace, seeds=[seed], **options)[0]


def run_trials(
    contenders: Sequence[Contender],
    cases: Sequence[AnyCase],
    pace: Pace,
    *,
    device: str,
    seeds: Sequence[int],
    core: int | None = None,
    thorough: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    keep_going: Callable[[], None] = lambda: None,
    once_open: Callable[[Trial], None] = lambda _: None,
    measured: Callable[[AnyCase, Mapping[str, Cell]], None] = lambda _case, _cells: None,
    uuid: str | None = None,
    memory: int = 0,
    watch: telemetry.Watch | None = None,
    deadline: float = math.inf,
    repeats_before: KnownRepeats = NOTHING_KNOWN,
    inexact_before: KnownInexact = NONE_INEXACT,
    tunings: Tunings | None = None,
    pool: ProcessPool | None = None,
    judge: Judge | None = None,
) -> list[Trial]:
    """Measure every case with every contender in one trial for each seed, each trial in fresh processes.

    The trials run side by side: all of them prepare and check their cases at the same time, each another case, and then
    take their turns, one trial after the other.  Those whose tensors do not fit into the `memory` of the device at the
    same time (in bytes; 0: not known) prepare one after the other.

    `device` is "cpu" or "cuda"; `core` pins all contenders to one core.  In a `thorough` call, the first of a session,
    the first trial also gathers facts, measures the ceilings of the GPU, and checks what cannot change from trial to
    trial.  `keep_going` is called between turns and about every second of a longer wait.  Its exceptions end the trials
    and all processes; after `OutOfTime` the complete cases are returned.  `once_open` gets the first trial when all
    processes have started, with their stacks and the ceilings; `measured` gets the cells of each case of a trial once
    it is complete.  `watch` reads the device (default on "cuda": NVML, the GPU with this `uuid`); a throttled round is
    dropped for all contenders and repeated.  No case begins after `deadline`, a time of the monotonic clock.
    `repeats_before` says how code repeated in earlier runs.  Processes come from `pool`, where some may wait.  During a
    turn, all other processes are frozen, those that wait as well.  On a CPU, `judge` judges outputs of the turns of the
    kernel metric.

    A contender that is invalid because its numbers are not exact enough is timed as well, after the others: `apart` of
    its cell has its samples, and `apart` of the cells of the revisions that took turns with it has theirs.
    `inexact_before` names those that an earlier trial called so, because a later one may not compare all outputs.

    `tunings` has what autotuners chose in earlier trials of the session, and gets what they choose in these: a stable
    choice is reused.  Without it, every contender tunes anew in each trial.

    A contender that does not take part at a case has no turn and no cell there; one without any of these cases is not
    started, unless it is a witness on a GPU.
    """
    contenders = [one for one in contenders if any(map(one.takes, cases)) or (one.witness and device == "cuda")]
    with closing(ProcessPool(device, len(contenders) * len(seeds), core)) as own:
        session = _Session(
            contenders,
            pace,
            device,
            seeds,
            thorough,
            keep_going,
            uuid,
            memory,
            watch,
            repeats_before,
            inexact_before,
            tunings,
            pool or own,
            judge,
        )
        try:
            with suppress(OutOfTime):
                session.open(cases)
                once_open(session.so_far(contenders)[0])
                for number in range(len(cases)):
                    if time.monotonic() > deadline:
                        break
                    for trial_cases in session.trial_cases(number, cases):
                        progress(f"{number + 1}/{len(cases)} {trial_cases[0].case}")
                        session.measure(trial_cases)
                        for trial_case in trial_cases:
                            cells = trial_case.running.trial.cells
                            takes = (one.label for one in contenders if one.takes(trial_case.case))
                            measured(trial_case.case, {label: cells[label, trial_case.case] for label in takes})
            return session.so_far(contenders)
        finally:
            session.close()


@dataclass(eq=False)
class _RunningTrial:
    """One of the trials that run side by side."""

    seed: int
    thorough: bool
    random: random.Random
    processes: list[ContenderProcess]
    trial: Trial = field(default_factory=Trial)


@dataclass(eq=False)
class _TrialCase:
    """A case of one of the trials, with what its contenders did there."""

    running: _RunningTrial
    case: AnyCase
    cells: dict[ContenderProcess, Cell] = field(default_factory=dict)


class _Session:
    def __init__(
        self,
        contenders: Sequence[Contender],
        pace: Pace,
        device: str,
        seeds: Sequence[int],
        thorough: bool,
        keep_going: Callable[[], None],
        uuid: str | None,
        memory: int,
        watch: telemetry.Watch | None,
        repeats_before: KnownRepeats,
        inexact_before: KnownInexact,
        tunings: Tunings | None,
        pool: ProcessPool,
        judge: Judge | None,
    ) -> None:
        self.pace = pace
        self.device = device
        self.keep_going = keep_going
        self.uuid = uuid
        self.memory = memory
        self.watch = watch
        self.repeats_before = repeats_before
        self.inexact_before = inexact_before
        self.tunings = tunings
        self.pool = pool
        self.judge = judge
        self.inputs: dict[ContenderProcess, Any] = {}  # where they are, as the answers to `prepare` say
        self.sampled: dict[ContenderProcess, Any] = {}  # elements of the outputs of functions, likewise
        # The order of starting and allocating, and of turns, must differ from trial to trial: in a fixed order equal
        # code in two places differed by 1.4 to 1.8 %, with the same sign in every trial (H200, November).
        orders = [random.Random(seed) for seed in seeds]  # noqa: S311  an order, not a secret
        shuffled = [order.sample(contenders, len(contenders)) for order in orders]
        self.processes = ContenderProcesses(shuffled, pool, keep_going)
        self.trials = [
            _RunningTrial(seed, thorough and not number, order, processes)
            for number, (seed, order, processes) in enumerate(zip(seeds, orders, self.processes.by_trial, strict=True))
        ]
        self.code = CodeReader(self.processes)
        self.reading: dict[str, Any] = {}  # the last one of the device

    # -- beginning and ending -----------------------------------------------------------------------------------------

    def open(self, cases: Sequence[AnyCase]) -> None:
        began = time.monotonic()
        if self.judge is not None and any(map(self._is_judged, cases)):
            self.judge.begin()
        self.processes.start_missing(self.pace.start_limit_s)
        began = self._spent("start", began)
        if self.watch is None and self.device == "cuda":
            self.watch = telemetry.watch(self.uuid or self._trusted_uuid())
        if self.device == "cuda" and self.trials[0].thorough:
            self._measure_ceilings(self.trials[0])
        self._spent("ceilings", began)
        for running in self.trials:
            self._note(running, "trial")

    def trial_cases(self, number: int, cases: Sequence[AnyCase]) -> Iterator[list[_TrialCase]]:
        """The next case of each trial, in groups that fit into the memory of the device.

        Each trial begins elsewhere, so that what one has compiled serves the others.
        """
        apart = len(cases) / len(self.trials)
        together: list[_TrialCase] = []
        needed = 0
        for at, running in enumerate(self.trials):
            trial_case = _TrialCase(running, cases[(number + int(at * apart)) % len(cases)])
            own = self._device_bytes(trial_case)
            if together and needed + own > MAX_MEMORY_SHARE * self.memory:
                yield together
                together, needed = [], 0
            together.append(trial_case)
            needed += own
        yield together

    def _device_bytes(self, trial_case: _TrialCase) -> int:
        if not self.memory or trial_case.case.metric is not Metric.KERNEL:
            return 0
        if isinstance(trial_case.case, FunctionCase):  # of which only its contenders know how much they need
            return self.memory
        return len(self._taking(trial_case)) * device_bytes(trial_case.case, self.memory, self.pace.graph_s)

    def _trusted_uuid(self) -> str | None:
        """The GPU as reported by a contender that runs no code of the target, if the caller does not know it."""
        stacks = (process.stack or {} for process in self.processes.all if process.contender.trusted)
        uuids = (stack.get("device", {}).get("uuid") for stack in stacks)
        return next((uuid for uuid in uuids if isinstance(uuid, str)), None)

    def _measure_ceilings(self, running: _RunningTrial) -> None:
        """Measured by a contender that runs no code of the target; none without such a contender."""
        trial = running.trial
        for process in running.processes:
            if process.contender.trusted and process.channel is not None and not trial.ceilings:
                answer, _ = self.processes.ask(process, protocol.CEILINGS, self.pace.prepare_limit_s)
                found = mapping(answer.get("ceilings"))
                trial.ceilings = {name: value for name, value in found.items() if _is_figure(value)}
                if reason := reason_of(answer):
                    trial.telemetry.append({"when": "ceilings", "reason": reason})

    def so_far(self, contenders: Sequence[Contender]) -> list[Trial]:
        for running in self.trials:
            stacks = {process.label: process.stack for process in running.processes if process.stack is not None}
            running.trial.stacks = {one.label: stacks[one.label] for one in contenders if one.label in stacks}
        return [running.trial for running in self.trials]

    def close(self) -> None:
        self.processes.close()

    # -- measuring ----------------------------------------------------------------------------------------------------

    def measure(self, trial_cases: Sequence[_TrialCase]) -> None:
        began = time.monotonic()
        self.processes.start_missing(self.pace.start_limit_s)
        began = self._spent("start", began)
        self._prepare(trial_cases)
        began = self._spent("prepare", began)
        with self._frozen():
            self._require_idle(trial_cases)
            for trial_case in trial_cases:
                self._note(trial_case.running, f"before {trial_case.case}")
                began = self._spent("rounds", began)
                examination = self._examination(trial_case)
                began = self._spent("judge", began)
                self._rounds(trial_case, trial_case.cells, examination)
                began = self._spent("rounds", began)
                if examination is not None:
                    self._end_examination(examination, trial_case.cells)
                self._note(trial_case.running, f"after {trial_case.case}")
                began = self._spent("judge", began)
        self._check([(trial_case, trial_case.cells) for trial_case in trial_cases])
        began = self._spent("check", began)
        for trial_case in trial_cases:
            self._time_inexact(trial_case)
        began = self._spent("inexact", began)
        for trial_case in trial_cases:
            if trial_case.running.thorough:
                self._read_code(trial_case)
        everyone = [process for trial_case in trial_cases for process in trial_case.cells]
        self.processes.ask_all(dict.fromkeys(everyone, protocol.FREE), self.pace.turn_limit_s)
        self._spent("code", began)
        for trial_case in trial_cases:
            trial_case.running.trial.cells |= {
                (process.label, trial_case.case): cell for process, cell in trial_case.cells.items()
            }

    def _prepare(self, trial_cases: Sequence[_TrialCase]) -> None:
        """Prepare contenders that time candidates, compile or run a block one by one, and the others together.

        Only the preparation shows that an autotuner is about to time candidates: such a contender answers
        `needs_device`, and is prepared again when the others are ready.
        """
        together, alone = dict[ContenderProcess, _TrialCase](), dict[ContenderProcess, _TrialCase]()
        for trial_case in trial_cases:
            timed = trial_case.case.metric in (Metric.COMPILE, Metric.BLOCK)
            for process in self._taking(trial_case):
                if process.channel is not None:
                    (alone if process.tunes or timed else together)[process] = trial_case

        def requests(
            some: Mapping[ContenderProcess, _TrialCase], *, alone: bool
        ) -> dict[ContenderProcess, dict[str, Any]]:
            return {process: self._request(process, trial_case, alone=alone) for process, trial_case in some.items()}

        limit_s = self.pace.prepare_limit_s
        answers = self.processes.ask_all(requests(together, alone=False), limit_s)
        alone |= {
            process: trial_case
            for process, trial_case in together.items()
            if answers.get(process, {}).get("needs_device") is True
        }
        answers |= self.processes.ask_all(requests(alone, alone=True), limit_s, 1)
        for trial_case in trial_cases:
            trial_case.cells = {
                process: self._cell(process, answers.get(process), trial_case.case)
                for process in self._taking(trial_case)
            }
            self._compare_bits(trial_case.cells, trial_case.case)
            if isinstance(trial_case.case, FunctionCase):
                self._compare_outputs(trial_case.cells, trial_case.case)

    def _taking(self, trial_case: _TrialCase) -> list[ContenderProcess]:
        return [process for process in trial_case.running.processes if process.contender.takes(trial_case.case)]

    def _request(self, process: ContenderProcess, trial_case: _TrialCase, *, alone: bool) -> dict[str, Any]:
        case = trial_case.case
        known = {code: repeats for (at, code), repeats in self.repeats_before.items() if at == case}
        return protocol.prepare(
            case,
            trial_case.running.seed,
            thorough=trial_case.running.thorough,
            graph_s=self.pace.graph_s,
            alone=alone,
            repeats=FULL_REPEATS if process.contender.role in FULLY_REPEATED else MIN_REPEATS,
            known=known,
            inexact=self.inexact_before.get((process.label, case)),
            reuse=self.tunings.stable(process.contender, case) if self.tunings is not None else None,
        )

    def _compare_bits(self, cells: Mapping[ContenderProcess, Cell], case: AnyCase) -> None:
        """Bits that differ between graph and call are wrong only for code that is known to repeat.

        Calls of the same code in any process of this trial, or in an earlier run, count together.
        """
        estimates: dict[str, list[Repeats]] = {}
        for (at, code), before in self.repeats_before.items():
            if at == case:
                estimates[code] = [before]
        own = {process: _estimate(cell) for process, cell in cells.items()}
        for process, cell in cells.items():
            if estimate := own[process]:
                estimates.setdefault(_code(cell, process), []).append(estimate)
        for process, cell in cells.items():
            if own[process] and (found := combine(estimates[_code(cell, process)])):
                cell.facts |= found.facts
                if found.repeatable and cell.facts.get("graph_bits") == "other":
                    cell.becomes(INVALID, OTHER_BITS)

    def _compare_outputs(self, cells: Mapping[ContenderProcess, Cell], case: FunctionCase) -> None:
        """Without a reference, the outputs of the head have to be those of its parent, on the same inputs."""
        parents = {
            process.contender.provider["name"]: process
            for process, cell in cells.items()
            if process.contender.role is Role.PARENT and cell.state == MEASURED
        }
        for process, cell in cells.items():
            parent = parents.get(process.contender.provider["name"])
            compares = (
                process.contender.role is Role.HEAD and cell.state == MEASURED and not _has_reference(process, case)
            )
            if parent is None or not compares:
                continue
            if reason := differing_outputs(self.sampled.get(process), self.sampled.get(parent)):
                cell.becomes(INVALID, reason)

    def _cell(self, process: ContenderProcess, answer: Mapping[str, Any] | None, case: AnyCase) -> Cell:
        if answer is None:
            return Cell(FAILED, process.gone)
        state = answer.get("state")
        cell = Cell(
            state if state in (MEASURED, INVALID, UNSUPPORTED) else FAILED,
            reason_of(answer),
            facts=mapping(answer.get("facts")),
            extra={key: answer[key] for key in _EXTRA if key in answer},
            tuned=_texts(answer.get("tuned")),
            reused=answer.get("reused") is True,
        )
        if self.tunings is not None and cell.tuned and not cell.reused:
            self.tunings.add(process.contender, case, cell.tuned)
        self.inputs[process], self.sampled[process] = answer.get("inputs"), answer.get("sampled")
        cell.inexact = cell.state == INVALID and answer.get("inexact") is True
        limit = MAX_SETS if isinstance(case, FunctionCase) else max_calls(case, self.pace.graph_s)
        in_graph = self.device == "cuda" and case.metric is Metric.KERNEL
        if cell.state == MEASURED and in_graph and not 0 < _count(cell.extra.get("calls")) <= limit:
            claimed = str(cell.extra.get("calls"))[:20]
            cell.becomes(INVALID, f"reports {claimed} calls in its graph instead of 1 to {limit}")
        return cell

    def _is_judged(self, case: AnyCase) -> bool:
        """Are outputs of the turns of this case judged?"""
        return self.device == "cpu" and case.metric is Metric.KERNEL

    def _examination(self, trial_case: _TrialCase) -> Examination | None:
        """How the outputs of the turns are judged; None where they are not."""
        case = trial_case.case
        if self.judge is None or not self._is_judged(case) or isinstance(case, FunctionCase):
            return None  # of a function nobody else has what is right
        examination = self.judge.examination(case, trial_case.running.seed, self.keep_going)
        if examination is None:
            trial_case.running.trial.telemetry.append({"when": "judge", "reason": self.judge.trouble})
            return None
        for process, cell in trial_case.cells.items():
            if cell.state == MEASURED:
                convention = str(process.contender.provider.get("rounding", Rounding.AFTER_WEIGHT))
                if reason := examination.add(process.label, self.inputs.get(process), convention):
                    cell.becomes(INVALID, reason)
        return examination

    def _end_examination(self, examination: Examination, cells: Mapping[ContenderProcess, Cell]) -> None:
        """Restore the inputs for the checks after the timing, and set wrong contenders to invalid."""
        for process, cell in cells.items():
            if cell.state == MEASURED and process.channel is not None:
                try:
                    examination.restore(process.label, process.channel)
                except OSError as error:
                    cell.becomes(FAILED, f"its inputs cannot be written: {error}")
        try:
            state, reasons = INVALID, examination.verdicts()
        except ContenderLost as lost:  # no contender is at fault, but nothing says that their outputs are right
            state, reasons = FAILED, {process.label: f"its outputs cannot be judged: {lost}" for process in cells}
        for process, cell in cells.items():
            if cell.state == MEASURED and (reason := reasons.get(process.label)):
                cell.becomes(state, reason)

    def _rounds(
        self, trial_case: _TrialCase, cells: Mapping[ContenderProcess, Cell], examination: Examination | None = None
    ) -> None:
        case, trial = trial_case.case, trial_case.running.trial
        pace = self.pace.on(case.metric)
        by_label = {process.label: process for process in cells}
        books = {process: _Book(process.contender.trusted) for process in cells}
        columns = secrets.randbelow(pace.rounds)  # the round in which sums over all rows are judged
        start = trial_case.running.random.randrange(max(1, len(cells)))
        spare = max(1, pace.rounds // 2)  # rounds that may be repeated because the device was throttled
        clocks: list[int] = []
        doubts: dict[ContenderProcess, str] = {}
        done, number, wanted = 0, 0, pace.rounds
        while done < wanted:
            # the order is balanced only among the contenders that still take part
            present = [process.label for process, cell in cells.items() if cell.state == MEASURED]
            if not present:
                return
            in_order = [by_label[label] for label in order(present, number, start)]
            if examination is not None and number % PASS_EVERY == 0:
                examination.draw_numbers(once=True)
                for process in in_order:
                    once = replace(pace, warm=0, timed=1)
                    self._turn(process, cells[process], once, books[process], examination, case, once=True)
            if examination is not None:
                examination.draw_numbers(columns=number == columns)
            for process in in_order:
                self.keep_going()
                self._turn(process, cells[process], pace, books[process], examination, case)
            number += 1
            if self._spoiled(trial, cells, case.metric):
                if spare > 0:
                    spare -= 1
                    continue
            elif mhz := self.reading.get("gpu", {}).get("sm_mhz"):
                clocks.append(mhz)
            done += 1
            if done < wanted:
                continue
            doubts = self._doubts(cells, books, case)
            if doubts and wanted == pace.rounds:
                # On a busy host answers of an honest contender come late; more rounds show whether its clock is wrong.
                wanted *= 2
                trial.telemetry.append({"when": "asked for more rounds", "reasons": sorted(doubts.values())})
        timed = sum(sum(book.turns.claimed) for book in books.values())
        trial.seconds["timed"] = trial.seconds.get("timed", 0.0) + timed  # part of the rounds
        for process, cell in cells.items():
            if clocks:
                cell.extra["sm_mhz"] = statistics.median(clocks)
            if cell.state == MEASURED:
                reason = ran_while_frozen(books[process].frozen_cpu, self.device) or doubts.get(process)
                if reason:
                    cell.becomes(INVALID, reason)

    def _doubts(
        self, cells: Mapping[ContenderProcess, Cell], books: Mapping[ContenderProcess, "_Book"], case: AnyCase
    ) -> dict[ContenderProcess, str]:
        """The contenders whose times cannot be true by what the driver saw of their turns, with the reasons."""
        for process, book in books.items():
            inputs = self.inputs.get(process)  # code of the target may answer anything
            book.passes.expect(cells[process].samples, len(inputs) if isinstance(inputs, list) else 0)
        doubts: dict[ContenderProcess, str] = {}
        for process in (process for process, cell in cells.items() if cell.state == MEASURED):
            reason = left_work(books[process].waits_us)
            if reason is None and case.metric is Metric.KERNEL:
                reason = disagreement(books[process].turns, [book.turns for book in books.values()], self.device)
            if reason is None and not isinstance(case, FunctionCase):
                reason = too_few_sets(books[process].passes, case)
            if reason is None:
                reason = too_fast(books[process].passes, [book.passes for book in books.values()])
            if reason:
                doubts[process] = reason
        return doubts

    def _time_inexact(self, trial_case: _TrialCase) -> None:
        """Time the contenders that are not exact enough, in turns with the revisions that they are compared with."""
        cells = trial_case.cells
        inexact = [process for process, cell in cells.items() if cell.inexact and process.channel is not None]
        if not inexact:
            return
        others = [process for process, cell in cells.items() if process.channel and cell.state == MEASURED]
        compared = [process for process in others if any(_are_compared(process, one) for one in inexact)]
        turned = {process: Cell(MEASURED, extra=dict(cells[process].extra)) for process in (*inexact, *compared)}
        with self._frozen():
            self._rounds(trial_case, turned)
        samples = {process: list(cell.samples) for process, cell in turned.items()}
        # finds more than numbers that are not exact
        self._check([(trial_case, {process: turned[process] for process in inexact})])
        for process, cell in turned.items():
            if cell.state == MEASURED or cell.inexact:
                cells[process].apart = samples[process]

    @contextmanager
    def _frozen(self) -> Iterator[None]:
        """Nothing of any contender runs, unless it is thawed for its turn."""
        try:
            for process in self.processes.all:
                process.freeze()
            self.pool.freeze()
            yield
        finally:
            for process in self.processes.all:
                process.thaw()
            self.pool.thaw()

    def _turn(
        self,
        process: ContenderProcess,
        cell: Cell,
        pace: Pace,
        book: "_Book",
        examination: Examination | None,
        case: AnyCase,
        *,
        once: bool = False,
    ) -> None:
        """A turn of a frozen contender; with `once`, a single pass over its input sets, which gives no sample."""
        if cell.state != MEASURED:
            return
        if examination is not None and process.channel is not None:
            try:
                examination.give_numbers(process.label, process.channel)
            except OSError as error:
                cell.becomes(FAILED, f"its inputs cannot be written: {error}")
                return
        cpu_before = process.cpu_s
        process.thaw()
        answer, waited = self.processes.ask(process, protocol.turn(pace.warm, pace.timed, once=once), pace.turn_limit_s)
        process.freeze()
        cpu_after = process.cpu_s
        book.waits_us += self._waits_for(process)
        if process.channel is None:  # after a valid answer as well: one that cannot be frozen has no CPU time to audit
            cell.becomes(FAILED, process.lost)
            return
        taken = answer.get("samples")
        if not isinstance(taken, list) or not taken or not all(map(_is_count if pace.counts else _is_figure, taken)):
            cell.becomes(FAILED, reason_of(answer) or f"answered a turn with {str(answer)[:100]}")
            return
        if examination is not None:
            examination.take_outputs(process.label, process.channel, answer.get("outputs"))
        # On a CPU the number of calls in a sample changes when all contenders are ready; in a graph it cannot.
        calls = cell.extra.get("calls") if self.device == "cuda" else answer.get("calls", cell.extra.get("calls"))
        claimed_us = statistics.fmean(taken) * (pace.warm + pace.timed)
        claimed = min(claimed_us / 1e6 * max(1, _count(calls)), MAX_SAMPLE)
        if process.contender.provider.get("inplace") and not isinstance(case, FunctionCase):
            called = max(1, _count(calls)) * (pace.warm + pace.timed)
            claimed += believed_restoring(answer.get("restoring_s"), case, self.device, called)
        book.add(waited, claimed, cpu_before, cpu_after, once=once)
        if not once:
            cell.samples.append(statistics.median(taken))

    def _waits_for(self, process: ContenderProcess) -> list[float]:
        """How long the GPU stays busy with work that a frozen contender left, as a trusted one sees it; in us.

        Returns when it is idle.  A contender whose work does not end is ended.
        """
        waits = self._waits(process)
        if waits and waits[-1] > MAX_WAIT_US:
            process.drop("its work on the device did not end after its turn")
        return waits[:1]

    def _waits(self, besides: ContenderProcess | None = None) -> list[float]:
        """How long the device let a small launch of a trusted contender wait, in us, until it was idle or for a second.

        Empty without a trusted contender, and on a CPU.
        """
        others = (other for other in self.processes.all if other is not besides and other.channel is not None)
        witness = next((other for other in others if other.contender.trusted), None)
        if self.device != "cuda" or witness is None:
            return []
        waits: list[float] = []
        deadline = time.monotonic() + MAX_LEFT_S
        with witness.witnessing():
            while not waits or waits[-1] > MAX_WAIT_US:
                answer, _ = self.processes.ask(witness, protocol.IDLE, self.pace.turn_limit_s)
                waited = answer.get("waited_us")
                if not isinstance(waited, int | float) or not _is_figure(waited):
                    break
                waits.append(waited)
                if time.monotonic() > deadline:
                    break
        return waits

    def _require_idle(self, trial_cases: Sequence[_TrialCase]) -> None:
        """End the processes of targets, those that wait first, until nothing keeps the device busy.  All are frozen."""

        def is_idle() -> bool:
            waits = self._waits()
            return not waits or waits[-1] <= MAX_WAIT_US

        if is_idle():
            return
        self.pool.drop()
        for trial_case in trial_cases:
            for process, cell in trial_case.cells.items():
                if is_idle():
                    return
                if process.channel is not None and not process.contender.trusted:
                    process.losses += 1
                    process.drop("its work on the device did not end before the turns")
                    cell.becomes(FAILED, process.lost)

    def _spoiled(self, trial: Trial, cells: Mapping[ContenderProcess, Cell], metric: Metric) -> bool:
        """Was the device throttled since the last reading?  Then drop this round for all contenders.

        Bytes and counts do not depend on the device's clocks: they are kept.
        """
        if self.watch is None:
            return False
        before = self.reading
        self.reading = self.watch.glance()
        if not metric.varies or not (reasons := telemetry.spoiled(self.reading, before)):
            return False
        trial.telemetry.append({"when": "dropped a round", "reasons": reasons, **self.reading})
        for cell in cells.values():
            if cell.state == MEASURED:
                cell.samples[-1] = None
        return True

    def _check(self, checked: Sequence[tuple[_TrialCase, Mapping[ContenderProcess, Cell]]]) -> None:
        """Ask the processes of a thorough trial one by one, because they time calls with new numbers."""
        answers: dict[ContenderProcess, dict[str, Any]] = {}
        for thorough, at_once in ((True, 1), (False, None)):
            measured = [
                process
                for trial_case, cells in checked
                for process, cell in cells.items()
                if trial_case.running.thorough is thorough and process.channel and cell.state == MEASURED
            ]
            requests = dict.fromkeys(measured, protocol.CHECK)
            answers |= self.processes.ask_all(requests, self.pace.prepare_limit_s, at_once)
        for _, cells in checked:
            for process, cell in cells.items():
                if (answer := answers.get(process)) and answer.get("state") != MEASURED:
                    state = answer.get("state") if answer.get("state") in (INVALID, FAILED) else FAILED
                    cell.becomes(str(state), reason_of(answer) or "gave no reason")
                    cell.inexact = cell.state == INVALID and answer.get("inexact") is True
                elif answer:
                    process.losses = process.replaced = 0

    def _read_code(self, trial_case: _TrialCase) -> None:
        """After everything that is measured: what happens to a process in this does not count for the case."""
        timed = {
            process: cell.facts
            for process, cell in trial_case.cells.items()
            if process.channel and (cell.state == MEASURED or cell.apart)
        }
        for process, texts in self.code.read(trial_case.case, timed).items():
            trial_case.cells[process].texts = texts

    # -- keeping notes ------------------------------------------------------------------------------------------------

    def _note(self, running: _RunningTrial, when: str) -> None:
        self.reading = self.watch.whole() if self.watch is not None else {"host": telemetry.host()}
        running.trial.telemetry.append({"when": when, **self.reading})

    def _spent(self, what: str, began: float) -> float:
        """Add the time since `began` to the trials, in equal parts; returns what time it is."""
        now = time.monotonic()
        for running in self.trials:
            seconds = running.trial.seconds
            seconds[what] = seconds.get(what, 0.0) + (now - began) / len(self.trials)
        return now


class _Book:
    """The turns of one contender at one case, and its CPU time between them, in seconds."""

    def __init__(self, trusted: bool) -> None:
        self.turns = Turns(trusted)
        self.passes = Passes(trusted)
        self.frozen_cpu = 0.0
        self.waits_us: list[float] = []  # of a trusted contender for the device, after each of its turns
        self._cpu_at_end: float | None = None

    def add(
        self, waited: float, claimed: float, cpu_before: float | None, cpu_after: float | None, *, once: bool
    ) -> None:
        """`cpu_before` and `cpu_after`: CPU time of all its processes so far; None if unknown."""
        turns = self.passes if once else self.turns
        if cpu_before is None or cpu_after is None:
            turns.add(waited, claimed)
            return
        turns.add(waited, claimed, cpu_after - cpu_before)
        if self._cpu_at_end is not None:
            self.frozen_cpu += cpu_before - self._cpu_at_end
        self._cpu_at_end = cpu_after


def _are_compared(right: ContenderProcess, inexact: ContenderProcess) -> bool:
    """Head and parent with each other; the head with a built-in provider, which has its own name."""
    roles = {right.contender.role, inexact.contender.role}
    if roles == {Role.HEAD, Role.PARENT}:
        return bool(right.contender.provider["name"] == inexact.contender.provider["name"])
    return right.contender.role is Role.HEAD and inexact.contender.role in (Role.SOTA, Role.RIVAL)


def _has_reference(process: ContenderProcess, case: FunctionCase) -> bool:
    """By the recipe, whatever the contender answers."""
    function = process.contender.provider["functions"].get(case.key)
    return function is not None and function["reference"] is not None


def _estimate(cell: Cell) -> Repeats | None:
    """The estimate in a contender's facts; a graph whose bits vary counts as a second output."""
    found = of_facts(cell.facts)
    if found and cell.facts.get("graph_bits") == "varying":
        return replace(found, distinct=max(2, found.distinct))
    return found


def _code(cell: Cell, process: ContenderProcess) -> str:
    """The hash of its code; without one the label, so that no other code equals it."""
    code = cell.facts.get("code")
    return code if isinstance(code, str) and code else process.label


def _texts(value: object) -> dict[str, str]:
    """A contender's texts by name, limited in number and length."""
    items = list(mapping(value).items())[:MAX_KERNELS]
    return {str(name)[:MAX_TEXT]: str(text)[:MAX_TEXT] for name, text in items}


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MAX_SAMPLE


def _is_count(value: object) -> bool:
    return value == 0 or (_is_figure(value) and value % 1 == 0) if isinstance(value, int | float) else False


def _count(value: object) -> int:
    """A contender's value if it is a valid count, else 0."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value < MAX_SAMPLE else 0
