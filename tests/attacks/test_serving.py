"""Attacks on the API by clients that have no key and do not know the webhook's secret.

Each runs against a real process of `kernelwatch api` with short time limits.  The walls are described in
docs/security.md, section "Serving".
"""

import asyncio
import gzip
import http.client
import json
import os
import re
import resource
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from service.db.engine import clock, transaction
from service.forge.forge import signature
from tests import needs
from tests.attacks.conftest import Outcome
from tests.dashboards import seed
from tests.databases import copy_migrated
from tests.fakes.processes import ROOT, free_port

WALL = "serving"
SECRET = "It's a Secret to Everybody"
HEAD_S, BODY_S, RESPONSE_S = 2, 3, 4
PATIENCE_S = 60.0  # a busy machine is late; without the wall a connection stays for good
FORGED = "sha256=" + "0" * 64
HALF_HEAD = b"POST /webhooks/github HTTP/1.1\r\nHost: localhost\r\n"
MIB = 1 << 20


@dataclass(frozen=True)
class Served:
    """A process of the API."""

    port: int
    process: psutil.Process

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def memory(self) -> int:
        """Resident memory in MiB."""
        return int(self.process.memory_info().rss) // MIB

    def connections(self) -> int:
        """Number of connections that clients hold."""
        return sum(one.laddr.port == self.port and one.status == "ESTABLISHED" for one in self._sockets())

    def _sockets(self) -> list[Any]:
        return list(self.process.net_connections("tcp"))

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=10)

    def deliver(self, body: bytes = b"{}", **headers: str) -> httpx.Response:
        """Post a ping as GitHub does; `headers` replace GitHub's."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return httpx.post(f"{self.url}/webhooks/github", content=body, headers={**signed(body), **named}, timeout=30)

    def answers(self) -> tuple[Counter[object], float]:
        """Ask for health, readiness and a signed delivery: the statuses and the longest time in seconds."""
        statuses: Counter[object] = Counter()
        worst = 0.0
        for ask in (
            lambda: httpx.get(f"{self.url}/healthz", timeout=30),
            lambda: httpx.get(f"{self.url}/readyz", timeout=30),
            self.deliver,
        ):
            began = time.monotonic()
            try:
                statuses[ask().status_code] += 1
            except httpx.HTTPError as error:
                statuses[type(error).__name__] += 1
            worst = max(worst, time.monotonic() - began)
        return statuses, worst


ALL_ANSWERED = {200: 2, 202: 1}


def signed(body: bytes) -> dict[str, str]:
    return {
        "content-type": "application/json",
        "x-github-event": "ping",
        "x-github-delivery": uuid.uuid4().hex,
        "x-hub-signature-256": signature(body, SECRET),
    }


@contextmanager
def serving(environment: Mapping[str, str], *, descriptors: int | None = None) -> Iterator[Served]:
    """Run `kernelwatch api`, with a limit on open files if `descriptors` is given."""
    port = free_port()
    limits = {
        "KERNELWATCH_PORT": str(port),
        "KERNELWATCH_WEBHOOK_SECRET": SECRET,
        "KERNELWATCH_HEAD_LIMIT_S": str(HEAD_S),
        "KERNELWATCH_BODY_LIMIT_S": str(BODY_S),
        "KERNELWATCH_RESPONSE_LIMIT_S": str(RESPONSE_S),
    }
    command = [sys.executable, "-P", "-m", "service.cli", "api"]
    if descriptors is not None:
        command = ["prlimit", f"--nofile={descriptors}:{descriptors}", *command]
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **limits, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        served = Served(port, psutil.Process(process.pid))
        wait_until(lambda: status_of(served, "/readyz") == 200, 60)
        yield served
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def status_of(served: Served, path: str) -> int | None:
    try:
        return httpx.get(f"{served.url}{path}", timeout=30).status_code
    except httpx.HTTPError:
        return None


def wait_until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Wait until the condition holds, and return whether it did within the limit."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


@pytest.fixture
def served(state: Path) -> Iterator[Served]:
    with serving({}) as process:
        yield process


@pytest.fixture
def sockets() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Let this process open enough sockets for an attack."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8000)), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def ended(connection: socket.socket) -> bool:
    """Whether the server closed this connection."""
    connection.setblocking(False)
    try:
        while connection.recv(65536):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def hold_bodies(served: Served, sockets: ExitStack, count: int, megabytes: int, sign: str) -> tuple[int, int]:
    """Send that many unfinished bodies.  Returns the growth of memory in MiB and the connections refused."""
    before = most = served.memory()
    refused = 0
    head = (
        f"POST /webhooks/github HTTP/1.1\r\nHost: localhost\r\nX-Hub-Signature-256: {sign}\r\nX-GitHub-Event: push\r\n"
        f"X-GitHub-Delivery: x\r\nContent-Type: application/json\r\nContent-Length: 25000000\r\n\r\n"
    ).encode()
    block = b"x" * 1_000_000
    for _ in range(count):
        connection = sockets.enter_context(served.connect())
        try:
            connection.sendall(head)
            for _ in range(megabytes):
                connection.sendall(block)
        except OSError:
            refused += 1
        most = max(most, served.memory())
    return most - before, refused


def exchange(served: Served, sent: bytes) -> tuple[int, str, dict[str, str]]:
    """Send bytes as they are.  Returns the status, the error and the headers of the first response."""
    with served.connect() as connection:
        connection.sendall(sent)
        method = "HEAD" if sent.startswith(b"HEAD") else "GET"
        answer = http.client.HTTPResponse(connection, method=method)
        answer.begin()
        text = answer.read().decode()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        said = json.loads(text) if headers.get("content-type") == "application/problem+json" and text else {}
        return answer.status, said.get("detail", ""), headers


def request(line: str, *headers: str, host: str = "localhost") -> bytes:
    return "\r\n".join([f"{line} HTTP/1.1", f"Host: {host}", *headers, "", ""]).encode("latin-1")


ODD_REQUESTS = {
    "no HTTP": (b"\x16\x03\x01\x02\x00\x01\r\n\r\n", 400, "Invalid HTTP request"),
    "HTTP/1.1 without Host": (b"GET /api/v1/targets HTTP/1.1\r\n\r\n", 400, "Host"),
    "two Hosts": (request("GET /api/v1/targets", "Host: evil.example"), 400, "Host"),
    "another site's Host": (request("GET /api/v1/targets", host="evil.example"), 400, "KERNELWATCH_TRUSTED_HOSTS"),
    "another site's Host, webhook": (request("POST /webhooks/github", host="evil.example"), 400, "evil.example"),
    "our name in another's": (request("GET /api/v1/targets", host="localhost.evil.example"), 400, "evil.example"),
    "an address as Host": (request("GET /api/v1/targets", host="203.0.113.9:8712"), 200, ""),
    "an IPv6 address": (request("GET /api/v1/targets", host="[::1]:8712"), 200, ""),
    "a health check by another name": (request("GET /healthz", host="api"), 200, ""),
    "an address of 9 kB": (request("GET /api/v1/" + "x" * 9000), 414, "8192"),
    "a query of 9 kB": (request("GET /api/v1/targets?" + "x" * 9000), 414, "8192"),
    "headers of 20 kB": (request("GET /api/v1/targets", "X: " + "x" * 20_000), 431, ""),
    "headers without end": (request("GET /", "X: " + "x" * 300_000)[:-4], 431, ""),
    "HEAD": (request("HEAD /api/v1/targets"), 200, ""),
    "HEAD of nothing": (request("HEAD /api/v1/targets/none"), 404, ""),
    "DELETE": (request("DELETE /api/v1/targets"), 405, "is not possible at"),
    "GET of a webhook": (request("GET /webhooks/github"), 405, "is not possible at"),
    "OPTIONS": (request("OPTIONS /api/v1/targets"), 405, "is not possible at"),
    "an unknown method": (request("BREW /api/v1/targets"), 405, "is not possible at"),
    "a body that is declared twice": (
        request("POST /webhooks/github", "Content-Length: 1", "Content-Length: 2"),
        400,
        "Content-Length",
    ),
    "a body of 10^18 bytes": (
        request(
            "POST /webhooks/github",
            f"X-Hub-Signature-256: {FORGED}",
            "X-GitHub-Event: push",
            "X-GitHub-Delivery: x",
            f"Content-Length: {10**18}",
        ),
        413,
        "is longer than",
    ),
    "a WebSocket": (request("GET /api/v1/targets", "Connection: Upgrade", "Upgrade: websocket"), 200, ""),
    "an odd Accept": (request("GET /api/v1/targets", "Accept: text/csv;q=x, */"), 200, ""),
}


def test_odd_requests_are_refused_in_the_form_of_the_api(served: Served, outcome: Outcome) -> None:
    wrong = {}
    for name, (sent, status, said) in ODD_REQUESTS.items():
        answered, detail, headers = exchange(served, sent)
        fits = answered == status and said in detail and (status != 405 or headers.get("allow"))
        if not fits or (status >= 400 and not detail and not name.startswith("HEAD")):
            wrong[name] = (answered, detail)
    statuses, _ = served.answers()
    outcome(
        WALL,
        f"{len(ODD_REQUESTS)} odd requests: other hosts, methods, lengths, no HTTP",
        held=not wrong and statuses == ALL_ANSWERED,
        seen=wrong or "each has its status and says why in JSON",
        goal="400, 405 with Allow, 413, 414, 431 in the form of the API; other hosts get nothing",
    )


@pytest.mark.parametrize("sign", ["sha256=0", FORGED], ids=["malformed", "forged"])
@pytest.mark.attack
def test_unsigned_bodies_are_not_kept_in_memory(
    served: Served, sockets: ExitStack, outcome: Outcome, sign: str
) -> None:
    growth, refused = hold_bodies(served, sockets, count=100, megabytes=24, sign=sign)
    statuses, worst = served.answers()
    outcome(
        WALL,
        f"100 connections hold 24 MB each of bodies with a {'forged' if sign == FORGED else 'malformed'} signature",
        held=growth < 64 and statuses == ALL_ANSWERED and worst < PATIENCE_S,
        seen=f"{growth} MiB of memory, {refused} closed early; {dict(statuses)}, the slowest in {worst:.2f} s",
        goal="less than 64 MiB; health, readiness and a delivery are answered within the time limit",
    )


@pytest.mark.parametrize("descriptors", [None, 1024])
@pytest.mark.attack
def test_half_requests_do_not_stop_the_service(
    state: Path, sockets: ExitStack, outcome: Outcome, many_descriptors: None, descriptors: int | None
) -> None:
    with serving({}, descriptors=descriptors) as served:
        held = []
        for _ in range(3000 if descriptors is None else 1100):
            try:
                connection = sockets.enter_context(served.connect())
                connection.sendall(HALF_HEAD)
            except OSError:
                continue
            held.append(connection)
        statuses, worst = served.answers()
        gone = wait_until(lambda: all(ended(one) for one in held), PATIENCE_S)
        limit = f" against {descriptors} descriptors" if descriptors else ""
        outcome(
            WALL,
            f"{len(held)} half requests{limit}",
            held=statuses == ALL_ANSWERED and worst < PATIENCE_S and gone,
            seen=f"{dict(statuses)}, the slowest in {worst:.2f} s; "
            f"{sum(not ended(one) for one in held)} still open at the end",
            goal="all three are answered within the time limit; every connection is closed after it",
        )


@pytest.mark.parametrize(
    ("what", "first", "limit_s"),
    [
        ("head", b"GET / HTTP/1.1\r\nHost: localhost\r\n", HEAD_S),
        (
            "body",
            b"POST /webhooks/github HTTP/1.1\r\nHost: localhost\r\nX-Hub-Signature-256: " + FORGED.encode() + b"\r\n"
            b"X-GitHub-Event: push\r\nX-GitHub-Delivery: x\r\nContent-Type: application/json\r\n"
            b"Content-Length: 1000\r\n\r\n",
            BODY_S,
        ),
        ("body that nobody reads", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n", BODY_S),
        ("second head", b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\n", HEAD_S),
    ],
    ids=["head", "body", "unread", "second"],
)
@pytest.mark.attack
def test_a_trickle_ends_at_the_time_limit(
    served: Served, outcome: Outcome, what: str, first: bytes, limit_s: float
) -> None:
    with served.connect() as connection:
        connection.sendall(first)
        began = time.monotonic()
        while not ended(connection) and time.monotonic() - began < PATIENCE_S:
            time.sleep(0.2)
            try:
                connection.setblocking(True)
                connection.sendall(b"X")
            except OSError:
                break
        lasted = time.monotonic() - began
    outcome(
        WALL,
        f"a {what} that arrives byte by byte",
        held=lasted < PATIENCE_S,
        seen=f"held for {lasted:.1f} s" + (" and more" if lasted >= PATIENCE_S else ""),
        goal=f"closed after {limit_s} s",
    )


@pytest.mark.attack
def test_clients_that_do_not_read_are_closed(served: Served, sockets: ExitStack, outcome: Outcome) -> None:
    for _ in range(50):
        connection = sockets.enter_context(socket.socket())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", served.port))
        connection.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 20)  # of 0.4 MB each
    time.sleep(1)
    statuses, worst = served.answers()
    held = served.connections()
    gone = wait_until(lambda: served.connections() == 0, PATIENCE_S)
    outcome(
        WALL,
        "50 clients request large files and read nothing",
        held=gone and statuses == ALL_ANSWERED,
        seen=f"{held} open, {served.connections()} later; {dict(statuses)}, the slowest in {worst:.2f} s",
        goal=f"closed after {RESPONSE_S} s",
    )


@pytest.mark.attack
def test_large_bodies_are_refused_early(served: Served, outcome: Outcome) -> None:
    before = served.memory()

    def endless() -> Iterator[bytes]:
        for _ in range(60):
            yield b" " * 1_000_000

    def status(content: Iterator[bytes] | bytes, **headers: str) -> object:
        given = {**signed(b""), "x-hub-signature-256": FORGED, **headers}
        try:
            return httpx.post(f"{served.url}/webhooks/github", content=content, headers=given, timeout=30).status_code
        except httpx.HTTPError as error:
            return type(error).__name__

    chunked = status(endless())
    declared = status(b" " * 50_000_000)
    bomb = gzip.compress(b" " * 1_000_000_000, 9)
    packed = served.deliver(bomb, content_encoding="gzip").status_code
    growth = served.memory() - before
    outcome(
        WALL,
        "bodies of 60 MB in chunks, of 50 MB, and 1 GB in gzip, signed",
        held=chunked in (413, "WriteError") and declared in (413, "WriteError") and packed == 415 and growth < 40,
        seen=f"{chunked}, {declared}, {packed}; {growth} MiB",
        goal="413, 413 and 415 (or the connection is closed); less than 40 MiB",
    )


@pytest.mark.attack
@pytest.mark.parametrize("either", ["sqlite", "postgres"], indirect=True)
def test_a_storm_of_deliveries_is_answered(either: str, outcome: Outcome) -> None:
    with serving({}) as served:
        codes, times = asyncio.run(storm(served, total=2000, seconds=30))
        memory = served.memory()
    p50, p99, worst = times[len(times) // 2], times[int(len(times) * 0.99)], times[-1]
    outcome(
        WALL,
        f"2,000 deliveries in 30 s, {either}",
        held=codes == {202: 2000} and p99 <= 2,
        seen=f"{dict(codes)}; p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, worst {worst * 1000:.0f} ms; "
        f"{memory} MiB",
        goal="every one is answered 202, 99 % within 2 s",
    )


async def storm(served: Served, total: int, seconds: float) -> tuple[Counter[object], list[float]]:
    """Deliver pushes at a constant rate, a twentieth of them twice.  Returns the statuses and the sorted times.

    Each has a connection of its own, as those of GitHub, and is made before, because the client shares the processors
    with the service.
    """
    codes: Counter[object] = Counter()
    times: list[float] = []

    def made(number: int) -> bytes:
        body = json.dumps({"number": number, "filling": "x" * 20_000}).encode()
        headers = {**signed(body), "x-github-event": "push", "x-github-delivery": f"storm-{number % 1900}"}
        lines = [f"{name}: {value}" for name, value in headers.items()]
        return request("POST /webhooks/github", *lines, f"Content-Length: {len(body)}", "Connection: close") + body

    async def one(number: int, delivery: bytes) -> None:
        await asyncio.sleep(number * seconds / total)
        began = time.perf_counter()
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
            writer.write(delivery)
            codes[int((await reader.readline()).split()[1])] += 1
            writer.close()
        except (OSError, IndexError) as error:
            codes[type(error).__name__] += 1
        times.append(time.perf_counter() - began)

    deliveries = [made(number) for number in range(total)]
    await asyncio.gather(*(one(number, delivery) for number, delivery in enumerate(deliveries)))
    return codes, sorted(times)


@pytest.mark.attack
def test_generated_requests_get_what_the_document_promises(either: str, tmp_path: Path, outcome: Outcome) -> None:
    """Schemathesis reads /openapi.json and sends requests that fit it and that do not, on a database with a story."""
    with transaction() as session:
        seed.seed(session, clock(session))
    with serving({}) as served:
        done = subprocess.run(
            [
                Path(sys.executable).with_name("st"),
                *("run", f"{served.url}/openapi.json"),
                *("--phases", "examples,coverage,fuzzing", "--mode", "all", "--max-examples", "20"),
                *("--exclude-checks", "positive_data_acceptance"),  # a cursor has no schema that says which are valid
                # Its JSON lines need a serializer, which the contracts have (`contracts/generated.py`).
                *("--exclude-path", "/api/v1/targets/{name}/ingested"),
                # It compares each event with the schema of the whole stream; `test_progress.py` reads the events.
                *("--exclude-path", "/api/v1/runs/{run_id}/events"),
                *("--request-timeout", "30", "--continue-on-failure", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        statuses, _ = served.answers()
    generated = re.search(r"(\d+) generated", done.stdout)
    failures = re.findall(r"^- (ST\d+ .*)$", done.stdout, re.MULTILINE)
    outcome(
        WALL,
        f"requests generated from /openapi.json, {either}",
        held=done.returncode == 0 and generated is not None and statuses == ALL_ANSWERED,
        seen=f"{generated and generated[1]} requests, exit code {done.returncode}; then {dict(statuses)}; "
        f"{', '.join(failures) or done.stdout[-1500:] if done.returncode else 'no failure'}",
        goal="no 5xx, and every answer is one that the document describes",
    )


@pytest.mark.attack
def test_readiness_is_no_flood_of_writes(state: Path, outcome: Outcome) -> None:
    with serving({}) as served:
        began = time.monotonic()
        log = state / "kernelwatch.db-wal"
        before = log.stat().st_size
        codes = Counter(status_of(served, "/readyz") for _ in range(500))
        took = time.monotonic() - began
        grown = log.stat().st_size - before
    outcome(
        WALL,
        "500 requests for /readyz",
        held=codes == {200: 500} and grown <= (took / 2 + 2) * 3 * 4200,
        seen=f"{dict(codes)} in {took:.1f} s; the log grew by {grown // 1024} KiB",
        goal="at most one write in 2 s, of three pages of 4 KiB",
    )


@pytest.mark.attack
def test_a_full_disk_is_not_ready(tmp_path: Path, outcome: Outcome) -> None:
    if os.geteuid() != 0:
        needs.skip("root")
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100m", "none", disk], check=True)
    try:
        copy_migrated(disk)
        with serving({"KERNELWATCH_STATE": str(disk)}) as served:
            with (disk / "filling").open("wb") as filling, suppress(OSError):
                while True:
                    filling.write(b"x" * MIB)
            time.sleep(3)
            full = (status_of(served, "/readyz"), served.deliver(b" " * 200_000).status_code, status_of(served, "/"))
            (disk / "filling").unlink()
            time.sleep(3)
            after = (status_of(served, "/readyz"), served.deliver(b" " * 200_000).status_code, status_of(served, "/"))
    finally:
        subprocess.run(["umount", disk], check=True)
    outcome(
        WALL,
        "the disk of the database is full, then has room again",
        held=full[0] == 503 and full[2] == 200 and after == (200, 202, 200),
        seen=f"readiness, delivery, page: {full}, then {after}",
        goal="not ready while it is full; pages are served; everything works again without a restart",
    )
