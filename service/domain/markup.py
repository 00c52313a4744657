"""Markdown that shows strangers' text exactly as it is: it cannot break the layout, mention a person, or link."""

import re
from collections.abc import Sequence

from service.domain.text import printable

_PUNCTUATION = re.compile(r"[\\`*_\[\]#!|~$]")
_BEGINNING = re.compile(r"^([0-9]*)([-+=.)])(?![0-9A-Za-z])")  # a list or an underlined title
_LINKING = re.compile(r"(@|:(?=//)|www(?=\.)|#(?=[0-9])|GH-(?=[0-9]))")  # broken by a space without width
_TICKS = re.compile(r"`+")


def grid(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """The lines of a table of plain text: whatever strangers wrote stays in its cell, and does nothing there."""
    plain = (row_of([escaped(cell) for cell in row]) for row in rows)
    return [row_of(head), row_of(["---"] * len(head)), *plain]


def row_of(cells: Sequence[str]) -> str:
    """A line of a table, of cells that are Markdown already."""
    return f"| {' | '.join(cells)} |"


def escaped(text: str) -> str:
    """Text from elsewhere as Markdown that shows exactly it: no markup, no mention, no link."""
    text = _LINKING.sub("\\1\u200b", _on_one_line(text))
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _BEGINNING.sub(r"\1\\\2", _PUNCTUATION.sub(r"\\\g<0>", text))


def _on_one_line(text: str) -> str:
    return " ".join(printable(text).split())


def code(text: str) -> str:
    """Text as a code span that it cannot leave, in a table too."""
    return span(text.replace("|", "\\|"))


def span(text: str) -> str:
    """Text as a code span that it cannot leave, outside of tables."""
    text = _on_one_line(text)
    ticks = "`" * (1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def fenced(text: str) -> str:
    """Text as a block that it cannot leave: the fence is longer than any run of backticks inside."""
    ticks = "`" * max(3, 1 + max((len(run) for run in _TICKS.findall(text)), default=0))
    return f"{ticks}text\n{text}\n{ticks}"
