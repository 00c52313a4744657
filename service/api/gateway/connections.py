"""HTTP connections: time limits for heads, bodies and responses, and a limit on their number.

Uvicorn itself limits only the time between two requests of a connection.
"""

import asyncio
import resource
import sys
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from service.reports.schema.base import Problem
from service.settings import settings

# In the state of a request: its response is a stream without a time limit.  True for one of events; for a file, the
# number of its parts that were sent.
STREAMS = "streams"
_LINGER_S = 1.0  # an error is sent for this long, then the connection is cut


def connections_limit() -> int:
    """Return KERNELWATCH_CONNECTIONS_LIMIT, but at most half of the files that this process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(settings().connections_limit, files // 2) if files > 0 else settings().connections_limit


class LimitedProtocol(H11Protocol):
    """HTTP/1.1 that closes connections whose client takes too long.

    A connection is in one of three phases: its client sends a head, sends a body, or receives a response.  Each phase
    has a limit, except the response to a client that receives a stream of events, or a file of which it has received
    another part meanwhile.  A body gets more time as it arrives: a slow line can send a long one, but none may fall
    behind the least rate by more than the limit.  When `limit_concurrency` is reached, the connection that has waited
    longest for its client gives its place to the new one, so that half requests cannot keep whole ones out.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        limits = settings()
        self._limits_s = {h11.IDLE: limits.head_limit_s, h11.SEND_BODY: limits.body_limit_s}
        self._response_limit_s = limits.response_limit_s
        self._body_rate = limits.body_rate
        self._phase: object = None
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._parts_seen = 1

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        if self.limit_concurrency is not None and len(self.connections) + 1 >= self.limit_concurrency:
            self._make_room()
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._watch() and self.conn.their_state is h11.SEND_BODY:
            self._since = min(self.loop.time(), self._since + len(data) / self._body_rate)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def shutdown(self) -> None:
        """The server stops: a stream would otherwise hold it up until the run of somebody has ended."""
        if self._streams():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            self.transport.close()
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer what is not HTTP with the error that h11 suggests, in the form of the API's errors."""
        error = sys.exception()
        status = error.error_status_hint if isinstance(error, h11.RemoteProtocolError) else 400
        self._refuse(status, "The head of the request is too long." if status == 431 else f"{msg} {error}.")

    def _watch(self) -> bool:
        """Restart the timer if the connection has entered another phase.  Returns whether it has."""
        phase = (self.cycle, self.conn.their_state)
        if phase == self._phase:
            return False
        if self._timer is not None:
            self._timer.cancel()
        self._phase, self._since, self._parts_seen = phase, self.loop.time(), 1
        self._restart_timer(self._limit_s())
        return True

    def _limit_s(self) -> float:
        return self._limits_s.get(self.conn.their_state, self._response_limit_s)

    def _restart_timer(self, after_s: float) -> None:
        self._timer = self.loop.call_later(after_s, self._expired)

    def _streams(self) -> bool:
        return (
            self.cycle is not None and not self.cycle.response_complete and bool(self.cycle.scope["state"].get(STREAMS))
        )

    def _reads_on(self) -> bool:
        """Whether the client has received parts of a file since the timer was started: it is slow, but not gone."""
        before, self._parts_seen = self._parts_seen, int(self.cycle.scope["state"][STREAMS])
        return self._parts_seen > before

    def _expired(self) -> None:
        if self._streams() and (not self.transport.get_write_buffer_size() or self._reads_on()):
            self._restart_timer(self._limit_s())
            return
        left_s = self._since + self._limit_s() - self.loop.time()
        if self.conn.their_state is h11.SEND_BODY and left_s > 0:
            self._restart_timer(left_s)
            return
        unfinished = self.conn.their_state is h11.SEND_BODY or self.conn.trailing_data[0]
        if self.conn.their_state in self._limits_s and unfinished:
            self._refuse(408, "The request did not arrive in time.")
        else:
            self.transport.abort()

    def _refuse(self, status: int, detail: str) -> None:
        """Send an error if no response has begun, and close the connection."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # nothing that the application sends from now on is written
            self.cycle.message_event.set()
        if self.transport.is_closing() or self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
        body = problem.model_dump_json().encode()
        headers = {"content-type": "application/problem+json", "content-length": str(len(body)), "connection": "close"}
        for event in (
            h11.Response(status_code=status, headers=list(headers.items())),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _make_room(self) -> None:
        waiting = [one for one in self.connections if isinstance(one, LimitedProtocol) and one._waits_for_client()]
        if waiting:
            oldest = min(waiting, key=lambda one: one._since)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def _waits_for_client(self) -> bool:
        answered = self.cycle is None or self.cycle.response_complete
        return self.conn.their_state in self._limits_s or answered or self.flow.write_paused
