"""The week as Markdown, for an issue, a chat or a mail."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from kernelwatch.documents.weekly import (
    WeeklyDocument,
    WeeklyDriftItem,
    WeeklyFailureItem,
    WeeklyGapItem,
    WeeklyMoverItem,
    WeeklyRegressionItem,
    WeeklyReleaseItem,
)
from service.domain.markup import code, escaped, row_of
from service.domain.metrics import signed
from service.domain.text import short
from service.reports.weekly import words

Item = TypeVar("Item")
Cells = Callable[[Item], Sequence[str]]  # each Markdown already


def markdown(week: WeeklyDocument, address: str) -> str:
    """The report; `address` is that of the dashboard."""
    return "\n".join(_lines(week, address)).rstrip() + "\n"


def _lines(week: WeeklyDocument, address: str) -> Iterator[str]:
    counts = week.counts
    yield f"## {escaped(week.title)}: {escaped(week.headline)}"
    yield ""
    yield escaped(week.summary)
    yield ""
    if week.totals:
        yield "**Time at stake**: what one pass over the cases takes longer than a week before."
        yield ""
        yield from (f"- {escaped(words.total(one))}" for one in week.totals)
        yield ""
    mover = ("Case", "Time at stake", "Change", "Since", "Cause")
    yield from _table("Slower", counts.slower, mover, week.slower, lambda one: _mover(one, address))
    yield from _table("Faster", counts.faster, mover, week.faster, lambda one: _mover(one, address))
    head = ("Regression", "Time at stake", "Change", "Since")
    yield from _table("Opened", counts.opened, (*head, "Cause"), week.opened, lambda one: _opened(one, address))
    yield from _table("Fixed", counts.fixed, (*head, "Fixed by"), week.fixed, lambda one: _fixed(one, address))
    closed = (*head, "Who and why")
    yield from _table("Accepted", counts.accepted, closed, week.accepted, lambda one: _closed(one, address))
    yield from _table("Dismissed", counts.dismissed, closed, week.dismissed, lambda one: _closed(one, address))
    still = ("Regression", "Time at stake", "Change", "State", "Age", "Assignee")
    yield from _table("Open", counts.open, still, week.open, lambda one: _open(one, week, address))
    gap = ("Case", "Time at stake", "Times SOTA", "Since")
    yield from _table("Fell behind SOTA", counts.gaps_opened, gap, week.gaps_opened, lambda one: _gap(one, address))
    yield from _table(
        "No longer behind SOTA", counts.gaps_closed, gap, week.gaps_closed, lambda one: _gap(one, address)
    )
    failed = ("Run", "Revision", "Why")
    yield from _table("Failed runs", len(week.failed), failed, week.failed, lambda one: _failure(one, address), "run")
    if week.releases:
        named = ", ".join(_release(one, address) for one in week.releases)
        yield from (f"**Releases**: {named}", "")
    drift = ("Case", "Run", "Before", "Now")
    yield from _table(
        "Configurations that changed without a commit",
        counts.drifts,
        drift,
        week.drifts,
        lambda one: _drift(one, address),
        left_out=words.older,
    )
    yield f"{escaped(week.equal_code.summary)}. {escaped(week.false_alarms.summary)}."
    yield ""
    yield f"[The whole report]({address}{words.path(week)})"


def _table(
    title: str,
    total: int,
    head: Sequence[str],
    rows: Sequence[Item],
    cells: Cells[Item],
    of: str = "case",
    left_out: Callable[[int, Sequence[object]], str] = words.further,
) -> Iterator[str]:
    if not rows:
        return
    yield f"**{title}** ({total:,} {of}{'s' * (total != 1)})"
    yield ""
    yield row_of(head)
    yield row_of(["---"] * len(head))
    yield from (row_of(cells(one)) for one in rows)
    if rest := left_out(total, rows):
        yield ""
        yield rest
    yield ""


def _release(one: WeeklyReleaseItem, address: str) -> str:
    version = code(one.version)
    linked = f"[{version}]({address}/runs/{one.run_id})" if one.run_id is not None else f"{version} (not measured)"
    return f"{escaped(one.target)} {linked}"


def _drift(one: WeeklyDriftItem, address: str) -> Sequence[str]:
    case = f"{code(one.case)} of {escaped(one.provider)}, {_where(one.target, one.device)}"
    runs = (
        f"[{one.run_id}]({address}/runs/{one.run_id}) after [{one.earlier_run_id}]({address}/runs/{one.earlier_run_id})"
    )
    return case, f"{runs}, both of {code(short(one.revision))}", code(one.before), code(one.now)


def _where(target: str, device: str) -> str:
    return f"{escaped(target)} on {escaped(device)}"


def _mover(one: WeeklyMoverItem, address: str) -> Sequence[str]:
    case = f"{code(one.case)} of {escaped(one.provider)}{words.others(one.cases)}, {_where(one.target, one.device)}"
    since = f"[{code(short(one.revision))}]({address}/runs/{one.run_id}) {escaped(one.subject)}"
    return case, words.at_stake(one.stake_us), signed(one.ratio), since, escaped(one.cause or "")


def _regression(one: WeeklyRegressionItem, address: str) -> tuple[str, str, str]:
    where = f"{words.others(one.cases)}, {_where(one.target, one.device)}"
    named = f"[{code(one.case)}]({address}/regressions/{one.regression_ids[0]}){where}"
    return named, words.at_stake(one.stake_us), words.change(one)


def _since(one: WeeklyRegressionItem, address: str) -> str:
    return f"[{code(short(one.revision))}]({address}/runs/{one.run_id}) {escaped(one.subject)}"


def _opened(one: WeeklyRegressionItem, address: str) -> Sequence[str]:
    return (*_regression(one, address), _since(one, address), escaped(one.cause or ""))


def _fixed(one: WeeklyRegressionItem, address: str) -> Sequence[str]:
    return (*_regression(one, address), _since(one, address), code(short(one.fixed_by)) if one.fixed_by else "")


def _closed(one: WeeklyRegressionItem, address: str) -> Sequence[str]:
    why = f"{escaped(one.who or '')}: {escaped(one.reason or 'no reason')}"
    return (*_regression(one, address), _since(one, address), why)


def _open(one: WeeklyRegressionItem, week: WeeklyDocument, address: str) -> Sequence[str]:
    owner = escaped(one.assignee) if one.assignee else "**unassigned**"
    return (*_regression(one, address), one.state, words.age(one, week), owner)


def _gap(one: WeeklyGapItem, address: str) -> Sequence[str]:
    case = f"{code(one.case)} of {escaped(one.provider)}, {_where(one.target, one.device)}"
    then = f"{one.ratio_before:.3f} → " if one.ratio_before is not None else ""
    since = f"[{code(short(one.revision))}]({address}/runs/{one.run_id}) {escaped(one.subject)}"
    return case, words.at_stake(one.stake_us), f"{then}{one.ratio:.3f}", since


def _failure(one: WeeklyFailureItem, address: str) -> Sequence[str]:
    run = f"[{one.run_id}]({address}/runs/{one.run_id}), {_where(one.target, one.device)}"
    what = "the build failed" if one.build else "given up"
    why = f"{what}: {one.reason}" if one.reason else what
    return run, f"{code(short(one.revision))} {escaped(one.subject)}", escaped(why)
