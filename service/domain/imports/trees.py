"""JSON files as places: every value knows its path, so that an error can name it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from service.domain.imports.values import Amount, in_calendar, is_revision, moment
from service.domain.text import one_line
from service.errors import BadInput

_PLAIN_KEY = 40  # characters of a key that a path shows


@dataclass(frozen=True)
class Place:
    """A value in a JSON file.  Methods raise BadInput that names the file and the path."""

    file: str
    path: str
    value: Any

    def wrong(self, why: str) -> BadInput:
        return BadInput(f"{self.file}: {one_line(self.path)}: {why}")

    def _object(self) -> dict[str, Any]:
        if not isinstance(self.value, dict):
            raise self.wrong(f"expected an object, not {_kind(self.value)}.")
        return self.value

    def entries(self) -> Iterator[tuple[str, "Place"]]:
        """The fields of an object."""
        for key, value in self._object().items():
            yield key, Place(self.file, f"{self.path}.{key[:_PLAIN_KEY]}", value)

    def values(self) -> list[Any]:
        """The values of an array."""
        if not isinstance(self.value, list):
            raise self.wrong(f"expected an array, not {_kind(self.value)}.")
        return self.value

    def elements(self) -> Iterator["Place"]:
        """The elements of an array."""
        for number, value in enumerate(self.values()):
            yield Place(self.file, f"{self.path}[{number}]", value)

    def get(self, key: str) -> "Place | None":
        """A field that may be missing or null."""
        value = self._object().get(key)
        return None if value is None else Place(self.file, f"{self.path}.{key}", value)

    def field(self, key: str) -> "Place":
        """A field that must be there."""
        if key not in self._object():
            raise self.wrong(f"there is no field {key}.")
        return Place(self.file, f"{self.path}.{key}", self.value[key])

    def string(self) -> str:
        if not isinstance(self.value, str):
            raise self.wrong(f"expected a string, not {_kind(self.value)}.")
        return self.value

    def amount(self) -> Amount:
        """A number, or None for null."""
        if self.value is not None and not isinstance(self.value, float):
            raise self.wrong(f"expected a number or null, not {_kind(self.value)}.")
        return self.value

    def amounts(self) -> Sequence[Amount]:
        """The numbers of an array, of which there may be millions."""
        values = self.values()
        if not {*map(type, values)} <= {float, type(None)}:
            return [element.amount() for element in self.elements()]
        return values

    def revision(self) -> str:
        written = self.string()
        if not is_revision(written):
            raise self.wrong(f"{written[:80]!r} is no commit or release.")
        return written

    def time(self, unit_s: float = 1.0) -> float:
        """Seconds since 1970 of an ISO 8601 time, or of a number in `unit_s`."""
        at = in_calendar(self.value * unit_s) if isinstance(self.value, float) else moment(self.string())
        if at is None:
            raise self.wrong(f"{str(self.value)[:80]!r} is no time.")
        return at


def _kind(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case float():
            return "a number"
        case str():
            return "a string"
        case list():
            return "an array"
        case _:
            return "an object"


def decoded(file: str, content: bytes) -> str:
    """The text of a file, without a byte order mark.  Raises BadInput that names the line."""
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise BadInput(f"{file}: line {line}: it is not text in UTF-8.") from None


def tree(file: str, content: str, *, first_line: int = 1) -> Place:
    """The root of a JSON file.  Numbers are floats; NaN and Infinity are read, as other tools write them.

    Raises:
        BadInput: If it is no JSON; names the line and the column.
    """
    try:
        return Place(file, "$", json.loads(content, parse_int=float))
    except json.JSONDecodeError as error:
        at = f"line {error.lineno + first_line - 1}, column {error.colno}"
        raise BadInput(f"{file}: {at}: it is not JSON: {error.msg}.") from None
    except RecursionError:
        raise BadInput(f"{file}: line {first_line}: it is nested too deeply.") from None


def trees(file: str, content: str) -> Iterator[Place]:
    """The objects of a file: those of an array, one object, or JSON lines."""
    lines = [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]
    if len(lines) > 1 and all(line.strip().startswith("{") and line.strip().endswith("}") for _, line in lines):
        for number, line in lines:
            yield Place(file, f"line {number}: $", tree(file, line, first_line=number).value)
        return
    root = tree(file, content)
    yield from root.elements() if isinstance(root.value, list) else [root]
