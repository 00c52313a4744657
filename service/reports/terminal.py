"""A Report as a table for a terminal.  Text from a repository can neither colour nor move anything."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kernels.cases import Metric
from service.domain.metrics import WORDS, amount, percent
from service.domain.text import interval, last_lines, listed, one_line, printable
from service.domain.verdicts.judge import Outcome
from service.reports.markdown import without_sota
from service.reports.report import Report
from service.reports.rows import Row

STYLES = {
    Outcome.REGRESSION: "bold red",
    Outcome.INVALID: "bold magenta",
    Outcome.FAILED: "red",
    Outcome.IMPROVEMENT: "green",
    Outcome.STEADY: "dim",
    Outcome.INCONCLUSIVE: "yellow",
    Outcome.NEW: "cyan",
    Outcome.REMOVED: "cyan",
}


def table(report: Report) -> RenderableType:
    """Render the headline, the cases with the worst first, and the end of the log if the build failed."""
    parts: list[RenderableType] = [Text(printable(report.headline), style="bold")]
    if report.sandboxed is False:
        parts.append(Text("Measured without a sandbox.", style="yellow"))
    if report.repeated:
        parts.append(Text("Measured again, because the controls of the first session failed.", style="yellow"))
    if report.log:
        parts.append(Text(last_lines(report.log), style="dim"))
    if lost := report.lost_repeatability:
        said = listed([f"{row.case} ({row.provider})" for row in lost])
        parts.append(Text(f"No longer repeatable: {printable(said)}.", style="bold yellow"))
    if report.rows:
        parts.append(_cases(report))
    if report.summaries:
        parts.append(_summary(report))
    if report.unsupported:
        parts.append(_unsupported(report))
    if missing := without_sota(report):
        parts.append(Text(printable(missing), style="yellow"))
    parts.append(Text(report.url, style="underline"))
    return Group(*parts)


def _summary(report: Report) -> Table:
    """The geometric mean of each op and direction."""
    means = Table(box=None, pad_edge=False)
    for title in ("geometric mean of", "provider", "interval", "change"):
        means.add_column(title, overflow="fold")
    for one in report.summaries:
        metric = Metric(one.metric)
        of = f"{one.cases} x {one.op}.{one.direction}" + (
            f" ({WORDS[metric].name})" if metric is not Metric.KERNEL else ""
        )
        cells = (of, one.provider, interval(one.low, one.high), percent(one.ratio, metric))
        means.add_row(*(Text(printable(cell)) for cell in cells))
    return means


def _unsupported(report: Report) -> Text:
    """One line for each reason."""
    why: dict[tuple[str, str], list[str]] = {}
    for one in report.unsupported:
        why.setdefault((one.provider, one.reason), []).append(one.case)
    lines = [
        f"Not supported by {provider}: {listed(cases)} ({one_line(reason)})"
        for (provider, reason), cases in why.items()
    ]
    return Text("\n".join(map(printable, lines)), style="dim")


def _cases(report: Report) -> Table:
    cases = Table(box=None, pad_edge=False)
    for title in ("case", "provider"):
        cases.add_column(title, overflow="fold")
    light = any(row.of_ceiling for row in report.rows)
    for title in ("baseline", "head", *(["of ceiling"] * light), "ratio"):
        cases.add_column(title, justify="right", no_wrap=True)
    for title in ("interval", "outcome", f"to {report.sota}", "reason"):
        cases.add_column(title, overflow="fold")
    for outcome in report.counts:
        for row in report.of(outcome):
            cases.add_row(*_cells(row, light=light))
    return cases


def _cells(row: Row, *, light: bool) -> list[Text]:
    taken = [Text(amount(side.median if side else None, row.metric)) for side in (row.parent, row.head)]
    style = STYLES[row.outcome]
    return [
        Text(row.case),
        Text(row.provider),
        *taken,
        *([Text(row.of_ceiling)] * light),
        Text("" if row.ratio is None else f"{row.ratio:.3f}"),
        Text(interval(row.low, row.high)),
        Text(f"{row.outcome.value}{' (quarantined)' * row.quarantined}", style=style),
        Text(_standing(row), style="yellow" if row.behind else ""),
        Text(row.summary),
    ]


def _standing(row: Row) -> str:
    if row.sota is None or row.sota.ratio is None:
        return ""
    standing = " behind" if row.sota.behind else " perhaps behind" if row.sota.is_open else ""
    return f"{row.sota.ratio:.2f}{standing}"
