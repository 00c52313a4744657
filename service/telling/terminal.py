"""A Report as a table for a terminal.  Text from a repository can neither colour nor move anything."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from service.reports import Report, Row, interval, last_lines, microseconds, one_line, percent, printable
from service.verdicts import Outcome

STYLES = {
    Outcome.REGRESSION: "bold red",
    Outcome.INVALID: "bold magenta",
    Outcome.FAILED: "red",
    Outcome.IMPROVEMENT: "green",
    Outcome.STEADY: "dim",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NEW: "cyan",
}


def table(report: Report) -> RenderableType:
    """The headline, the cases with the worst first, and the end of the log where the build failed."""
    parts: list[RenderableType] = [Text(printable(report.headline), style="bold")]
    if report.sandboxed is False:
        parts.append(Text("This ran without a sandbox.", style="yellow"))
    if report.log:
        parts.append(Text(last_lines(report.log), style="dim"))
    if report.rows:
        parts.append(_cases(report))
    parts.append(Text(report.url, style="underline"))
    return Group(*parts)


def _cases(report: Report) -> Table:
    cases = Table(box=None, pad_edge=False)
    for title in ("case", "provider"):
        cases.add_column(title, overflow="fold")
    for title in ("baseline us", "head us", "ratio"):
        cases.add_column(title, justify="right", no_wrap=True)
    for title in ("interval", "outcome", f"to {report.sota}", "reason"):
        cases.add_column(title, overflow="fold")
    for outcome in report.counts:
        for row in report.of(outcome):
            cases.add_row(*_cells(row))
    return cases


def _cells(row: Row) -> list[Text]:
    times = [Text(microseconds(side.median_us if side else None)) for side in (row.parent, row.head)]
    style = STYLES[row.outcome]
    return [
        Text(row.case),
        Text(row.provider),
        *times,
        Text("" if row.ratio is None else f"{row.ratio:.3f}"),
        Text(interval(row.low, row.high)),
        Text(row.outcome.value, style=style),
        Text(_standing(row), style="yellow" if row.behind else ""),
        Text(one_line(row.reason)),
    ]


def _standing(row: Row) -> str:
    if row.sota is None or row.sota.ratio is None:
        return ""
    return f"{row.sota.ratio:.2f}{' behind' if row.sota.behind else ''}"


def change(row: Row) -> str:
    """`10.2 % slower`, for lists that have no room for a table."""
    return f"{row.case} {row.provider}: {percent(row.ratio)}"
