"""The trials of one run: more and more of them, at fewer and fewer cases, until every case is decided."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from kernels.arena.session import NOTHING_KNOWN, Contender, KnownRepeats, OutOfTime, Pace, PrestartPool, run_trial
from kernels.cases import Case, Metric, Role
from service.domain.policy.policy import Policy
from service.domain.states import CellState
from service.domain.verdicts import judge
from service.domain.verdicts.session_result import cells
from service.settings import settings
from workers.device import DeviceHere
from workers.run.contenders import LAST_CASE_S
from workers.run.heartbeat import Heart
from workers.run.tally import Tally

# Beyond so many each is measured for less time: of the same code on two sides 95 of 100 trials still came within
# 0.5 %, and 60 cases of three contenders took 18 s a trial (H200, November).
MANY_CASES = 60
HOST_METRICS = (Metric.CALL, Metric.COMPILE)
AGAIN = (Role.HEAD, Role.PARENT, Role.CONTROL)


class Trials:
    """`spent` says where the time of each trial went, `late` that the session's limit ended it before its end."""

    def __init__(
        self,
        tally: Tally,
        contenders: Sequence[Contender],
        policy: Policy,
        here: DeviceHere,
        heart: Heart,
        seed: int,
        repeats_before: KnownRepeats = NOTHING_KNOWN,
    ) -> None:
        self.spent: list[dict[str, Any]] = []
        self.ceilings: dict[str, float] = {}
        self.late = False
        self._tally, self._policy, self._heart, self._seed = tally, policy, heart, seed
        self._repeats_before = repeats_before
        self._on_gpu, self._uuid = here.name != "cpu", here.uuid
        self._ahead = PrestartPool(contenders)
        # A sample on either is some milliseconds of calls.  What varies is the trial: 6 rounds of 3 repeat from trial
        # to trial as well as 20 rounds of 5 (H200, November).
        self._pace = Pace(rounds=policy.rounds, warm=1, timed=3, turn_limit_s=settings().turn_limit_s)
        self._deadline = time.monotonic() + settings().session_limit_s

    def until_decided(self, cases: tuple[Case, ...]) -> None:
        """Trial until every case is decided, confirmed, or out of budget."""
        try:
            self._look("look", self._ahead.contenders, cases)
            self._look("confirm", *self._asked("confirm", cases), cases)
        finally:
            self._ahead.close()

    def _look(
        self, kind: judge.Why, who: Sequence[Contender], on: tuple[Case, ...], cases: tuple[Case, ...] | None = None
    ) -> None:
        done, cases = 0, cases or on
        while on and (more := judge.trials_until_next_look(done, self._policy, kind)):
            for _ in range(more):
                done += 1
                self._trial(who, on, f"{'confirming ' * (kind == 'confirm')}trial {done}", kind == "confirm")
                on = _with_hope(self._tally, on)
            who, on = self._asked(kind, cases)

    def _trial(self, who: Sequence[Contender], on: tuple[Case, ...], what: str, confirming: bool) -> None:
        self.late = self.late or (bool(on) and time.monotonic() > self._deadline)
        if not on or self.late:
            return
        self._heart.say(what)
        # On two cores imports for the next trial would stand in the way of this one, and in metrics of the host's time.
        ahead = self._on_gpu and not any(case.metric in HOST_METRICS for case in on)
        turned = run_trial(
            who,
            on,
            self._pace_of(len(on)),
            device="cuda" if self._on_gpu else "cpu",
            seed=self._seed + len(self.spent),
            core=None if self._on_gpu else max(os.sched_getaffinity(0)),
            thorough=not self.spent,
            progress=lambda now: self._heart.say(f"{what}: {now}"),
            keep_going=self._keep_going,
            once_open=lambda: self._ahead.more(who) if ahead else None,
            uuid=self._uuid,
            deadline=self._deadline,
            repeats_before=self._repeats_before,
        )
        self.late = {case for _, case in turned.cells} != set(on)
        self.ceilings = self.ceilings or turned.ceilings
        self._tally.add(turned, confirming=confirming)
        self.spent.append({"what": what, "seconds": turned.seconds, "telemetry": turned.telemetry})

    def _keep_going(self) -> None:
        self._heart.keep_going()
        if time.monotonic() > self._deadline + LAST_CASE_S:
            raise OutOfTime

    def _pace_of(self, cases: int) -> Pace:
        if not self._on_gpu or cases <= MANY_CASES:
            return self._pace
        return replace(self._pace, rounds=min(self._pace.rounds, 4), timed=2, graph_s=0.8e-3)

    def _asked(self, kind: judge.Why, cases: tuple[Case, ...]) -> tuple[list[Contender], tuple[Case, ...]]:
        """Who must run again on which cases: the two sides, and the control of each provider.

        All that is asked of the other baselines is settled by the first trials.
        """
        wanted = judge.wanted(cells(self._tally.taken()), self._policy)
        names = {name for name, why in wanted.items() if why == kind}
        providers, texts = {provider for provider, _ in names}, {case for _, case in names}
        who = [one for one in self._ahead.contenders if one.role in AGAIN and one.provider["name"] in providers]
        return who, tuple(case for case in cases if str(case) in texts)


def _with_hope(tally: Tally, cases: tuple[Case, ...]) -> tuple[Case, ...]:
    """Without those at which every provider of the head is wrong or failed: more trials cannot change that."""
    heads = [one for one in tally.taken() if one.role is Role.HEAD]
    seen = {one.case for one in heads}
    measured = {one.case for one in heads if one.state is CellState.MEASURED}
    return tuple(case for case in cases if case in measured or case not in seen)
