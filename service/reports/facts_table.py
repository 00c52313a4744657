"""A FactsReport as text for a terminal.  Text from a repository can neither colour nor move anything."""

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from service.domain.codefacts.findings import MENDS, FactsReport, at
from service.domain.codefacts.normalise import Difference
from service.domain.text import one_line, printable

_STYLES = {True: "red", False: "green", None: ""}


def table(report: FactsReport) -> RenderableType:
    """The headline, the limits that are broken, what changed with the weightiest first, and what did not compile."""
    parts: list[RenderableType] = [Text(printable(title(report)), style="bold"), _headline(report)]
    for one in report.violations:
        said = f"{one.rule}: {one_line(one.said)} at {at(one.places, 3)}"
        parts.append(Text.assemble((printable(said), "bold red"), f"\n  {MENDS[one.rule]}"))
    if report.known_before:
        parts.append(Text(f"Over a limit, as at the base already: {at(report.known_before, 3)}", style="yellow"))
    if report.groups:
        parts.append(_changes(report))
    for row in report.unexplained:
        style = "red" if row.state == "failed" else "dim"
        parts.append(Text(printable(f"{row.state}: {at(row.places, 3)}: {one_line(row.reason)}"), style=style))
    parts += [Text(printable(note), style="dim") for note in report.notes]
    parts += [_difference(one) for one in report.differences]
    return Group(*parts)


def title(report: FactsReport) -> str:
    """`norms: 1234567890 against 0987654321, suite rows, sm_90 and sm_100`."""
    against = f" against {report.base.short}" if report.base else ""
    return f"{report.target}: {report.head.short}{against}, suite {report.suite}, {', '.join(report.archs)}"


def _headline(report: FactsReport) -> Text:
    return Text(printable(report.headline), style="bold red" if report.violations else "")


def _changes(report: FactsReport) -> Table:
    several = len(report.providers) > 1
    rows = Table(box=None, pad_edge=False)
    rows.add_column("what changed", overflow="fold")
    rows.add_column("cases", justify="right")
    rows.add_column("where", overflow="fold")
    for group in report.groups:
        of = " ".join(filter(None, (group.places[0].provider if several else "", group.kernel)))
        said = f"{one_line(group.said)}{f' ({of})' if of else ''}"
        rows.add_row(
            Text(printable(said), style=_STYLES[group.worse]), str(len(group.places)), Text(printable(at(group.places)))
        )
    return rows


def _difference(one: Difference) -> Text:
    more = f", the same at {one.places - 1} more" if one.places > 1 else ""
    text = Text(printable(f"\n{one.kind} of {one.kernel} ({one.provider}) at {one.case} on {one.arch}{more}\n"), "bold")
    if one.summary:
        text.append(f"{printable(one.summary)}\n")
    if not one.lines:
        text.append("  no difference that can be shown\n", style="dim")
    for line in one.lines:
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
        text.append(f"{printable(line)}\n", style=style)
    if one.cut:
        text.append(f"... {one.cut} more lines; --texts FOLDER writes them all\n", style="dim")
    return text
