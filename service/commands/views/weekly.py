"""The weekly report in a terminal."""

from collections.abc import Callable

from kernelwatch.client.models import (
    WeeklyDocument,
    WeeklyDriftItem,
    WeeklyFailureItem,
    WeeklyGapItem,
    WeeklyMoverItem,
    WeeklyRegressionItem,
    WeeklyReleaseItem,
    WeeklyTotalItem,
)
from service.commands.output.views import Column, Columns, Part, Table, View, text
from service.domain.metrics import metric_of, ratio_text, signed
from service.domain.text import short
from service.reports.weekly import words

TOTALS = Columns(
    WeeklyTotalItem,
    Column("target", lambda one: one.target),
    Column("device", lambda one: one.device),
    Column("metric", lambda one: one.metric),
    Column("time at stake", lambda one: words.at_stake(one.net_us), right=True),
    Column("slower", lambda one: str(one.slower_cases), right=True),
    Column("faster", lambda one: str(one.faster_cases), right=True),
)
MOVERS = Columns(
    WeeklyMoverItem,
    Column("revision", lambda one: short(one.revision)),
    Column("cases", lambda one: str(one.cases), right=True),
    Column("time at stake", lambda one: words.at_stake(one.stake_us), right=True),
    Column("largest", lambda one: one.case),
    Column("change", lambda one: signed(one.ratio), right=True),
    Column("target", lambda one: one.target, spare=1),
    Column("device", lambda one: one.device, spare=2),
    Column("provider", lambda one: one.provider, spare=4),
    Column("subject", lambda one: one.subject, below=True),
    Column("cause", lambda one: one.cause or "", below=True),
)
REGRESSIONS = Columns(
    WeeklyRegressionItem,
    Column("ids", lambda one: _ids(one.regression_ids)),
    Column("case", lambda one: one.case),
    Column("cases", lambda one: str(one.cases), right=True, spare=4),
    Column("time at stake", lambda one: words.at_stake(one.stake_us), right=True),
    Column("change", lambda one: signed(one.ratio, metric_of(one.case)), right=True),
    Column("state", lambda one: one.state, spare=1),
    Column("target", lambda one: one.target, spare=2),
    Column("device", lambda one: one.device, spare=3),
    Column("opened", lambda one: f"{one.opened_at:%Y-%m-%d}", spare=5),
    Column("assignee", words.owner, spare=6),
    Column("this week", words.course, below=True),
    Column("cause", lambda one: one.cause or "", below=True),
)
GAPS = Columns(
    WeeklyGapItem,
    Column("case", lambda one: one.case),
    Column("time at stake", lambda one: words.at_stake(one.stake_us), right=True),
    Column("times SOTA", lambda one: ratio_text(one.ratio, metric_of(one.case)), right=True),
    Column("before", lambda one: ratio_text(one.ratio_before, metric_of(one.case)), right=True, spare=3),
    Column("target", lambda one: one.target, spare=1),
    Column("device", lambda one: one.device, spare=2),
)
FAILED = Columns(
    WeeklyFailureItem,
    Column("run", lambda one: str(one.run_id), right=True),
    Column("revision", lambda one: short(one.revision)),
    Column("target", lambda one: one.target, spare=1),
    Column("device", lambda one: one.device, spare=2),
    Column("why", lambda one: one.reason or "", below=True),
)

RELEASES = Columns(
    WeeklyReleaseItem,
    Column("target", lambda one: one.target),
    Column("version", lambda one: one.version),
    Column("released", lambda one: f"{one.at:%Y-%m-%d}"),
    Column("run", lambda one: "" if one.run_id is None else str(one.run_id), right=True),
)
DRIFTS = Columns(
    WeeklyDriftItem,
    Column("case", lambda one: one.case),
    Column("run", lambda one: str(one.run_id), right=True),
    Column("before", lambda one: one.before, below=True),
    Column("now", lambda one: one.now, below=True),
    Column("target", lambda one: one.target, spare=1),
    Column("device", lambda one: one.device, spare=2),
    Column("revision", lambda one: short(one.revision), spare=3),
)


def report(week: WeeklyDocument, markdown: Callable[[], str]) -> View:
    """A week; its CSV is the cases that moved."""
    counts = week.counts
    parts: list[Part] = [
        text((f"{week.title}: {week.headline}", "bold")),
        text(week.summary),
    ]
    tables = (
        TOTALS.table(week.totals, "Time at stake of one pass over the cases"),
        MOVERS.table(week.slower, f"Slower: {counts.slower}"),
        MOVERS.table(week.faster, f"Faster: {counts.faster}"),
        REGRESSIONS.table(
            week.regressions,
            f"Regressions: {counts.opened} opened, {counts.fixed} fixed, {counts.accepted} accepted, "
            f"{counts.dismissed} dismissed, {counts.open} open",
        ),
        GAPS.table(week.gaps_opened, f"Fell behind SOTA: {counts.gaps_opened}"),
        GAPS.table(week.gaps_closed, f"No longer behind SOTA: {counts.gaps_closed}"),
        FAILED.table(week.failed, "Failed runs"),
        RELEASES.table(week.releases, "Releases"),
        DRIFTS.table(week.drifts, f"Configurations that changed without a commit: {counts.drifts}"),
    )
    parts += [table for table in tables if table.rows]
    parts += [text(f"{week.equal_code.summary}."), text(f"{week.false_alarms.summary}.")]
    moved = Table(WeeklyMoverItem, [*week.slower, *week.faster], ())
    return View(week, parts, texts={"md": markdown}, table=moved)


def _ids(ids: list[int]) -> str:
    return str(ids[0]) if len(ids) == 1 else f"{ids[0]} and {len(ids) - 1} more"
