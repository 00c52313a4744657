"""Find the line of a mistake in a TOML text."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from itertools import pairwise
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ValidationError

_OF_ALL = ("policy", "default")
_PLACE = re.compile(r" \(at (?:line (\d+), column \d+|end of document)\)$")  # the end of tomllib's messages


@dataclass(frozen=True)
class TomlMistake:
    """What is wrong in a line, counted from 1."""

    line: int
    text: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.text}"


def mistakes(
    text: str, error: ValidationError, model: type[BaseModel], inside: Sequence[str | int] = ()
) -> list[TomlMistake]:
    """One sentence for each mistake, with its line; `inside` is the table that was validated as `model`."""
    return [mistake(text, (*inside, *one["loc"]), message_of(one, model)) for one in error.errors(include_url=False)]


def mistake(text: str, where: Sequence[str | int], message: str) -> TomlMistake:
    """Line 35: `policy.devices.cpu: it must be a table, not 3`."""
    # Models have two levels that a recipe does not have: the calls of a provider, and the policy of all devices.
    written = [part for before, part in pairwise(("", *where)) if part != "calls" and (before, part) != _OF_ALL]
    named = ".".join(map(str, written))
    return TomlMistake(line_of(text, where), f"{named}: {message}" if named else message)


def syntax_mistake(text: str, message: str) -> TomlMistake:
    """The place of which tomllib complains in its message."""
    place = _PLACE.search(message)
    lines = max(1, len(text.splitlines()))
    line = int(place[1]) if place is not None and place[1] else lines if place is not None else 1
    return TomlMistake(line, _PLACE.sub("", message))


def message_of(error: Any, model: type[BaseModel]) -> str:
    """What is wrong with a value or key of a table that was validated as `model`, and what it should be."""
    match error["type"]:
        case "dict_type" | "mapping_type" | "model_type" | "dataclass_type":
            return f"it must be a table, not {error['input']!r}"
        case "missing":
            return "it is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            *table, key = error["loc"]
            keys = _keys(_table_of(model, table))
            near = get_close_matches(str(key), keys, 1)
            return (
                f"there is no such key; did you mean {near[0]}?" if near else f"no such key; known: {', '.join(keys)}"
            )
        case _:
            return str(error["msg"]).removeprefix("Value error, ")


def _keys(model: type) -> list[str]:
    """The keys that a person may write into a table of this model or dataclass."""
    if not issubclass(model, BaseModel):
        return sorted(get_type_hints(model).keys() - {"__pydantic_config__"})
    return sorted(name for name, field in model.model_fields.items() if field.alias is None)


def _table_of(model: type, where: Sequence[str | int]) -> type:
    """The model of a table inside another; the keys of a mapping of tables are no fields."""
    for part in where:
        hints = get_type_hints(model)
        if part in hints:
            model = next(iter(_models(hints[str(part)])), model)
    return model


def _models(annotation: Any) -> list[type]:
    if isinstance(annotation, type) and (issubclass(annotation, BaseModel) or is_dataclass(annotation)):
        return [annotation]
    return [inner for each in get_args(annotation) for inner in _models(each)]


def line_of(text: str, where: Sequence[str | int]) -> int:
    """The line (from 1) of the deepest key of `where` that is in the text; 1 if none is."""
    line, start, lines = 1, 0, text.splitlines()
    for before, part in pairwise(("", *where)):
        if isinstance(part, int):  # of an array of tables, whose first header was found
            headers = [number for number, written in enumerate(lines) if written.strip().startswith(f"[[{before}]]")]
            if part < len(headers):
                line, start = headers[part] + 1, headers[part]
            continue
        word = re.compile(rf"(^|[\s.\[{{,\"']){re.escape(part)}($|[\s.\]=\"'])")
        for number in range(start, len(lines)):
            if word.search(lines[number].split("#")[0]):
                line, start = number + 1, number
                break
    return line
