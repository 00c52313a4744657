"""Run the trials of a session until every case is decided, and collect them into each contender's results."""

import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from itertools import islice
from statistics import fmean, median
from typing import Any

from kernels.arena.session import (
    NOTHING_KNOWN,
    Contender,
    Judge,
    KnownRepeats,
    OutOfTime,
    Pace,
    ProcessPool,
    Trial,
    Tunings,
    run_trials,
)
from kernels.arena.session import Cell as Turned
from kernels.cases import Case, Metric, Role
from service.domain.codefacts.texts import KernelText
from service.domain.policy.policy import Policy
from service.domain.roofline import number
from service.domain.states import BaselineKind, CellState, Outcome, Rounds
from service.domain.text import one_line
from service.domain.verdicts import judge
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.baselines import judge_baseline
from service.domain.verdicts.samples import Cell, Name
from service.domain.verdicts.session_result import ContenderResult, cells, inexact_cases
from service.settings import settings
from workers.machine.device import DeviceHere
from workers.run.baselines import LAST_CASE_S
from workers.run.heartbeat import Heart
from workers.sandbox import usage

_MAX_REPLACED = 16  # packages of the stack that a contender says its revision replaced
_MAX_VERSION = 80  # characters of their names and versions
# One wrong or failed trial decides the state of the whole case.
_WORST_FIRST = (CellState.INVALID, CellState.FAILED, CellState.UNSUPPORTED, CellState.MEASURED)


class Tally:
    """Every trial of one session, in order.  A contender that took no part in a trial has no rounds in it."""

    def __init__(self, contenders: Iterable[Contender], cases: Iterable[Case]) -> None:
        self._contenders = tuple(contenders)
        self._cases = tuple(cases)
        self._trials: list[tuple[bool, Trial]] = []

    def add(self, trial: Trial, *, confirming: bool) -> None:
        self._trials.append((confirming, trial))

    @property
    def stack(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The versions that all contenders share, and the device they ran on, by the first trial.

        SOTA and its rivals have only the stack in their processes, so their versions are the stack's; in any other a
        revision speaks for itself, which serves where there is none of them.  A package that a revision replaces is no
        part of what they share.
        """
        first = self._trials[0][1] if self._trials else Trial()
        builtin = (Role.SOTA, Role.RIVAL)
        labels = sorted(first.stacks, key=lambda label: not label.startswith(builtin))
        versions = dict(first.stacks[labels[0]]) if labels else {}
        device, replaced = versions.pop("device", {}), versions.pop("replaced", None)
        if isinstance(replaced, dict):  # a contender may answer anything
            versions = {name: version for name, version in versions.items() if name not in replaced}
        if driver := next((one["gpu"]["driver"] for one in first.telemetry if one.get("gpu", {}).get("driver")), None):
            versions["driver"] = driver
        return versions, device

    def taken(self) -> tuple[ContenderResult, ...]:
        """Values of each contender at each case so far."""
        return tuple(
            self._taken(contender, case)
            for contender in self._contenders
            for case in self._cases
            if any((contender.label, case) in trial.cells for _, trial in self._trials)
        )

    def texts(self) -> tuple[KernelText, ...]:
        """The texts of compiled code that the trials read."""
        return tuple(
            KernelText(f"{one.role}:{one.provider['name']}", str(case), text.number, text.kernel, text.kind, text.text)
            for _, trial in self._trials
            for one in self._contenders
            for case in self._cases
            if (cell := trial.cells.get((one.label, case))) is not None
            for text in cell.texts
        )

    def _taken(self, contender: Contender, case: Case) -> ContenderResult:
        turned = [(confirming, trial.cells.get((contender.label, case))) for confirming, trial in self._trials]
        seen = [cell for _, cell in turned if cell is not None]
        worst = min(seen, key=lambda cell: _WORST_FIRST.index(CellState(cell.state)))

        def rounds(confirming: bool) -> tuple[Rounds, ...]:
            return tuple(_samples(cell) for when, cell in turned if when is confirming)

        return ContenderResult(
            contender.role,
            str(contender.provider["name"]),
            case,
            CellState(worst.state),
            worst.reason,
            rounds(False),
            rounds(True),
            _known(seen) | _tuned(cell for _, cell in turned) | self._replaced(contender),
            apart=tuple(tuple(cell.apart) if cell is not None else () for _, cell in turned),
        )

    def inexact(self) -> dict[tuple[str, Case], str]:
        """The contenders that a trial called invalid for their numbers alone, by label and case, with the reason."""
        return {
            at: cell.reason or cell.state
            for _, trial in self._trials
            for at, cell in trial.cells.items()
            if cell.inexact
        }

    def _replaced(self, contender: Contender) -> dict[str, Any]:
        """The versions of the packages of the stack that the contender's revision replaced, if it did."""
        stacks = (trial.stacks.get(contender.label, {}) for _, trial in self._trials)
        found = next((named for stack in stacks if isinstance(named := stack.get("replaced"), dict)), {})
        kept = {one_line(name, _MAX_VERSION): one_line(str(version), _MAX_VERSION) for name, version in found.items()}
        return {"replaced": dict(islice(kept.items(), _MAX_REPLACED))} if kept else {}


def _known(seen: Sequence[Turned]) -> dict[str, Any]:
    """The facts of the code over all trials: the first value of each, because only the first trial gathers them all.

    One trial that did not repeat its bits makes the case unrepeatable; the clock is the median over trials.
    """
    known: dict[str, Any] = {}
    for cell in reversed(seen):
        known |= {**cell.facts, **cell.extra}
    if any(cell.facts.get("repeatable") is False for cell in seen):
        known["repeatable"] = False
    if clocks := [mhz for cell in seen if (mhz := number(cell.extra.get("sm_mhz")))]:
        known["sm_mhz"] = median(clocks)
    return known


def _tuned(trials: Iterable[Turned | None]) -> dict[str, Any]:
    """The configurations that autotuners chose in each trial, with their medians; empty without an autotuner."""
    chosen = [
        {"trial": number, "configuration": choices, "median": median(samples) if samples else None}
        | ({"reused": True} if cell.reused else {})
        for number, cell in enumerate(trials, 1)
        if cell is not None and (choices := "; ".join(f"{name} {one}" for name, one in sorted(cell.tuned.items())))
        for samples in [[one for one in _samples(cell) if one is not None]]
    ]
    return {"tuned": chosen} if chosen else {}


def _samples(cell: Turned | None) -> Rounds:
    return tuple(cell.samples) if cell is not None and CellState(cell.state) is CellState.MEASURED else ()


# A sample is some milliseconds of calls on either device.  What varies is the trial: with 4 rounds of each trial
# instead of 8, 805 stored comparisons on H200s alarm alike, 3 ask for more trials, and trials differ by a tenth more
# (docs/measurements/2026-11-28-h200-seconds/rounds.md).
ROUNDS, KERNEL_ROUNDS = 8, 4

# With more cases each is measured for less time: of the same code on two sides 95 of 100 trials still came within
# 0.5 %, and 60 cases of three contenders took 18 s a trial (H200, November).
MANY_CASES = 60
HOST_METRICS = (Metric.CALL, Metric.COMPILE)
REPEATED = (Role.HEAD, Role.PARENT, Role.CONTROL)

# A process of a trial takes a core while it imports and compiles, 0.95 GB of memory of the host, and 0.55 GB of that of
# the GPU for its context (Liger-Kernel on an H200, November).
HOST_BYTES = 1 << 30
CONTEXT_BYTES = 600 << 20
SHARE_FOR_CONTEXTS = 1 / 4  # of the memory of the GPU; the rest is for tensors
WAITING = 3  # trials of head, parent and control whose processes get ready where a confirmation is likely
LIKELY = 0.5  # of the smallest change that matters: a case that moved by this share of it may be suspected


def side_by_side(here: DeviceHere, contenders: int) -> int:
    """How many trials of so many contenders fit on this machine side by side."""
    if here.name == "cpu":
        return 1
    on_gpu = int(SHARE_FOR_CONTEXTS * here.memory) // CONTEXT_BYTES
    processes = min(on_gpu, usage.available()[0] // HOST_BYTES, len(os.sched_getaffinity(0)))
    return max(1, processes // max(1, contenders))


def pace(policy: Policy, cases: int, *, on_gpu: bool) -> Pace:
    """The pace of a trial of so many cases."""
    usual = Pace(
        rounds=policy.rounds or ROUNDS,
        kernel_rounds=KERNEL_ROUNDS if on_gpu and policy.rounds is None else None,
        warm=1,
        timed=3,
        turn_limit_s=settings().turn_limit_s,
    )
    if not on_gpu or cases <= MANY_CASES:
        return usual
    return replace(usual, rounds=min(usual.rounds, KERNEL_ROUNDS), timed=2, graph_s=0.8e-3)


class Trials:
    """`spent`: where the time of each trial went.  `late`: the time limit of the session ended it early.

    `compared_before` is asked after the first trial: the providers and cases of which an earlier session on the same
    stack compared the parent with all other baselines.
    """

    def __init__(
        self,
        tally: Tally,
        contenders: Sequence[Contender],
        policy: Policy,
        here: DeviceHere,
        heart: Heart,
        seed: int,
        known: KnownVariances = NONE_KNOWN,
        repeats_before: KnownRepeats = NOTHING_KNOWN,
        judge: Judge | None = None,
        code_decides: bool = True,
        compared_before: Callable[[], Collection[tuple[str, str]]] = tuple,
    ) -> None:
        self.spent: list[dict[str, Any]] = []
        self.ceilings: dict[str, float] = {}
        self.late = False
        self._tally, self._policy, self._heart, self._seed = tally, policy, heart, seed
        self._known, self._repeats_before, self._judge = known, repeats_before, judge
        self._code_decides, self._compared_before = code_decides, compared_before
        self._tunings = Tunings()
        self._on_gpu, self._here = here.name != "cpu", here
        self._contenders = contenders
        self._side_by_side = side_by_side(here, len(contenders))
        # On a CPU all run on one core: on two, imports for the next trial would disturb this one.
        self._core = None if self._on_gpu else max(os.sched_getaffinity(0))
        self._pool = ProcessPool("cuda" if self._on_gpu else "cpu", len(contenders), self._core)
        self._deadline = time.monotonic() + settings().session_limit_s

    def until_decided(self, cases: tuple[Case, ...]) -> None:
        """Run trials until every case is decided, confirmed, or out of budget."""
        try:
            self._run("look", self._contenders, cases)
            self._run("confirm", *self._undecided("confirm", cases), cases)
        finally:
            self._pool.close()
            if self._judge is not None:
                self._judge.close()

    def _run(
        self, kind: judge.Why, who: Sequence[Contender], on: tuple[Case, ...], cases: tuple[Case, ...] | None = None
    ) -> None:
        done, cases = 0, cases or on
        while on and not self.late and (more := judge.trials_until_next_look(done, self._policy, kind)):
            if time.monotonic() > self._deadline:
                self.late = True
                return
            # Host times would include what others do.  The first trial is alone, while the processes of the others get
            # ready: twelve at once took 6 s longer to start than four (H200 with 16 cores, November).
            apart = not self._on_gpu or any(case.metric in HOST_METRICS for case in on)
            count = 1 if apart or not self.spent else min(more, self._side_by_side)
            ahead: tuple[Sequence[Contender], int] = ((), 0)
            if not apart:
                ahead = (who, min(more - count, self._side_by_side)) if more > count else self._likely(kind, who)
            self._trials(who, on, kind, range(done, done + count), ahead)
            done, on = done + count, _measurable(self._tally, on)
            if len(self.spent) == 1:
                on = self._unsettled(on)
            if count == more:
                who, on = self._undecided(kind, cases)

    def _unsettled(self, on: tuple[Case, ...]) -> tuple[Case, ...]:
        """The cases that need more trials than the first; an autotuner may choose otherwise in the next."""
        taken = self._tally.taken()
        judged = cells(taken, code_decides=self._code_decides)
        done = judge.settled(judged, self._policy, self._known, self._compared_before())
        open_cases = {cell.case for cell in judged if cell.name not in done}
        tuned = {str(one.case) for one in taken if one.facts.get("tuned")}
        ended = {cell.case for cell in judged} - open_cases - tuned
        return tuple(case for case in on if str(case) not in ended)

    def _likely(self, kind: judge.Why, who: Sequence[Contender]) -> tuple[Sequence[Contender], int]:
        """The contenders of trials that will follow if what was seen so far stays, and how many trials."""

        def moved(cell: Cell) -> bool:
            effects = cell.screened.effects()
            return bool(effects) and abs(fmean(effects)) >= LIKELY * self._policy.at(cell.case).smallest_change

        if kind == "look" and not any(map(moved, cells(self._tally.taken(), code_decides=self._code_decides))):
            return (), 0
        return [one for one in who if one.role in REPEATED], WAITING

    def _trials(
        self,
        who: Sequence[Contender],
        on: tuple[Case, ...],
        kind: judge.Why,
        numbers: range,
        ahead: tuple[Sequence[Contender], int],
    ) -> None:
        """Run trials side by side, while the processes of so many trials `ahead` get ready."""
        names = [f"{'confirming ' * (kind == 'confirm')}trial {number + 1}" for number in numbers]
        what = names[0] if len(names) == 1 else f"{names[0]} to {numbers[-1] + 1}"
        self._heart.say(what)
        turned = run_trials(
            who,
            on,
            pace(self._policy, len(on), on_gpu=self._on_gpu),
            device="cuda" if self._on_gpu else "cpu",
            seeds=[self._seed + len(self.spent) + number for number in range(len(numbers))],
            core=self._core,
            thorough=not self.spent,
            progress=lambda now: self._heart.say(f"{what}: {now}"),
            keep_going=self._keep_going,
            once_open=lambda _: self._pool.fill(*ahead),
            uuid=self._here.uuid,
            memory=self._here.memory,
            deadline=self._deadline,
            repeats_before=self._repeats_before,
            inexact_before=self._tally.inexact(),
            # Confirming trials decide alone whether a change is real: a choice that varies must show there.
            tunings=self._tunings if kind == "look" else None,
            pool=self._pool,
            judge=self._judge,
        )
        self.late = any({case for _, case in trial.cells} != set(on) for trial in turned)
        self.ceilings = self.ceilings or turned[0].ceilings
        for name, trial in zip(names, turned, strict=True):
            self._tally.add(trial, confirming=kind == "confirm")
            self.spent.append({"what": name, "seconds": trial.seconds, "telemetry": trial.telemetry})

    def _keep_going(self) -> None:
        self._heart.keep_going()
        if time.monotonic() > self._deadline + LAST_CASE_S:
            raise OutOfTime

    def _undecided(self, kind: judge.Why, cases: tuple[Case, ...]) -> tuple[list[Contender], tuple[Case, ...]]:
        """The contenders and cases that need more trials: head, parent, and the control of each provider.

        The other baselines take part in the screening trials only.
        """
        taken = self._tally.taken()
        wanted = judge.wanted(cells(taken, code_decides=self._code_decides), self._policy, self._known)
        names = {name for name, why in wanted.items() if why == kind}
        if kind == "look":
            names |= _undecided_apart(taken, self._policy)
        providers, texts = {provider for provider, _ in names}, {case for _, case in names}
        who = [one for one in self._contenders if one.role in REPEATED and one.provider["name"] in providers]
        return who, tuple(case for case in cases if str(case) in texts)


def _undecided_apart(taken: Sequence[ContenderResult], policy: Policy) -> set[Name]:
    """The cases that were timed apart and need more trials to be compared."""
    timed = {one.name: one for one in inexact_cases(taken)}
    verdicts = judge_baseline(BaselineKind.WRONG_PARENT, list(timed.values()), policy)
    return {
        name
        for name, verdict in verdicts.items()
        if verdict.outcome is Outcome.INCONCLUSIVE and len(timed[name].pairs.candidate) < policy.screening[-1]
    }


def _measurable(tally: Tally, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """The cases without those at which no provider of the head can be timed: more trials are useless there."""
    heads = [one for one in tally.taken() if one.role is Role.HEAD]
    seen = {one.case for one in heads}
    measured = {one.case for one in heads if one.state is CellState.MEASURED or any(one.apart)}
    return tuple(case for case in cases if case in measured or case not in seen)
