"""A Report as the comment and the check run that a pull request receives.

What comes from a repository (subjects, reasons, logs) is escaped: it can neither break the layout, nor mention
a person, nor link to anything.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from kernels.cases import Metric
from service.domain.metrics import WORDS, amount, digits, in_range, ratio_text, signed
from service.domain.states import GateState, Outcome, RunState
from service.domain.text import code, escaped, fenced, in_percent, last_lines, listed, one_line, row_of, share_in_words
from service.domain.verdicts.totals import Summary
from service.reports import comment_head
from service.reports.comment_head import from_to, times
from service.reports.notes import conventions, provisional, second_session, without_sota
from service.reports.payloads import CheckPayload
from service.reports.report import NOUNS, Report
from service.reports.rows import AgainstSota, BaselineRow, Row

LARGEST = 65_000  # GitHub refuses a comment above 65,536 characters, and a check's summary above 65,535 bytes
SHOWN = 10  # rows before the rest goes into <details>
_FOLDED = (400, 100, 30, 10, 3, 0)  # rows of each folded table; the next smaller number is tried until the comment fits
_CHANGED = (Outcome.REGRESSION, Outcome.IMPROVEMENT)
_MOVED = (*_CHANGED, Outcome.NEW)


def marker(target: str, pull: int | None) -> str:
    """The marker that identifies the comment; invisible when rendered."""
    return f"<!-- kernelwatch:{re.sub(r'[^A-Za-z0-9_./-]', '_', target)}:{pull or 0} -->"


def comment(*reports: Report, facts: str = "") -> str:
    """The one comment of a pull request: the verdict of each device first, then what changed, then the rest, folded.

    `facts` is what was found without a GPU, as Markdown.
    """
    if not reports:
        raise ValueError("a comment needs at least one report")
    return _fitting(reports, facts, len)


def _fitting(reports: Sequence[Report], facts: str, size: Callable[[str], int]) -> str:
    """The longest comment whose size is at most LARGEST."""
    for most in _FOLDED:
        text = _comment(reports, most, facts)
        if size(text) <= LARGEST:
            return text
    # Dozens of devices: their results are what fits.
    some = comment_head.by_gravity(reports)[:SHOWN]
    return "\n\n".join([*comment_head.head(some), _signature(reports[0])])


def check(report: Report) -> CheckPayload:
    """Return the check run (or commit status) of this revision and device."""
    title = one_line(_check_title(report), 140)
    return CheckPayload(
        name=f"kernelwatch / {report.target} / {report.device}",
        sha=report.sha,
        status=report.gate.check_status,
        conclusion=report.gate.conclusion,
        commit_status=report.gate.commit_status,
        title=title[:1].upper() + title[1:],
        summary=_fitting([report], "", lambda text: len(text.encode())),
        url=report.url,
    )


def _check_title(report: Report) -> str:
    """What happened and, where a person has to act on more than what is named, how."""
    if report.state is not RunState.DONE:
        return f"{report.verdict}: {report.advice}"
    found = comment_head.title(report)
    if report.gate.state is not GateState.UNDECIDED:
        return found
    if any(one.undecided and one.cases for one in report.gate.reasons):
        return f"undecided, run it again: {found}"
    return f"undecided, {found}: {report.advice}"


def _comment(reports: Sequence[Report], most: int, facts: str) -> str:
    reports = comment_head.by_gravity(reports)
    parts = comment_head.head(reports)
    for report in reports:
        parts += [f"#### {escaped(report.device.upper())}"] if len(reports) > 1 else []
        parts += [*comment_head.first_screen(report), *_body(report, most)]
    if facts:
        parts.append(facts)
    parts.append(_signature(reports[0]))
    return "\n\n".join(parts) + "\n"


def _body(report: Report, most: int) -> list[str]:
    parts = []
    if report.sandboxed is False:
        parts.append(
            "> **Measured without a sandbox**: the worker has none, and this target is allowed to run without one."
        )
    if report.build_failed:
        parts.append(fenced(last_lines(report.log or "")))
    if report.repeated:
        parts.append("Measured again, because the controls of the first session failed.")
    parts += filter(None, (second_session(report), provisional(report)))
    if report.state is RunState.DONE and report.reason:
        parts.append(f"Note: {escaped(one_line(report.reason))}.")
    parts += _tables(report, most)
    if missing := without_sota(report):
        parts.append(escaped(missing))
    return [*parts, _footing(report)]


def _tables(report: Report, most: int) -> list[str]:
    quiet = report.of(Outcome.INCONCLUSIVE, Outcome.STEADY)
    parts, room = list[str](), SHOWN
    for news in _news(report):
        parts += [f"{news.title}{news.shared}", news.table(news.rows[:room])] if room else []
        if rest := news.rows[room:]:
            parts.append(_folded(f"{len(rest)} more: {news.title.strip('*')}", news.table, rest, most))
        room = max(0, room - len(news.rows))
    behind, perhaps = _gaps(report, report.behind), _gaps(report, report.behind_is_open)
    known = [row for row in report.of(Outcome.INVALID, Outcome.FAILED) if row.known_before]
    new = [row for row in report.of(Outcome.NEW) if not row.correct_now]
    removed, slow, pinned = report.of(Outcome.REMOVED), report.slow_before, report.slower_than_pinned
    means, unsupported = report.summaries, report.unsupported
    of_them_slower = f", {len(slower)} of them slower" if (slower := report.slower_than_wrong) else ""
    folded: list[tuple[str, Callable[[Any], str], Sequence[Any]]] = [
        (f"{len(known)} wrong or failed before this revision already", _reasoned, known),
        (f"{len(report.correct_now)} {comment_head.CORRECT_NOW}{of_them_slower}", _reasoned, report.correct_now),
        (f"{len(new)} new, with nothing to compare with", _reasoned, new),
        (f"{len(removed)} removed from the suite", _reasoned, removed),
        (f"{len(slow)} already slow before this revision: slower than the last good revision", _slow_before, slow),
        (f"{len(pinned)} slower than the pinned baseline {report.pinned or ''}", _slower_than_pinned, pinned),
        (_quiet(quiet), _timed, quiet),
        (f"Geometric means of {sum(one.cases for one in means)} cases", _summary, means),
        (f"{len(unsupported)} not supported by their provider", _unsupported, unsupported),
        (
            f"{len(behind)} behind {report.sota} (slower than the best known implementation; not a regression)",
            _standing,
            behind,
        ),
        (f"{len(perhaps)} perhaps behind {report.sota}: this session could not decide", _standing, perhaps),
    ]
    return [*parts, *(_folded(title, table, rows, most) for title, table, rows in folded if rows)]


@dataclass(frozen=True)
class _News:
    """Rows that people should read, with their title and the table that shows them."""

    title: str
    table: Callable[[Sequence[Row]], str]
    rows: tuple[Row, ...]
    shared: str = ""  # what the table would say of each of them, as Markdown


def _news(report: Report) -> Iterator[_News]:
    """What changed, with a title and the table that shows it; the first screen has what is left out here."""
    for outcome in (Outcome.INVALID, Outcome.FAILED):
        if rows := tuple(row for row in report.of(outcome) if not row.known_before):
            yield _News(f"**{NOUNS[outcome][1].capitalize()}** (their times do not count)", _reasoned, rows)
    changed = report.of(*_CHANGED)
    slower_first = _by_cause(changed)
    if slower_first and slower_first != (comment_head.lead(report),):
        reasons = {_why(row) if row.cause else None for row in slower_first}
        why = reasons.pop() if len(reasons) == 1 else None
        if why is None:
            yield _News("**Changed**", _timed, slower_first)
        else:
            each = "each " if len(slower_first) > 1 else ""
            yield _News("**Changed**", partial(_timed, why=False), slower_first, f", {each}{escaped(why)}")
    if rows := report.slower_than_wrong:
        yield _News("**Correct now, but slower**", _slower_than_wrong, rows)
    if rows := report.far_behind:
        yield _News(f"**New and far behind {escaped(report.sota)}**", _standing, rows)
    if rows := report.less_exact:
        yield _News("**Less exact**, within what is allowed", _less_exact, rows)
    if rows := report.lost_repeatability:
        title = "**No longer repeatable**: calls with the same inputs give different bits, and did not before"
        yield _News(title, _unrepeatable, rows)


def _by_cause(changed: Sequence[Row]) -> tuple[Row, ...]:
    """What became slower first; cases of one cause stand together, at the place of the first of them."""
    places: dict[tuple[bool, str], int] = {}
    for place, row in enumerate(changed):
        places.setdefault((row.outcome is Outcome.REGRESSION, _why(row)), place)
    return tuple(
        sorted(
            changed,
            key=lambda row: (
                row.outcome is not Outcome.REGRESSION,
                places[row.outcome is Outcome.REGRESSION, _why(row)],
            ),
        )
    )


def _gaps(report: Report, rows: Sequence[Row]) -> tuple[Row, ...]:
    """The gaps to SOTA that this revision moved; all of them where they decide the gate."""
    if report.gate.state in (GateState.FAIL, GateState.UNDECIDED) and not report.alarms:
        return tuple(rows)
    return tuple(row for row in rows if row.outcome in _MOVED)


def _quiet(rows: Sequence[Row]) -> str:
    undecided = sum(row.outcome is Outcome.INCONCLUSIVE and not row.quarantined for row in rows)
    quarantined = sum(row.quarantined for row in rows)
    counts = {"unchanged": len(rows) - undecided - quarantined, "undecided": undecided, "quarantined": quarantined}
    return listed(f"{n} {word}" for word, n in counts.items() if n) if rows else ""


def _folded(title: str, table: Callable[[Any], str], rows: Sequence[Any], most: int) -> str:
    shown = table(rows[:most]) if most else ""
    rest = f"\n\n{len(rows) - most} more on the page of the run." if len(rows) > most else ""
    return f"<details><summary>{escaped(title)}</summary>\n\n{shown}{rest}\n\n</details>"


def _timed(rows: Sequence[Row], *, why: bool = True) -> str:
    lit = any(row.of_ceiling for row in rows)
    lines = [
        row_of(["case", "before → now", *["of ceiling"] * lit, "change", *["why"] * why]),
        "|---|--:|" + "--:|" * lit + "---|" + "---|" * why,
    ]
    above = ""
    for row in rows:
        change = _change(row.ratio, row.low, row.high, row.metric)
        reason = _why(row)
        shown = "as above" if reason == above and row.outcome in _CHANGED else reason
        above = reason
        if row.outcome is Outcome.REGRESSION:
            change = f"**{change}**"
        if row.outcome is Outcome.INCONCLUSIVE:
            change = "quarantined" if row.quarantined else "undecided"
        cells = [_name(row), times(row), *[row.of_ceiling] * lit, change, *[escaped(shown)] * why]
        lines.append(row_of(cells))
    return "\n".join(lines)


def _why(row: Row) -> str:
    """Why a case changed, or what else a reader of its row has to know."""
    changed = row.outcome in _CHANGED  # its size is in the row already
    said = (row.cause_words, row.context) if changed else (row.summary,)
    return one_line("; ".join(filter(None, (*said, *(() if row.cause else row.explained)))), 400)


def _change(ratio: float | None, low: float | None, high: float | None, metric: Metric) -> str:
    """`+10.2 % (+9.6 to +10.8 %)`; of counts `+1`."""
    between = in_range(low, high, metric)
    return " ".join(filter(None, (signed(ratio, metric) if ratio else "", f"({between})" if between else "")))


def _slow_before(rows: Sequence[Row]) -> str:
    reasons = ((row, row.as_before(comment_head.regression_links(row.page), escaped)) for row in rows)
    return _baselines([(row, row.last_good, why) for row, why in reasons if row.last_good])


def _slower_than_pinned(rows: Sequence[Row]) -> str:
    return _baselines([(row, row.pinned, escaped(one_line(row.pinned.reason, 400))) for row in rows if row.pinned])


def _slower_than_wrong(rows: Sequence[Row]) -> str:
    lines = ["| case | wrong → now | change | why |", "|---|--:|---|---|"]
    for row in rows:
        if (other := row.wrong_parent) is not None and row.parent and row.head:
            took = from_to(row.parent.timed, row.head.timed, row.metric)
            change = _change(other.ratio, other.low, other.high, row.metric)
            why = escaped(one_line(other.cause.words, 250)) if other.cause else ""
            lines.append(row_of([_name(row), took, change, why]))
    return "\n".join(lines)


def _baselines(sides: Sequence[tuple[Row, BaselineRow, str]]) -> str:
    """Rows beside another baseline, with the reason as Markdown."""
    lines = ["| case | baseline | change | why |", "|---|---|---|---|"]
    for row, side, reason in sides:
        cause = escaped(one_line(side.cause.words, 400)) if side.cause else ""
        why = "; ".join(filter(None, (cause, reason)))
        change = _change(side.ratio, side.low, side.high, row.metric)
        lines.append(row_of([_name(row), code(side.baseline), change, why]))
    return "\n".join(lines)


def _group(one: Summary) -> str:
    metric = Metric(one.metric)
    more = "" if metric is Metric.KERNEL else f", {WORDS[metric].name}"
    return f"{code('.'.join(filter(None, (one.op, one.direction))))} {escaped(one.provider)}{more}"


def _name(row: Row) -> str:
    """The case, its provider, and what was measured where that is not the kernel's time.

    It leads to its row on the page of the run, unless it did not change: there may be hundreds of these.
    """
    metric = "" if row.metric is Metric.KERNEL else f", {WORDS[row.metric].name}"
    case = f"[{code(row.case)}]({row.page})" if row.page and row.outcome is not Outcome.STEADY else code(row.case)
    return f"{case} {escaped(row.provider)}{metric}"


def _table(head: str, cells: Callable[[Any], Sequence[str]]) -> Callable[[Sequence[Any]], str]:
    """What shows rows as a table, by the cells of one."""
    return lambda rows: "\n".join([head, *(row_of(cells(row)) for row in rows)])


def _stands(row: Row, sota: AgainstSota) -> Sequence[str]:
    taken = (amount(side.median if side else None, row.metric) for side in (row.head, sota.best))
    return [_name(row), *taken, ratio_text(sota.ratio, row.metric, 2), escaped(sota.summary)]


_reasoned = _table("| case | what happened |\n|---|---|", lambda row: [_name(row), escaped(row.summary)])
_unrepeatable = _table("| case | what was seen |\n|---|---|", lambda row: [_name(row), escaped("; ".join(row.notes))])
_less_exact = _table("| case | what was measured |\n|---|---|", lambda row: [_name(row), escaped(row.less_exact)])
_standing = _table("| case | head | best | ratio | since |\n|---|--:|--:|--:|---|", lambda row: _stands(row, row.sota))
_summary = _table(
    "| | cases | change |\n|---|--:|---|",
    lambda one: [_group(one), str(one.cases), _change(one.ratio, one.low, one.high, Metric(one.metric))],
)
_unsupported = _table(
    "| case | why not |\n|---|---|",
    lambda one: [f"{code(one.case)} {escaped(one.provider)}", escaped(one_line(one.reason))],
)


def _footing(report: Report) -> str:
    """How it was measured, in one line."""
    measured = "How it was measured" if report.rows else "The run"
    said = [f"[{measured}]({report.url})", f"target {escaped(report.target)}, suite {escaped(report.suite)}"]
    versions = [f"{name} {value}" for name, value in report.stack.items() if isinstance(value, str | int | float)]
    if versions:
        said.append(escaped(one_line(", ".join(versions), 300)))
    if report.rows:
        version = f" (policy {code(report.policy_version)})" if report.policy_version else ""
        said.append(f"smallest change {limits(report)}{version}")
        said.append(
            f"changes are medians of pairs, with intervals of {share_in_words(report.policy.confidence)} confidence; "
            "above zero is slower"
        )
    said += [escaped(one.rstrip(".")) for one in conventions(report)]
    if best := ceilings(report):
        said.append(f"ceilings of this session {best}")
    return f"<sub>{' · '.join(said)}</sub>"


def ceilings(report: Report) -> str:
    """`4,258 GB/s for a copy, 790 TFLOP/s for a bf16 matrix product`; empty where nothing was measured."""
    copy, product = report.ceilings.get("copy_gb_s"), report.ceilings.get("matmul_tflop_s")
    said = [f"{digits(copy)} GB/s for a copy"] if copy else []
    return ", ".join([*said, f"{digits(product)} TFLOP/s for a bf16 matrix product"] if product else said)


def limits(report: Report) -> str:
    """`1 %`, or with what has another limit: `1 % (2 % below 100 µs, call time 5 %, peak memory 1 %)`."""
    own, short = report.policy.smallest_change, report.policy.smallest_change_short
    by_metric = {row.metric: report.policy.smallest_change_in(row.metric) for row in report.rows}
    others = [f"{_percents(short)} below {digits(report.policy.short_us)} µs"] if short > own else []
    others += [
        f"{WORDS[metric].name} {f'{by_metric[metric]:g}' if metric.counts else _percents(by_metric[metric])}"
        for metric in Metric
        if by_metric.get(metric, own) != own
    ]
    return _percents(own) + (f" ({', '.join(others)})" if others else "")


def _percents(share: float) -> str:
    return in_percent(share).replace("%", " %")


def _signature(report: Report) -> str:
    return marker(report.target, report.pull) if report.pull is not None else "<!-- kernelwatch -->"
