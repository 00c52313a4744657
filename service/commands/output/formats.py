"""The option `--format`, and one renderer for each of its values."""

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pydantic import BaseModel

    from service.commands.output.views import View


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    CSV = "csv"
    MD = "md"


class RunFormat(StrEnum):
    """Those of the result of a run: also what dashboards and CI systems read."""

    TABLE = Format.TABLE
    JSON = Format.JSON
    CSV = Format.CSV
    MD = Format.MD
    JUNIT = "junit"
    SARIF = "sarif"
    GITHUB_ACTION_BENCHMARK = "github-action-benchmark"
    BENCHER = "bencher"


def formatted(formats: type[StrEnum]) -> Any:
    """The annotation of an option with these formats."""
    return Annotated[formats, typer.Option("--format", help="How to print it.")]


def show(view: "View", form: StrEnum) -> None:
    """Print a view to stdout."""
    match form:
        case Format.JSON:
            print(as_json(view.document))  # noqa: T201
        case Format.CSV:
            print(as_csv(*view.rows), end="")  # noqa: T201
        case Format.MD:
            print(as_markdown(view))  # noqa: T201
        case _ if form != Format.TABLE:
            print(view.texts[form]().rstrip("\n"))  # noqa: T201
        case _:
            from service.commands.output.console import out
            from service.commands.output.layout import lines

            for line in lines(view.parts, out.size.width):
                out.print(line, soft_wrap=True)


def as_json(document: "BaseModel | Sequence[BaseModel]") -> str:
    """Format a document, or a list of documents, as the API gives it."""
    from pydantic import TypeAdapter

    return TypeAdapter[Any](type(document)).dump_json(document, indent=2).decode()


def as_csv(kind: "type[BaseModel]", rows: "Sequence[BaseModel]") -> str:
    """Format documents as RFC 4180 says: a line of names, then a line for each.

    Fields of inner documents are named `outer.inner`; a list is JSON in its cell.
    """
    from service.domain.exports import FileFormat
    from service.reports.encoders import encoder

    return encoder(FileFormat.CSV, kind).rows(rows).decode()


def as_markdown(view: "View") -> str:
    """Format a view as Markdown for a comment or an issue."""
    from service.commands.output.views import Table
    from service.domain.text import escaped, grid, one_line, printable

    if (written := view.texts.get(Format.MD)) is not None:
        return written().rstrip("\n")
    blocks = list[str]()
    for part in view.parts:
        if isinstance(part, Table):
            if part.title:
                blocks.append(f"**{escaped(part.title)}**")
            cells = [tuple(one_line(column.text(row), 1000) for column in part.columns) for row in part.rows]
            if cells:
                blocks.append("\n".join(grid(tuple(column.title for column in part.columns), cells)))
        else:
            blocks.append(escaped(printable(str(part))))
    return "\n\n".join(blocks)
