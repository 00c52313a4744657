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
from service.domain.states import CellState, OutboxState, RegressionState, RunState, TargetKind
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
    at_github = {
        "location": "https://github.com/example/norms",
        "branch": "main",
        "forge": "example/norms",
        "forge_kind": None,
    }
    target = world.registered(session, RECIPE, **at_github, trusted=True, created_at=now - 99 * HOUR, poll_at=now + 40)
    at_index = {"kind": TargetKind.PACKAGE, "location": "https://index.example/simple", "package": "liger-kernel"}
    failed = {"poll_failures": 3, "poll_error": "index.example does not answer: the name is not known"}
    session.add(m.Target(name="liger", **at_index, **failed, created_at=now, poll_at=now + 300))
    versions = {"torch": "2.13.0", "triton": "3.7.1", "cuda": "13.0", "driver": "590.44", "quack": "0.6.1"}
    stack = m.Stack(digest="5" * 64, versions=versions)
    session.add(stack)
    session.flush()
    revisions: dict[str, m.Revision] = {}
    chance = random.Random(7)
    for place, told in enumerate(STORY):
        at = now - (len(STORY) - place) * 3 * HOUR
        if told.subject not in revisions:
            before = [r for r in revisions.values() if r.ordinal is not None]
            revisions[told.subject] = world.commit(
                session,
                target.id,
                "".join(chance.choices("0123456789abcdef", k=40)),
                parent=before[-1].sha if before else None,
                ordinal=None if told.pull else len(before),
                subject=told.subject,
                author="Ada Example",
                committed_at=at,
                paths=["norms/forward.py"],
            )
        run = _run(session, stack, revisions[told.subject], told, at)
        seeded.runs[told.name] = run.id
        if told.state is RunState.DONE:
            _numbers(session, run, told, chance, first=place == 0)
    _standing_matters(session, stack, seeded, now)
    world.totalled(session)
    return seeded


def _run(session: Session, stack: m.Stack, revision: m.Revision, told: Told, at: float) -> m.Run:
    over = told.state in (RunState.DONE, RunState.FAILED)
    columns: dict[str, Any] = {"pull": told.pull, "device": told.device, "reason": told.reason, "log": told.log}
    columns |= {"dedupe": f"norms:{told.name}", "suite": "norms", "state": told.state, "created_at": at}
    if over or told.state is RunState.LEASED:
        columns |= {"attempt": 1, "worker": f"{told.device}-box", "started_at": at + 20}
        columns |= {"sandboxed": told.device != "cpu"}
    if over:
        telemetry = TELEMETRY | (UNSANDBOXED if told.device == "cpu" else {})
        columns |= {"finished_at": at + 320, "stack_id": stack.id, "telemetry": telemetry}
    elif told.state is RunState.LEASED:
        columns["stage"] = "measuring: trial 2, case 3 of 6"
    run = world.run(session, revision, **columns)
    if run.worker:
        times = {"started_at": at + 20, "finished_at": run.finished_at, "outcome": told.state.value if over else None}
        session.add(m.Attempt(run_id=run.id, attempt=1, worker=run.worker, **times))
    return run


def _numbers(session: Session, run: m.Run, told: Told, chance: random.Random, *, first: bool) -> None:
    slowdown = 40.0 if told.device == "cpu" else 1.0
    for case in CASES:
        ratio = told.ratios.get(case, 1 + chance.uniform(-0.004, 0.004))
        parent_us, quack_us = USUAL_US[case] * slowdown, QUACK_US[case] * slowdown
        head, wrong = parent_us * ratio, case in told.invalid
        control = parent_us * chance.uniform(0.997, 1.003)
        times = {"head": head} | ({} if first else {"parent": parent_us}) | {"control": control, "sota": quack_us}
        for role, us in times.items():
            _measured(session, run, role, case, us, chance, changed=case in told.ratios, wrong=wrong)
        _judged(session, run, case, ratio, told, chance, first=first)
        against = head / quack_us
        behind = against > 1.1 and not wrong
        why = "behind quack since the first measurement (3f2a)" if behind else "within 5 % of quack"
        known = {} if wrong else {"ratio": against, "low": against * 0.995, "high": against * 1.005}
        of_sota = {"baseline_kind": "sota", "outcome": "behind" if behind else "steady", "behind_sota": behind}
        world.judged(session, run, case, **of_sota, **known, trials=3, rounds=60, reason=why)


def _measured(
    session: Session, run: m.Run, role: str, case: str, us: float, chance: random.Random, *, changed: bool, wrong: bool
) -> None:
    facts = {"code": "c0de", "kernels": 1, "registers": 40, "spills": 0, "shared": 2048, "config": {"num_warps": 4}}
    if role == "head" and changed:
        facts |= {"code": "beef", "registers": 64, "spills": 12, "config": {"num_warps": 16}}
    columns: dict[str, Any] = {"facts": facts, "trials": 3, "rounds": 60, "role": role}
    columns["provider"] = "quack" if role == "sota" else "norms"
    if wrong and role == "head":
        world.measured(session, run, case, state=CellState.INVALID, reason=WRONG, **columns)
        return
    samples = m.pack([[us * chance.uniform(0.99, 1.01) for _ in range(20)] for _ in range(3)], [])
    world.measured(session, run, case, us, gb_s=Case.parse(case).least_bytes / us / 1e3, samples=samples, **columns)


def _judged(
    session: Session, run: m.Run, case: str, ratio: float, told: Told, chance: random.Random, *, first: bool
) -> None:
    wrong = case in told.invalid
    outcome, reason = "steady", "within 2% of its parent"
    if first:
        outcome, reason = "new", "there is no earlier revision to compare with"
    elif wrong:
        outcome, reason = "invalid", WRONG
    elif case in told.inconclusive:
        outcome, reason = "inconclusive", "the interval is still too wide after 8 trials"
    elif abs(ratio - 1) > 0.02:
        outcome = "regression" if ratio > 1 else "improvement"
        word = "slower" if ratio > 1 else "faster"
        reason = f"{abs(ratio - 1):.1%} {word} than its parent, confirmed by 3 fresh trials"
    half = 0.06 if outcome == "inconclusive" else chance.uniform(0.003, 0.008)
    known: dict[str, Any] = {"trials": 0, "rounds": 0}
    if not first and not wrong:
        known = {"ratio": ratio, "low": ratio - half, "high": ratio + half, "trials": 3, "rounds": 60}
        known["control"] = chance.uniform(0.997, 1.003)
    confirmed = outcome in ("regression", "improvement")
    world.judged(session, run, case, outcome=outcome, reason=reason, confirmed=confirmed, **known)


def _standing_matters(session: Session, stack: m.Stack, seeded: Seeded, now: float) -> None:
    slow = session.get_one(m.Run, seeded.runs["slow"])
    fast, pull = seeded.runs["fast"], seeded.runs["pull"]
    over = {"state": RegressionState.FIXED, "fixed_at": now - 12 * HOUR, "fixed_by": fast}
    world.regression(session, slow, CASES[1], 1.214, opened_at=now - 20 * HOUR, **over)
    world.regression(session, slow, CASES[3], 1.087, opened_at=now - 20 * HOUR)
    runs = {"since_run_id": seeded.runs["first"], "last_run_id": fast, "stack_id": stack.id}
    numbers = {"ratio_then": 1.293, "ratio_now": 1.189, "own": 369.8, "sota": 311.0}
    series_id = world.series(session, slow.target_id, CASES[3], "h200")
    session.add(m.Gap(series_id=series_id, behind_sota=True, **runs, **numbers))
    begun = {"started_at": now - 30 * HOUR}
    of_gpu = {"description": "NVIDIA H200, driver 590.44", "seen_at": now, "run_id": seeded.runs["running"]}
    world.worker(session, "h200-box", "h200", **of_gpu, **begun)
    of_cpu = {"description": "2 cores of an old processor", "sandbox": "user namespaces are refused here"}
    world.worker(session, "cpu-box", **of_cpu, **begun, seen_at=now - 900)
    for kind, state in (("comment", OutboxState.WAITING), ("check", OutboxState.SENT)):
        of_pull = {"target_id": slow.target_id, "run_id": pull, "payload": {}}
        session.add(m.OutboxMessage(key=f"{kind}:norms:7", kind=kind, state=state, **of_pull))


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
