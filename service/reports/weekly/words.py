"""Phrases that the renderings of a week share."""

from collections.abc import Sequence
from datetime import date
from urllib.parse import urlencode

from kernels.cases import Metric
from kernelwatch.documents.weekly import (
    WeeklyDecisionItem,
    WeeklyDocument,
    WeeklyMeasuredItem,
    WeeklyMoverItem,
    WeeklyRegressionItem,
    WeeklyTotalItem,
)
from service.domain.metrics import WORDS, digits, metric_of, percent
from service.domain.states import RegressionState
from service.domain.text import counted, short
from service.domain.verdicts.calibration import Rate
from service.domain.weekly.weeks import Week

STAKE = (
    "Time at stake is how much longer one call of each case takes than before the change, added up: with a minus it "
    "takes less."
)
_BLOCKS = "▏▎▍▌▋▊▉█"  # an eighth to a whole
_WIDTH = 8  # blocks of the longest bar


def at_stake(us: float | None) -> str:
    """Time at stake with its sign: `+22.1 µs`; an en dash where there is none."""
    if us is None:
        return "–"
    size, sign = abs(us), "+" if us > 0 else "−"
    return "0 µs" if size < 0.005 else f"{sign}{digits(size)} µs"


def share(one: WeeklyMoverItem, week: WeeklyDocument) -> float:
    """The time at stake of a mover over the most of its metric in the week, from 0 to 1."""
    most = max(abs(each.stake_us) for each in (*week.slower, *week.faster) if each.metric == one.metric)
    return abs(one.stake_us) / most if most else 0.0


def bar(one: WeeklyMoverItem, week: WeeklyDocument) -> str:
    """Its time at stake as a bar of text."""
    whole, rest = divmod(max(1, round(share(one, week) * _WIDTH * 8)), 8)
    return _BLOCKS[7] * whole + _BLOCKS[rest - 1] * (rest > 0)


def title(week: Week, target: str | None, device: str | None) -> str:
    """`Week 47 of 2026, norms on h200`."""
    where = f"{f', {target}' if target else ''}{f' on {device}' if device else ''}"
    return f"Week {week.number} of {week.year}{where}"


def summary(week: Week, measured: WeeklyMeasuredItem, *, finished: bool) -> str:
    """`16 to 22 November 2026, UTC. 42 runs of 21 revisions, 3 of them of pull requests; 1 run failed.`"""
    going_on = "" if finished else " The week is not over: these are the numbers until now."
    return f"{_days(week.monday, week.sunday)}, UTC. {_measured(measured)}.{going_on}"


def _days(first: date, last: date) -> str:
    """`16 to 22 November 2026`, `28 December 2026 to 3 January 2027`."""
    begin = str(first.day)
    if first.month != last.month:
        begin += f" {first:%B}"
    if first.year != last.year:
        begin += f" {first.year}"
    return f"{begin} to {last.day} {last:%B} {last.year}"


def _measured(found: WeeklyMeasuredItem) -> str:
    if not found.runs and not found.failed:
        return "No run ended"
    runs = f"{counted(found.runs, 'run')} of {counted(found.revisions, 'revision')}"
    pulls = f", {found.pulls} of them of pull requests" if found.pulls else ""
    failed = f"; {counted(found.failed, 'run')} failed" if found.failed else ""
    return f"{runs}{pulls}{failed}"


def total(one: WeeklyTotalItem) -> str:
    """`norms on h200, kernel time: +22.1 µs (2 cases slower, +30.1 µs; 1 faster, −8.00 µs)`."""
    sides = [f"{counted(one.slower_cases, 'case')} slower, {at_stake(one.slower_us)}"] if one.slower_cases else []
    if one.faster_cases:
        cases = f"{one.faster_cases} faster" if sides else f"{counted(one.faster_cases, 'case')} faster"
        sides.append(f"{cases}, {at_stake(one.faster_us)}")
    name = WORDS[Metric(one.metric)].name
    return f"{one.target} on {one.device}, {name}: {at_stake(one.net_us)} ({'; '.join(sides)})"


def equal_code(rate: Rate) -> str:
    """`0 of 8,400 comparisons of equal code alarmed: 0 % (0 to 0.044 % with 95 % certainty)`."""
    if rate.share is None:
        return "No comparison of equal code was made"
    return f"{rate.alarmed:,} of {rate.comparisons:,} comparisons of equal code alarmed: {_interval(rate)}"


def _interval(rate: Rate) -> str:
    share, low, high = (_percent(one) for one in (rate.share or 0.0, rate.low, rate.high))
    return f"{share} % ({low} to {high} % with 95 % certainty)"


def _percent(share: float) -> str:
    return "100" if share > 0.995 else f"{share * 100:.2g}"


def false_alarms(rate: Rate) -> str:
    """`2 of 8 decided regressions were dismissed as false alarms: 25 % (3.2 to 65 % with 95 % certainty)`."""
    if rate.share is None:
        return "No regression was fixed, accepted or dismissed"
    verb, alarms = ("was", "a false alarm") if rate.differed == 1 else ("were", "false alarms")
    decided = f"{rate.differed:,} of {counted(rate.comparisons, 'decided regression')}"
    return f"{decided} {verb} dismissed as {alarms}: {_interval(rate)}"


def others(cases: int) -> str:
    """` and 17 other cases`, after the first of so many; empty after the only one."""
    return f" and {counted(cases - 1, 'other case')}" if cases > 1 else ""


def further(total: int, rows: Sequence[object]) -> str:
    """Say how many cases a list of `total` leaves out; empty if it leaves out none."""
    left_out = total - sum(getattr(one, "cases", 1) for one in rows)
    return f"{counted(left_out, 'further case')} with less time at stake." if left_out > 0 else ""


def older(total: int, rows: Sequence[object]) -> str:
    """Say how many rows a list of the newest of `total` leaves out; empty if it leaves out none."""
    left_out = total - len(rows)
    return f"{left_out:,} older." if left_out > 0 else ""


def path(week: str, target: str | None, device: str | None) -> str:
    """The address of its page on the dashboard: `/weekly/2026-W47?target=norms`."""
    chosen = {name: value for name, value in (("target", target), ("device", device)) if value}
    return f"/weekly/{week}{f'?{urlencode(chosen)}' if chosen else ''}"


def age(one: WeeklyRegressionItem, week: WeeklyDocument) -> str:
    """How old it was on the last day of the week: `3 days`."""
    days = max(0, (week.last_day - one.opened_at.date()).days)
    return "new" if days == 0 else counted(days, "day")


def course(one: WeeklyRegressionItem) -> str:
    """What happened to it in the week: `opened; 2 fixed by 3f2a7c1b22; 1 accepted by ada: exact sums; 3 open`."""
    accepted = sum(each.cases for each in one.decisions if each.state == RegressionState.ACKNOWLEDGED)
    parts = [(one.opened, "opened"), *((each.cases, _decision(each)) for each in one.decisions)]
    if one.opened < one.cases or one.decisions:
        parts.append((one.open - accepted, "still open"))
    return "; ".join(what if cases == one.cases else f"{cases} {what}" for cases, what in parts if cases > 0)


def _decision(one: WeeklyDecisionItem) -> str:
    if one.state == RegressionState.FIXED:
        return f"fixed by {short(one.revision)}" if one.revision else "fixed"
    what = "accepted" if one.state == RegressionState.ACKNOWLEDGED else one.state
    return f"{what} by {one.who}: {one.reason or 'no reason'}"


def owner(one: WeeklyRegressionItem) -> str:
    """Who has it; empty where nobody needs to."""
    return one.assignee or ("unassigned" if one.open else "")


def change(one: WeeklyRegressionItem) -> str:
    """The size of the case with the most time at stake: `21.4 % slower`."""
    return percent(one.ratio, metric_of(one.case))
