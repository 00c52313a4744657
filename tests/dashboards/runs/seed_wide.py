"""A run of 206 cases of which one cause slowed 34, a pull request with two heads on two devices, and hostile names."""

import random
import sys
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import insert
from sqlalchemy.orm import Session

from kernels.cases import Case
from kernels.suites import SUITES
from service.db import migrate
from service.db import models as m
from service.db.engine import clock, transaction
from service.domain.policy.policy import Policy
from service.domain.states import CellState, OutboxState, Priority, RunState
from tests import world

HOUR = 3600.0
HOSTILE = '"><img src=x onerror=alert(1)>'
LONG = "Refactor_the_backward_reduction_without_any_space_to_break_at_" * 5
RTL = "\u202e\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 \u202cfix \U0001f525 kernels"
SLOWER = 34
PULL = 77
TRIALS, ROUNDS = 3, 10


def cases() -> list[str]:
    """206 cases in the kernel metric: those of the suites, and norms with a residual."""
    names = [case for suite in ("quack", "pr101", "models", "small", "awkward") for case in SUITES[suite]]
    shapes = ("32768x4096", "8192x8192", "4096x16384", "32768x1024", "8192x4096", "4096x7168", "2048x4096", "2048x1024")
    names += [
        f"{op}.{way}.{shape}.bf16-fp32"
        for shape in shapes
        for way in ("fwd", "bwd")
        for op in ("rmsnorm_residual", "layernorm_residual")
    ]
    return list(dict.fromkeys(names))[:206]


CASES = tuple(cases())
WIDE = tuple(case for case in CASES if case.startswith("rmsnorm") and ".fwd." in case and Case.parse(case).cols >= 4096)
SLOW = {case: 1.03 + 0.006 * place for place, case in enumerate(WIDE[:SLOWER])}
CODE_CHANGED = {"kind": "code", "code": "explained", "certain": True}


@dataclass
class WideSeeded:
    """The ids of what was written."""

    target: str = "norms"
    pull: int = PULL
    runs: dict[str, int] = field(default_factory=dict)


@dataclass
class _Writer:
    """Collects rows, which are inserted at once."""

    session: Session
    target: m.Target
    stack: m.Stack
    policy_id: int
    chance: random.Random
    measurements: list[dict[str, Any]] = field(default_factory=list)
    verdicts: list[dict[str, Any]] = field(default_factory=list)

    def flush(self) -> None:
        self.session.execute(insert(m.Measurement), self.measurements)
        self.session.execute(insert(m.VerdictRow), self.verdicts)
        self.measurements.clear()
        self.verdicts.clear()

    def run(self, revision: m.Revision, device: str, at: float, **given: Any) -> m.Run:
        done = {"state": RunState.DONE, "attempt": 1, "worker": f"{device}-box", "sandboxed": True, "suite": "all"}
        times = {"created_at": at, "started_at": at + 20, "finished_at": at + 300, "telemetry": telemetry(CASES)}
        of = {"dedupe": f"wide:{self.chance.random()}", "device": device, "stack_id": self.stack.id}
        return world.run(self.session, revision, **(done | times | of | given))

    def numbers(self, run: m.Run, ratios: dict[str, float], provider: str = "norms") -> None:
        """The times and verdicts of all cases; those in `ratios` moved by one cause."""
        speed = {"h200": 4200.0, "h100": 2900.0}[run.device]
        for case in CASES:
            parent = 2 + Case.parse(case).least_bytes / (speed * 1e3)
            ratio = ratios.get(case, self.chance.uniform(0.994, 1.006))
            quack = parent * self.chance.uniform(0.9, 1.3)
            times = {
                ("head", provider): parent * ratio,
                ("parent", provider): parent,
                ("control", provider): parent * self.chance.uniform(0.996, 1.004),
                ("sota", "quack"): quack,
                ("rival", "inductor"): parent * 1.14,
            }
            for (role, who), us in times.items():
                self.measurements.append(self._measurement(run, role, who, case, us, changed=case in ratios))
            self._judged(run, provider, case, ratio, parent * ratio / quack, changed=case in ratios)

    def _measurement(self, run: m.Run, role: str, who: str, case: str, us: float, *, changed: bool) -> dict[str, Any]:
        rounds = [[us * self.chance.uniform(0.99, 1.01) for _ in range(ROUNDS)] for _ in range(TRIALS)]
        return {
            "run_id": run.id, "contender": f"{role}:{who}", "role": role, "provider": who, "case": case,
            "state": CellState.MEASURED, "reason": None, "median": us,
            "gb_s": Case.parse(case).least_bytes / us / 1e3, "trials": TRIALS, "rounds": TRIALS * ROUNDS,
            "facts": facts(changed and role == "head", Case.parse(case).rows <= 64),
            "samples": m.pack(rounds, rounds if changed else []),
        }  # fmt: skip

    def _judged(self, run: m.Run, who: str, case: str, ratio: float, to_sota: float, *, changed: bool) -> None:
        outcome = ("regression" if ratio > 1 else "improvement") if changed else "steady"
        args = {
            "slower": ratio > 1, "what": "the kernel launches 16 warps, not 8", "size": None, "also": [],
            "confirmed": True, "doubt": None,
        }  # fmt: skip
        shared = {
            "run_id": run.id, "provider": who, "case": case, "trials": TRIALS, "rounds": TRIALS * ROUNDS,
            "policy_id": self.policy_id,
        }  # fmt: skip
        cause = {f"cause_{key}": value if changed else None for key, value in (*CODE_CHANGED.items(), ("args", args))}
        half = self.chance.uniform(0.001, 0.004)
        parent = {
            "baseline_kind": "parent", "baseline": run.baseline, "outcome": outcome, "ratio": ratio,
            "low": ratio - half, "high": ratio + half, "confirmed": changed, "suspected": changed,
            "control": self.chance.uniform(0.996, 1.004), "p": 2e-5 if changed else 0.4,
            "q": 7e-5 if changed else 0.7, "smallest_change": 0.02, "behind_sota": False,
            "reason_code": "confirmed" if changed else "within",
            "reason_args": {"ratio": ratio, "trials": 3} if changed else {"smallest_change": 0.02},
        }  # fmt: skip
        sota = {
            "baseline_kind": "sota", "baseline": "quack", "outcome": "steady", "ratio": to_sota,
            "low": to_sota * 0.995, "high": to_sota * 1.005, "confirmed": False, "suspected": False, "control": None,
            "p": None, "q": None, "smallest_change": None, "behind_sota": to_sota > 1.05, "reason_code": "takes",
            "reason_args": {"ratio": to_sota, "baseline": "quack", "faster": to_sota < 1},
        }  # fmt: skip
        self.verdicts.append({**shared, **cause, **parent})
        self.verdicts.append({**shared, **dict.fromkeys(cause), **sota})


def facts(changed: bool, small: bool) -> dict[str, Any]:
    """What the compiler says of one contender."""
    warps = 16 if changed else 8
    kernel = {"name": "_forward", "registers": 50 if changed else 80, "spills": 0, "warps": warps, "stages": 3}
    return {
        "code": "48a113b8" if changed else "26371e5d", "kind": "triton", "kernels": 1, "triton": [kernel],
        "config": f"_forward num_warps={warps} num_stages=3", "registers": kernel["registers"], "spills": 0,
        "shared": 16384 if changed else 8192, "sm_mhz": 1980, "repeatable": True, "errors": {"y": 0.00377},
        "l2_resident": small, "prepare_s": 0.04, "ops": ["aten::view", "aten::empty.memory_format"],
    }  # fmt: skip


def telemetry(measured: tuple[str, ...]) -> dict[str, Any]:
    """A reading before and after each case of three trials."""
    gpu = {"uuid": "GPU-11111111-2222", "driver": "590.44", "throttle": ["idle"], "sm_mhz": 1980, "power_w": 310.5}
    readings = [
        {"when": f"{when} {case}", "host": {"load": [1.5, 1, 0.5]}, "gpu": gpu | {"temperature_c": 40 + n % 9}}
        for n, case in enumerate(measured)
        for when in ("before", "after")
    ]
    spent = {"start": 12.5, "prepare": 38.2, "rounds": 63.5, "timed": 52.2}
    trials = [{"what": f"trial {n}", "seconds": spent, "telemetry": readings} for n in range(1, TRIALS + 1)]
    ceilings = {"copy_gb_s": 4258.0, "matmul_tflop_s": 790.0}
    return {"worker": "h200-box", "ceilings": ceilings, "device": {"name": "NVIDIA H200", "sms": 132}, "trials": trials}


def seed(session: Session, now: float = 1_790_000_000.0) -> WideSeeded:
    """The mainline run `slow`, the runs of a pull request, and a run of a target in which every name is hostile."""
    seeded = WideSeeded()
    chance = random.Random(16)
    policy = Policy(smallest_change=0.02)
    row = m.PolicyRow(digest=policy.digest, values=policy.model_dump(mode="json"), created_at=now)
    versions = {"torch": "2.11.0", "triton": "3.6.0", "quack": "0.6.5", "driver": "580.159.04"}
    stack = m.Stack(digest="7" * 64, versions=versions)
    session.add_all([row, stack])
    session.flush()
    norms = _target(session, now, "norms", "example/norms")
    write = _Writer(session, norms, stack, row.id, chance)
    base = _revision(session, norms, chance, 0, None, "Name the block sizes", now - 30 * HOUR)
    slow = _revision(session, norms, chance, 1, base.sha, "Sixteen warps from 8,192 columns", now - 2 * HOUR)
    seeded.runs["base"] = write.run(base, "h200", now - 30 * HOUR).id
    seeded.runs["slow"] = _slow(write, slow, now)
    for place, subject in enumerate(("Try sixteen warps everywhere", "Only where a row is long")):
        at = now - (3 - place) * HOUR
        head = _revision(session, norms, chance, None, base.sha, subject, at)
        for device in ("h200", "h100"):
            run = write.run(head, device, at, pull=PULL, priority=Priority.PULL_REQUEST)
            ratios = SLOW if place == 0 else dict(list(SLOW.items())[:2]) if device == "h200" else {}
            write.numbers(run, ratios)
            seeded.runs[f"{device}-{place}"] = run.id
    newest = session.get_one(m.Run, seeded.runs["h200-1"])
    session.add(m.Pull(target_id=norms.id, number=PULL, head=head.sha, updated_at=now))
    of_pull = {"key": f"comment:{norms.id}:{PULL}", "kind": "comment", "target_id": norms.id, "run_id": newest.id}
    session.add(m.OutboxMessage(**of_pull, payload={}, state=OutboxState.SENT))
    write.flush()
    seeded.runs["hostile"] = _hostile(session, stack, row.id, chance, now)
    return seeded


def _slow(write: _Writer, revision: m.Revision, now: float) -> int:
    """A run that opened one incident."""
    session, target = write.session, write.target
    run = write.run(revision, "h200", now - HOUR)
    write.numbers(run, SLOW)
    incident = m.Incident(
        target_id=target.id, device="h200", revision_id=revision.id, opened_at=now - HOUR, cause_kind="code",
        cause_text="slower because the kernel launches 16 warps, not 8",
    )  # fmt: skip
    session.add(incident)
    session.flush()
    known = {"incident_id": incident.id, "good": revision.parent, "culprit": revision.sha, "cause_kind": "code"}
    known |= {"cause_text": incident.cause_text, "opened_at": now - HOUR}
    for case, ratio in SLOW.items():
        world.regression(session, run, case, ratio, low=ratio - 0.002, high=ratio + 0.002, **known)
    return run.id


def _hostile(session: Session, stack: m.Stack, policy_id: int, chance: random.Random, now: float) -> int:
    """A run in which subject, author, provider, reason, worker, facts and stage hold markup or no space."""
    target = _target(session, now, HOSTILE, None)
    base = _revision(session, target, chance, 0, None, LONG, now - 9 * HOUR, RTL)
    head = _revision(session, target, chance, 1, base.sha, HOSTILE * 8, now - 8 * HOUR, RTL)
    write = _Writer(session, target, stack, policy_id, chance)
    run = write.run(head, "h200", now - 8 * HOUR, reason=LONG, worker="w" * 110)
    write.numbers(run, SLOW, provider="p" * 78 + "<b")
    for one in write.measurements:
        one["facts"] |= {f"<b>key</b>{'k' * 120}": "</td><script>alert(6)</script>" * 5}
    for verdict in write.verdicts:
        verdict |= {"reason_code": None, "reason": HOSTILE + LONG}
    write.flush()
    return run.id


def _target(session: Session, now: float, name: str, forge: str | None) -> m.Target:
    location = f"https://github.com/{forge}" if forge else f"https://git.example/{'deep/' * 30}x?<script>alert(1)"
    listed = "\n".join(f'  "{case}",' for case in CASES)
    text = f'devices = ["h200", "h100"]\nsota = "quack"\nsuite = "all"\nbaselines = ["inductor"]\n\n[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n\n[suites]\nall = [\n{listed}\n]\n\n[policy]\nsmallest_change = 0.02\n'  # noqa: E501
    known = {"location": location, "branch": "main", "forge": forge, "trusted": True}
    return world.registered(session, text, name, **known, created_at=now - 99 * HOUR, poll_at=now + 40)


def _revision(
    session: Session,
    target: m.Target,
    chance: random.Random,
    ordinal: int | None,
    parent: str | None,
    subject: str,
    at: float,
    author: str = "Ada Example",
) -> m.Revision:
    sha = "".join(chance.choices("0123456789abcdef", k=40))
    known = {"parent": parent, "ordinal": ordinal, "subject": subject, "author": author, "committed_at": at}
    return world.commit(session, target.id, sha, **known, paths=["kernels/rmsnorm.py"])


if __name__ == "__main__":  # python -m tests.dashboards.runs.seed_wide: into the database of the settings
    migrate.upgrade()
    with transaction() as filling:
        print(seed(filling, clock(filling)), file=sys.stderr)
