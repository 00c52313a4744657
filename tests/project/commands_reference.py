"""The tables of docs/cli.md, made from the commands themselves: `python -m tests.project.commands_reference`."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

from service.commands.noun import first_sentence
from service.commands.nouns import NOUNS, Entry
from service.domain.exports import Exportable

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
COMMON = ("--server", "--format", "--help")  # explained once
KINDS = {one.value for one in Exportable}  # commands of `export` that differ in what they write
TABLE = re.compile(r"<!-- table: ([^\n]+) -->\n.*?<!-- end -->", re.DOTALL)


def written(page: str) -> str:
    """The page with its tables as they have to be."""
    tables = {panel: table(list(entries)) for panel, entries in groupby(NOUNS, lambda one: one.panel)}
    named = TABLE.findall(page)
    if sorted(named) != sorted(tables):
        raise ValueError(f"docs/cli.md needs a table for each of {sorted(tables)}, and has {sorted(named)}")
    return TABLE.sub(lambda found: f"<!-- table: {found[1]} -->\n{tables[found[1]]}\n<!-- end -->", page)


def table(entries: list[Entry]) -> str:
    """A line for each command of these nouns."""
    rows = [row for entry in entries for row in _rows(f"kernelwatch {entry.name}", entry.load())]
    return "\n".join(["| command | options | does |", "|---|---|---|", *rows])


def _rows(path: str, command: Any) -> Iterator[str]:
    if inner := getattr(command, "commands", None):
        for name, one in inner.items():
            if path != "kernelwatch export" or name not in KINDS:
                yield from _rows(f"{path} {name}", one)
            elif name == Exportable.RUNS:
                yield from _rows(f"{path} WHAT", one)
        return
    words, optional = [path], list[str]()
    for one in command.params:
        value = one.metavar or one.name.upper()
        if one.param_type_name == "argument":
            words.append(value if one.required else f"[{value}]")
        elif one.required:
            words.append(f"{one.opts[0]} {value}")
        elif one.opts[0] not in COMMON and not one.hidden:
            optional += [f"`{name}`" for name in (*one.opts, *one.secondary_opts)]
    does = first_sentence(command.help).rstrip(".").replace("|", "\\|")
    if path.endswith(" WHAT"):
        does = does.replace("all runs", "everything of [one kind](api.md#exports)")
    yield f"| `{' '.join(words)}` | {', '.join(optional)} | {does} |"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
