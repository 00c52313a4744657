"""Receivers of notices: an HTTP server with answers that a test sets, and a mail server, each on a port of its own."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Message as MessageHandler


@dataclass(frozen=True)
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.body)
        return found


@dataclass
class Receiver:
    """An HTTP server that keeps what it gets; `status` and the other fields say how it answers from now on."""

    address: str = ""
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    answer: bytes = b"ok"  # as Slack does
    hang_s: float = 0.0
    received: list[Received] = field(default_factory=list)

    @property
    def documents(self) -> list[dict[str, Any]]:
        return [one.document for one in self.received]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver that listens."""
    receiver = Receiver()
    ends = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append(Received(self.path, headers, body))
            ends.wait(receiver.hang_s)
            self.send_response(receiver.status)
            for name, value in (receiver.headers | {"content-length": str(len(receiver.answer))}).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(receiver.answer)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    receiver.address = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield receiver
    finally:
        ends.set()
        server.shutdown()
        server.server_close()
        thread.join()


@dataclass
class Mailbox:
    """What a mail server got."""

    port: int = 0
    mails: list[Message] = field(default_factory=list)


@contextmanager
def mailing() -> Iterator[Mailbox]:
    """A mail server that keeps what it gets."""
    mailbox = Mailbox()

    class Keep(MessageHandler):
        def handle_message(self, message: Message) -> None:
            mailbox.mails.append(message)

    with socket.create_server(("127.0.0.1", 0)) as free:
        mailbox.port = free.getsockname()[1]
    controller = Controller(Keep(), hostname="127.0.0.1", port=mailbox.port, ready_timeout=10)
    controller.start()
    try:
        yield mailbox
    finally:
        controller.stop()
