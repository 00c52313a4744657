"""What the mainline's steps led to: incidents, regressions in every state, gaps, searches, calibrations, a queue."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import func, select, update

from service.db import models as m
from service.domain.metrics import SeriesKey
from service.domain.states import (
    OPEN_SEARCHES,
    FoundBy,
    PointReason,
    PointState,
    Priority,
    Purpose,
    RegressionState,
    RunState,
    SearchState,
)
from service.ledger.targets import series_ids
from tests import world
from tests.big.numbers import BEHIND, over_quack, usual_us
from tests.big.seeder import DEVICES, Seeder
from tests.big.story import DAY, HOUR, UNBROKEN, Step

LONG_TEAM = "a-very-long-team-name/with-a-slash-and-more-words-than-fit"
SEARCHES = 14
_CALIBRATION = ("run_id", "series_id", "worker", "ratio", "p", "trials", "alarmed", "kind", "at")


@dataclass
class Matters:
    """Writes it, after the mainline was."""

    seeder: Seeder
    series: dict[tuple[str, str], int] = field(init=False)  # by device and case
    regressions: dict[str, m.RegressionRow] = field(default_factory=dict)  # of h200, the newest of each case
    leased: list[m.Run] = field(default_factory=list)

    def __post_init__(self) -> None:
        keys = [
            SeriesKey.of(self.seeder.norms.id, device, "norms", case)
            for device in DEVICES
            for case in self.seeder.story.cases
        ]
        found = series_ids(self.seeder.session, keys)
        self.series = {(key.device, key.printed): found[key] for key in keys}

    def write(self) -> None:
        self._regressions()
        self._change_points()
        self._gaps()
        self._searches()
        self._checked()
        self._calibrations()
        self._queue()
        self._workers()

    # -- regressions

    def _regressions(self) -> None:
        one, newest = self.seeder, self.seeder.story.size.revisions - 1
        worst: tuple[int, int] = (0, 0)
        for ordinal, step in one.story.steps.items():
            if step.factor < 1 or newest - ordinal in (167, 154):
                continue
            for device in DEVICES:
                run = one.runs.get((ordinal, device))
                if run is None or run.state is not RunState.DONE:
                    continue
                made = self._incident(step, ordinal, device, run)
                worst = max(worst, (len(step.cases), run.id if device == "h200" else 0))
                if device == "h200":
                    self.regressions |= {row.case: row for row in made}
        one.places.worst = worst[1]
        opened = [row for row in self.regressions.values() if row.state is RegressionState.OPEN]
        if opened:
            one.places.regression, one.places.case = opened[-1].id, opened[-1].case

    def _incident(self, step: Step, ordinal: int, device: str, run: m.Run) -> list[m.RegressionRow]:
        one = self.seeder
        revision = one.line[ordinal]
        opened_at = revision.committed_at + 1200
        kind = "baseline" if step.ago == 12 else "code"
        fixed_at = one.line[self._ordinal(245)].committed_at if step.ago == 260 else None
        facts = {"device": device, "opened_at": opened_at, "closed_at": fixed_at}
        cause = {"cause_kind": kind, "cause_text": step.text}
        incident = one.add(m.Incident(target_id=one.norms.id, revision_id=revision.id, **facts, **cause))
        one.places.incident = one.places.incident or incident.id
        known = cause | {"run_id": run.id, "incident_id": incident.id, "good": one.line[ordinal - 1].sha}
        known |= {"ratio": step.factor, "low": step.factor - 0.004, "high": step.factor + 0.004}
        rows = []
        for place, case in enumerate(step.cases):
            state, more = self._state(step, case, place)
            series_id = self.series[device, case]
            rows.append(m.RegressionRow(series_id=series_id, opened_at=opened_at, state=state, **known, **more))
        one.session.add_all(rows)
        one.session.flush()
        one.session.add_all(event for row in rows for event in self._events(row))
        for row in rows:
            one.session.refresh(row, ["series"])
        return rows

    def _state(self, step: Step, case: str, place: int) -> tuple[RegressionState, dict[str, Any]]:
        """The state of a regression, and the columns that go with it."""
        one, now = self.seeder, self.seeder.now
        culprit = {"culprit": one.line[self._ordinal(step.ago)].sha}
        fixed = one.story.steps.get(self._ordinal(50))
        match step.ago:
            case 260:
                return RegressionState.FIXED, culprit | self._fixed(245)
            case 180:
                state = RegressionState.DISMISSED if place % 2 else RegressionState.ACKNOWLEDGED
                why = {"reason": "exact sums are worth 1.2 %", "until": now + 40 * DAY}
                return state, why | {"found_by": FoundBy.HISTORY}
            case 90 if fixed and case in fixed.cases:
                return RegressionState.FIXED, culprit | self._fixed(50)
            case 90:
                return RegressionState.BLAMED, culprit | {"assignee": "ada", "due_at": now - 2 * DAY}
            case 64:
                return RegressionState.OPEN, {"assignee": LONG_TEAM, "due_at": now + 3 * DAY}
            case 29:
                return RegressionState.BISECTING, {}
            case _:
                return RegressionState.OPEN, {}

    def _fixed(self, ago: int) -> dict[str, Any]:
        ordinal = self._ordinal(ago)
        return {
            "fixed_at": self.seeder.line[ordinal].committed_at,
            "fixed_by": self.seeder.runs[ordinal, "h200"].id,
        }

    def _ordinal(self, ago: int) -> int:
        return self.seeder.story.size.revisions - 1 - ago

    @staticmethod
    def _events(row: m.RegressionRow) -> Iterable[m.RegressionEvent]:
        def event(after_h: float, who: str, what: str, state: RegressionState, words: str | None) -> m.RegressionEvent:
            at = row.opened_at + after_h * HOUR
            return m.RegressionEvent(regression_id=row.id, at=at, who=who, what=what, state=state, words=words)

        yield event(0, "kernelwatch", "opened", RegressionState.OPEN, None)
        if row.assignee:
            yield event(1, "grace", "assigned", row.state, row.assignee)
        if row.state is not RegressionState.OPEN:
            words = row.reason or "<img src=x onerror=alert(2)> " + "long words " * 40
            yield event(2, "grace <b>x</b>", row.state.value, row.state, words)

    def _change_points(self) -> None:
        one = self.seeder
        found = tuple(PointState)
        for ordinal, step in one.story.steps.items():
            before, at = one.line[ordinal - 1 : ordinal + 1]
            known = {"revision_id": at.id, "before_id": before.id, "found_at": at.committed_at + HOUR, "p": 1e-6}
            known |= {"ratio": step.factor, "low": step.factor - 0.005, "high": step.factor + 0.005}
            known["level"] = "block" if abs(step.factor - 1) > 0.05 else "notify"
            for place, case in enumerate(step.cases):
                regression = self.regressions.get(case) if step.factor > 1 else None
                state = found[place % len(found)]
                why = {"reason_code": PointReason.SAME_CODE.value, "reason_args": {}}
                more = (why if state is PointState.CLOSED else {}) | {"regression_id": regression and regression.id}
                one.session.add(m.ChangePoint(series_id=self.series["h200", case], state=state, **known, **more))

    def _gaps(self) -> None:
        one = self.seeder
        for device in DEVICES:
            done = [run for (_, on), run in one.runs.items() if on == device and run.state is RunState.DONE]
            for place, case in enumerate(one.story.cases):
                now = one.levels[case] * over_quack(case)
                behind = now > BEHIND
                usual = usual_us(case, device)
                known = {"own": usual * one.levels[case], "sota": usual / over_quack(case), "ratio_now": now}
                known |= {"last_run_id": done[-1].id, "stack_id": one.stacks[-1], "behind_sota": behind}
                if behind:
                    known |= {"since_run_id": done[place % 3 * len(done) // 3].id, "ratio_then": over_quack(case)}
                one.session.add(m.Gap(series_id=self.series[device, case], **known))
        h200 = [run for (_, on), run in one.runs.items() if on == "h200" and run.state is RunState.DONE]
        one.places.newest = h200[-1].id
        shas = {revision.id: revision.sha for revision in one.line}
        one.places.shas = (shas[h200[-12].revision_id], shas[h200[-1].revision_id])

    # -- searches and calibrations

    def _searches(self) -> None:
        one = self.seeder
        states = tuple(SearchState)
        cases = list(one.story.cases[:30])
        for number in range(SEARCHES):
            end = len(one.line) - 1 - 3 * number
            line, state = one.line[max(0, end - 11) : end + 1], states[number % len(states)]
            if len(line) < 12:
                return
            done, found = state not in OPEN_SEARCHES, state is SearchState.FOUND
            begun = one.now - (15 - number) * 5 * HOUR
            culprit, before = line[10], line[9]
            said = f"{culprit.short} is 21.0 % slower than its parent {before.short}, confirmed by 3 fresh trials"
            known = {"device": "h200", "suite": "all", "state": state, "max_runs": 24, "created_at": begun}
            known |= {"asked_by": "kernelwatch" if number % 3 else "ada"}
            known |= {"culprit": culprit.sha, "reason": said} if found else {}
            known |= {"finished_at": begun + 5 * HOUR} if done else {}
            search = world.bisection(one.session, line, *cases, **known)
            one.places.bisection = search.id if found else one.places.bisection
            for place, (head, slow) in enumerate(
                ((line[-1], True), (line[5], False), (line[8], False), (culprit, True))
            ):
                of_search = {"purpose": Purpose.BISECTION, "priority": Priority.BISECTION, "bisection_id": search.id}
                of_search |= {"baseline": line[0].sha, "only_cases": cases, "created_at": begun + 1800 * place}
                step = one.run(head, "h200", **of_search)
                one.measure(step, one.levels, dict.fromkeys(cases, 1.21) if slow else {}, cases=cases)

    def _checked(self) -> None:
        """The newest bisection that has not ended checks the change points that wait for one."""
        search = select(func.max(m.Bisection.id)).where(m.Bisection.state.in_(OPEN_SEARCHES)).scalar_subquery()
        waiting = update(m.ChangePoint).where(m.ChangePoint.state == PointState.CHECKING)
        self.seeder.session.flush()
        self.seeder.session.execute(waiting.values(bisection_id=search).execution_options(synchronize_session=False))

    def _calibrations(self) -> None:
        one, chance = self.seeder, self.seeder.story.chance
        revision = one.line[-40 if len(one.line) > 40 else 0]
        for night in range(one.story.size.nights):
            at = one.now - (one.story.size.nights - night) * DAY
            worker = f"h200-box-{night % 6}"
            wanted = {"purpose": Purpose.CALIBRATION, "priority": Priority.CALIBRATION, "baseline": revision.sha}
            run = one.run(revision, "h200", **wanted, created_at=at, only_worker=worker)
            rows = []
            for place, case in enumerate(one.story.cases):
                odd = place % 29 == 0 and night % 3 == 0
                p, ratio = (0.004, 1.02) if odd else (chance.random(), 1 + chance.gauss(0, 0.001))
                alarmed = odd and night % 9 == 0
                rows.append((run.id, self.series["h200", case], worker, ratio, p, 3, alarmed, "copy", at))
            one.bulk.add(m.Calibration, _CALIBRATION, rows)
        for place, case in enumerate(one.story.cases[:84:7]):
            over = {"released_at": one.now - HOUR, "released_by": "ada", "released_why": "clocks are locked now"}
            why = "20 of 60 copies differed from their original; on a fair machine 3 of 60 do"
            since = one.now - (30 + place) * HOUR
            released = over if place > 7 else {}
            series_id = self.series["h200", case]
            one.session.add(m.Quarantine(series_id=series_id, since=since, by="kernelwatch", reason=why, **released))

    # -- the fleet

    def _queue(self) -> None:
        one, chance = self.seeder, self.seeder.story.chance
        for _ in range(one.story.size.queued):
            revision = one.line[chance.randrange(len(one.line))]
            wanted = {"priority": chance.choice(tuple(Priority)), "created_at": one.now - chance.random() * 9 * HOUR}
            one.run(revision, chance.choice(("h200", "h100", "b200", "mi300x")), RunState.QUEUED, **wanted)
        stages = ("building", "measuring: trial 1, case 121 of 206", "confirming: 14 cases", f"checking out {UNBROKEN}")
        for revision, stage in zip(one.line[-20:], stages, strict=False):
            leased = {"stage": stage, "lease_until": one.now + DAY, "created_at": one.now - 900}
            self.leased.append(one.run(revision, "h200", RunState.LEASED, **leased))

    def _workers(self) -> None:
        """Six that are busy, one that is silent, one whose every text is too long or an attack."""
        one = self.seeder
        usual: dict[str, Any] = {"started_at": one.now - 30 * HOUR}
        for number in range(6):
            busy = self.leased[number].id if number < len(self.leased) else None
            said = {"device": "h200", "description": "NVIDIA H200, driver 590.44", "seen_at": one.now, "run_id": busy}
            one.session.add(m.Worker(name=f"h200-box-{number}", **said, **usual))
        silent = {
            "device": "h100",
            "description": "NVIDIA H100 80GB HBM3, driver 590.44",
            "seen_at": one.now - 4 * HOUR,
        }
        one.session.add(m.Worker(name="h100-box-0", **silent, **usual))
        long = "b200-rack-7/slot-3.gpu.eu-central-2.compute.internal.example-corporation.net"
        bad = {
            "device": "b200",
            "description": "NVIDIA B200 <script>alert(3)</script> " + "x" * 150,
            "seen_at": one.now,
        }
        bad |= {"sandbox": "user namespaces are refused here", "run_id": one.places.running}
        one.session.add(m.Worker(name=long, **bad, **usual))
