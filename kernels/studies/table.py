"""The kernels' study as Markdown: goals, the other implementations, the A/A control, every case.  Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..words import OPS, Case
from .compared import (
    BASELINE,
    CONTROL,
    OURS,
    Outcome,
    Row,
    copy_gb_s,
    geomean,
    goals,
    named,
    outcome,
    rows,
    spread,
)

TITLES = {
    "triton": "ours",
    "quack": "Quack",
    "quack-tuned": "Quack tuned",
    "inductor": "Inductor",
    "inductor-max-autotune": "max-autotune",
    "liger": "Liger",
}
NONE = "–"


def document(sessions: Sequence[Mapping[str, Any]]) -> str:
    found = rows(sessions)
    parts = [
        "# Our kernels beside Quack, Inductor and Liger",
        *_sessions(sessions),
        "Times are medians in µs of cold calls; GB/s of the least bytes that any implementation must move. **x** is"
        " Quack's time over this one's: above 1 it is faster than Quack.",
        "## Goals",
        *_goals([outcome(goal, found) for goal in goals()]),
        *_others(found),
        *_control(found),
        *_repeated(sessions),
        "## Every case",
        *_cases(found),
        *_missing(found),
        *_left_out(sessions),
    ]
    return "\n\n".join(parts) + "\n"


def _sessions(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    head = ["session", "GPU", "driver", "torch", "triton", "quack", "liger", "copy GB/s", "SM MHz", "dropped rounds"]
    lines = []
    for number, session in enumerate(sessions, 1):
        stack, device = session["stack"], session["stack"].get("device", {})
        clocks = sorted(
            {mhz for case in session["cases"].values() for launch in case["launches"] if (mhz := launch.get("sm_mhz"))}
        )
        versions = [stack.get(name, NONE) for name in ("torch", "triton", "quack", "liger")]
        ceiling = copy_gb_s(session)
        lines.append(
            [
                f"{number}, {session['began']}",
                device.get("name", device.get("kind", NONE)),
                session.get("driver") or NONE,
                *versions,
                NONE if ceiling is None else f"{ceiling:,.0f}",
                NONE if not clocks else f"{clocks[0]:g}" if len(clocks) == 1 else f"{clocks[0]:g} to {clocks[-1]:g}",
                sum(step["dropped_rounds"] for step in session["steps"]),
            ]
        )
    return [_table(head, "lllllllrrr", lines)]


def _goals(outcomes: Iterable[Outcome]) -> list[str]:
    head = ["", "shapes", "geomean x", "goal", "worst x", "at", "below", "least of ceiling, > 64 MB", "at", "met"]
    lines = []
    for each in outcomes:
        goal, compared = each.goal, len(each.ratios)
        absent = {"not done by Quack": each.unsupported, "ours failed": each.failed, "not measured": each.missing}
        notes = "".join(f", {count} {why}" for why, count in absent.items() if count)
        if not compared and not notes:
            continue
        worst = each.ratios[0] if each.ratios else None
        bar = f"{goal.geomean:.2f}, none below {goal.worst:.2f}" if goal.geomean else NONE
        lines.append(
            [
                goal.name,
                f"{compared}{notes}",
                _x(each.geomean),
                bar + (f", {goal.ceiling:.0%} of ceiling" if goal.ceiling else ""),
                _x(worst and worst[0]),
                _shape(worst[1], with_op=True) if worst else NONE,
                f"{each.below} of {compared}" if compared else NONE,
                _percent(each.lowest and each.lowest[0]),
                _shape(each.lowest[1], with_op=True) if each.lowest else NONE,
                {True: "**yes**", False: "no", None: "open" if goal.geomean else ""}[each.met],
            ]
        )
    return [_table(head, "llrlrlrrll", lines)]


def _others(found: Sequence[Row]) -> list[str]:
    """Geometric means at the shapes of the suite quack."""
    lines = []
    for group, members in _grouped([row for row in found if "quack" in row.suites]).items():
        for name in TITLES:
            against = [ratio for row in members if (ratio := row.ratio(name)) is not None]
            if name == BASELINE or not against:
                continue
            ahead = [ratio for row in members if (ratio := row.ratio(OURS, than=name)) is not None]
            least = min(ahead, default=None) if name != OURS else None
            mean = geomean(ahead) if name != OURS else None
            lines.append(
                [group, TITLES[name], len(against), _x(geomean(against)), _x(min(against)), _x(mean), _x(least)]
            )
    head = ["", "", "shapes", "geomean x", "worst x", "ours is faster by, geomean", "and at worst"]
    return ["## Implementations at the shapes of Quack's benchmark", _table(head, "llrrrrr", lines)] if lines else []


def _control(found: Sequence[Row]) -> list[str]:
    """Quack measured twice: what ratios of equal code look like here."""
    logs = [math.log(ratio) for row in found if (ratio := row.ratio(CONTROL)) is not None]
    if not logs:
        return []
    away = sorted(abs(each) for each in logs)
    within = away[math.ceil(0.95 * len(away)) - 1]
    said = f"Quack against a second copy of itself, {len(logs)} cases: mean {math.expm1(fmean(logs)):+.3%}"
    return ["## A/A", f"{said}, 95 of 100 within {within:.2%}, all within {away[-1]:.2%}."]


def _repeated(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ratio of each session beside the others'."""
    if len(sessions) < 2:
        return []
    each = [rows([session]) for session in sessions]
    head = ["", *(f"session {number}" for number in range(1, len(sessions) + 1)), "spread"]
    means = [[goal.name, *_beside([outcome(goal, one).geomean for one in each])] for goal in goals()]
    ratios: dict[Case, list[float | None]] = {}
    for number, one in enumerate(each):
        for row in one:
            ratios.setdefault(row.case, [None] * len(each))[number] = row.ratio(OURS)
    cases = [[f"`{case}`", *_beside(found)] for case, found in ratios.items()]
    spreads = sorted(spread(known) for found in ratios.values() if len(known := [x for x in found if x]) > 1)
    said = (
        f"Half of the cases spread by {spreads[len(spreads) // 2]:.2%} at most, all by {spreads[-1]:.2%}."
        if spreads
        else ""
    )
    columns = "l" + "r" * (len(sessions) + 1)
    return [
        f"## Ratios repeated over {len(sessions)} sessions",
        "x of ours in each session; geometric means first.",
        _table(head, columns, [line for line in means if line[-1] != NONE]),
        *filter(None, [said]),
        _folded("every case", _table(head, columns, cases)),
    ]


def _beside(ratios: Sequence[float | None]) -> list[str]:
    known = [ratio for ratio in ratios if ratio is not None]
    return [*map(_x, ratios), f"{spread(known):.2%}" if len(known) > 1 else NONE]


def _cases(found: Sequence[Row]) -> list[str]:
    parts = []
    for suite in dict.fromkeys(suite for row in found for suite in row.suites):
        parts.append(f"### {suite}")
        for group, members in _grouped([row for row in found if suite in row.suites]).items():
            names = [name for name in TITLES if name != OURS and any(row.us(name) for row in members)]
            head = [group, "ours µs", "GB/s", "of ceiling", "**x**"]
            for name in names:
                head += [f"{TITLES[name]} µs", *(["x"] if name != BASELINE else ["GB/s"])]
            lines = [[_shape(row.case) + "*" * row.l2_resident, *_ours(row), *_theirs(row, names)] for row in members]
            parts.append(_table(head, "l" + "r" * (len(head) - 1), lines))
    if any(row.l2_resident for row in found):
        parts.append("\\* less than twelve times the L2 was rotated: what is read may lie there still.")
    return parts


def _ours(row: Row) -> list[str]:
    return [_us(row.us(OURS)), _whole(row.gb_s(OURS)), _percent(row.of_ceiling(OURS)), _x(row.ratio(OURS))]


def _theirs(row: Row, names: Sequence[str]) -> list[str]:
    cells = []
    for name in names:
        cells += [_us(row.us(name)), _whole(row.gb_s(name)) if name == BASELINE else _x(row.ratio(name))]
    return cells


def _missing(found: Sequence[Row]) -> list[str]:
    """What was asked and has no time, by reason; what a provider does not do at all is counted by its sentence."""
    reasons: dict[tuple[str, str], list[Case]] = {}
    for row in found:
        for name, reason in row.missing.items():
            if row.us(name) is None:
                reasons.setdefault((name, " ".join(reason.split())[:200]), []).append(row.case)
    lines = [
        [TITLES.get(name, name), reason.replace("|", "\\|"), len(cases), f"`{cases[0]}`" + " …" * (len(cases) > 1)]
        for (name, reason), cases in reasons.items()
    ]
    return ["## Not measured", _table(["", "why", "cases", ""], "llrl", lines)] if lines else []


def _left_out(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        [number, left["step"], left["launch"] + 1, len(left["cases"]), left["why"]]
        for number, session in enumerate(sessions, 1)
        for left in session["left_out"]
    ]
    return ["## Left out", _table(["session", "step", "launch", "cases", "why"], "llrrl", lines)] if lines else []


def _grouped(found: Iterable[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in found:
        groups.setdefault(group_of(row.case), []).append(row)
    return groups


def group_of(case: Case) -> str:
    """`RMSNorm forward, bf16, fp32 weight`: what stands in one table."""
    op = OPS[case.op]
    more = " with residual" * op.residual
    return f"{named(op.norm, case.direction)}{more}, {case.dtype}, {case.weight_dtype} weight"


def _shape(case: Case, *, with_op: bool = False) -> str:
    strided = f"s{case.stride}" if case.stride else ""
    shape = f"{case.rows}x{case.cols}{strided}"
    return f"{case.key} {shape}" if with_op else shape


def _table(head: Sequence[str], columns: str, lines: Iterable[Sequence[object]]) -> str:
    rule = ["--:" if each == "r" else "---" for each in columns]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, rule, *lines))


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _us(us: float | None) -> str:
    return NONE if us is None else f"{us:.2f}" if us < 10 else f"{us:.1f}" if us < 1000 else f"{us:,.0f}"


def _whole(number: float | None) -> str:
    return NONE if number is None else f"{number:,.0f}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def _x(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.3f}"
