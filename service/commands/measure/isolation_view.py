"""The isolation of a stack, as commands print it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.commands.output.formats import as_json, as_markdown
from service.commands.output.views import Column, Part, Table, View, text
from service.domain.isolation.evaluation import CaseIsolation, CaseVerdict, Isolation
from service.errors import BadInput
from service.reports.schema import isolation
from service.reports.schema.isolation import IsolationDocument, IsolationRow

_STYLES = {
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
        Table(CaseIsolation, result.cases, _columns(result)),
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


def _columns(result: Isolation) -> tuple[Column[CaseIsolation], ...]:
    several = len({one.provider for one in result.cases}) > 1

    def of(place: int) -> Column[CaseIsolation]:
        name = isolation.title(result.components[place].name)
        return Column(name, lambda one: isolation.both_ways(one.components[place], one.case), right=True)

    def total(one: CaseIsolation) -> str:
        return isolation.change(one.total, one.case)

    return (
        Column("case", lambda one: f"{one.provider} {one.case}" if several else one.case),
        Column("total", total, lambda one: _STYLES.get(one.verdict, ""), right=True),
        *(of(place) for place in range(len(result.components))),
        Column("left", lambda one: isolation.change(one.left, one.case), right=True),
        Column("verdict", isolation.verdict, lambda one: _STYLES.get(one.verdict, "")),
    )
