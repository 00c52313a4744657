"""An operation of the API with its arguments, as a value: what is sent, and how the answer is read."""

import gzip
import hashlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeAlias, TypeVar
from urllib.parse import quote

from pydantic import TypeAdapter
from pydantic_core import to_json

from kernelwatch.documents.base import Page

from .errors import BadArgument

T = TypeVar("T")
Item = TypeVar("Item")
JSON = "application/json"
Value: TypeAlias = Any  # of a parameter: text, a number, a flag, a list of texts, or None for none


@dataclass(frozen=True)
class Call(Generic[T]):
    """`GET /runs/{run_id}` with a value for `run_id`.  `read` makes the result from the body of the answer."""

    method: str
    template: str
    read: Callable[[bytes], T]
    variables: Mapping[str, object] = field(default_factory=dict)
    params: Mapping[str, Value] = field(default_factory=dict)
    fields: Mapping[str, Value] | None = None  # of the JSON body
    lines: bytes | None = None  # a body of JSON lines, compressed
    slashes: bool = False  # send the slashes of variables: the server takes several segments of the path for one
    accept: str = JSON
    secret: bool = False  # the server does not keep the answer, so that a lost one cannot be asked for again
    idempotency_key: str | None = None  # of the caller, who may repeat the call in another process

    @property
    def path(self) -> str:
        """The path with its variables."""
        return self.template.format_map({name: self._quoted(str(value)) for name, value in self.variables.items()})

    def _quoted(self, value: str) -> str:
        return "/".join(map(_segment, value.split("/"))) if self.slashes else _segment(value)

    @property
    def query(self) -> dict[str, Value]:
        """The parameters that were given."""
        return {name: _text(value) for name, value in self.params.items() if value is not None}

    @property
    def body_headers(self) -> dict[str, str]:
        """What describes the body."""
        if self.lines is not None:
            return {"content-type": "application/x-ndjson", "content-encoding": "gzip"}
        return {"content-type": "application/json"} if self.fields is not None else {}

    @property
    def body(self) -> bytes | None:
        """The JSON of the fields, or the compressed lines."""
        return self.lines if self.fields is None else to_json(self.fields)

    def at(self, cursor: str | None, limit: int | None) -> "Call[T]":
        """The same list at another page."""
        return replace(self, params={**self.params, "cursor": cursor, "limit": limit})


@dataclass(frozen=True)
class Listing(Generic[Item]):
    """A call for a list, which comes in pages if `paged`."""

    call: Call[Page[Item]]
    paged: bool = True


def get_events(template: str, kind: type[T], /, **variables: object) -> Call[T]:
    """A call for server-sent events."""
    return Call("GET", template, Reader(kind), variables, accept="text/event-stream")


@dataclass(frozen=True)
class Reader(Generic[T]):
    """Reads a document from JSON."""

    kind: type[T]

    def __call__(self, body: bytes) -> T:
        return TypeAdapter[T](self.kind).validate_json(body)


def reader(kind: Any) -> Callable[[bytes], Any]:
    """What makes a text, nothing, or a document of this kind from the body of an answer."""
    return bytes.decode if kind is str else _nothing if kind is None else Reader(kind)


def _segment(value: str) -> str:
    """A value as a segment of a path.  Servers decode %2F, so a slash would make two."""
    if "/" in value or value in ("", ".", ".."):
        raise BadArgument(f"{value!r} is not the name of anything: it cannot be empty and has no slash.")
    return quote(value, safe="")


def _text(value: Value) -> Value:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (list, tuple)):
        return [_text(one) for one in value]
    if isinstance(value, datetime):
        return value.isoformat()
    return str(value)


def post_lines(template: str, kind: type[T], lines: Iterable[object], /, **variables: object) -> Call[T]:
    """A call that sends JSON lines.  The server recognises a repetition by their content."""
    packed = io.BytesIO()
    with gzip.GzipFile(fileobj=packed, mode="wb", compresslevel=1, mtime=0) as file:
        for line in lines:
            file.write(to_json(line) + b"\n")
    call = Call("POST", template, Reader(kind), variables, lines=packed.getvalue())
    key = hashlib.sha256(call.path.encode() + b"\n" + packed.getvalue()).hexdigest()
    return replace(call, idempotency_key=key)


def _nothing(_: bytes) -> None:
    return None
