"""Documents of the API for tests of what commands print."""

from typing import Any

from kernelwatch.client.models import RunDocument

CASE = "rmsnorm.fwd.4096x1024.bf16"
SPEED = {"copy_share": None, "l2_resident": False, "cycles": None, "tokens_s": None, "utilisation": None}


def verdict(outcome: str = "steady", ratio: float | None = 1.001, case: str = CASE, **more: Any) -> dict[str, Any]:
    """A case against its parent."""
    near = (None, None) if ratio is None else (ratio - 0.01, ratio + 0.01)
    empty = (
        "p",
        "q",
        "control_ratio",
        "doubt",
        "repeatability",
        "source",
        "cause_kind",
        "cause_text",
        "cause_certain",
        "cause_by",
    )
    ids = ("policy_version", "difference", "cause_code", "reason_code", "regression_id", "incident_id")
    flags = (
        "suspected",
        "confirmed",
        "behind_sota",
        "quarantined",
        "known_before",
        "slow_before",
        "slower_than_pinned",
    )
    return {
        "gate": "pass",
        "provider": "norms",
        "case": case,
        "metric": "kernel",
        "baseline_kind": "parent",
        "baseline": "0" * 40,
        "outcome": outcome,
        "change": "",
        "ratio": ratio,
        "low": near[0],
        "high": near[1],
        "trials": 5,
        "rounds": 60,
        "smallest_change": 0.02,
        "reason": "",
        "summary": "",
        **dict.fromkeys((*empty, *ids)),
        **dict.fromkeys(flags, False),
        **more,
    }


def measurement(role: str = "head", median: float = 35.0, case: str = CASE, **speed: Any) -> dict[str, Any]:
    """The time of one contender."""
    return {
        "contender": role,
        "role": role,
        "provider": "norms",
        "case": case,
        "metric": "kernel",
        "state": "measured",
        "reason": None,
        "median": median,
        "unit": "us",
        "gb_s": None,
        "trials": 5,
        "rounds": 60,
        "facts": {},
        "speed": SPEED | speed,
    }


def run(*verdicts: dict[str, Any], measurements: tuple[dict[str, Any], ...] = (), **more: Any) -> RunDocument:
    """A run that is done, with these verdicts."""
    outcomes = [one["outcome"] for one in verdicts if one["baseline_kind"] == "parent"]
    empty = ("last_good", "pinned", "pull", "bisection_id", "stage", "reason", "log", "stack_digest", "policy_version")
    gate = {"state": "pass", "exit_code": 0, "check_status": "completed", "conclusion": "success"}
    known = {
        "id": 7,
        "target": "norms",
        "revision": "a" * 40,
        "subject": "wider rows",
        "baseline": "0" * 40,
        "device": "h200",
        "suite": "rows",
        "purpose": "watch",
        "state": "done",
        "priority": 0,
        "attempt": 1,
        "max_attempts": 3,
        "worker": "box",
        "trusted": True,
        "sandboxed": True,
        "repeated": False,
        "awaits_second": False,
        "second_of": None,
        "provisional": False,
        "created_at": "2026-11-21T03:00:00Z",
        "started_at": "2026-11-21T03:01:00Z",
        "finished_at": "2026-11-21T03:03:00Z",
        "url": "http://127.0.0.1:8712/runs/7",
        "author": "Ada",
        "committed_at": "2026-11-21T02:00:00Z",
        "headline": "No regression at aaaaaaaaaa on h200",
        "notes": [],
        "gate": {**gate, "commit_status": "success", "reasons": []},
        "counts": {outcome: outcomes.count(outcome) for outcome in dict.fromkeys(outcomes)},
        "behind_sota": 0,
        "lost_repeatability": 0,
        "sota": "quack",
        "stack": {},
        "telemetry": {},
        "ceilings": {},
        "policy": {},
        "summaries": [],
        "verdicts": list(verdicts),
        "measurements": list(measurements),
        "unsupported": [],
    }
    return RunDocument.model_validate(dict.fromkeys(empty) | known | more)
