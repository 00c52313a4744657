"""Fills a database with two runs in every metric, a change of stack between them, and all that a GPU says of itself."""

from dataclasses import dataclass
from typing import Any

from sqlalchemy.orm import Session

from kernels.cases import Case, Metric
from service.db import models as m
from service.domain.states import CellState, RunState
from tests import world

SHAPE = "rmsnorm.fwd.32768x1024.bf16-fp32"
SMALL = "rmsnorm.fwd.1024x512.bf16-fp32"
BLOCK = "rmsnorm.fwdbwd.4096x1024.bf16.block"
UNSUPPORTED = "layernorm.fwd.4096x1024.bf16"
RECIPE = f"""
devices = ["h200"]
suite = "mine"

[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
rmsnorm.fwdbwd = "norms:RMSNorm"

[suites]
mine = ["{SHAPE}", "{SHAPE}.call", "{BLOCK}", "{SHAPE}.compile", "{SHAPE}.memory", "{SMALL}", "{UNSUPPORTED}"]

[policy.metrics]
memory = 0.005
"""
# of the second run, in the metric's unit: the first took all the same but for the memory
TAKEN: dict[str, tuple[float, float]] = {  # head, parent
    SHAPE: (35.0, 35.1),
    SMALL: (2.1, 2.1),
    f"{SHAPE}.call": (21.4, 18.2),
    BLOCK: (930.0, 925.0),
    f"{SHAPE}.compile": (1_804_000.0, 1_790_000.0),
    f"{SHAPE}.memory": (75_497_472.0, 67_108_864.0),
}
FACTS: dict[str, dict[str, Any]] = {
    SHAPE: {
        "code": "c0de",
        "kind": "triton",
        "kernels": 1,
        "registers": 40,
        "repeatable": False,
        "repeats": 50,
        "sm_mhz": 1980,
        "ran": ["triton_red_fused_rms_norm_0"],
        "triton": [
            {
                "name": "_forward",
                "registers": 40,
                "spills": 0,
                "occupancy": 0.75,
                "limited_by": "registers",
                "settings": {"BLOCK": 1024},
                "timings": [{"ms": n / 100, "warps": 8, "settings": {"XBLOCK": n}} for n in range(1, 31)],
            }
        ],
    },
    SMALL: {"code": "c0de", "kind": "triton", "l2_resident": True, "sm_mhz": 1980},
    BLOCK: {"flops": 367_219_703_808, "tokens": 4096, "peak_bytes": 1_288_490_188},
    f"{SHAPE}.compile": {"graphs": 1, "graph_breaks": 0, "recompiles": 2, "recompiled_at_rows": [16384]},
}
STACKS = (
    {"python": "3.12.3", "torch": "2.11.0+cu130", "triton": "3.6.0", "driver": "590.44"},
    {"python": "3.12.3", "torch": "2.13.0+cu130", "triton": "3.7.1", "driver": "590.44", "liger": "0.8.5"},
)


def reading(when: str, sm_mhz: int, **rest: Any) -> dict[str, Any]:
    """What the arena notes before and after a case."""
    gpu = {
        "uuid": "GPU-11111111-2222",
        "driver": "590.44",
        "throttle": ["sw_power_cap"] if sm_mhz < 1980 else ["idle"],
        "slowed_ns": {"power": 0, "thermal": 0},
        "sm_mhz": sm_mhz,
        "memory_mhz": 3201,
        "temperature_c": 41,
        "power_w": 310.5,
        "pstate": 0,
        "ecc": True,
        "mig": False,
        "others": 4,
    }
    return {"when": when, "host": {"load": [1.5, 1.0, 0.5], "cores": [0, 1]}, "gpu": gpu, **rest}


TELEMETRY = {
    "worker": "h200-box",
    "load_before": [1.5, 1.0, 0.5],
    "device": {"name": "NVIDIA H200", "sms": 132, "l2_bytes": 62_914_560},
    "ceilings": {"copy_gb_s": 4258.0, "matmul_tflop_s": 790.0},
    "trials": [
        {
            "what": f"trial {n}",
            "seconds": {"start": 12.5, "ceilings": 0.4, "prepare": 8.25, "rounds": 3.5, "timed": 2.25, "check": 0.5},
            "telemetry": [
                reading("trial", 1980),
                reading(f"before {SHAPE}", 1965),
                reading("dropped a round", 1400, reasons=["hw_thermal"]),
                reading(f"after {SHAPE}", 1980),
            ],
        }
        for n in (1, 2, 3)
    ],
}


@dataclass(frozen=True)
class Metrics:
    """Where things are: the ids of the two runs of the mainline."""

    first: int
    second: int


def seed(session: Session, now: float) -> Metrics:
    target = world.registered(
        session, RECIPE, "blocks", location="/srv/blocks", trusted=True, created_at=now, poll_at=now + 60
    )
    first, second = (_run(session, target, place, now) for place in (0, 1))
    world.regression(session, second, f"{SHAPE}.memory", 1.125, opened_at=now)
    world.totalled(session)
    return Metrics(first.id, second.id)


def _run(session: Session, target: m.Target, place: int, now: float) -> m.Run:
    stack = m.Stack(digest=str(place) * 64, versions=STACKS[place])
    session.add(stack)
    session.flush()
    revision = world.commit(
        session,
        target.id,
        f"{place}abc" * 10,
        parent="0abc" * 10 if place else None,
        ordinal=place,
        subject="Keep the sum of the rows" if place else "Norms, a first version",
        author="Ada Example",
        committed_at=now - 3600,
        paths=["norms.py"],
    )
    done = {"state": RunState.DONE, "attempt": 1, "worker": "h200-box", "sandboxed": True, "stack_id": stack.id}
    times = {"created_at": now - 600, "started_at": now - 580, "finished_at": now - 500}
    of = {"dedupe": f"blocks:{place}", "device": "h200", "suite": "mine", "telemetry": TELEMETRY | {"began": now - 580}}
    run = world.run(session, revision, **done, **times, **of)
    for case, (head, parent) in TAKEN.items():
        _case(session, run, case, head if place else parent, parent if place else None)
    unsupported = {"state": CellState.UNSUPPORTED, "reason": "norms has no layernorm"}
    world.measured(session, run, UNSUPPORTED, trials=3, rounds=60, **unsupported)
    return run


def _case(session: Session, run: m.Run, case: str, head: float, parent: float | None) -> None:
    facts = FACTS.get(case, {})
    _measured(session, run, "head", case, head, facts)
    _measured(session, run, "sota", case, head * 0.98, {})
    both = {"trials": 3, "rounds": 60}
    if parent is None:
        told: dict[str, Any] = {"outcome": "new", "reason": "there is no earlier revision to compare with"}
    else:
        _measured(session, run, "parent", case, parent, {**facts, "repeatable": True})
        ratio = head / parent
        worse = ratio > 1.1
        told = {"outcome": "regression", "reason": "confirmed by 3 fresh trials"} if worse else {}
        told = {"reason": "within its limit of its baseline", "confirmed": worse, "ratio": ratio} | told
        told |= {"low": ratio - 0.002, "high": ratio + 0.002}
    world.judged(session, run, case, **both, **told)
    near = {"outcome": "steady", "ratio": 1 / 0.98, "low": 1.018, "high": 1.023, "reason": "within 5% of quack"}
    world.judged(session, run, case, **both, baseline_kind="sota", **near)


def _measured(session: Session, run: m.Run, role: str, case: str, median: float, facts: dict[str, Any]) -> None:
    parsed = Case.parse(case)
    gb_s = parsed.least_bytes / median / 1e3 if parsed.metric is Metric.KERNEL else None
    provider = "quack" if role == "sota" else "norms"
    of = {"role": role, "provider": provider, "facts": facts, "trials": 3, "rounds": 60, "gb_s": gb_s}
    world.measured(session, run, case, median, **of)
