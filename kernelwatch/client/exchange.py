"""How a call becomes a result: headers, repetitions, ETags, errors, streams and complete files.

Nothing here sends or waits: generators yield what to send and how long to wait.  Both clients run them, one with
blocking and one with asynchronous input and output.

Like a flow, a stream yields what to do, and in between the items for its reader.
"""

import json
import os
import random
import re
import tempfile
import uuid
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeAlias, TypeVar

from pydantic import ValidationError

from kernelwatch.client.calls import Call
from kernelwatch.client.errors import KINDS, ApiError, BadArgument, NotAServer, Unreachable

T = TypeVar("T")

BUSY = (429, 503)  # the request was not processed
GATEWAY = (502, 504)  # a proxy did not get an answer: the request may have been processed
SENT_TWICE = ("GET", "PUT", "DELETE")  # twice is as once; others need an idempotency key
MAX_REMEMBERED = 64  # documents, each of at most …
MAX_REMEMBERED_BYTES = 1 << 20
MAX_SHOWN = 200  # characters of a body that is no problem document


@dataclass(frozen=True)
class Send:
    """Send a request; the answer is an `Answer`, or a `Lost` if there was none."""

    method: str
    path: str
    query: Mapping[str, Any]
    headers: Mapping[str, str]
    body: bytes | None
    in_parts: bool = False  # leave the body of a good answer to be read in parts


@dataclass(frozen=True)
class Sleep:
    """Wait; there is no answer."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """What the server answered; the names of `headers` are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Lost:
    """Nobody knows whether the server processed the request."""

    reason: str


Reply: TypeAlias = Answer | Lost | None
Flow: TypeAlias = Generator[Send | Sleep, Reply, T]


@dataclass(frozen=True)
class Retries:
    """How often a call is repeated, and how long it may wait for that."""

    attempts: int = 4
    first_wait_s: float = 0.5  # doubled each time; a Retry-After of the server counts more
    max_wait_s: float = 60.0  # of a single wait: what asks for more is an error at once
    max_handling_s: float = 600.0  # for a request whose answer was lost, while the server is still handling it

    def wait_s(self, attempt: int, asked: float | None) -> float:
        """How long to wait after attempt 1, 2, …; randomised, or clients that were refused together return together."""
        doubled: float = self.first_wait_s * 2 ** (attempt - 1)
        return max(asked or 0.0, doubled) * random.uniform(1.0, 1.25)  # noqa: S311


@dataclass
class Exchange:
    """What the calls of a client share."""

    headers: Mapping[str, str] = field(default_factory=dict)
    retries: Retries = field(default_factory=Retries)
    _known: OrderedDict[tuple[str, str], Answer] = field(default_factory=OrderedDict)

    def result(self, call: Call[T]) -> Flow[T]:
        """Send a call until it is answered, and read the answer."""
        answer = yield from self.answer(self.request(call))
        try:
            return call.read(answer.body)
        except (ValidationError, UnicodeDecodeError) as error:
            reason = str(error).partition("\n")[0]
            raise NotAServer(
                f"The answer to {call.method} {call.path} is not one that this client can read ({reason}): check the "
                "address, and install the client in the version of the server."
            ) from None

    def request(self, call: Call[Any]) -> Send:
        """The request of a call.  A repetition has the same idempotency key, so it is not processed twice."""
        headers = {**self.headers, "accept": call.accept, **call.body_headers}
        body = call.body
        if call.method == "POST" and not call.secret:
            headers["idempotency-key"] = _repeat_key(call.idempotency_key or uuid.uuid4().hex)
        return Send(call.method, call.path, call.query, headers, body)

    def answer(self, request: Send) -> Flow[Answer]:
        """Send a request until it is answered; a document that did not change is not sent again."""
        key = (request.path, json.dumps(request.query, sort_keys=True))
        known = self._known.get(key) if request.method == "GET" else None
        if known:
            headers = {**request.headers, "if-none-match": known.headers["etag"]}
            request = replace(request, headers=headers)
        answer = yield from self._repeated(request)
        if answer.status == 304 and known:
            return known
        if not 200 <= answer.status < 300:
            raise problem(request, answer)
        if request.method == "GET":
            self._remember(key, answer)
        return answer

    def _repeated(self, request: Send) -> Flow[Answer]:
        """Repeat what was not processed, and what may be processed twice."""
        twice = request.method in SENT_TWICE or "idempotency-key" in request.headers
        attempt, waited_s = 1, 0.0
        while True:
            reply = yield request
            if isinstance(reply, Answer) and is_still_handled(reply) and waited_s < self.retries.max_handling_s:
                wait_s = max(retry_after_s(reply.headers) or 0.0, waited_s / 4)
                waited_s += wait_s
            elif attempt < self.retries.attempts and self._may_be_repeated(reply, twice):
                asked = retry_after_s(reply.headers) if isinstance(reply, Answer) else None
                wait_s = self.retries.wait_s(attempt, asked)
                attempt += 1
            elif isinstance(reply, Lost):
                raise Unreachable(reply.reason)
            elif isinstance(reply, Answer):
                return reply
            yield Sleep(wait_s)

    def _may_be_repeated(self, reply: Reply, twice: bool) -> bool:
        """`twice`: nothing more happens if the server processes the request again."""
        if not isinstance(reply, Answer):
            return twice
        if (retry_after_s(reply.headers) or 0.0) > self.retries.max_wait_s:
            return False
        return reply.status in BUSY or (twice and reply.status in GATEWAY and not is_problem(reply))

    def _remember(self, key: tuple[str, str], answer: Answer) -> None:
        self._known.pop(key, None)
        if "etag" in answer.headers and len(answer.body) <= MAX_REMEMBERED_BYTES:
            self._known[key] = answer
        while len(self._known) > MAX_REMEMBERED:
            self._known.popitem(last=False)


def _repeat_key(text: str) -> str:
    """An idempotency key that can be a header."""
    if not re.fullmatch("[!-~]([ -~]*[!-~])?", text):
        raise BadArgument(
            f"{text!r} is no idempotency key: it has printable characters of ASCII only, and no space at its ends."
        )
    return text


def is_still_handled(answer: Answer) -> bool:
    """Whether the first request with this idempotency key, whose answer was lost, goes on."""
    return answer.status == 409 and "retry-after" in answer.headers


def is_problem(answer: Answer) -> bool:
    """Whether the server itself answered, and not a proxy before it."""
    return answer.headers.get("content-type", "").startswith("application/problem+json")


def problem(request: Send, answer: Answer) -> ApiError:
    """The error that an answer is."""
    try:
        members = json.loads(answer.body)
    except ValueError:
        members = None
    if not isinstance(members, dict):
        text = answer.body[:MAX_SHOWN].decode(errors="replace").strip()
        members = {"detail": text if text and not text.startswith("<") else ""}
    detail = str(members.get("detail") or members.get("title") or "")
    if not detail:
        detail = f"The server answered {request.method} {request.path} with {answer.status} and no explanation."
    return KINDS.get(answer.status, ApiError)(answer.status, detail, members, retry_after_s(answer.headers))


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """The seconds of Retry-After, which may be a number or a time."""
    text = headers.get("retry-after", "")
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, (parsedate_to_datetime(text) - datetime.now(UTC)).total_seconds())
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True)
class NextPart:
    """Read on; the answer is bytes, none at the end, or a `Lost`."""


@dataclass(frozen=True)
class Emit(Generic[T]):
    """An item for the reader; there is no answer."""

    item: T


Stream: TypeAlias = Generator[Send | Sleep | NextPart | Emit[T], Reply | bytes, None]


@dataclass(frozen=True)
class Events(Generic[T]):
    """A call for server-sent events; the last one is known by `is_last`."""

    call: Call[T]
    is_last: Callable[[T], bool]


@dataclass(frozen=True)
class Download:
    """A call for a file."""

    call: Call[bytes]


@dataclass(frozen=True)
class Saved:
    """A call for a file that is written to `path`."""

    call: Call[bytes]
    path: Path


def parts(exchange: Exchange, download: Download) -> Stream[bytes]:
    """The bytes of a file, as they arrive.  A lost connection is an error: nobody knows what is missing."""
    yield from _opened(exchange, download.call)
    while True:
        part = yield NextPart()
        if isinstance(part, Lost):
            raise Unreachable(part.reason)
        if not isinstance(part, bytes) or not part:
            return
        yield Emit(part)


def followed(exchange: Exchange, events: Events[T]) -> Stream[T]:
    """The events until the last one.  A connection that ends before is opened again: servers limit how long they last.

    Raises:
        Unreachable: If connection after connection ends without an event.
    """
    failures = 0
    while True:
        yield from _opened(exchange, events.call)
        decoder = EventDecoder()
        part = yield NextPart()
        while isinstance(part, bytes) and part:
            for data in decoder.feed(part):
                failures = 0
                item = events.call.read(data)
                yield Emit(item)
                if events.is_last(item):
                    return
            part = yield NextPart()
        failures += 1
        if failures >= exchange.retries.attempts:
            reason = part.reason if isinstance(part, Lost) else "The server ends the stream without an event."
            raise Unreachable(reason)
        yield Sleep(exchange.retries.wait_s(failures, None))


def _opened(exchange: Exchange, call: Call[T]) -> Generator[Send | Sleep, Reply | bytes, None]:
    """Open the answer to a call; one that is an error is read at once, and raised."""
    flow = exchange.answer(replace(exchange.request(call), in_parts=True))
    step = next(flow)
    while True:
        reply = yield step
        try:
            step = flow.send(None if isinstance(reply, bytes) else reply)
        except StopIteration:
            return


class EventDecoder:
    """Reads the data of server-sent events from parts of a stream, which may end anywhere."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, part: bytes) -> Iterator[bytes]:
        """The data of the events that are complete now."""
        *lines, self._rest = (self._rest + part).replace(b"\r\n", b"\n").split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data":
                self._data.append(value.removeprefix(b" "))
            elif not line and self._data:
                yield b"\n".join(self._data)
                self._data = []


class WholeFile:
    """A file that replaces `path` at the end of the block, if the block did not fail."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.written = 0  # bytes

    def __enter__(self) -> Self:
        self._file = tempfile.NamedTemporaryFile(  # closed by __exit__
            dir=self._path.parent, prefix=f".{self._path.name}.", delete=False
        )
        return self

    def write(self, part: bytes) -> None:
        self._file.write(part)
        self.written += len(part)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        made = Path(self._file.name)
        try:
            self._file.close()
            if kind is None:
                made.chmod(0o666 & ~_umask())  # temporary files are private
                made.replace(self._path)
        finally:
            made.unlink(missing_ok=True)


def _umask() -> int:
    """The mask of new files, which can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
