"""Exports are sent in bounded memory, end with their client, and stop when the reader may no longer read."""

import asyncio
import csv
import socket
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from pyarrow import parquet
from sqlalchemy import event, insert
from starlette.requests import Request

from kernelwatch.client import AsyncClient, Client, NotFound, NoValidKey, Unreachable
from service.api.gateway.connections import STREAMS, LimitedProtocol
from service.api.reading import exports
from service.app import create_app
from service.commands.connection.local import InProcess
from service.db import models as m
from service.db.engine import engine, transaction
from service.domain.access import local
from service.errors import Late
from service.ledger.access import keys
from service.ledger.acting import as_actor
from service.settings import settings
from tests import world
from tests.clock import Clock
from tests.dashboards.conftest import reachable
from tests.dashboards.seed import watched
from tests.fakes.api import new_key
from tests.fakes.processes import served, until

CASE = "rmsnorm.fwd.{rows}x1024.bf16-fp32"
LIMIT_S = 3.0
LAST_CHUNK = b"\r\n0\r\n\r\n"
MEASUREMENTS, SAMPLES = 200, 1_000  # of each, so 200,000 in all


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a server with 200,000 samples in 4 runs."""
    with watched(tmp_path_factory.mktemp("state"), lambda session, now: None):
        target = world.target(name="norms", private=True)
        rounds = [[7.0 + number / 1e4 for number in range(SAMPLES // 10)] for _ in range(10)]
        packed = m.pack(rounds, [])
        with transaction() as session:
            for place in range(4):
                run = world.run(session, world.commit(session, target.id, place))
                usual = {"role": "head", "provider": "norms", "state": "measured", "facts": {}, "median": 7.0}
                rows = [
                    {
                        **usual,
                        "run_id": run.id,
                        "contender": "head:norms",
                        "case": CASE.format(rows=n),
                        "samples": packed,
                    }
                    for n in range(1, MEASUREMENTS // 4 + 1)
                ]
                session.execute(insert(m.Measurement), rows)
        with reachable() as address:
            yield address


@pytest.fixture(scope="module")
def key(server: str) -> str:
    return new_key("read:norms")


def rows_of(path: Path, form: str) -> int:
    match form:
        case "parquet":
            return parquet.ParquetFile(path).metadata.num_rows
        case "csv":
            with path.open(newline="") as file:
                return sum(1 for _ in csv.reader(file)) - 1
        case _:
            with path.open("rb") as file:
                return sum(1 for _ in file)


@pytest.mark.parametrize("form", ["json", "csv", "parquet"])
def test_a_quarter_of_them_needs_little_memory(server: str, key: str, form: Any, tmp_path: Path) -> None:
    """What the server and the client hold at once; 50,000 documents would be 150 MB."""
    path = tmp_path / f"samples.{form}"
    with Client(server, key) as client:
        client.exports.save("samples", path, format=form, device="gpu")  # imports what is imported once
        tracemalloc.start()
        written = client.exports.save("samples", path, format=form, revision="c0")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert rows_of(path, form) == MEASUREMENTS * SAMPLES / 4
    assert written == path.stat().st_size
    assert peak < 30e6, f"{peak / 1e6:.0f} MB for a file of {written / 1e6:.0f} MB"


def test_a_command_on_this_machine_needs_as_little(server: str, tmp_path: Path) -> None:
    with Client("http://localhost", transport=InProcess("root")) as client:
        client.exports.save("runs", tmp_path / "runs")  # imports what is imported once
        tracemalloc.start()
        written = client.exports.save("samples", tmp_path / "samples", revision="c0")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert rows_of(tmp_path / "samples", "json") == MEASUREMENTS * SAMPLES / 4
        assert peak < 30e6, f"{peak / 1e6:.0f} MB for a file of {written / 1e6:.0f} MB"
        parts = client.exports.read("samples")
        assert next(parts)
        parts.close()  # type: ignore[attr-defined]
        assert client.runs.list().page().items


def test_the_asynchronous_client_saves_the_same(server: str, key: str, tmp_path: Path) -> None:
    async def saved() -> int:
        async with AsyncClient(server, key) as client:
            return await client.exports.save("runs", tmp_path / "a", format="csv")

    with Client(server, key) as client:
        assert asyncio.run(saved()) == client.exports.save("runs", tmp_path / "b", format="csv")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_that_breaks_off_replaces_nothing(server: str, tmp_path: Path) -> None:
    """The key is revoked after the first bytes: the rest is not sent, and the client says so."""
    path = tmp_path / "samples.csv"
    path.write_text("what was there\n")
    own = new_key("read:norms")
    with Client(server, own) as client:
        parts = client.exports.read("samples", format="csv")
        next(parts)
        with as_actor(local("root")), transaction() as session:
            keys.revoke(session, own[:13])
        with pytest.raises(Unreachable):
            list(parts)
        with pytest.raises(NoValidKey, match="revoked"):
            client.exports.save("samples", path)
    assert [one.name for one in tmp_path.iterdir()] == ["samples.csv"]
    assert path.read_text() == "what was there\n"


def test_a_client_that_goes_away_ends_its_export(server: str, key: str) -> None:
    statements = list[str]()
    event.listen(engine(), "before_cursor_execute", lambda *given: statements.append(given[2]))
    with (
        httpx.Client(
            base_url=server, headers={"authorization": f"Bearer {key}", "accept-encoding": "identity"}, timeout=60
        ) as http,
        http.stream("GET", "/api/v1/export/samples") as answer,
    ):
        next(answer.iter_bytes(1000))
    time.sleep(1.0)  # what was being read when it went
    before = len([one for one in statements if "measurements" in one])
    time.sleep(0.5)
    assert len([one for one in statements if "measurements" in one]) == before < 10
    with Client(server, key) as client:
        assert sum(map(len, client.exports.read("runs"))) > 0


def test_no_more_exports_than_places_are_sent(server: str, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"authorization": f"Bearer {key}", "accept-encoding": "identity"}
    with httpx.Client(base_url=server, headers=headers, timeout=60) as http:
        streams = [http.stream("GET", "/api/v1/export/samples") for _ in range(exports.LIMIT)]
        try:
            assert [one.__enter__().status_code for one in streams] == [200] * exports.LIMIT
            refused = http.get("/api/v1/export/runs")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "10")
            assert "8 exports are being sent, as many as there may be" in refused.json()["detail"]
        finally:
            for one in streams:
                one.__exit__(None, None, None)
        until(lambda: http.get("/api/v1/export/runs").status_code == 200, 60)


def test_no_transaction_is_open_while_a_client_reads_slowly(server: str, key: str) -> None:
    headers = {"authorization": f"Bearer {key}", "accept-encoding": "identity"}
    with (
        httpx.Client(base_url=server, headers=headers, timeout=60) as http,
        http.stream("GET", "/api/v1/export/samples") as answer,
    ):
        next(answer.iter_bytes(1000))
        time.sleep(1.0)  # the buffers between them are full now, or soon on busy cores
        until(lambda: engine().pool.checkedout() == 0, 30)  # type: ignore[attr-defined]
        assert engine().pool.checkedout() == 0  # type: ignore[attr-defined]


@pytest.fixture
def impatient(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of another server of the same database, with a short limit for responses."""
    monkeypatch.setenv("KERNELWATCH_RESPONSE_LIMIT_S", str(LIMIT_S))
    settings.cache_clear()
    with served(create_app(), http=LimitedProtocol) as address:
        yield address
    monkeypatch.undo()
    settings.cache_clear()


def received(address: str, key: str, *, bytes_a_turn: int, turns: int, pause_s: float) -> bytes:
    """Read an export in turns, with pauses, and then what is left of it."""
    url = urlsplit(address)
    with socket.create_connection((url.hostname, url.port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
        head = (
            f"GET /api/v1/export/samples?revision=c0 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n\r\n"
        )
        connection.sendall(head.encode())
        found = b""
        try:
            for _ in range(turns):
                goal = len(found) + bytes_a_turn
                while len(found) < goal and (part := connection.recv(1 << 16)):
                    found += part
                time.sleep(pause_s)
            while not found.endswith(LAST_CHUNK) and (part := connection.recv(1 << 16)):
                found += part
        except ConnectionResetError:
            pass
        return found


def test_a_slow_reader_takes_longer_than_the_limit_and_gets_all(impatient: str, key: str) -> None:
    began = time.monotonic()
    found = received(impatient, key, bytes_a_turn=1_250_000, turns=11, pause_s=LIMIT_S * 0.3)
    assert time.monotonic() - began > 3 * LIMIT_S
    assert found.endswith(LAST_CHUNK)
    assert found.count(b'"phase":"screening"') == MEASUREMENTS * SAMPLES / 4


def test_a_reader_that_stops_is_cut(impatient: str, key: str) -> None:
    found = received(impatient, key, bytes_a_turn=1_000, turns=1, pause_s=4 * LIMIT_S)
    assert found.startswith(b"HTTP/1.1 200 OK")
    assert not found.endswith(LAST_CHUNK)
    assert len(found) < 16_000_000


def test_an_export_that_takes_more_than_an_hour_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """However steadily its client reads."""
    clock, received = Clock(), list[bytes]()
    monkeypatch.setattr(exports, "time", SimpleNamespace(monotonic=clock.now))
    request = Request({"type": "http", "state": {STREAMS: 0}})

    async def receive() -> None:
        async for part in exports._sent(request, iter([b"part"] * 1000), b"first"):
            received.append(part)
            clock.sleep(600)

    with pytest.raises(Late, match="It took longer than 3600 s"):
        asyncio.run(receive())
    assert len(received) == 7


def test_nobody_else_learns_of_the_target(server: str) -> None:
    with Client(server) as client:
        assert b"".join(client.exports.read("samples")) == b""
        with pytest.raises(NotFound, match=r"No target norms\. Known: none yet"):
            b"".join(client.exports.read("samples", target="norms"))
