"""`Client` and `AsyncClient`: all resources of one server, with one key."""

import re
from types import TracebackType
from typing import Generic, Self

import httpx

from kernelwatch.client.administration import Channels, Subscriptions

from .administration import Audit, Keys, Me, People
from .data import Exports, Ingested, Studies
from .drivers import Asynchronous, Blocking
from .errors import BadArgument
from .exchange import Exchange, Retries
from .figures import Figures
from .regressions import Bisections, Calibration, Incidents, Policies, Regressions, Weekly
from .resources import Async, Mode, Sync
from .runs import Queue, Runs, Workers
from .targets import Targets

API = "/api/v1"
TIMEOUT_S = 30.0
MAX_PORT = 65535


class Resources(Generic[Mode]):
    """What both clients have."""

    def __init__(self, driver: Blocking | Asynchronous) -> None:
        self.targets: Targets[Mode] = Targets(driver)
        self.figures: Figures[Mode] = Figures(driver)
        self.runs: Runs[Mode] = Runs(driver)
        self.regressions: Regressions[Mode] = Regressions(driver)
        self.incidents: Incidents[Mode] = Incidents(driver)
        self.bisections: Bisections[Mode] = Bisections(driver)
        self.calibration: Calibration[Mode] = Calibration(driver)
        self.weekly: Weekly[Mode] = Weekly(driver)
        self.studies: Studies[Mode] = Studies(driver)
        self.policies: Policies[Mode] = Policies(driver)
        self.subscriptions: Subscriptions[Mode] = Subscriptions(driver)
        self.channels: Channels[Mode] = Channels(driver)
        self.workers: Workers[Mode] = Workers(driver)
        self.queue: Queue[Mode] = Queue(driver)
        self.ingested: Ingested[Mode] = Ingested(driver)
        self.exports: Exports[Mode] = Exports(driver)
        self.keys: Keys[Mode] = Keys(driver)
        self.me: Me[Mode] = Me(driver)
        self.people: People[Mode] = People(driver)
        self.audit: Audit[Mode] = Audit(driver)


class Client(Resources[Sync]):
    """Blocking calls: `Client(server, key).runs.get(7)`.  May be used by several threads.

    `server` is the address of a server, such as https://kernelwatch.example.org; `key` begins with kw_ and may be left
    out where reading is public.  `transport` replaces the network, for proxies and tests.
    """

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(base_url=_base(server), timeout=timeout_s, transport=transport)
        super().__init__(Blocking(self._http, _exchange(key, retries)))

    def close(self) -> None:
        """Close its connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


class AsyncClient(Resources[Async]):
    """Asynchronous calls: `await AsyncClient(server, key).runs.get(7)`; arguments as of `Client`."""

    def __init__(
        self,
        server: str,
        key: str | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(base_url=_base(server), timeout=timeout_s, transport=transport)
        super().__init__(Asynchronous(self._http, _exchange(key, retries)))

    async def aclose(self) -> None:
        """Close its connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.aclose()


def _base(server: str) -> str:
    if not _is_address(server):
        raise BadArgument(f"{server!r} is no address of a server; write it as https://kernelwatch.example.org.")
    return server.rstrip("/") + API


def _is_address(server: str) -> bool:
    try:
        url = httpx.URL(server)
    except httpx.InvalidURL:
        return False
    return url.scheme in ("http", "https") and bool(url.host) and (url.port or 0) <= MAX_PORT


def _exchange(key: str | None, retries: Retries | None) -> Exchange:
    headers = {"user-agent": "kernelwatch-client"}
    if key is not None:
        headers["authorization"] = f"Bearer {_checked(key)}"
    return Exchange(headers, retries or Retries())


def _checked(key: str) -> str:
    """The key without the line break that files and secrets of CI systems often end with.

    The error does not quote it: errors are printed into logs that others read.
    """
    text = key.strip()
    if not re.fullmatch("[!-~]+", text):
        raise BadArgument(
            "The API key is empty, or has a character that keys do not have, such as white space or a letter outside "
            "ASCII: copy it again as it was printed."
        )
    return text
