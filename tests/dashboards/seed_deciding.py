"""The story of `seed.py` with what deciding adds: causes, lives, a bisection, change points, calibrations."""

import sys

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db import migrate
from service.db import models as m
from service.db.engine import clock, transaction
from service.domain.codefacts.texts import KernelText
from service.domain.metrics import SeriesKey
from service.domain.policy.policy import Policy
from service.domain.states import (
    FoundBy,
    PointReason,
    PointState,
    Priority,
    Purpose,
    RegressionState,
    RunState,
    SearchState,
)
from service.domain.verdicts.totals import Summary
from service.ledger import code_texts
from service.ledger.targets import series_of, target_named
from tests import world
from tests.dashboards import seed as base

HOUR = 3600.0
SPILLS = "slower because the kernel now spills 12 registers"
NOT_YOURS = "not your commit: Quack 0.6.4 → 0.6.5 made the baseline 6 % faster"
QUARANTINED = "9 of 60 copies differed from their original, and 3 are nominal"


def seed(session: Session, now: float = base.NOW) -> base.Seeded:
    """Everything on top of the runs that `seed.py` writes: who did it, who knows of it, and what is not trusted."""
    seeded = base.seed(session, now)
    session.flush()
    target, runs = target_named(session, seeded.target), seeded.runs
    policy = Policy(smallest_change=0.02)
    row = m.PolicyRow(digest=policy.digest, values=policy.model_dump(mode="json"), created_at=now - 90 * HOUR)
    session.add(row)
    session.flush()
    for name in ("steady", "slow", "fast", "pull"):
        _decided(session, runs[name], row.id)
    _beside(session, runs["fast"], base.CASES)
    _lives(session, target, runs, base.CASES, now)
    _calibrated(session, target, runs, base.CASES, now)
    _compiled(session, target, runs["slow"], base.CASES[0])
    world.totalled(session)
    return seeded


def _compiled(session: Session, target: m.Target, run_id: int, case: str) -> None:
    """The compiled code of both sides of a case, one instruction apart."""
    sides = {"head:norms": "fma.rn.f32", "parent:norms": "mul.rn.f32"}
    texts = [
        KernelText(contender, case, 0, "_forward", "ptx", f".visible .entry _forward()\n{code} %f1, %f2, %f3;\n")
        for contender, code in sides.items()
    ]
    assert code_texts.keep(session, target.id, texts, run_id=run_id) == len(sides)


def _decided(session: Session, run_id: int, policy_id: int) -> None:
    """The verdicts of one run with what they rest on, and its geometric means."""
    verdicts = select(m.VerdictRow).where(m.VerdictRow.run_id == run_id, m.VerdictRow.baseline_kind == "parent")
    for verdict in session.scalars(verdicts):
        verdict.policy_id, verdict.smallest_change = policy_id, 0.02
        if verdict.outcome in ("regression", "improvement"):
            verdict.suspected, verdict.p, verdict.q = True, 2.4e-5, 7.1e-5
            verdict.cause_kind = "code"
            verdict.cause_certain = True
            verdict.cause_text = (
                SPILLS if verdict.outcome == "regression" else "faster because it launches 16 warps, not 4"
            )
    means = [
        Summary("norms", "rmsnorm", "fwd", Metric.KERNEL, 2, 1.102, 1.098, 1.106, 3),
        Summary("norms", "rmsnorm", "bwd", Metric.KERNEL, 2, 1.043, 1.038, 1.048, 3),
        Summary("norms", "layernorm", "fwd", Metric.KERNEL, 2, 1.001, 0.996, 1.006, 3),
    ]
    session.get_one(m.Run, run_id).summary = [one.as_json() for one in means]


def _beside(session: Session, run_id: int, cases: tuple[str, ...]) -> None:
    """The other baselines of one run, a quarantined case, and one that the recipe no longer has."""
    run = session.get_one(m.Run, run_id)
    run.last_good, run.pinned = "0123456789" * 4, "v1.2"
    shared = {"run_id": run_id, "provider": "norms", "trials": 3, "rounds": 60}
    session.add_all(
        [
            m.VerdictRow(
                **shared, case=cases[3], baseline_kind="last_good", baseline="0123456789" * 4, outcome="steady",
                ratio=1.0, low=0.99, high=1.01, reason="not more than 2% slower than 0123456789",
            ),
            m.VerdictRow(
                **shared, case=cases[5], baseline_kind="last_good", baseline="0123456789" * 4, outcome="regression",
                ratio=1.031, low=1.025, high=1.037,
                reason="3.1% slower than 0123456789",
            ),
            m.VerdictRow(
                **shared, case=cases[4], baseline_kind="pinned", baseline="v1.2", outcome="regression",
                ratio=1.041, low=1.036, high=1.046, q=0.002,
                reason="4.1% slower than v1.2",
            ),
            m.VerdictRow(
                **shared, case=cases[1], baseline_kind="best", baseline="inductor", outcome="regression",
                ratio=1.33, low=1.32, high=1.34, behind_sota=True, cause_kind="baseline", cause_text=NOT_YOURS,
                reason="takes 1.33 times as long as inductor, the fastest here",
            ),
            m.VerdictRow(
                **(shared | {"trials": 0, "rounds": 0}), case="rmsnorm.fwd.64x64.bf16-fp32", baseline_kind="parent",
                outcome="removed", reason="the recipe asks for it no longer",
            ),
        ]
    )  # fmt: skip
    noisy = select(m.VerdictRow).where(
        m.VerdictRow.run_id == run_id, m.VerdictRow.case == cases[0], m.VerdictRow.baseline_kind == "parent"
    )
    verdict = session.scalars(noisy).one()
    verdict.outcome, verdict.suspected, verdict.quarantined_by = "inconclusive", True, "kernelwatch"
    verdict.reason_code, verdict.reason_args = "quarantined", {"why": QUARANTINED}


def _lives(session: Session, target: m.Target, runs: dict[str, int], cases: tuple[str, ...], now: float) -> None:
    """One incident of two regressions (one fixed, one blamed by a bisection), one accepted, one that history found."""
    slow = session.get_one(m.Run, runs["slow"])
    incident = m.Incident(
        target_id=target.id, device="h200", revision_id=slow.revision_id, opened_at=now - 20 * HOUR,
        cause_kind="code", cause_text=SPILLS,
    )  # fmt: skip
    session.add(incident)
    session.flush()
    found = _bisection(session, target, runs, cases, incident, now)
    fixed, blamed = session.scalars(select(m.RegressionRow).order_by(m.RegressionRow.id)).all()
    for row in (fixed, blamed):
        row.incident_id, row.cause_kind, row.cause_text, row.culprit = incident.id, "code", SPILLS, found.culprit
        row.low, row.high = row.ratio - 0.006, row.ratio + 0.006
        _event(session, row, "opened", now - 20 * HOUR, RegressionState.OPEN, run_id=slow.id)
        _event(session, row, "bisecting", now - 19 * HOUR, RegressionState.BISECTING, words=f"bisection {found.id}")
        _event(session, row, "blamed", now - 16 * HOUR, RegressionState.BLAMED, words=found.reason)
    _event(session, fixed, "fixed", now - 12 * HOUR, RegressionState.FIXED, run_id=runs["fast"])
    blamed.state, blamed.assignee, blamed.due_at = RegressionState.BLAMED, "ada", now + 48 * HOUR
    _event(session, blamed, "assigned", now - 15 * HOUR, RegressionState.BLAMED, who="grace", words="ada")
    _event(
        session, blamed, "note", now - 14 * HOUR, RegressionState.BLAMED, who="ada",
        words="Two blocks would do; <b>see</b> the plan.",
    )  # fmt: skip
    series = [series_of(session, SeriesKey.of(target.id, "h200", "norms", case)) for case in cases]
    accepted = m.RegressionRow(
        series_id=series[0], run_id=runs["steady"], ratio=1.034, low=1.03, high=1.038, opened_at=now - 50 * HOUR,
        state=RegressionState.ACKNOWLEDGED, reason="exact sums are worth 3 %", until=now + 700 * HOUR,
    )  # fmt: skip
    crept = m.RegressionRow(
        series_id=series[5], run_id=slow.id, ratio=1.031, low=1.025, high=1.037, opened_at=now - 9 * HOUR,
        found_by=FoundBy.HISTORY, good="0123456789" * 4, cause_kind="unknown",
        cause_text="not certain: no fact of the code explains it",
    )  # fmt: skip
    session.add_all([accepted, crept])
    session.flush()
    session.add(
        m.GapEvent(
            series_id=series[3], run_id=runs["first"], at=now - 60 * HOUR, behind_sota=True, ratio=1.293, own=402.0,
            sota=311.0,
        )
    )  # fmt: skip
    session.add(
        m.ConfigurationDrift(
            series_id=series[3], run_id=runs["fast"], earlier_run_id=slow.id, at=now - 30 * HOUR,
            before="_backward num_warps=4", now="_backward num_warps=8",
        )
    )  # fmt: skip
    _event(session, accepted, "opened", now - 50 * HOUR, RegressionState.OPEN, run_id=runs["steady"])
    _event(
        session, accepted, "acknowledged", now - 49 * HOUR, RegressionState.ACKNOWLEDGED, who="grace",
        words=accepted.reason,
    )  # fmt: skip
    _event(session, crept, "opened", now - 9 * HOUR, RegressionState.OPEN, words="history found it")
    before = session.get_one(m.Run, runs["steady"]).revision_id
    step = {"before_id": before, "revision_id": slow.revision_id, "p": 1e-6, "found_at": now - 10 * HOUR}
    session.add_all(
        [
            m.ChangePoint(
                **step, series_id=series[5], ratio=1.031, low=1.025, high=1.037, level="notify",
                state=PointState.CONFIRMED, regression_id=crept.id, bisection_id=found.id,
            ),
            m.ChangePoint(
                **step, series_id=series[1], ratio=1.21, low=1.2, high=1.22, level="block",
                state=PointState.CONFIRMED, regression_id=fixed.id,
                reason_code=PointReason.REGRESSION.value, reason_args={"regression": fixed.id},
            ),
            m.ChangePoint(
                **step, series_id=series[2], ratio=1.012, low=1.008, high=1.016, level="notify",
                state=PointState.CLOSED,
                reason_code=PointReason.NOT_REPEATED.value, reason_args={"bisection": found.id, "sessions": 2},
            ),
        ]
    )  # fmt: skip


def _bisection(
    session: Session, target: m.Target, runs: dict[str, int], cases: tuple[str, ...], incident: m.Incident, now: float
) -> m.Bisection:
    """A search that named the slow revision, with its steps as runs."""
    line = [session.get_one(m.Revision, session.get_one(m.Run, runs[name]).revision_id)
            for name in ("first", "steady", "docs", "slow")]  # fmt: skip
    found = m.Bisection(
        target_id=target.id, device="h200", suite="norms", cases=[cases[1], cases[3]], good=line[0].sha,
        bad=line[-1].sha, line=[one.sha for one in line], state=SearchState.FOUND, asked_by="kernelwatch",
        incident_id=incident.id, max_runs=24, culprit=line[-1].sha, created_at=now - 19 * HOUR,
        finished_at=now - 16 * HOUR,
        reason=f"{line[-1].short} is 21.4 % slower than its parent {line[-2].short}, confirmed by 3 fresh trials",
    )  # fmt: skip
    session.add(found)
    session.flush()
    first, second, third, last = line
    steps = (
        (last, first, 1.21, "regression"),
        (second, first, 1.0, "steady"),
        (third, first, 1.0, "steady"),
        (last, third, 1.214, "regression"),
    )
    for place, (head, baseline, ratio, outcome) in enumerate(steps):
        at = now - (19 - place / 2) * HOUR
        run = m.Run(
            dedupe=f"bisection:{found.id}:{place}", target_id=target.id, revision_id=head.id, baseline=baseline.sha,
            recipe_id=target.recipe_id or 0, device="h200", suite="norms", purpose=Purpose.BISECTION,
            only_cases=[cases[1], cases[3]], bisection_id=found.id, trusted=True, priority=Priority.BISECTION,
            state=RunState.DONE, attempt=1, worker="h200-box", created_at=at, started_at=at + 10,
            finished_at=at + 200,
        )  # fmt: skip
        session.add(run)
        session.flush()
        session.add_all(
            m.VerdictRow(
                run_id=run.id, provider="norms", case=case, baseline_kind="parent", baseline=baseline.sha,
                outcome=outcome,
                ratio=ratio, low=ratio - 0.005, high=ratio + 0.005, trials=3, rounds=60,
                confirmed=outcome == "regression", reason="as the search asked",
            )
            for case in (cases[1], cases[3])
        )  # fmt: skip
    return found


def _calibrated(session: Session, target: m.Target, runs: dict[str, int], cases: tuple[str, ...], now: float) -> None:
    """Equal code against itself: one fair case, one that alarms too often and is quarantined, one that was released."""
    recipe = session.get_one(m.Run, runs["first"]).recipe_id
    series = [series_of(session, SeriesKey.of(target.id, "h200", "norms", case)) for case in cases]
    for night in range(24):
        at = now - (24 - night) * 24 * HOUR
        revision = session.get_one(m.Run, runs["steady"]).revision_id
        sha = session.get_one(m.Revision, revision).sha
        run = m.Run(
            dedupe=f"calibration:{night}", target_id=target.id, revision_id=revision, baseline=sha, recipe_id=recipe,
            device="h200", suite="norms", purpose=Purpose.CALIBRATION, only_worker="h200-box", trusted=True,
            priority=Priority.CALIBRATION, state=RunState.DONE, attempt=1, worker="h200-box", created_at=at,
            started_at=at + 10, finished_at=at + 200,
        )  # fmt: skip
        session.add(run)
        session.flush()
        for place, series_id in enumerate(series):
            odd = place == 0 and night % 3 == 0
            session.add(
                m.Calibration(
                    series_id=series_id, run_id=run.id, worker="h200-box", ratio=1.02 if odd else 1.001,
                    p=0.004 if odd else 0.1 + 0.03 * ((night + place) % 24), trials=3, alarmed=False, at=at,
                )
            )  # fmt: skip
    session.add_all(
        [
            m.Quarantine(
                series_id=series[0], since=now - 30 * HOUR, by="kernelwatch",
                reason="8 of 24 copies differed from their original; on a fair machine 1 of 20 does",
            ),
            m.Quarantine(
                series_id=series[4], since=now - 400 * HOUR, by="ada", reason="its clocks were not locked",
                released_at=now - 300 * HOUR, released_by="ada", released_why="they are locked now",
            ),
        ]
    )  # fmt: skip


def _event(
    session: Session, row: m.RegressionRow, what: str, at: float, state: RegressionState, *,
    who: str = "kernelwatch", words: str | None = None, run_id: int | None = None,
) -> None:  # fmt: skip
    session.add(
        m.RegressionEvent(regression_id=row.id, at=at, who=who, what=what, state=state, words=words, run_id=run_id)
    )


if __name__ == "__main__":  # python -m tests.dashboards.seed_deciding: into the database of the settings
    migrate.upgrade()
    with transaction() as filling:
        print(seed(filling, clock(filling)), file=sys.stderr)
