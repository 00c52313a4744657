"""The story of `seed.py` with what deciding adds: causes, lives, a bisection, change points, calibrations."""

import sys

from sqlalchemy import select
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db import migrate
from service.db import models as m
from service.db.engine import clock, transaction
from service.domain.codefacts.texts import KernelText
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
from service.ledger import stored_texts
from service.ledger.targets import target_named
from tests import world
from tests.dashboards import seed as base

HOUR = 3600.0
SPILLS = "slower because the kernel now spills 12 registers"
FASTEST = "takes 1.33 times as long as inductor, the fastest here"
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
    assert stored_texts.keep_code(session, target.id, texts, run_id=run_id) == len(sides)


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
    numbers = ("outcome", "ratio", "low", "high", "reason")
    behind = {"behind_sota": True, "cause_kind": "baseline", "cause_text": NOT_YOURS}
    good, pinned, best = ("last_good", "0123456789" * 4), ("pinned", "v1.2"), ("best", "inductor")
    for case, (kind, baseline), *values, more in (
        (cases[3], good, "steady", 1.0, 0.99, 1.01, "not more than 2% slower than 0123456789", {}),
        (cases[5], good, "regression", 1.031, 1.025, 1.037, "3.1% slower than 0123456789", {}),
        (cases[4], pinned, "regression", 1.041, 1.036, 1.046, "4.1% slower than v1.2", {"q": 0.002}),
        (cases[1], best, "regression", 1.33, 1.32, 1.34, FASTEST, behind),
    ):
        columns = dict(zip(numbers, values, strict=True)) | more
        world.judged(session, run, case, baseline_kind=kind, baseline=baseline, trials=3, rounds=60, **columns)
    gone = {"outcome": "removed", "reason": "the recipe asks for it no longer"}
    world.judged(session, run, "rmsnorm.fwd.64x64.bf16-fp32", **gone)
    noisy = select(m.VerdictRow).where(
        m.VerdictRow.run_id == run_id, m.VerdictRow.case == cases[0], m.VerdictRow.baseline_kind == "parent"
    )
    verdict = session.scalars(noisy).one()
    verdict.outcome, verdict.suspected, verdict.quarantined_by = "inconclusive", True, "kernelwatch"
    verdict.reason_code, verdict.reason_args = "quarantined", {"why": QUARANTINED}


def _lives(session: Session, target: m.Target, runs: dict[str, int], cases: tuple[str, ...], now: float) -> None:
    """One incident of two regressions (one fixed, one blamed by a bisection), one accepted, one that history found."""
    slow = session.get_one(m.Run, runs["slow"])
    cause = {"cause_kind": "code", "cause_text": SPILLS}
    of = {"target_id": target.id, "device": "h200", "revision_id": slow.revision_id}
    incident = m.Incident(**of, **cause, opened_at=now - 20 * HOUR)
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
    note = "Two blocks would do; <b>see</b> the plan."
    _event(session, blamed, "note", now - 14 * HOUR, RegressionState.BLAMED, who="ada", words=note)
    steady, fast = (session.get_one(m.Run, runs[name]) for name in ("steady", "fast"))
    known = {"state": RegressionState.ACKNOWLEDGED, "reason": "exact sums are worth 3 %", "until": now + 700 * HOUR}
    accepted = world.regression(
        session, steady, cases[0], 1.034, low=1.03, high=1.038, opened_at=now - 50 * HOUR, **known
    )
    known = {"found_by": FoundBy.HISTORY, "good": "0123456789" * 4, "cause_kind": "unknown"}
    known |= {"cause_text": "not certain: no fact of the code explains it", "opened_at": now - 9 * HOUR}
    crept = world.regression(session, slow, cases[5], 1.031, low=1.025, high=1.037, **known)
    gap = {"series_id": world.series(session, target.id, cases[3], "h200"), "run_id": runs["first"]}
    session.add(m.GapEvent(**gap, at=now - 60 * HOUR, behind_sota=True, ratio=1.293, own=402.0, sota=311.0))
    moved = {"before": "_backward num_warps=4", "now": "_backward num_warps=8"}
    world.drift(session, fast, slow, cases[3], at=now - 30 * HOUR, **moved)
    _event(session, accepted, "opened", now - 50 * HOUR, RegressionState.OPEN, run_id=runs["steady"])
    why = {"who": "grace", "words": accepted.reason}
    _event(session, accepted, "acknowledged", now - 49 * HOUR, RegressionState.ACKNOWLEDGED, **why)
    _event(session, crept, "opened", now - 9 * HOUR, RegressionState.OPEN, words="history found it")
    sides = [session.get_one(m.Revision, run.revision_id) for run in (steady, slow)]
    confirmed, closed = (
        {"found_at": now - 10 * HOUR, "state": one} for one in (PointState.CONFIRMED, PointState.CLOSED)
    )
    confirmed |= {"device": "h200"}
    closed |= {"device": "h200"}
    found_by = {"regression_id": crept.id, "bisection_id": found.id}
    world.change_point(session, *sides, cases[5], 1.031, low=1.025, high=1.037, **confirmed, **found_by)
    explained = {"reason_code": PointReason.REGRESSION.value, "reason_args": {"regression": fixed.id}}
    of_pair = {"level": "block", "regression_id": fixed.id, **explained}
    world.change_point(session, *sides, cases[1], 1.21, **confirmed, **of_pair)
    args = {"bisection": found.id, "sessions": 2}
    refuted = {"state": PointState.CLOSED, "reason_code": PointReason.NOT_REPEATED.value, "reason_args": args}
    world.change_point(session, *sides, cases[2], 1.012, low=1.008, high=1.016, **(confirmed | refuted))


def _bisection(
    session: Session, target: m.Target, runs: dict[str, int], cases: tuple[str, ...], incident: m.Incident, now: float
) -> m.Bisection:
    """A search that named the slow revision, with its steps as runs."""
    line = [session.get_one(m.Revision, session.get_one(m.Run, runs[name]).revision_id)
            for name in ("first", "steady", "docs", "slow")]  # fmt: skip
    first, second, third, last = line
    why = f"{last.short} is 21.4 % slower than its parent {third.short}, confirmed by 3 fresh trials"
    ended = {"state": SearchState.FOUND, "culprit": last.sha, "finished_at": now - 16 * HOUR, "reason": why}
    asked = {"asked_by": "kernelwatch", "incident_id": incident.id, "max_runs": 24, "created_at": now - 19 * HOUR}
    moved = cases[1], cases[3]
    found = world.bisection(session, line, *moved, device="h200", suite="norms", **asked, **ended)
    steps = (
        (last, first, 1.21, "regression"),
        (second, first, 1.0, "steady"),
        (third, first, 1.0, "steady"),
        (last, third, 1.214, "regression"),
    )
    for place, (head, baseline, ratio, outcome) in enumerate(steps):
        of = {"dedupe": f"bisection:{found.id}:{place}", "only_cases": list(moved), "bisection_id": found.id}
        run = _internal(session, head, baseline.sha, Purpose.BISECTION, now - (19 - place / 2) * HOUR, **of)
        for case in moved:
            numbers = {"ratio": ratio, "low": ratio - 0.005, "high": ratio + 0.005, "trials": 3, "rounds": 60}
            told = {"outcome": outcome, "confirmed": outcome == "regression", "reason": "as the search asked"}
            world.judged(session, run, case, baseline=baseline.sha, **numbers, **told)
    return found


def _internal(
    session: Session, head: m.Revision, baseline: str, purpose: Purpose, at: float, **columns: object
) -> m.Run:
    """A run that nobody pushed."""
    done = {"state": RunState.DONE, "attempt": 1, "worker": "h200-box", "device": "h200", "suite": "norms"}
    times = {"created_at": at, "started_at": at + 10, "finished_at": at + 200}
    columns |= {"purpose": purpose, "priority": Priority[purpose.name], "baseline": baseline}
    return world.run(session, head, **done, **times, **columns)


def _calibrated(session: Session, target: m.Target, runs: dict[str, int], cases: tuple[str, ...], now: float) -> None:
    """Equal code against itself: one fair case, one that alarms too often and is quarantined, one that was released."""
    steady = session.get_one(m.Revision, session.get_one(m.Run, runs["steady"]).revision_id)
    series = [world.series(session, target.id, case, "h200") for case in cases]
    for night in range(24):
        at = now - (24 - night) * 24 * HOUR
        of = {"dedupe": f"calibration:{night}", "only_worker": "h200-box"}
        run = _internal(session, steady, steady.sha, Purpose.CALIBRATION, at, **of)
        for place, series_id in enumerate(series):
            odd = place == 0 and night % 3 == 0
            numbers = {"ratio": 1.02, "p": 0.004} if odd else {"ratio": 1.001, "p": 0.1 + 0.03 * ((night + place) % 24)}
            told = {"worker": "h200-box", "trials": 3, "alarmed": False, "at": at}
            session.add(m.Calibration(series_id=series_id, run_id=run.id, **numbers, **told))
    why = "8 of 24 copies differed from their original; on a fair machine 1 of 20 does"
    session.add(m.Quarantine(series_id=series[0], since=now - 30 * HOUR, by="kernelwatch", reason=why))
    released = {"released_at": now - 300 * HOUR, "released_by": "ada", "released_why": "they are locked now"}
    by_hand = {"since": now - 400 * HOUR, "by": "ada", "reason": "its clocks were not locked"}
    session.add(m.Quarantine(series_id=series[4], **by_hand, **released))


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
