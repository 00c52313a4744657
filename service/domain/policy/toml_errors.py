"""Find the line of a mistake in a TOML text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")  # the end of tomllib's messages


@dataclass(frozen=True)
class TomlMistake:
    """What is wrong in a line, counted from 1."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def mistakes(text: str, error: ValidationError, inside: Sequence[str | int] = ()) -> list[TomlMistake]:
    """One sentence for each mistake, with its line; `inside` is the table that was validated."""
    return [mistake(text, (*inside, *one["loc"]), _message(one)) for one in error.errors(include_url=False)]


def mistake(text: str, where: Sequence[str | int], message: str) -> TomlMistake:
    """Line 35: `policy.devices.cpu: it must be a table, not 3`."""
    named = ".".join(str(part) for part in where if part != "calls")
    return TomlMistake(line_of(text, where), f"{named}: {message}" if named else message)


def syntax_mistake(text: str, message: str) -> TomlMistake:
    """The place of which tomllib complains in its message."""
    place = _PLACE.search(message)
    lines = max(1, len(text.splitlines()))
    line = int(place[1]) if place is not None and place[1] else lines if place is not None else 1
    return TomlMistake(line, _PLACE.sub("", message))


def _message(error: Any) -> str:
    if error["type"] in ("dict_type", "mapping_type", "model_type"):
        return f"it must be a table, not {error['input']!r}"
    return str(error["msg"]).removeprefix("Value error, ")


def line_of(text: str, where: Sequence[str | int]) -> int:
    """The line (from 1) of the deepest key of `where` that is in the text; 1 if none is."""
    found, start, lines = 1, 0, text.splitlines()
    for part in where:
        if not isinstance(part, str):
            continue
        word = re.compile(rf"(^|[\s.\[{{,\"']){re.escape(part)}($|[\s.\]=\"'])")
        for number in range(start, len(lines)):
            if word.search(lines[number].split("#")[0]):
                found, start = number + 1, number
                break
    return found
