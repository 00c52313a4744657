"""What was compiled or isolated on this machine, as commands print it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.commands.output.formats import as_json, as_markdown
from service.commands.output.views import Column, Part, Sentence, Table, View, text
from service.domain.codefacts.diff import Group
from service.domain.codefacts.findings import MENDS, FactsReport, at
from service.domain.codefacts.measured import Difference
from service.domain.isolation.evaluation import CaseIsolation, CaseVerdict, Isolation
from service.domain.text import one_line
from service.errors import BadInput
from service.reports import facts_markdown
from service.reports.facts_markdown import title
from service.reports.schema import isolation
from service.reports.schema.facts import CodeChangeItem, FactsDocument
from service.reports.schema.isolation import IsolationDocument, IsolationRow

_STYLES = {True: "red", False: "green", None: ""}
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def compared(report: FactsReport) -> View:
    """The limits that are broken, what changed with the most severe first, and what did not compile."""
    parts: list[Part] = [
        text((title(report), "bold")),
        text((report.headline, "bold red" if report.violations else "")),
    ]
    for one in report.violations:
        where = at(one.places, 3)
        parts.append(text((f"{one.rule}: {one_line(one.said)} at {where}", "bold red"), f"\n  {MENDS[one.rule]}"))
    if report.known_before:
        parts.append(text((f"Over a limit, as at the base already: {at(report.known_before, 3)}", "yellow")))
    if report.groups:
        parts.append(Table(Group, report.groups, _columns(several=len(report.providers) > 1)))
    for row in report.unexplained:
        style = "red" if row.state == "failed" else "dim"
        parts.append(text((f"{row.state}: {at(row.places, 3)}: {one_line(row.reason)}", style)))
    parts += [text((note, "dim")) for note in report.notes]
    parts += [_difference(one) for one in report.differences]
    document = FactsDocument.of(report)
    return View(
        document,
        parts,
        code=report.exit_code,
        texts={"md": lambda: facts_markdown.document(report)},
        table=Table(CodeChangeItem, document.changes, ()),
    )


def _columns(*, several: bool) -> tuple[Column[Group], ...]:
    def what(group: Group) -> str:
        of = " ".join(filter(None, (group.places[0].provider if several else "", group.kernel)))
        return f"{one_line(group.said)}{f' ({of})' if of else ''}"

    return (
        Column("what changed", what, lambda group: _STYLES[group.worse], folds=True),
        Column("cases", lambda group: str(len(group.places)), right=True),
        Column("where", lambda group: "; ".join([at(group.places), *facts_markdown.sources(group)]), below=True),
    )


def _difference(one: Difference) -> Sentence:
    more = f", the same at {one.places - 1} more" if one.places > 1 else ""
    parts: list[str | tuple[str, str]] = [
        (f"\n{one.kind} of {one.kernel} ({one.provider}) at {one.case} on {one.arch}{more}", "bold")
    ]
    if one.summary:
        parts.append(f"\n{one.summary}")
    if not one.lines:
        parts.append(("\n  no difference that can be shown", "dim"))
    parts += [(f"\n{line}", _DIFF_STYLES.get(line[:1], "dim")) for line in one.lines]
    if one.cut:
        parts.append((f"\n... {one.cut} more lines; --texts FOLDER writes them all", "dim"))
    return text(*parts)


_VERDICTS = {
    CaseVerdict.SLOWER: "red",
    CaseVerdict.BROKEN: "red",
    CaseVerdict.FAILED: "red",
    CaseVerdict.FASTER: "green",
    CaseVerdict.UNDECIDED: "yellow",
}


def isolated(result: Isolation) -> View:
    """Which component moved something, then every case, why, and what is in doubt."""
    document = IsolationDocument.of(result)
    parts: list[Part] = [
        text((document.headline, "bold")),
        text((isolation.subject(result), "dim")),
        Table(CaseIsolation, result.cases, _columns_of(result)),
        text((isolation.LEGEND, "dim")),
    ]
    parts += [text(line) for line in isolation.explanations(result)]
    parts += [text((line, "yellow")) for line in isolation.troubles(result)]
    rows = Table(IsolationRow, list(IsolationRow.all_of(document)), ())
    return View(document, parts, code=result.exit_code, table=rows)


def make_folder(folder: Path) -> None:
    """Make the folder before anything is measured.  Raises BadInput if that is impossible."""
    with _written(folder):
        folder.mkdir(parents=True, exist_ok=True)


def save(folder: Path, view: View) -> None:
    """Write the document as JSON and as Markdown.  Raises BadInput if the folder cannot be written."""
    with _written(folder):
        (folder / "isolation.json").write_text(as_json(view.document) + "\n", encoding="utf-8")
        (folder / "isolation.md").write_text(as_markdown(view) + "\n", encoding="utf-8")


@contextmanager
def _written(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BadInput(f"--save cannot write to {folder}: {error.strerror}.") from None


def _columns_of(result: Isolation) -> tuple[Column[CaseIsolation], ...]:
    several = len({one.provider for one in result.cases}) > 1

    def of(place: int) -> Column[CaseIsolation]:
        name = isolation.title(result.components[place].name)
        return Column(name, lambda one: isolation.both_ways(one.components[place], one.case), right=True)

    def total(one: CaseIsolation) -> str:
        return isolation.change(one.total, one.case)

    return (
        Column("case", lambda one: f"{one.provider} {one.case}" if several else one.case),
        Column("total", total, lambda one: _VERDICTS.get(one.verdict, ""), right=True),
        *(of(place) for place in range(len(result.components))),
        Column("left", lambda one: isolation.change(one.left, one.case), right=True),
        Column("verdict", isolation.verdict, lambda one: _VERDICTS.get(one.verdict, "")),
    )
