"""A FactsReport as Markdown, for a job's summary or a comment.  What comes from a repository is escaped."""

from service.domain.codefacts.diff import Group
from service.domain.codefacts.findings import MENDS, FactsReport, Finding, Findings, at
from service.domain.codefacts.measured import Difference
from service.domain.text import code, escaped, fenced, one_line

SHOWN = 40  # lines of changes; the weightiest come first
LARGEST = 60_000  # GitHub takes 65,536 characters in a comment


def document(report: FactsReport) -> str:
    """The whole report; differences of texts go last, and first when it would be too long."""
    parts = [f"**{escaped(title(report))}**", escaped(report.headline)]
    if report.violations:
        parts.append(
            "\n".join(
                f"- **{escaped(one.said)}** at {code(at(one.places, 3))}: {escaped(MENDS[one.rule])} ({code(one.rule)})"
                for one in report.violations
            )
        )
    if report.known_before:
        parts.append(f"Over a limit, as at the base already: {code(at(report.known_before, 3))}")
    if report.groups:
        parts.append(_changes(report))
    if report.unexplained:
        rows = (f"- {row.state.value}: {code(at(row.places, 3))}: {escaped(row.reason)}" for row in report.unexplained)
        parts.append("\n".join(rows))
    if report.notes:
        parts.append("\n".join(f"- {escaped(note)}" for note in report.notes))
    for one in report.differences:
        if sum(map(len, parts)) + sum(map(len, one.lines)) < LARGEST:
            parts.append(_difference(one))
    return "\n\n".join(parts)


def part(findings: Findings) -> str:
    """The facts part of a comment: broken limits are visible, the rest is folded."""
    against = f" against {code(findings.base)}" if findings.base else ""
    title = f"**Facts of the compiled code**{against}, compiled without a GPU: {escaped(findings.headline)}."
    broken = [f"- **{escaped(one.said)}** at {code(one.where)}" for one in findings.broken]
    rows = [f"| {_weighted(one)} | {one.cases} | {code(one.where)} |" for one in findings.changes]
    table = ["| what changed | cases | where |", "|---|--:|---|", *rows] if rows else []
    if findings.more:
        table += ["", f"{findings.more} more lines: `kernelwatch facts` shows all."]
    rest = [f"- {escaped(one.said)} at {code(one.where)}" for one in findings.uncompiled]
    rest += [f"- {escaped(note)}" for note in findings.notes]
    folded = "\n\n".join("\n".join(lines) for lines in (table, rest) if lines)
    parts = [title, "\n".join(broken)]
    if folded:
        parts.append(f"<details><summary>What changed in the compiled code</summary>\n\n{folded}\n\n</details>")
    return "\n\n".join(filter(None, parts))


def without(reason: str) -> str:
    """One quiet line where the code was not compiled."""
    return f"<sub>No facts of the compiled code: {escaped(one_line(reason, 300))}.</sub>"


def _weighted(one: Finding) -> str:
    return f"**{escaped(one.said)}**" if one.worse else escaped(one.said)


def _changes(report: FactsReport) -> str:
    several, lines = len(report.providers) > 1, ["| what changed | cases | where |", "|---|--:|---|"]
    for group in report.groups[:SHOWN]:
        of = " ".join(filter(None, (group.places[0].provider if several else "", group.kernel)))
        said = escaped(group.said) + (f" ({code(of)})" if of else "")
        said = f"**{said}**" if group.worse else said
        where = ", ".join(map(code, (at(group.places), *sources(group))))
        lines.append(f"| {said} | {len(group.places)} | {where} |")
    if rest := len(report.groups) - SHOWN:
        lines += ["", f"{rest} more lines are in the table and in the JSON."] if rest > 0 else []
    return "\n".join(lines)


def _difference(one: Difference) -> str:
    summary = escaped(f"{one.kind} of {one.kernel} at {one.case} on {one.arch}")
    text = "\n".join(one.lines) or "no difference that can be shown"
    cut = f"\n... {one.cut} more lines" if one.cut else ""
    text = f"{one.summary}\n\n{text}" if one.summary else text
    return f"<details><summary>{summary}</summary>\n\n{fenced(text + cut)}\n\n</details>"


def sources(group: Group) -> list[str]:
    """Where the code of a group is: `norms/rms.py:41`, and how many other places there are."""
    first, rest = group.sources[:1], len(group.sources) - 1
    return [*(one.at for one in first), *([f"{rest} other place{'s' * (rest > 1)}"] if rest > 0 else [])]


def title(report: FactsReport) -> str:
    """`norms: 1234567890 against 0987654321, suite rows, sm_90 and sm_100`."""
    against = f" against {report.base.short}" if report.base else ""
    return f"{report.target}: {report.head.short}{against}, suite {report.suite}, {', '.join(report.archs)}"
