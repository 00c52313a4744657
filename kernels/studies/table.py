"""The kernels' study as Markdown: goals, the other implementations, the A/A control, every case.  Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..cases import OPS, Case
from .compared import (
    BASELINE,
    CONTROL,
    OURS,
    Goal,
    Outcome,
    Row,
    copy_gb_s,
    differences,
    geomean,
    goals,
    most_of,
    named,
    outcome,
    rows,
    spread,
    within,
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
        *_differences(sessions),
        *_sessions(sessions),
        "Times are medians in µs of cold calls over trials; GB/s of the least bytes that any implementation must"
        " move, backward with gradients of the weights in fp32 whatever the weights are. **x** is Quack's time over"
        " this one's: above 1 it is faster than Quack. It is taken within trials, where both had the same turns (the"
        " median over the rounds, then the geometric mean over the trials), so it may differ from the quotient of"
        " the two times beside it.",
        "## Goals",
        *_goals([outcome(goal, found) for goal in goals()], most_of(within(found))),
        *_others(found),
        *_control(found),
        *_repeated(sessions),
        "## Every case",
        *_cases(found),
        *_missing(found),
        *_left_out(sessions),
    ]
    return "\n\n".join(parts) + "\n"


def _differences(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """What keeps these sessions from being one measurement."""
    lines = [
        f"> - {what}: "
        + "; ".join(f"{value} (session {', '.join(map(str, numbers))})" for value, numbers in values.items())
        for what, values in differences(sessions).items()
    ]
    said = "> **These sessions did not measure the same thing: what is pooled below is not one result.** They differ in"
    return ["\n".join([said, ">", *lines])] if lines else []


def _sessions(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    head = [
        "session",
        "revision",
        "our kernels",
        "GPU",
        "driver",
        "torch",
        "triton",
        "quack",
        "liger",
        "copy GB/s",
        "SM MHz",
        "dropped rounds",
    ]
    lines = []
    for number, session in enumerate(sessions, 1):
        stack, device = session["stack"], session["stack"].get("device", {})
        clocks = sorted(
            {mhz for case in session["cases"].values() for trial in case["trials"] if (mhz := trial.get("sm_mhz"))}
        )
        versions = [stack.get(name, NONE) for name in ("torch", "triton", "quack", "liger")]
        ceiling = copy_gb_s(session)
        lines.append(
            [
                f"{number}, {session['began'][:16]} UTC",
                *(session.get("code", {}).get(name, NONE) for name in ("revision", "kernels")),
                device.get("name", device.get("kind", NONE)),
                session.get("driver") or NONE,
                *versions,
                NONE if ceiling is None else f"{ceiling:,.0f}",
                NONE if not clocks else f"{clocks[0]:g}" if len(clocks) == 1 else f"{clocks[0]:g} to {clocks[-1]:g}",
                sum(step["dropped_rounds"] for step in session["steps"]),
            ]
        )
    return [_table(head, "lllllllllrrr", lines)]


def _goals(outcomes: Iterable[Outcome], noise: float) -> list[str]:
    head = ["", "shapes", "geomean x", "goal", "worst x", "at", "below", "least of ceiling, > 64 MB", "at", "met"]
    beyond = f", {{}} by more than the A/A's {math.expm1(noise):.2%}" if noise else ""
    lines = []
    for each in outcomes:
        goal, compared = each.goal, len(each.ratios)
        if not goal.geomean and not compared and not each.failed:
            continue
        worst = each.ratios[0] if each.ratios else None
        bar = f"{goal.geomean:.2f}, none below {goal.worst:.2f}" if goal.geomean else NONE
        lines.append(
            [
                goal.name,
                f"{compared} of {each.asked}{_notes(each)}",
                _x(each.geomean),
                bar + (f", {goal.ceiling:.0%} of ceiling" if goal.ceiling else ""),
                NONE if worst is None else f"{worst[0]:.4f}",
                f"`{worst[1]}`" if worst else NONE,
                f"{each.below} of {compared}{beyond.format(each.below_by(noise))}" if compared else NONE,
                _percent(each.lowest and each.lowest[0]),
                f"`{each.lowest[1]}`" if each.lowest else NONE,
                {True: "**yes**", False: "no", None: "open" if goal.geomean else ""}[each.met],
            ]
        )
    return [_table(head, "llrlrlrrll", lines)]


def _notes(each: Outcome) -> str:
    """What keeps a goal's number of shapes, or its bandwidth, from being the whole."""
    counts = {
        "not done by Quack": each.unsupported,
        "ours failed": each.failed,
        "not measured": each.missing,
        "large without a share of the ceiling": each.shareless if each.goal.ceiling else 0,
        "so small that they may stay in the L2": each.l2_resident,
    }
    return "".join(f", {count} {why}" for why, count in counts.items() if count)


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
    away = within(found)
    said = f"Quack against a second copy of itself, {len(logs)} cases: mean {math.expm1(fmean(logs)):+.3%}"
    return [
        "## A/A",
        f"{said}, 95 of 100 within {math.expm1(most_of(away)):.2%}, all within {math.expm1(away[-1]):.2%}.",
    ]


def _repeated(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ratio of each session beside the others'."""
    if len(sessions) < 2:
        return []
    each = [rows([session]) for session in sessions]
    head = ["", *(f"session {number}" for number in range(1, len(sessions) + 1)), "spread"]
    means = [_means(goal, each) for goal in goals()]
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
        "x of ours in each session; geometric means first, of the cases that all sessions with any of them share.",
        _table(head, columns, [line for line in means if line[-1] != NONE]),
        *filter(None, [said]),
        _folded("every case", _table(head, columns, cases)),
    ]


def _means(goal: Goal, sessions: Sequence[Sequence[Row]]) -> list[str]:
    """Of the same cases in each session: those of one would else be compared with others of another."""
    known = [{row.case for row in one if row.ratio(OURS) is not None} & goal.cases for one in sessions]
    shared = frozenset.intersection(*map(frozenset, filter(None, known))) if any(known) else frozenset()
    means = [
        outcome(goal, [row for row in one if row.case in shared]).geomean if cases else None
        for one, cases in zip(sessions, known, strict=True)
    ]
    return [f"{goal.name} ({len(shared)} of {len(goal.cases)})", *_beside(means)]


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
    """What was asked and has no time in some session, by reason; `elsewhere` has a time from another trial."""
    reasons: dict[tuple[str, str, str], list[Row]] = {}
    for row in found:
        for name, (state, reason) in row.missing.items():
            reasons.setdefault((name, state, " ".join(reason.split())[:200]), []).append(row)
    lines = [
        [
            TITLES.get(name, name),
            f"{state}: {reason}".replace("|", "\\|"),
            len(members),
            sum(row.us(name) is not None for row in members) or NONE,
            f"`{members[0].case}`" + " …" * (len(members) > 1),
        ]
        for (name, state, reason), members in reasons.items()
    ]
    head = ["", "why", "cases", "elsewhere", ""]
    return ["## Not measured, or wrong", _table(head, "llrrl", lines)] if lines else []


def _left_out(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [
        [number, left["step"], left["trial"] + 1, len(left["cases"]), left["why"]]
        for number, session in enumerate(sessions, 1)
        for left in session["left_out"]
    ]
    return ["## Left out", _table(["session", "step", "trial", "cases", "why"], "llrrl", lines)] if lines else []


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


def _shape(case: Case) -> str:
    return f"{case.rows}x{case.cols}" + (f"s{case.stride}" if case.stride else "")


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
