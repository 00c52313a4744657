"""How a call becomes a result: headers, repetitions, ETags, errors.

Nothing here sends or waits: generators yield what to send and how long to wait.  Both clients run them, one with
blocking and one with asynchronous input and output.
"""

import json
import random
import re
import uuid
from collections import OrderedDict
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, TypeAlias, TypeVar

from pydantic import ValidationError

from .calls import Call
from .errors import KINDS, ApiError, BadArgument, NotAServer, Unreachable

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
