"""The measurements and verdicts of one run: times with noise, facts of the code, and what was decided of them."""

import hashlib
import json
import math
import random
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kernels.cases import Case, Metric, Role
from service.db.models import Measurement, VerdictRow, pack
from service.domain.attribution.causes import CauseCode, Kind
from service.domain.attribution.explanations import By
from service.domain.metrics import metric_of
from service.domain.states import BaselineKind, CellState, Outcome
from service.domain.verdicts.reasons import ReasonCode
from tests.big.bulk import Bulk
from tests.big.story import LONG_KERNEL, ROLES

SMALLEST = 0.02
BEHIND = 1.05
_GB_S = {"h200": 4200.0, "h100": 2900.0, "b200": 6900.0}
_SESSIONS, _NOISES = 8, 8  # a time is one of so many shifts of its session, times one of so many errors of its own
_WRONG = "y differs from the float64 result by 3.1 times the allowed error"
_MEASUREMENT = (
    "run_id", "contender", "role", "provider", "case", "state", "reason", "median", "gb_s", "trials", "rounds", "facts",
    "samples",
)  # fmt: skip
_VERDICT = (
    "run_id", "provider", "case", "baseline_kind", "baseline", "outcome", "ratio", "low", "high", "trials", "rounds",
    "confirmed", "behind_sota", "control", "suspected", "p", "q", "smallest_change", "cause_kind", "cause_code",
    "cause_args", "cause_certain", "cause_by", "policy_id", "reason_code", "reason_args", "known_before",
)  # fmt: skip


@cache
def usual_us(case: str, device: str) -> float:
    """What the case takes before any step, in the unit of its metric."""
    one = Case.parse(case)
    if one.metric is Metric.MEMORY:
        return float(one.rows * one.cols * 2)
    if one.metric is Metric.COMPILE:
        return 1_800_000.0
    us = 2.0 + one.least_bytes / (_GB_S[device] * 1e3) * (1.35 if one.direction == "bwd" else 1.0)
    return us + 800 if one.metric is Metric.BLOCK else max(us, 18.0) if one.metric is Metric.CALL else us


@cache
def over_quack(case: str) -> float:
    """The head's time over Quack's, before any step."""
    ratios = (0.88, 0.93, 0.97, 0.99, 1.0, 1.02, 1.05, 1.12, 1.31)
    return ratios[int.from_bytes(hashlib.blake2b(case.encode(), digest_size=2).digest()) % len(ratios)]


@cache
def _sampled(us: float, noise: float, session: int, error: int) -> tuple[float, bytes]:
    """A median with its samples: 3 trials of 4 rounds."""
    chance = random.Random(f"{us:.6g} {session} {error}")
    shift = math.exp(0.002 * math.sin(session * 1.7))
    centre = us * shift * (1 + noise * chance.gauss(0, 1))
    trials = [[round(centre * (1 + 2.5 * noise * chance.gauss(0, 1)), 4) for _ in range(4)] for _ in range(3)]
    middle = sorted(one for trial in trials for one in trial)
    return (middle[5] + middle[6]) / 2, pack(trials, [])


@cache
def facts_of(case: str, epoch: int, spilling: bool, long_names: bool) -> str:
    one = Case.parse(case)
    backward = one.direction == "bwd"
    kernel = LONG_KERNEL if long_names else "_rms_norm_backward_kernel" if backward else "_forward"
    registers, spills, warps = (168, 50, 4) if spilling else (116, 0, 16)
    build = {"registers": registers, "spills": spills, "shared": 16384}
    return json.dumps(
        {
            "code": hashlib.blake2b(f"{case} {epoch} {spilling}".encode(), digest_size=8).hexdigest(),
            "kind": "triton",
            "kernels": 2 if backward else 1,
            "ops": ["aten::view", "aten::empty.memory_format", "aten::zeros_like", "aten::sum.dim_IntList"],
            "triton": [
                {"name": kernel, **build, "warps": warps, "stages": 3, "occupancy": 0.5 if spilling else 0.75}
                | {"limited_by": "registers"}
            ],
            "config": f"{kernel} num_warps={warps} num_stages=3",
            **build,
            "sm_mhz": 1980,
            "repeatable": True,
            "errors": {"dx": 0.0037901179845671513, "dweight": 1.7e-07},
            "sets": 2,
            "calls": 18,
            "l2_resident": one.rows <= 64,
            "prepare_s": 0.043,
        },
        separators=(",", ":"),
    )


_OTHERS_FACTS = json.dumps({"code": "9" * 16, "kind": "cute", "registers": 64, "spills": 0})


@dataclass(frozen=True)
class Measured:
    """A run to be filled: what is compared, and where the times are."""

    run_id: int
    device: str
    cases: Collection[str]
    levels: Mapping[str, float]  # the parent's time over the usual one, by case
    changes: Mapping[str, float]  # the head's time over the parent's
    parent: str | None
    policy_id: int
    provider: str = "norms"
    ordinal: int = 0
    first: bool = False  # there is nothing to compare with
    invalid: Collection[str] = ()
    slow_since: Mapping[str, float] | None = None  # compared with the last good revision as well: its ratios
    good: str | None = None


def fill(bulk: Bulk, run: Measured, chance: random.Random) -> None:
    """Write the measurements and verdicts of a run."""
    session = chance.randrange(_SESSIONS)
    noisy = chance.random() < 0.02  # a session that decides nothing
    measurements, verdicts = list[tuple[Any, ...]](), list[tuple[Any, ...]]()
    for place, case in enumerate(run.cases):
        times = _times(run, case, session, noisy, chance)
        measurements += _measurements(run, case, times)
        head, parent = times[Role.HEAD][0], times[Role.PARENT][0]
        undecided = noisy or (place % 67 == 0 and run.ordinal % 3 == 0)
        verdicts.append(_against_parent(run, case, head / parent, times[Role.CONTROL][0] / parent, undecided, chance))
        sota, rival = times[Role.SOTA][0], times[Role.RIVAL][0]
        verdicts.append(_against_others(run, case, BaselineKind.SOTA, "quack", head / sota))
        best = ("quack", sota) if sota <= rival else ("inductor", rival)
        verdicts.append(_against_others(run, case, BaselineKind.BEST, best[0], head / best[1]))
        if run.slow_since and (ratio := run.slow_since.get(case, 1.0)) > 1 + SMALLEST:
            verdicts.append(_against_good(run, case, ratio))
    bulk.add(Measurement, _MEASUREMENT, measurements)
    bulk.add(VerdictRow, _VERDICT, verdicts)


def _times(
    run: Measured, case: str, session: int, noisy: bool, chance: random.Random
) -> dict[Role, tuple[float, bytes]]:
    usual = usual_us(case, run.device)
    parent = usual * run.levels.get(case, 1.0)
    noise = (0.0015 if usual > 10 else 0.003) * (6 if noisy else 1)  # short kernels repeat less well
    quack = usual / over_quack(case)
    wanted = {
        Role.HEAD: parent * run.changes.get(case, 1.0),
        Role.PARENT: parent,
        Role.CONTROL: parent,
        Role.SOTA: quack,
        Role.RIVAL: usual * 1.14,
    }
    return {
        role: _sampled(us, noise, session, chance.randrange(_NOISES) + _NOISES * place)
        for place, (role, us) in enumerate(wanted.items())
    }


def _measurements(run: Measured, case: str, times: Mapping[Role, tuple[float, bytes]]) -> list[tuple[Any, ...]]:
    kernel = metric_of(case) is Metric.KERNEL
    bytes_moved = Case.parse(case).least_bytes
    spilling = run.changes.get(case, 1.0) > 1 + SMALLEST
    rows = []
    for role, (median, samples) in times.items():
        if run.first and role is Role.PARENT:
            continue
        own = role in (Role.HEAD, Role.PARENT, Role.CONTROL)
        provider = run.provider if own else "quack" if role is Role.SOTA else "inductor"
        bad = role is Role.HEAD and case in run.invalid
        code = facts_of(case, run.ordinal // 40, spilling and role is Role.HEAD, run.ordinal % 9 == 0)
        rows.append(
            (
                run.run_id,
                f"{role}:{provider}",
                role.value,
                provider,
                case,
                (CellState.INVALID if bad else CellState.MEASURED).value,
                _WRONG if bad else None,
                None if bad else median,
                None if bad or not kernel else bytes_moved / median / 1e3,
                3,
                12,
                code if own else _OTHERS_FACTS,
                None if bad else samples,
            )
        )
    assert len(rows) == ROLES - run.first
    return rows


def _verdict(run: Measured, case: str, kind: BaselineKind, baseline: str | None, **columns: Any) -> tuple[Any, ...]:
    usual = dict.fromkeys(_VERDICT) | {"trials": 3, "rounds": 12, "confirmed": False, "behind_sota": False}
    usual |= {"suspected": False, "known_before": False, "policy_id": run.policy_id, "run_id": run.run_id}
    row = usual | {"provider": run.provider, "case": case, "baseline_kind": kind.value, "baseline": baseline} | columns
    row |= {name: json.dumps(row[name]) for name in ("cause_args", "reason_args") if row[name] is not None}
    return tuple(row[name] for name in _VERDICT)


def _decided(outcome: Outcome, code: ReasonCode, **args: Any) -> dict[str, Any]:
    return {"outcome": outcome.value, "reason_code": code.value, "reason_args": args}


def _against_parent(
    run: Measured, case: str, ratio: float, control: float, undecided: bool, chance: random.Random
) -> tuple[Any, ...]:
    if run.first:
        decided = _decided(Outcome.NEW, ReasonCode.NO_BASELINE)
        return _verdict(run, case, BaselineKind.PARENT, None, **decided)
    if case in run.invalid:
        decided = _decided(Outcome.INVALID, ReasonCode.INVALID, said=_WRONG)
        return _verdict(run, case, BaselineKind.PARENT, run.parent, **decided)
    half = chance.uniform(0.002, 0.006)
    size = {"ratio": ratio, "control": control, "smallest_change": SMALLEST}
    if undecided:
        decided = _decided(Outcome.INCONCLUSIVE, ReasonCode.TOO_WIDE, trials=8)
        half = 0.06
    elif case in run.changes and abs(ratio - 1) > SMALLEST:
        outcome = Outcome.REGRESSION if ratio > 1 else Outcome.IMPROVEMENT
        decided = _decided(outcome, ReasonCode.CONFIRMED, ratio=ratio, trials=3)
        decided |= {"confirmed": True, "suspected": True, "p": 2e-5, "q": 7e-5, **_cause(ratio)}
    else:
        decided = _decided(Outcome.STEADY, ReasonCode.WITHIN, smallest_change=SMALLEST) | {"p": 0.3, "q": 0.6}
    return _verdict(run, case, BaselineKind.PARENT, run.parent, **size, low=ratio - half, high=ratio + half, **decided)


def _cause(ratio: float) -> dict[str, Any]:
    slower = ratio > 1
    what = "the kernel now spills 50 registers" if slower else "it now runs with num_warps=16 instead of num_warps=4"
    args = {"slower": slower, "confirmed": True, "what": what, "size": None, "also": [], "doubt": None}
    by = By.SPILLS if slower else By.CONFIGURATION
    code = {"cause_kind": Kind.CODE.value, "cause_code": CauseCode.EXPLAINED.value, "cause_args": args}
    return code | {"cause_certain": False, "cause_by": by.value}


def _against_others(run: Measured, case: str, kind: BaselineKind, baseline: str, ratio: float) -> tuple[Any, ...]:
    if case in run.invalid:
        decided = _decided(Outcome.INVALID, ReasonCode.INVALID, said=_WRONG)
        return _verdict(run, case, kind, baseline, **decided)
    low, high = ratio * 0.995, ratio * 1.005
    behind = low > BEHIND
    outcome = Outcome.REGRESSION if low > 1 else Outcome.IMPROVEMENT if high < 1 else Outcome.STEADY
    if behind:
        since = {"since": "the first run", "first": True, "then": None, "now": ratio, "changed": False}
        decided = _decided(outcome, ReasonCode.BEHIND_SINCE, baseline=baseline, **since)
    elif outcome is Outcome.IMPROVEMENT:
        decided = _decided(outcome, ReasonCode.TAKES, ratio=ratio, baseline=baseline, faster=True)
    else:
        decided = _decided(outcome, ReasonCode.WITHIN_LIMIT, limit=BEHIND - 1, baseline=baseline)
    return _verdict(run, case, kind, baseline, ratio=ratio, low=low, high=high, behind_sota=behind, **decided)


def _against_good(run: Measured, case: str, ratio: float) -> tuple[Any, ...]:
    decided = _decided(Outcome.REGRESSION, ReasonCode.CHANGED, ratio=ratio, baseline="the last good revision")
    size = {"ratio": ratio, "low": ratio - 0.004, "high": ratio + 0.004, "suspected": True, "p": 1e-4, "q": 1e-3}
    return _verdict(run, case, BaselineKind.LAST_GOOD, run.good, smallest_change=SMALLEST, **size, **decided)
