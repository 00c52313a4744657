"""Run the trials of a session: screening, then confirmation, until every case is decided."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernels.arena.session import (
    NOTHING_KNOWN,
    Contender,
    Judge,
    KnownRepeats,
    OutOfTime,
    Pace,
    PrestartPool,
    run_trial,
)
from kernels.cases import Case, Metric, Role
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind, CellState
from service.domain.verdicts import judge
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.baselines import judge_baseline
from service.domain.verdicts.samples import Name, Outcome
from service.domain.verdicts.session_result import ContenderResult, cells, inexact_cases
from service.settings import settings
from workers.device import DeviceHere
from workers.run.contenders import LAST_CASE_S
from workers.run.heartbeat import Heart
from workers.run.tally import Tally

# With more cases each is measured for less time: of the same code on two sides 95 of 100 trials still came within
# 0.5 %, and 60 cases of three contenders took 18 s a trial (H200, November).
MANY_CASES = 60
HOST_METRICS = (Metric.CALL, Metric.COMPILE)
REPEATED = (Role.HEAD, Role.PARENT, Role.CONTROL)


def pace(policy: Policy, cases: int, *, on_gpu: bool) -> Pace:
    """The pace of a trial of so many cases."""
    # A sample on either is some milliseconds of calls.  What varies is the trial: 6 rounds of 3 repeat from trial to
    # trial as well as 20 rounds of 5 (H200, November).
    usual = Pace(rounds=policy.rounds, warm=1, timed=3, turn_limit_s=settings().turn_limit_s)
    if not on_gpu or cases <= MANY_CASES:
        return usual
    return replace(usual, rounds=min(usual.rounds, 4), timed=2, graph_s=0.8e-3)


class Trials:
    """`spent`: where the time of each trial went.  `late`: the time limit of the session ended it early."""

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
    ) -> None:
        self.spent: list[dict[str, Any]] = []
        self.ceilings: dict[str, float] = {}
        self.late = False
        self._tally, self._policy, self._heart, self._seed = tally, policy, heart, seed
        self._known, self._repeats_before, self._judge = known, repeats_before, judge
        self._code_decides = code_decides
        self._on_gpu, self._uuid = here.name != "cpu", here.uuid
        self._prestarted = PrestartPool(contenders)
        self._deadline = time.monotonic() + settings().session_limit_s

    def until_decided(self, cases: tuple[Case, ...]) -> None:
        """Run trials until every case is decided, confirmed, or out of budget."""
        try:
            self._run("look", self._prestarted.contenders, cases)
            self._run("confirm", *self._undecided("confirm", cases), cases)
        finally:
            self._prestarted.close()
            if self._judge is not None:
                self._judge.close()

    def _run(
        self, kind: judge.Why, who: Sequence[Contender], on: tuple[Case, ...], cases: tuple[Case, ...] | None = None
    ) -> None:
        done, cases = 0, cases or on
        while on and (more := judge.trials_until_next_look(done, self._policy, kind)):
            for _ in range(more):
                done += 1
                self._trial(who, on, f"{'confirming ' * (kind == 'confirm')}trial {done}", kind == "confirm")
                on = _measurable(self._tally, on)
            who, on = self._undecided(kind, cases)

    def _trial(self, who: Sequence[Contender], on: tuple[Case, ...], what: str, confirming: bool) -> None:
        self.late = self.late or (bool(on) and time.monotonic() > self._deadline)
        if not on or self.late:
            return
        self._heart.say(what)
        # On two cores, imports for the next trial would disturb this one, and so they would host times on a GPU.
        ahead = self._on_gpu and not any(case.metric in HOST_METRICS for case in on)
        turned = run_trial(
            who,
            on,
            pace(self._policy, len(on), on_gpu=self._on_gpu),
            device="cuda" if self._on_gpu else "cpu",
            seed=self._seed + len(self.spent),
            core=None if self._on_gpu else max(os.sched_getaffinity(0)),
            thorough=not self.spent,
            progress=lambda now: self._heart.say(f"{what}: {now}"),
            keep_going=self._keep_going,
            once_open=lambda _: self._prestarted.fill(who) if ahead else None,
            uuid=self._uuid,
            deadline=self._deadline,
            repeats_before=self._repeats_before,
            inexact_before=self._tally.inexact(),
            prestarted=self._prestarted,
            judge=self._judge,
        )
        self.late = {case for _, case in turned.cells} != set(on)
        self.ceilings = self.ceilings or turned.ceilings
        self._tally.add(turned, confirming=confirming)
        self.spent.append({"what": what, "seconds": turned.seconds, "telemetry": turned.telemetry})

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
        who = [one for one in self._prestarted.contenders if one.role in REPEATED and one.provider["name"] in providers]
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
