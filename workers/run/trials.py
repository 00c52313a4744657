"""Run the trials of a session until every case is decided, and collect them into each contender's results."""

import errno
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import cycle, islice
from statistics import fmean, median
from typing import Any

import structlog

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
from kernels.cases import AnyCase, Case, Metric, Role
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
from service.errors import ServiceError
from service.settings import settings
from workers.machine.device import DeviceHere, is_lost
from workers.run.baselines import LAST_CASE_S
from workers.run.heartbeat import Heart, Stopped
from workers.sandbox import usage

log = structlog.get_logger()

_MAX_REPLACED = 16  # packages of the stack that a contender says its revision replaced
_MAX_VERSION = 80  # characters of their names and versions
SMALL_CASE = "rmsnorm.fwd.8x1024.fp32"  # shows whether a device works where no norm is measured
# One wrong or failed trial decides the state of the whole case.
_WORST_FIRST = (CellState.INVALID, CellState.FAILED, CellState.UNSUPPORTED, CellState.MEASURED)


class Tally:
    """Every trial of one session, in order.  A contender that took no part in a trial of a case has no rounds in it."""

    def __init__(self, contenders: Iterable[Contender], cases: Iterable[AnyCase]) -> None:
        self._contenders = tuple(contenders)
        self._cases = tuple(cases)
        self._trials: list[tuple[bool, Trial]] = []
        self._of_case = defaultdict[AnyCase, list[tuple[bool, Trial]]](list)

    def add(self, trial: Trial, *, confirming: bool) -> None:
        self._trials.append((confirming, trial))
        for case in {case for _, case in trial.cells}:
            self._of_case[case].append((confirming, trial))

    def forget(self, cases: Iterable[AnyCase]) -> None:
        """Drop all trials of these cases, which share them with no others."""
        dropped = set(cases)
        self._trials = [one for one in self._trials if not any(case in dropped for _, case in one[1].cells)]
        for case in dropped:
            self._of_case.pop(case, None)

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
            if any((contender.label, case) in trial.cells for _, trial in self._of_case[case])
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

    def _taken(self, contender: Contender, case: AnyCase) -> ContenderResult:
        turned = [(confirming, trial.cells.get((contender.label, case))) for confirming, trial in self._of_case[case]]
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

    def inexact(self) -> dict[tuple[str, AnyCase], str]:
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
# What runs for another GPU of the host would also delay the launches of a block, which has no CUDA graph.
ALONE = (*HOST_METRICS, Metric.BLOCK)
REPEATED = (Role.HEAD, Role.PARENT, Role.CONTROL)

# A process of a trial takes a core while it imports and compiles, 0.95 GB of memory of the host, and 0.55 GB of that of
# the GPU for its context (Liger-Kernel on an H200, November).
HOST_BYTES = 1 << 30
CONTEXT_BYTES = 600 << 20
SHARE_FOR_CONTEXTS = 1 / 4  # of the memory of the GPU; the rest is for tensors
LIKELY = 0.5  # of the smallest change that matters: a case that moved by this share of it may be suspected


def side_by_side(here: DeviceHere, contenders: int, devices: int = 1) -> int:
    """How many trials of so many contenders fit on a device side by side, where so many devices share the host."""
    if here.name == "cpu":
        return 1
    on_gpu = int(SHARE_FOR_CONTEXTS * here.memory) // CONTEXT_BYTES
    on_host = min(usage.available()[0] // HOST_BYTES, len(os.sched_getaffinity(0))) // devices
    return max(1, min(on_gpu, on_host) // max(1, contenders))


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


@dataclass(frozen=True, eq=False)
class OnDevice:
    """The contenders of a session on one of its devices; they are the same on each."""

    here: DeviceHere
    contenders: Sequence[Contender]
    trusted: Contender | None = None  # with nothing of the target: it judges outputs, and shows that the device works

    def those(self, who: Iterable[Contender], cases: Sequence[AnyCase]) -> list[Contender]:
        """Its own of these contenders, as far as they take part at the cases, and the witness."""
        labels = {one.label for one in who}
        return [one for one in self.contenders if one.witness or (one.label in labels and any(map(one.takes, cases)))]


def deal(cases: Sequence[AnyCase], devices: Sequence[OnDevice]) -> dict[AnyCase, OnDevice]:
    """Give each device as many cases and about as many bytes; the first gets those that are measured alone.

    The same cases are always dealt alike.  A ratio is always of one device, but a case that changed its device would
    show how two devices differ in the history of its times.
    """
    alone = {case: devices[0] for case in cases if case.metric in ALONE}
    others = sorted((case for case in cases if case not in alone), key=lambda case: (-case.least_bytes, str(case)))
    return alone | dict(zip(others, cycle([*devices, *reversed(devices)]), strict=False))


class Trials:
    """`spent`: where the time of each trial went.  `late`: the time limit of the session ended it early.

    `compared_before` is asked after the first trial: the providers and cases of which an earlier session on the same
    stack compared the parent with all other baselines.  `lost`: the devices that were lost, with `notes` on what became
    of their cases.
    """

    def __init__(
        self,
        tally: Tally,
        devices: Sequence[OnDevice],
        policy: Policy,
        heart: Heart,
        seed: int,
        known: KnownVariances = NONE_KNOWN,
        repeats_before: KnownRepeats = NOTHING_KNOWN,
        code_decides: bool = True,
        compared_before: Callable[[], Collection[tuple[str, str]]] = tuple,
    ) -> None:
        self.spent: list[dict[str, Any]] = []
        self.late = False
        self.lost: list[DeviceHere] = []
        self.notes: list[str] = []
        self._tally, self._policy, self._heart, self._seed = tally, policy, heart, seed
        self._known, self._repeats_before = known, repeats_before
        self._code_decides, self._compared_before = code_decides, compared_before
        self._every, self._devices = tuple(devices), list(devices)
        self._device_of: dict[AnyCase, OnDevice] = {}
        self._moved: set[AnyCase] = set()  # of devices that were lost: to be measured anew
        self._ceilings: dict[OnDevice, dict[str, float]] = {}
        self._started = 0  # trials
        self._given_up = False
        self._contenders = devices[0].contenders
        self._on_gpu = devices[0].here.name != "cpu"
        self._side_by_side = side_by_side(devices[0].here, len(self._contenders), len(devices))
        # On a CPU all run on one core: on two, imports for the next trial would disturb this one.
        cores = cycle([None] if self._on_gpu else sorted(os.sched_getaffinity(0), reverse=True))
        self._cores = dict(zip(devices, cores, strict=False))
        self._kind = "cuda" if self._on_gpu else "cpu"
        self._tunings = {one: Tunings() for one in devices}
        self._judges = {one: Judge(one.trusted) for one in devices if one.trusted is not None}
        self._pools = {one: ProcessPool(self._kind, len(self._contenders), self._cores[one]) for one in devices}
        self._deadline = time.monotonic() + settings().session_limit_s

    @property
    def ceilings(self) -> dict[str, float]:
        """The mean of those of the devices."""
        names = dict.fromkeys(name for found in self._ceilings.values() for name in found)
        return {name: fmean(one[name] for one in self._ceilings.values() if name in one) for name in names}

    @property
    def gpus(self) -> list[dict[str, Any]]:
        """What each of several devices measured; empty with one."""
        return [
            {
                "index": one.here.index,
                "uuid": one.here.uuid,
                "lost": one.here in self.lost,
                "ceilings": self._ceilings.get(one, {}),
                "cases": [str(case) for case, device in self._device_of.items() if device is one],
            }
            for one in (self._every if len(self._every) > 1 else ())
        ]

    def until_decided(self, cases: tuple[AnyCase, ...]) -> None:
        """Run trials until every case is decided, confirmed, or out of budget.

        Cases of devices that are lost are measured anew on the others.
        """
        alone = {case for case in cases if case.metric in ALONE and len(self._devices) > 1}
        waiting = [set(cases) - alone, alone]
        try:
            while waiting:
                part = waiting.pop(0)
                on = tuple(case for case in cases if case in part)
                self._device_of |= deal(on, self._devices)
                self._run("look", self._contenders, on)
                self._run("confirm", *self._undecided("confirm", cases), cases)
                if self._moved:
                    waiting.insert(0, self._moved)
                    self._moved = set()
        finally:
            for pool in self._pools.values():
                pool.close()
            for its_judge in self._judges.values():
                its_judge.close()

    def _run(
        self,
        kind: judge.Why,
        who: Sequence[Contender],
        on: tuple[AnyCase, ...],
        cases: tuple[AnyCase, ...] | None = None,
    ) -> None:
        done, cases = 0, cases or on
        while on and not self.late and (more := judge.trials_until_next_look(done, self._policy, kind)):
            if time.monotonic() > self._deadline:
                self.late = True
                return
            # Host times would include what others do.  The first trial is alone, while the processes of the others get
            # ready: twelve at once took 6 s longer to start than four (H200 with 16 cores, November).
            apart = not self._on_gpu or any(case.metric in HOST_METRICS for case in on)
            count = 1 if apart or _is_first(kind, done) else min(more, self._side_by_side)
            ahead: tuple[Sequence[Contender], int] = ((), 0)
            if not apart:
                ahead = (
                    (who, min(more - count, self._side_by_side))
                    if more > count
                    else self._likely(kind, who, done + count)
                )
            self._trials(who, on, kind, range(done, done + count), ahead)
            on = tuple(case for case in _measurable(self._tally, on) if case not in self._moved)
            if _is_first(kind, done):
                on = self._unsettled(on)
            done += count
            if count == more:
                who, on = self._undecided(kind, cases)

    def _unsettled(self, on: tuple[AnyCase, ...]) -> tuple[AnyCase, ...]:
        """The cases that need more trials than the first; an autotuner may choose otherwise in the next."""
        taken = self._tally.taken()
        judged = cells(taken, code_decides=self._code_decides)
        done = judge.settled(judged, self._policy, self._known, self._compared_before())
        open_cases = {cell.case for cell in judged if cell.name not in done}
        tuned = {str(one.case) for one in taken if one.facts.get("tuned")}
        ended = {cell.case for cell in judged} - open_cases - tuned
        return tuple(case for case in on if str(case) not in ended)

    def _likely(self, kind: judge.Why, who: Sequence[Contender], done: int) -> tuple[Sequence[Contender], int]:
        """The contenders of trials that will follow if what was seen so far stays, and how many trials."""

        def moved(cell: Cell) -> bool:
            effects = cell.screened.effects()
            return bool(effects) and abs(fmean(effects)) >= LIKELY * self._policy.at(cell.case).smallest_change

        if kind == "look" and not any(map(moved, cells(self._tally.taken(), code_decides=self._code_decides))):
            return (), 0
        repeated = [one for one in who if one.role in REPEATED]
        more = judge.trials_until_next_look(done, self._policy, kind)
        if kind == "look":
            more += judge.trials_until_next_look(0, self._policy, "confirm")
        return repeated, min(more, side_by_side(self._devices[0].here, len(repeated), len(self._devices)))

    def _trials(
        self,
        who: Sequence[Contender],
        on: tuple[AnyCase, ...],
        kind: judge.Why,
        numbers: range,
        ahead: tuple[Sequence[Contender], int],
    ) -> None:
        """Run trials side by side, while the processes of so many trials `ahead` get ready."""
        names = [f"{'confirming ' * (kind == 'confirm')}trial {number + 1}" for number in numbers]
        what = names[0] if len(names) == 1 else f"{names[0]} to {numbers[-1] + 1}"
        self._heart.say(what)
        seeds = [self._seed + self._started + number for number in range(len(numbers))]
        self._started += len(numbers)
        shares = {one: [case for case in on if self._device_of[case] is one] for one in self._devices}
        shares = {one: share for one, share in shares.items() if share}
        at: dict[OnDevice, str] = {}

        def say(one: OnDevice, now: str) -> None:
            at[one] = now if len(self._every) == 1 else f"GPU {one.here.index} {now}"
            self._heart.say(f"{what}: {', '.join(at[each] for each in shares if each in at)}")

        def measure(one: OnDevice) -> list[Trial] | Exception:
            try:
                turned = run_trials(
                    one.those(who, shares[one]),
                    shares[one],
                    pace(self._policy, len(shares[one]), on_gpu=self._on_gpu),
                    device=self._kind,
                    seeds=seeds,
                    core=self._cores[one],
                    thorough=_is_first(kind, numbers.start),
                    progress=lambda now: say(one, now),
                    keep_going=self._keep_going,
                    once_open=lambda _: self._pools[one].fill(one.those(ahead[0], shares[one]), ahead[1]),
                    uuid=one.here.uuid,
                    memory=one.here.memory,
                    deadline=self._deadline,
                    repeats_before=self._repeats_before,
                    inexact_before=self._tally.inexact(),
                    # Confirming trials decide alone whether a change is real: a choice that varies must show there.
                    tunings=self._tunings[one] if kind == "look" else None,
                    pool=self._pools[one],
                    judge=self._judges.get(one),
                )
                works = self._works(one, turned)
            except (Stopped, ServiceError):
                raise
            except Exception as error:
                return error
            return turned if works else OSError(errno.ENODEV, "nothing runs on the GPU any more", one.here.key)

        together = len(shares) > 1 and not any(case.metric in ALONE for case in on)
        at_once = len(shares) if together else 1
        with ThreadPoolExecutor(at_once) as threads:
            try:
                found = dict(zip(shares, (threads.map if together else map)(measure, shares), strict=True))
            except BaseException:
                self._given_up = True
                raise
        self._note_lost(found)
        self.late = False
        for one, turned in found.items():
            if one not in self._devices or isinstance(turned, Exception):
                continue
            self.late = self.late or any({case for _, case in trial.cells} != set(shares[one]) for trial in turned)
            if turned[0].ceilings:
                self._ceilings.setdefault(one, turned[0].ceilings)
            gpu = {"gpu": one.here.index} if len(self._every) > 1 else {}
            for name, trial in zip(names, turned, strict=True):
                self._tally.add(trial, confirming=kind == "confirm")
                on_gpu = f"{name} on GPU {one.here.index}" if gpu else name
                # As of trials side by side: all together are the time that passed.
                seconds = {phase: spent / at_once for phase, spent in trial.seconds.items()}
                self.spent.append({"what": on_gpu, "seconds": seconds, "telemetry": trial.telemetry, **gpu})

    def _works(self, one: OnDevice, turned: Sequence[Trial]) -> bool:
        """Whether a device still works, by the driver where a contender failed, and by a trial where all did.

        A contender without code of the target takes part in that trial, alone.
        """
        states = defaultdict[tuple[int, AnyCase], set[str]](set)
        for at, trial in enumerate(turned):
            for (_, case), cell in trial.cells.items():
                states[at, case].add(cell.state)
        if any(CellState.FAILED in found for found in states.values()) and is_lost(one.here):
            return False
        if len(self._devices) == 1 or one.trusted is None or {CellState.FAILED.value} not in states.values():
            return True
        norms = [case for _, case in states if isinstance(case, Case)]
        smallest = min(norms, key=lambda case: case.least_bytes) if norms else Case.parse(SMALL_CASE)
        [tried] = run_trials(
            [one.trusted],
            [smallest],
            Pace(rounds=1),
            device=self._kind,
            seeds=[self._seed],
            core=self._cores[one],
            thorough=False,
            keep_going=self._keep_going,
            uuid=one.here.uuid,
            memory=one.here.memory,
        )
        # There is no cell where the time of the session is over.
        return all(cell.state != CellState.FAILED for cell in tried.cells.values())

    def _note_lost(self, found: Mapping[OnDevice, list[Trial] | Exception]) -> None:
        """Go on without the devices that failed.  Where none is left, raise the first error."""
        errors = {one: turned for one, turned in found.items() if isinstance(turned, Exception)}
        if len(errors) == len(self._devices):
            raise next(iter(errors.values()))
        for one, error in errors.items():
            log.error("a GPU was lost", gpu=one.here.description, error=str(error))
            self._devices.remove(one)
            self._ceilings.pop(one, None)
            self.lost.append(one.here)
            cases = [case for case, device in self._device_of.items() if device is one]
            self._tally.forget(cases)
            self._moved.update(cases)
            self.notes.append(f"GPU {one.here.index} was lost: its {len(cases)} cases were given to the others")

    def _keep_going(self) -> None:
        if self._given_up:
            raise Stopped
        self._heart.keep_going()
        if time.monotonic() > self._deadline + LAST_CASE_S:
            raise OutOfTime

    def _undecided(self, kind: judge.Why, cases: tuple[AnyCase, ...]) -> tuple[list[Contender], tuple[AnyCase, ...]]:
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


def _is_first(kind: judge.Why, done: int) -> bool:
    return kind == "look" and not done


def _undecided_apart(taken: Sequence[ContenderResult], policy: Policy) -> set[Name]:
    """The cases that were timed apart and need more trials to be compared."""
    timed = {one.name: one for one in inexact_cases(taken)}
    verdicts = judge_baseline(BaselineKind.WRONG_PARENT, list(timed.values()), policy)
    return {
        name
        for name, verdict in verdicts.items()
        if verdict.outcome is Outcome.INCONCLUSIVE and len(timed[name].pairs.candidate) < policy.screening[-1]
    }


def _measurable(tally: Tally, cases: tuple[AnyCase, ...]) -> tuple[AnyCase, ...]:
    """The cases without those at which no provider of the head can be timed: more trials are useless there."""
    heads = [one for one in tally.taken() if one.role is Role.HEAD]
    seen = {one.case for one in heads}
    measured = {one.case for one in heads if one.state is CellState.MEASURED or any(one.apart)}
    return tuple(case for case in cases if case in measured or case not in seen)
