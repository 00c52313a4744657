"""The study of our kernels as Markdown: goals, other implementations, A/A control, every case.  Pure."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from benchmarks.kernels.compared import (
    BASELINE,
    CONTROL,
    OURS,
    CaseTimes,
    Goal,
    Outcome,
    cases_of,
    control_distances,
    copy_gb_s,
    differences,
    geomean,
    goals,
    outcome,
    quantile,
    rows,
    spread,
    title_of,
)
from benchmarks.kernels.drawing import is_drawn
from kernels.cases import OPS, Case

TITLES = {
    "triton": "ours",
    "quack": "Quack",
    "quack-tuned": "Quack tuned",
    "inductor": "Inductor",
    "inductor-max-autotune": "max-autotune",
    "liger": "Liger",
    "flashinfer": "FlashInfer",
    "vllm": "vLLM",
}
NONE = "–"
LEAST_RATIO = 0.98  # of cases drawn at random: the least that is no defeat


def document(sessions: Sequence[Mapping[str, Any]]) -> str:
    found = rows(sessions)
    parts = [
        "# Our kernels compared with others",
        *_differences(sessions),
        *_sessions(sessions),
        "Times are medians in µs of cold calls over trials. GB/s count the minimum of bytes that any implementation"
        " moves, with weight gradients in fp32. **x** is Quack's time over this one's: above 1 it is faster than"
        " Quack. It is computed within trials, where both had the same turns (the median over the rounds, then the"
        " geometric mean over the trials), so that it may differ from the quotient of the two times.",
        "## Goals",
        *_goals([outcome(goal, found) for goal in goals()], quantile(control_distances(found))),
        *_others(found),
        *_random(found),
        *_control(found),
        *_repeated(sessions),
        "## Every case",
        *_cases(found),
        *_missing(found),
        *_left_out(sessions),
    ]
    return "\n\n".join(parts) + "\n"


def _differences(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """A warning if the sessions differ in GPU, versions or kernels."""
    lines = [
        f"> - {what}: "
        + "; ".join(f"{value} (session {', '.join(map(str, numbers))})" for value, numbers in values.items())
        for what, values in differences(sessions).items()
    ]
    warning = "> **These sessions are not comparable: do not read the pooled figures as one result.** They differ in"
    return ["\n".join([warning, ">", *lines])] if lines else []


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
        stack = session["stack"]
        device = stack.get("device", {})
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
    head = [
        "",
        "shapes",
        "geomean x",
        "goal",
        "worst x",
        "at",
        "below",
        "lowest share of ceiling, > 64 MB",
        "at",
        "met",
    ]
    beyond = f", {{}} by more than the A/A's {math.expm1(noise):.2%}" if noise else ""
    lines = []
    for each in outcomes:
        goal = each.goal
        compared = len(each.ratios)
        if not goal.geomean and not compared and not each.failed:
            continue
        worst = each.ratios[0] if each.ratios else None
        bar = f"{goal.geomean:.2f}, none below {goal.worst:.2f}" if goal.geomean else NONE
        lines.append(
            [
                goal.name,
                f"{compared} of {each.wanted}{_notes(each)}",
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
    """Why the number of shapes of a goal, or its bandwidth, is incomplete."""
    counts = {
        "unsupported by Quack": each.unsupported,
        "ours failed": each.failed,
        "not measured": each.missing,
        "large without a share of the ceiling": each.shareless if each.goal.ceiling else 0,
        "small enough to stay in the L2": each.l2_resident,
    }
    return "".join(f", {count} {reason}" for reason, count in counts.items() if count)


def _others(found: Sequence[CaseTimes]) -> list[str]:
    """Geometric means at the shapes of the suite `quack`."""
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


def _random(found: Sequence[CaseTimes]) -> list[str]:
    """Cases drawn at random, the worst ratio first; those without a ratio at the end."""
    parts = []
    for suite in dict.fromkeys(suite for row in found for suite in row.suites if is_drawn(suite)):
        members = [row for row in found if suite in row.suites]
        ratios = {row.case: ratio for row in members if (ratio := row.ratio(OURS)) is not None}
        if not ratios:
            continue
        below = sum(ratio < LEAST_RATIO for ratio in ratios.values())
        parts += [
            f"## {suite}",
            f"{len(ratios)} of {len(cases_of(suite))} cases drawn at random: geomean {_x(geomean(ratios.values()))}, "
            f"worst {_x(min(ratios.values()))}, {below} below {LEAST_RATIO:.2f}.",
        ]
        ordered = sorted(members, key=lambda row: ratios.get(row.case, math.inf))
        lines = [[f"`{row.case}`" + "*" * row.l2_resident, *_ours(row), *_theirs(row, (BASELINE,))] for row in ordered]
        head = ["case", "ours µs", "GB/s", "of ceiling", "**x**", "Quack µs", "GB/s"]
        parts.append(_table(head, "lrrrrrr", lines))
    return parts


def _control(found: Sequence[CaseTimes]) -> list[str]:
    """Quack measured twice: ratios of equal code."""
    logs = [math.log(ratio) for row in found if (ratio := row.ratio(CONTROL)) is not None]
    if not logs:
        return []
    away = control_distances(found)
    summary = f"Quack against a second copy of itself, {len(logs)} cases: mean {math.expm1(fmean(logs)):+.3%}"
    return [
        "## A/A",
        f"{summary}, 95 of 100 within {math.expm1(quantile(away)):.2%}, all within {math.expm1(away[-1]):.2%}.",
    ]


def _repeated(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The ratios of each session, side by side."""
    if len(sessions) < 2:
        return []
    each = [rows([session]) for session in sessions]
    head = ["", *(f"session {number}" for number in range(1, len(sessions) + 1)), "spread"]
    means = [_means(goal, each) for goal in goals()]
    ratios: dict[Case, list[float | None]] = {}
    for number, one in enumerate(each):
        for row in one:
            ratios.setdefault(row.case, [None] * len(each))[number] = row.ratio(OURS)
    cases = [[f"`{case}`", *_with_spread(found)] for case, found in ratios.items()]
    spreads = sorted(spread(known) for found in ratios.values() if len(known := [x for x in found if x]) > 1)
    summary = (
        f"Half of the cases spread by {spreads[len(spreads) // 2]:.2%} at most, all by {spreads[-1]:.2%}."
        if spreads
        else ""
    )
    columns = "l" + "r" * (len(sessions) + 1)
    return [
        f"## Ratios repeated over {len(sessions)} sessions",
        "x of ours in each session; first the geometric means of the cases that these sessions share.",
        _table(head, columns, [line for line in means if line[-1] != NONE]),
        *filter(None, [summary]),
        _folded("every case", _table(head, columns, cases)),
    ]


def _means(goal: Goal, sessions: Sequence[Sequence[CaseTimes]]) -> list[str]:
    """The geometric means of a goal in each session, over the cases that they share."""
    known = [{row.case for row in one if row.ratio(OURS) is not None} & goal.cases for one in sessions]
    shared = frozenset.intersection(*map(frozenset, filter(None, known))) if any(known) else frozenset()
    means = [
        outcome(goal, [row for row in one if row.case in shared]).geomean if cases else None
        for one, cases in zip(sessions, known, strict=True)
    ]
    return [f"{goal.name} ({len(shared)} of {len(goal.cases)})", *_with_spread(means)]


def _with_spread(ratios: Sequence[float | None]) -> list[str]:
    known = [ratio for ratio in ratios if ratio is not None]
    return [*map(_x, ratios), f"{spread(known):.2%}" if len(known) > 1 else NONE]


def _cases(found: Sequence[CaseTimes]) -> list[str]:
    parts = []
    for suite in dict.fromkeys(suite for row in found for suite in row.suites if not is_drawn(suite)):
        parts.append(f"### {suite}")
        for group, members in _grouped([row for row in found if suite in row.suites]).items():
            names = [name for name in TITLES if name != OURS and any(row.us(name) for row in members)]
            head = [group, "ours µs", "GB/s", "of ceiling", "**x**"]
            for name in names:
                head += [f"{TITLES[name]} µs", *(["x"] if name != BASELINE else ["GB/s"])]
            lines = [[_shape(row.case) + "*" * row.l2_resident, *_ours(row), *_theirs(row, names)] for row in members]
            parts.append(_table(head, "l" + "r" * (len(head) - 1), lines))
    if any(row.l2_resident for row in found):
        parts.append("\\* the inputs rotate through less than twelve times the L2: they may still be in it.")
    return parts


def _ours(row: CaseTimes) -> list[str]:
    return [_us(row.us(OURS)), _whole(row.gb_s(OURS)), _percent(row.of_ceiling(OURS)), _x(row.ratio(OURS))]


def _theirs(row: CaseTimes, names: Sequence[str]) -> list[str]:
    cells = []
    for name in names:
        cells += [_us(row.us(name)), _whole(row.gb_s(name)) if name == BASELINE else _x(row.ratio(name))]
    return cells


def _missing(found: Sequence[CaseTimes]) -> list[str]:
    """Cases without a time in some session, by reason; `elsewhere`: those with a time from another trial."""
    reasons: dict[tuple[str, str, str], list[CaseTimes]] = {}
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


def _grouped(found: Iterable[CaseTimes]) -> dict[str, list[CaseTimes]]:
    groups: dict[str, list[CaseTimes]] = {}
    for row in found:
        groups.setdefault(group_of(row.case), []).append(row)
    return groups


def group_of(case: Case) -> str:
    """The title of a table: `RMSNorm forward, bf16, fp32 weight`."""
    op = OPS[case.op]
    more = " with residual" * op.residual
    return f"{title_of(op.norm, case.direction)}{more}, {case.dtype}, {case.weight_dtype} weight"


def _shape(case: Case) -> str:
    heads = f"{case.heads}x" if case.heads else ""
    return f"{case.tokens}x{heads}{case.cols}" + (f"s{case.stride}" if case.stride else "")


def _table(head: Sequence[str], columns: str, lines: Iterable[Sequence[object]]) -> str:
    rule = ["--:" if each == "r" else "---" for each in columns]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (head, rule, *lines))


def _folded(summary: str, text: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _us(us: float | None) -> str:
    if us is None:
        return NONE
    if us < 10:
        return f"{us:.2f}"
    return f"{us:.1f}" if us < 1000 else f"{us:,.0f}"


def _whole(number: float | None) -> str:
    return NONE if number is None else f"{number:,.0f}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def _x(ratio: float | None) -> str:
    return NONE if ratio is None else f"{ratio:.3f}"
