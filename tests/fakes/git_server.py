"""A git server over HTTP on 127.0.0.1: git's own `http-backend`."""

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

_VARIABLES = ("PATH_INFO", "QUERY_STRING", "REQUEST_METHOD", "CONTENT_TYPE", "CONTENT_LENGTH", "HTTP_CONTENT_ENCODING")


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


@contextmanager
def serving(folder: Path, asked: Callable[[str], object] = lambda _: None) -> Iterator[int]:
    """The port at which the repositories below a folder can be fetched; `asked` gets the path before each answer."""

    def answer(environ: dict[str, Any], start: Callable[..., object]) -> list[bytes]:
        asked(environ["PATH_INFO"])
        environment = {name: environ[name] for name in _VARIABLES if environ.get(name)} | {
            "PATH": os.environ["PATH"],
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_PROJECT_ROOT": str(folder),
            "GIT_PROTOCOL": environ.get("HTTP_GIT_PROTOCOL", ""),
            "REMOTE_ADDR": "127.0.0.1",
        }
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        done = subprocess.run(["git", "http-backend"], input=body, stdout=subprocess.PIPE, env=environment, check=True)
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        start(headers.pop("Status", "200 OK"), list(headers.items()))
        return [content]

    with make_server("127.0.0.1", 0, answer, _Server, _Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
