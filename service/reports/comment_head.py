"""The first screen of a pull request's comment: what happened on each device, where most of all, and what to do next.

What comes from a repository is escaped.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from statistics import geometric_mean

from kernels.cases import Metric
from service.domain.case_names import trend_path
from service.domain.forges import commit_address, compare_address, lines_address
from service.domain.metrics import WORDS, amount, in_range, percent, signed
from service.domain.policy.policy import CommentWhen
from service.domain.states import OPEN_STATES, GateKind, GateState, Outcome, Purpose, RunState
from service.domain.text import code, escaped, in_percent, listed, one_line, row_of, share_in_words
from service.reports import change_picture
from service.reports.report import Report, cases, counted
from service.reports.rows import BaselineRow, Row

BAD, OPEN, WAITING, GOOD = "✗", "?", "…", "✓"
CORRECT_NOW = "correct now, and wrong before"
MAX_TRACKED = 3  # incidents and regressions with a link
_WORSE = (Outcome.INVALID, Outcome.REGRESSION, Outcome.FAILED)
_MOST_SEVERE_FIRST = (BAD, OPEN, WAITING, GOOD)


@dataclass(frozen=True)
class OutcomeGroup:
    """Cases with one outcome, in one metric if they changed."""

    label: str
    rows: Sequence[Row]


def by_gravity(reports: Sequence[Report]) -> list[Report]:
    """The reports of the devices, those first on which most is wrong."""
    return sorted(reports, key=lambda one: _MOST_SEVERE_FIRST.index(symbol(one)))


def symbol(report: Report) -> str:
    """One sign for the result: something is wrong, undecided, still to come, or fine."""
    if report.state in OPEN_STATES and report.state is not RunState.HELD:
        return WAITING
    if report.state is not RunState.DONE:
        return GOOD if report.state is RunState.SKIPPED else BAD if report.build_failed else OPEN
    if report.gate.state is GateState.FAIL or (report.alarms and report.gate.state is not GateState.PASS):
        return BAD
    warned = [one for one in report.gate.reasons if not one.known_before and one.kind is not GateKind.BEHIND_SOTA]
    return OPEN if report.gate.state is GateState.UNDECIDED or warned else GOOD


def worth_a_comment(report: Report) -> bool:
    """Whether people should be notified of this result."""
    if report.state is not RunState.DONE:
        return report.state in (RunState.HELD, RunState.FAILED)
    if report.policy.comment is CommentWhen.ALWAYS:
        return True
    return symbol(report) != GOOD or lead(report) is not None or bool(report.slower_than_pinned)


def title(report: Report) -> str:
    """What happened, as plain text: `1 of 6 cases 10.2 % slower`."""
    if report.state is not RunState.DONE or not report.rows:
        return _lower(report.verdict)
    found = [
        *_counted(report, Outcome.INVALID, "gives", "give", "a wrong result"),
        *_sized([row for row in report.regressions if row.news]),
        *_counted(report, Outcome.FAILED, "fails", "fail"),
    ]
    if slower := report.slower_than_wrong:
        what = percent(slower[0].wrong_parent.ratio if slower[0].wrong_parent else None, slower[0].metric)
        found.append((len(slower), _be(len(slower)), f"correct now, but {'up to ' * (len(slower) > 1)}{what}"))
    if lost := len(report.lost_repeatability):
        found.append((lost, _be(lost), "no longer repeatable"))
    if far := len(report.far_behind):
        found.append((far, _be(far), f"new and far behind {report.sota}"))
    right = [(len(rows), _be(len(rows)), CORRECT_NOW)] if (rows := _only_correct_now(report)) else []
    better = [*_sized([row for row in report.of(Outcome.IMPROVEMENT) if row.news]), *right]
    if found:
        allowed = report.gate.state is GateState.PASS and report.purpose is not Purpose.CALIBRATION
        return _joined(report, [*found, *better]) + ", which the policy allows" * allowed
    verdict = _lower(report.verdict)
    if not better:
        return verdict
    return _joined(report, better) + ("" if report.gate.state is GateState.PASS else f"; {verdict}")


def heading(report: Report) -> str:
    """The same with a capital letter."""
    what = title(report)
    return what[:1].upper() + what[1:]


def headline(report: Report) -> str:
    """One line of plain text: what happened, where, and what to do."""
    return f"{heading(report)} at {report.revision} on {report.device}: {report.advice}."


def head(reports: Sequence[Report]) -> list[str]:
    """What happened on each device, whether the check passes, and what to do next, as paragraphs."""
    titles = [
        f"### {symbol(one)} [kernelwatch, {escaped(one.device.upper())}: {escaped(title(one))}]({one.url})"
        for one in reports
    ]
    return [*titles, _closing(reports)]


def first_screen(report: Report) -> list[str]:
    """The case that matters most, a picture of what changed, and the numbers of cases, as paragraphs."""
    return [part for part in (_lead_words(report), change_picture.in_comment(report), _counts(report)) if part]


def lead(report: Report) -> Row | None:
    """The case that matters most; None where nothing changed."""
    worse = [row for outcome in _WORSE for row in report.of(outcome) if row.news]
    faster = [row for row in report.of(Outcome.IMPROVEMENT) if row.news]
    return next(iter([*worse, *report.slower_than_wrong, *report.far_behind, *faster, *report.correct_now]), None)


def groups(report: Report) -> Iterator[OutcomeGroup]:
    """The cases of a run by outcome and metric, the most severe first; those that were wrong before come last."""
    news = {outcome: [row for row in report.of(outcome) if row.news] for outcome in Outcome}
    yield from _by_metric(f"wrong {BAD}", news[Outcome.INVALID])
    for metric, rows in _metrics(news[Outcome.REGRESSION]):
        yield OutcomeGroup(_labelled(f"{WORDS[metric].more} {BAD}", metric), rows)
    yield from _by_metric(f"failed {BAD}", news[Outcome.FAILED])
    for metric, rows in _metrics(news[Outcome.IMPROVEMENT]):
        yield OutcomeGroup(_labelled(f"{WORDS[metric].less} {GOOD}", metric), rows)
    yield from _by_metric(f"undecided {OPEN}", news[Outcome.INCONCLUSIVE])
    if steady := news[Outcome.STEADY]:
        timed = [row for row in steady if not (row.by_code or row.metric.counts)]
        yield OutcomeGroup(f"unchanged (within {_limits(report, timed)})" if timed else "unchanged", steady)
    yield from _by_metric(f"correct now, but slower {BAD}", report.slower_than_wrong)
    yield from _by_metric(CORRECT_NOW, _only_correct_now(report))
    yield from _by_metric("new", [row for row in news[Outcome.NEW] if not row.correct_now])
    yield from _by_metric("removed", news[Outcome.REMOVED])
    yield from _by_metric("quarantined", report.quarantined)
    yield from _by_metric("wrong or failed before", [row for row in report.rows if row.known_before])
    if lost := report.lost_repeatability:
        yield OutcomeGroup(f"no longer repeatable {BAD} (counted above, too)", lost)


def changed_by(row: Row | BaselineRow, metric: Metric, confidence: float) -> str:
    """The interval of a change with its confidence: `+9.6 to +10.8 %, 95 % confidence`."""
    between = in_range(row.low, row.high, metric)
    return f"{between}, {share_in_words(confidence)} confidence" if between else ""


def times(row: Row) -> str:
    """What a case took before and takes now: `7.31 → 8.06 µs`."""
    before, now = (side.median if side else None for side in (row.parent, row.head))
    return from_to(before, now, row.metric)


def from_to(was: float | None, is_now: float | None, metric: Metric) -> str:
    """Two values in the unit of their metric, which is named once if both have the same: `7.31 → 8.06 µs`."""
    before, now = (amount(value, metric) for value in (was, is_now))
    return f"{before.split(' ')[0] if before.split(' ')[1:] == now.split(' ')[1:] else before} → {now}"


def why(row: Row) -> str:
    """Why it moved, as Markdown that ends a sentence about its size: its cause, or what differs in the code."""
    if row.cause is not None and row.cause.after is not None:
        after = row.cause.after
        return f"{after[: len(after) - len(after.lstrip())]}{escaped(one_line(after, 300))}"
    said = row.cause.words if row.cause is not None else ", ".join(row.explained[:3])
    return f": {escaped(one_line(said, 300))}" if said else ""


def commit(report: Report, sha: str | None, name: str | None) -> str:
    """A commit as a link to the forge; as code where there is no forge."""
    if not name:
        return ""
    if not (report.forge_url and report.forge_kind and sha):
        return code(name)
    return f"[{code(name)}]({commit_address(report.forge_kind, report.forge_url, sha)})"


def _only_correct_now(report: Report) -> list[Row]:
    """The cases that are correct now, wrong before, and not slower for it."""
    slower = {(row.provider, row.case) for row in report.slower_than_wrong}
    return [row for row in report.correct_now if (row.provider, row.case) not in slower]


Found = tuple[int, str, str]  # a number of cases, and what they do: `1`, `is`, `10.2 % slower`


def _sized(rows: Sequence[Row]) -> list[Found]:
    """How many cases changed, and by how much: `10.2 % slower`, `up to 10.2 % slower`; for each metric."""
    return [(len(some), _be(len(some), WORDS[metric].is_), _largest(some, metric)) for metric, some in _metrics(rows)]


def _largest(rows: Sequence[Row], metric: Metric) -> str:
    worst = max(rows, key=_size)
    return worst.change if len(rows) == 1 else f"up to {percent(worst.ratio, metric)}"


def _size(row: Row) -> float:
    return max(row.ratio or 1.0, 1 / (row.ratio or 1.0))


def _counted(report: Report, outcome: Outcome, one: str, several: str, what: str = "") -> list[Found]:
    count = sum(row.news for row in report.of(outcome))
    return [(count, one if count == 1 else several, what)] if count else []


def _be(count: int, one: str = "is") -> str:
    return one if count == 1 else {"is": "are", "has": "have"}.get(one, one.removesuffix("s"))


def _joined(report: Report, found: Sequence[Found]) -> str:
    """`1 of 6 cases 10.2 % slower`; `2 of 6 cases give wrong results, 1 is 10.2 % slower, 1 fails`."""
    (count, verb, said), *others = found
    cases = f"{count} of {len(report.rows)} cases" if len(report.rows) > 1 else "its only case"
    first = [cases, *([] if verb in ("is", "are") else [verb]), said]
    parts = [first, *([str(count), verb, said] for count, verb, said in others)]
    return ", ".join(" ".join(filter(None, part)) for part in parts)


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _lead_words(report: Report) -> str:
    """The case that matters most, with its times, the interval and the cause, and where to read on."""
    if report.build_failed:
        return f"{escaped(one_line(report.reason or 'The build failed'))}. [The whole log]({report.log_url})"
    if report.state is RunState.HELD:
        return "The commit is on no branch of the repository: it comes from an outside contributor."
    if report.state is not RunState.DONE:
        return f"{_sentence(report.advice)}."
    if (row := lead(report)) is None:
        return _undecided(report) or (f"{_sentence(report.advice)}." if not report.rows else _older(report))
    name = code(row.case)
    if row.outcome is Outcome.NEW and row.against_wrong:
        between = changed_by(row.wrong_parent, row.metric, report.policy.confidence) if row.wrong_parent else ""
        size = f" ({between})" if between else ""
        return f"{name}: {escaped(one_line(row.against_wrong, 500))}{size}. {_links(report, row)}"
    if row.far_behind and row.sota is not None:
        return f"{name} is new and {escaped(one_line(row.sota.reason, 300))}. {_links(report, row)}"
    if row.outcome in (Outcome.INVALID, Outcome.FAILED, Outcome.NEW):
        return f"{name} {escaped(one_line(row.summary, 300))}. {_links(report, row)}"
    interval = changed_by(row, row.metric, report.policy.confidence)
    size = f" ({interval})" if interval else ""
    context = f" {_sentence(one_line(row.context, 300))}." if row.context else ""
    return f"{name}: {times(row)}, {row.change}{size}{why(row)}.{context} {_links(report, row)}"


def _older(report: Report) -> str:
    """What is slow although this revision changed nothing."""
    said = [report.slow_since(regression_links(report.url), escaped)] if report.slow_before else []
    if slower := len(report.slower_than_pinned):
        said.append(escaped(f"{slower} slower than the pinned baseline {report.pinned or ''}".rstrip()))
    return f"{'; '.join(said)}." if said else ""


def _undecided(report: Report) -> str:
    """Why most of the undecided cases are."""
    reasons = Counter(one_line(row.reason) for row in report.of(Outcome.INCONCLUSIVE) if row.news)
    return f"{_sentence(reasons.most_common(1)[0][0])}." if reasons else ""


def regression_links(page: str) -> Callable[[int], str]:
    """What writes the number of a regression as a link to it; `page` is any of a run."""
    address = _service_of(page)
    return lambda number: f"[{number}]({address}/regressions/{number})"


def _service_of(page: str) -> str:
    """The address of the service that has this page of a run, or a row of it."""
    return page.partition("/runs/")[0]


def _sentence(text: str) -> str:
    said = escaped(text)
    return said[:1].upper() + said[1:]


def _links(report: Report, row: Row) -> str:
    address = _service_of(report.url)
    links, kind = dict[str, str](), report.forge_kind
    if report.forge_url and kind and (source := row.source):
        page = lines_address(kind, report.forge_url, report.sha, source.file, *source.shown)
        links[escaped(one_line(source.short, 60))] = page
    links["trend"] = f"{address}{trend_path(report.target, report.device, row.provider, row.case)}"
    if report.forge_url and kind and report.baseline_sha:
        links["diff"] = compare_address(kind, report.forge_url, report.baseline_sha, report.sha)
    links["reproduce"] = f"{report.url}#reproduce"
    return " ".join(f"[[{name}]]({url})" for name, url in links.items())


def _counts(report: Report) -> str:
    """The table of outcomes; empty where nothing was measured."""
    lines = [row_of(["", "cases", "mean", "range"]), "|---|--:|--:|---|"]
    for group in groups(report):
        lines.append(row_of([group.label, str(len(group.rows)), *_mean_and_range(group.rows)]))
    return "\n".join(lines) if lines[2:] and report.state is RunState.DONE else ""


def _mean_and_range(rows: Sequence[Row]) -> tuple[str, str]:
    """`+3.1 %` and `+1.2 to +10.2 %`; of counts only the range, `+1 to +3`."""
    ratios = [row.ratio for row in rows if row.ratio is not None]
    if not ratios or len({row.metric for row in rows}) > 1:
        return "", ""
    if (metric := rows[0].metric).counts:
        ends = dict.fromkeys(signed(end, metric) for end in (min(ratios), max(ratios)))
        return "", " to ".join(ends)
    return signed(geometric_mean(ratios)), in_range(min(ratios), max(ratios)) if len(ratios) > 1 else ""


def _by_metric(label: str, rows: Sequence[Row]) -> Iterator[OutcomeGroup]:
    for metric, some in _metrics(rows):
        yield OutcomeGroup(_labelled(label, metric), some)


def _metrics(rows: Sequence[Row]) -> Iterator[tuple[Metric, list[Row]]]:
    for metric in Metric:
        if some := [row for row in rows if row.metric is metric]:
            yield metric, some


def _labelled(label: str, metric: Metric) -> str:
    return label if metric is Metric.KERNEL else f"{label}, {WORDS[metric].name}"


def _limits(report: Report, rows: Sequence[Row]) -> str:
    """`2 %`, or `1 to 2 %` where cases have different limits."""
    sizes = [row.smallest_change or report.policy.at(row.case).smallest_change for row in rows]
    low, high = (in_percent(size).rstrip("%") for size in (min(sizes), max(sizes)))
    return f"{low} %" if low == high else f"{low} to {high} %"


# What the check of a run does, by its conclusion.
_CHECKS = {
    "success": "passes",
    "failure": "fails: it blocks the merge where it is required",
    "neutral": "is neutral: it blocks nothing",
    "action_required": "waits for a decision",
    "skipped": "is skipped: it blocks nothing",
}


def _closing(reports: Sequence[Report]) -> str:
    """Whether the check passes, which commits these are, and what to do next."""
    first = reports[0]
    of_pull = "its merge base" if first.pull is not None else "the revision before it"
    against = {commit(one, one.baseline_sha, one.baseline): one for one in reports if one.baseline}
    said = commit(first, first.sha, first.revision)
    if against:
        several = len(against) > 1
        bases = [f"{base}{_on(one) if several else ''}{_changes(one)}" for base, one in against.items()]
        said += f" against {of_pull} {listed(bases)}"
    return " ".join(filter(None, (_checks(reports), f"{said}.", _next_steps(reports))))


def _on(report: Report) -> str:
    return f" on {escaped(report.device.upper())}"


def _changes(report: Report) -> str:
    if not (report.forge_url and report.forge_kind and report.baseline_sha):
        return ""
    return f" ([changes]({compare_address(report.forge_kind, report.forge_url, report.baseline_sha, report.sha)}))"


def _next_steps(reports: Sequence[Report]) -> str:
    """What to do next: for each device where they differ."""
    steps = {next_step(one): one for one in reversed(reports)}
    if len(steps) == 1:
        return next(iter(steps))
    return " ".join(f"{escaped(one.device.upper())}: {step}" for step, one in reversed(steps.items()) if step)


def _checks(reports: Sequence[Report]) -> str:
    """What the checks of the devices do to the merge; empty where there are none, or not yet."""
    does = {
        one.device.upper(): _CHECKS[one.gate.conclusion]
        for one in reports
        if one.state is RunState.DONE and one.forge is not None and one.gate.conclusion
    }
    if len(set(does.values())) == 1:
        return f"**The check {next(iter(does.values()))}.**"
    return " ".join(f"**The check of {escaped(device)} {what}.**" for device, what in does.items())


def next_step(report: Report) -> str:
    """Markdown: what the reader can do, in terms of what works where they read it."""
    asked = report.forge is not None and report.pull is not None
    rerun = (
        code("/kernelwatch rerun")
        if asked
        else code(f"kernelwatch run start {report.target} {report.revision} --again")
    )
    match report.state:
        case RunState.HELD:
            how = code(f"/kernelwatch approve {report.sha}") if asked else ""
            terminal = code(f"kernelwatch run approve {report.run_id}")
            who = f"somebody who may write to {escaped(report.forge)}" if report.forge else "a maintainer"
            ways = " or ".join(filter(None, (how, terminal)))
            return f"Next: {who} reads the commit and approves exactly it with {ways}."
        case RunState.FAILED if report.build_failed:
            return "Next: push a fix; it is measured automatically."
        case RunState.FAILED:
            again = rerun if asked else code(f"kernelwatch run retry {report.run_id}")
            return f"Next: {again}, once its cause is gone."
        case RunState.DONE:
            return _next_of_result(report, rerun, asked=asked)
    return ""


def _next_of_result(report: Report, rerun: str, *, asked: bool) -> str:
    if report.purpose is not Purpose.WATCH:
        return ""
    if any(row.news for row in report.of(Outcome.INVALID)):
        return "Next: fix the results first, because the times of wrong results do not count."
    if report.regressions:
        accept = _accept(report, asked=asked)
        tracked = _tracked(report)
        return f"{tracked}Next: push a fix (it is measured automatically), or {accept}; {rerun} measures once more."
    if report.slower_than_wrong:
        return "Next: look for a faster way to right results; the next revisions are compared with these times."
    if report.far_behind and not any(row.news for row in report.of(Outcome.FAILED)):
        return (
            "Next: see what the faster implementation does otherwise; the next revisions are compared with these times."
        )
    if report.alarms:
        return "Next: push a fix; it is measured automatically."
    if report.gate.state is GateState.UNDECIDED:
        return f"Next: {rerun} measures once more."
    if rows := report.less_exact:
        return f"Next: decide whether {cases(len(rows))} may be less exact."
    if new := report.of(Outcome.NEW):
        return f"The next revisions are compared with the {counted(Outcome.NEW, len(new))} of this one."
    slower = report.slow_before or report.slower_than_pinned
    return "Nothing to do." if report.gate.state is GateState.PASS and not slower else ""


def _tracked(report: Report) -> str:
    """Where the regressions of a mainline are handled: `It is tracked as [incident 3](…). `"""
    known = [row for row in report.regressions if row.regression is not None]
    incidents = dict.fromkeys(row.incident for row in known if row.incident is not None)
    address = _service_of(report.url)
    said = [f"[incident {one}]({address}/incidents/{one})" for one in incidents]
    said += [
        f"[regression {row.regression}]({address}/regressions/{row.regression})"
        for row in known
        if row.incident is None
    ]
    rest = f" and {len(said) - MAX_TRACKED} more" if len(said) > MAX_TRACKED else ""
    return f"It is tracked as {listed(said[:MAX_TRACKED])}{rest}. " if said else ""


def _accept(report: Report, *, asked: bool) -> str:
    """How to accept the regressions of a run."""
    if asked:
        return f"accept it with {code('/kernelwatch accept REASON')}"
    known = sorted(row.regression for row in report.regressions if row.regression is not None)
    events = {row.incident for row in report.regressions if row.regression is not None}
    if len(known) > 1 and len(events) == 1 and None not in events:
        return f"accept it with {code(f'kernelwatch regression acknowledge {events.pop()} --incident --reason …')}"
    if known:
        more = f" (also {listed(map(str, known[1:]))})" if known[1:] else ""
        return f"accept it with {code(f'kernelwatch regression acknowledge {known[0]} --reason …')}{more}"
    return "merge anyway: it is tracked as a regression until it is fixed or acknowledged"
