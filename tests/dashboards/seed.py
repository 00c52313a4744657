"""Fills a database with what a few days of watching leave behind, through the models: for tests, and to look at."""

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.orm import Session

from kernels.cases import Case
from service.db import migrate
from service.db import models as m
from service.db.engine import clock, disconnect, transaction
from service.domain.metrics import SeriesKey
from service.domain.states import CellState, OutboxState, Priority, RegressionState, RunState, TargetKind
from service.ledger.targets import series_of
from service.settings import settings
from tests import world
from tests.databases import copy_migrated, copy_sown

NOW = 1_790_000_000.0
HOUR = 3600.0
CASES = (
    "rmsnorm.fwd.4096x1024.bf16-fp32",
    "rmsnorm.fwd.32768x4096.bf16-fp32",
    "rmsnorm.bwd.4096x1024.bf16-fp32",
    "rmsnorm.bwd.32768x4096.bf16-fp32",
    "layernorm.fwd.4096x1024.bf16-fp32",
    "layernorm.fwd.8192x8192.bf16-fp32",
)
USUAL_US = dict(zip(CASES, (7.31, 128.4, 18.9, 402.0, 8.02, 131.7), strict=True))
QUACK_US = dict(zip(CASES, (6.9, 121.0, 18.2, 311.0, 7.9, 128.0), strict=True))
RECIPE = """
devices = ["h200", "cpu"]
sota = "quack"
suite = "norms"

[base]
stack = "host"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
rmsnorm.bwd = "norms:rmsnorm_backward"
layernorm.fwd = "norms:layernorm"

[suites]
norms = [
  "rmsnorm.fwd.4096x1024.bf16-fp32",
  "rmsnorm.bwd.4096x1024.bf16-fp32",
]

[policy]
smallest_change = 0.02
"""

AGAIN = "Widths get their own block again, and the backward one pass"
WRONG = "y differs from the float64 result by 3.1 times the allowed error"
UNSANDBOXED = {"no_sandbox": "bubblewrap is not installed; install it with `sudo apt-get install -y bubblewrap`"}
TELEMETRY = {
    "worker": "h200-box",
    "trials": [
        {
            "what": "trial 1",
            "seconds": {"start": 11.0, "rounds": 2.5},
            "telemetry": [
                {"when": "trial", "host": {"load": [1.2, 1.0, 0.9]}, "gpu": {"sm_mhz": 1980, "temperature_c": 41}},
                {"when": f"after {CASES[0]}", "host": {"load": [2.4, 1.0, 0.9]}, "gpu": {"sm_mhz": 1965}},
            ],
        }
    ],
}


@dataclass
class Seeded:
    """Where things are, for the tests."""

    target: str = "norms"
    empty: str = "liger"
    runs: dict[str, int] = field(default_factory=dict)  # what happened in the run -> its id


@dataclass(frozen=True)
class Told:
    """One run to write down: what became of it, and the ratio of each case that is not 1."""

    name: str
    subject: str
    state: RunState = RunState.DONE
    ratios: dict[str, float] = field(default_factory=dict)
    invalid: tuple[str, ...] = ()
    inconclusive: tuple[str, ...] = ()
    reason: str | None = None
    log: str | None = None
    pull: int | None = None
    device: str = "h200"


STORY = (
    Told("first", "Norms in Triton, a first version"),
    Told("steady", "Name the block sizes"),
    Told(
        "docs",
        "Say in the README how to call them",
        RunState.SKIPPED,
        reason="only README.md changed",
    ),
    Told("slow", "One block for every width", ratios={CASES[1]: 1.214, CASES[3]: 1.087}, inconclusive=(CASES[4],)),
    Told(
        "broken",
        "Use the new <descriptor> loads",
        RunState.FAILED,
        reason="`sh -c 'python setup.py build'` ended with 1",
        log="\n".join(
            [
                *(f"[{n}/30] compiling norms_{n}.cu" for n in range(1, 31)),
                'File "norms/forward.py", line 41',
                "    desc = tl.make_tensor_descriptor(X, ```[N]```",
                "SyntaxError: '(' was never closed <script>alert(1)</script>",
            ]
        ),
    ),
    Told(
        "fast",
        "Widths get their own block again, and the backward one pass",
        ratios={CASES[1]: 0.82, CASES[2]: 0.911, CASES[3]: 0.92},
    ),
    Told("wrong", "Sum in bf16", invalid=(CASES[0], CASES[1]), ratios={CASES[4]: 0.995}),
    Told("pull", "Try num_warps=16 everywhere", ratios={CASES[0]: 1.102}, pull=7),
    Told(
        "held",
        "A stranger's change",
        RunState.HELD,
        reason="it comes from a fork",
        pull=8,
    ),
    Told("cpu", AGAIN, device="cpu", ratios={CASES[5]: 1.0}),
    Told("running", "Load the weight once per program", RunState.LEASED),
    Told("queued", "Load the weight once per program", RunState.QUEUED, device="cpu"),
)


def seed(session: Session, now: float = NOW) -> Seeded:
    """Two targets (one without anything yet), twelve runs, two open regressions, a gap to SOTA, two workers."""
    seeded = Seeded()
    target = m.Target(
        name="norms",
        kind=TargetKind.GIT,
        location="https://github.com/example/norms",
        branch="main",
        forge="example/norms",
        trusted=True,
        created_at=now - 99 * HOUR,
        poll_at=now + 40,
    )
    empty = m.Target(
        name="liger",
        kind=TargetKind.PACKAGE,
        location="https://index.example/simple",
        package="liger-kernel",
        created_at=now,
        poll_failures=3,
        poll_error="index.example does not answer: the name is not known",
        poll_at=now + 300,
    )
    session.add_all([target, empty])
    session.flush()
    recipe = m.RecipeRow(target_id=target.id, digest="a" * 64, text=RECIPE, adapters={}, created_at=now)
    stack = m.Stack(
        digest="5" * 64,
        versions={"torch": "2.13.0", "triton": "3.7.1", "cuda": "13.0", "driver": "590.44", "quack": "0.6.1"},
    )
    session.add_all([recipe, stack])
    session.flush()
    target.recipe_id = recipe.id
    revisions: dict[str, m.Revision] = {}
    chance = random.Random(7)
    for place, told in enumerate(STORY):
        at = now - (len(STORY) - place) * 3 * HOUR
        if told.subject not in revisions:
            before = [r for r in revisions.values() if r.ordinal is not None]
            revisions[told.subject] = m.Revision(
                target_id=target.id,
                sha="".join(chance.choices("0123456789abcdef", k=40)),
                parent=before[-1].sha if before else None,
                ordinal=None if told.pull else len(before),
                subject=told.subject,
                author="Ada Example",
                committed_at=at,
                paths=["norms/forward.py"],
            )
            session.add(revisions[told.subject])
            session.flush()
        run = _run(session, target, recipe, stack, revisions[told.subject], told, at)
        seeded.runs[told.name] = run.id
        if told.state is RunState.DONE:
            _numbers(session, run, told, chance, first=place == 0)
    _standing_matters(session, target, stack, seeded, now)
    world.totalled(session)
    return seeded


def _run(
    session: Session, target: m.Target, recipe: m.RecipeRow, stack: m.Stack, revision: m.Revision, told: Told, at: float
) -> m.Run:
    over = told.state in (RunState.DONE, RunState.FAILED)
    begun = over or told.state is RunState.LEASED
    run = m.Run(
        dedupe=f"norms:{told.name}",
        target_id=target.id,
        revision_id=revision.id,
        baseline=revision.parent,
        recipe_id=recipe.id,
        pull=told.pull,
        device=told.device,
        suite="norms",
        trusted=True,
        priority=Priority.MAINLINE,
        state=told.state,
        attempt=1 if begun else 0,
        worker=f"{told.device}-box" if begun else None,
        created_at=at,
        started_at=at + 20 if begun else None,
        finished_at=at + 320 if over else None,
        stage="measuring: trial 2, case 3 of 6" if told.state is RunState.LEASED else None,
        reason=told.reason,
        log=told.log,
        sandboxed=told.device != "cpu" if begun else None,
        stack_id=stack.id if over else None,
        telemetry=TELEMETRY | (UNSANDBOXED if told.device == "cpu" else {}) if over else None,
    )
    session.add(run)
    session.flush()
    if begun:
        outcome = told.state.value if over else None
        session.add(
            m.Attempt(
                run_id=run.id,
                attempt=1,
                worker=run.worker or "",
                started_at=at + 20,
                finished_at=run.finished_at,
                outcome=outcome,
            )
        )
    return run


def _numbers(session: Session, run: m.Run, told: Told, chance: random.Random, *, first: bool) -> None:
    slowdown = 40.0 if told.device == "cpu" else 1.0
    for case in CASES:
        ratio = told.ratios.get(case, 1 + chance.uniform(-0.004, 0.004))
        parent_us = USUAL_US[case] * slowdown
        head = parent_us * ratio
        wrong = case in told.invalid
        changed = case in told.ratios
        session.add_all(
            _measurements(run, case, head, parent_us, QUACK_US[case] * slowdown, changed, wrong, first, chance)
        )
        session.add(_verdict(run, case, ratio, told, wrong, first, chance))
        against = head / (QUACK_US[case] * slowdown)
        behind = against > 1.1 and not wrong
        session.add(
            m.VerdictRow(
                run_id=run.id,
                provider="norms",
                case=case,
                baseline_kind="sota",
                outcome="behind" if behind else "steady",
                ratio=None if wrong else against,
                low=None if wrong else against * 0.995,
                high=None if wrong else against * 1.005,
                trials=3,
                rounds=60,
                behind_sota=behind,
                reason="behind quack since the first measurement (3f2a)" if behind else "within 5 % of quack",
            )
        )


def _measurements(
    run: m.Run,
    case: str,
    head: float,
    parent: float,
    quack: float,
    changed: bool,
    wrong: bool,
    first: bool,
    chance: random.Random,
) -> list[m.Measurement]:
    facts: dict[str, Any] = {
        "code": "c0de",
        "kernels": 1,
        "registers": 40,
        "spills": 0,
        "shared": 2048,
        "config": {"num_warps": 4},
    }
    other = {**facts, "code": "beef", "registers": 64, "spills": 12, "config": {"num_warps": 16}} if changed else facts
    times = {"head": head, "parent": parent, "control": parent * chance.uniform(0.997, 1.003), "sota": quack}
    if first:
        times.pop("parent")
    rows = []
    for role, us in times.items():
        provider = "quack" if role == "sota" else "norms"
        bad = wrong and role == "head"
        rows.append(
            m.Measurement(
                run_id=run.id,
                contender=f"{role}:{provider}",
                role=role,
                provider=provider,
                case=case,
                state=CellState.INVALID if bad else CellState.MEASURED,
                reason=WRONG if bad else None,
                median=None if bad else us,
                gb_s=None if bad else Case.parse(case).least_bytes / us / 1e3,
                trials=3,
                rounds=60,
                facts=other if role == "head" else facts,
                samples=None
                if bad
                else m.pack([[us * chance.uniform(0.99, 1.01) for _ in range(20)] for _ in range(3)], []),
            )
        )
    return rows


def _verdict(
    run: m.Run, case: str, ratio: float, told: Told, wrong: bool, first: bool, chance: random.Random
) -> m.VerdictRow:
    outcome, reason, confirmed = "steady", "within 2% of its parent", False
    if first:
        outcome, reason = "new", "there is no earlier revision to compare with"
    elif wrong:
        outcome, reason = "invalid", WRONG
    elif case in told.inconclusive:
        outcome, reason = "inconclusive", "the interval is still too wide after 8 trials"
    elif abs(ratio - 1) > 0.02:
        outcome = "regression" if ratio > 1 else "improvement"
        word = "slower" if ratio > 1 else "faster"
        reason, confirmed = f"{abs(ratio - 1):.1%} {word} than its parent, confirmed by 3 fresh trials", True
    half = 0.06 if outcome == "inconclusive" else chance.uniform(0.003, 0.008)
    none = first or wrong
    return m.VerdictRow(
        run_id=run.id,
        provider="norms",
        case=case,
        baseline_kind="parent",
        outcome=outcome,
        ratio=None if none else ratio,
        low=None if none else ratio - half,
        high=None if none else ratio + half,
        trials=0 if none else 3,
        rounds=0 if none else 60,
        confirmed=confirmed,
        control=None if none else chance.uniform(0.997, 1.003),
        reason=reason,
    )


def _standing_matters(session: Session, target: m.Target, stack: m.Stack, seeded: Seeded, now: float) -> None:
    slow, fast = seeded.runs["slow"], seeded.runs["fast"]
    for case, ratio, by in ((CASES[1], 1.214, fast), (CASES[3], 1.087, None)):
        session.add(
            m.RegressionRow(
                series_id=series_of(session, SeriesKey.of(target.id, "h200", "norms", case)),
                run_id=slow,
                ratio=ratio,
                opened_at=now - 20 * HOUR,
                state=RegressionState.FIXED if by else RegressionState.OPEN,
                fixed_at=now - 12 * HOUR if by else None,
                fixed_by=by,
            )
        )
    session.add(
        m.Gap(
            series_id=series_of(session, SeriesKey.of(target.id, "h200", "norms", CASES[3])),
            behind_sota=True,
            since_run_id=seeded.runs["first"],
            last_run_id=fast,
            ratio_then=1.293,
            ratio_now=1.189,
            own=369.8,
            sota=311.0,
            stack_id=stack.id,
        )
    )
    session.add_all(
        [
            m.Worker(
                name="h200-box",
                device="h200",
                description="NVIDIA H200, driver 590.44",
                sandbox=None,
                started_at=now - 30 * HOUR,
                seen_at=now,
                run_id=seeded.runs["running"],
            ),
            m.Worker(
                name="cpu-box",
                device="cpu",
                description="2 cores of an old processor",
                sandbox="user namespaces are refused here",
                started_at=now - 30 * HOUR,
                seen_at=now - 900,
            ),
        ]
    )
    session.add_all(
        [
            m.OutboxMessage(
                key="comment:norms:7",
                kind="comment",
                target_id=target.id,
                run_id=seeded.runs["pull"],
                payload={},
                state=OutboxState.WAITING,
            ),
            m.OutboxMessage(
                key="check:norms:7",
                kind="check",
                target_id=target.id,
                run_id=seeded.runs["pull"],
                payload={},
                state=OutboxState.SENT,
            ),
        ]
    )


@contextmanager
def watched(
    folder: Path, sow: Callable[[Session, float], Any] = seed, *, database_url: str | None = None
) -> Iterator[Any]:
    """A state folder with the story in it, as if it had ended just now, on SQLite or in an empty database.

    SQLite gets a copy of what the first call with this `sow` wrote, unless `sow` has no name to know it by.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWATCH_STATE", str(folder))
        patch.delenv("KERNELWATCH_DATABASE_URL", raising=False)
        if database_url is not None:
            patch.setenv("KERNELWATCH_DATABASE_URL", database_url)
        _forget()
        if database_url is not None:
            migrate.upgrade()
            seeded = _sown(sow)
        elif "<" in sow.__qualname__:  # a lambda
            copy_migrated(folder)
            seeded = _sown(sow)
        else:
            seeded = copy_sown(folder, sow)
        yield seeded
        _forget()


def _sown(sow: Callable[[Session, float], Any]) -> Any:
    with transaction() as session:
        return sow(session, clock(session))


def _forget() -> None:
    disconnect()
    settings.cache_clear()


if __name__ == "__main__":  # python -m tests.dashboards.seed: into the database of the settings
    migrate.upgrade()
    with transaction() as filling:
        print(seed(filling, clock(filling)), file=sys.stderr)
