"""The Python client against a real server with a few days of data."""

import asyncio
import runpy
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kernelwatch.client import (
    AsyncClient,
    BadArgument,
    Client,
    Retries,
    StillRunning,
    Unreachable,
)
from kernelwatch.documents.runs import RequestedRunsDocument
from service.db.engine import clock, transaction
from service.db.models import Run, Worker
from service.domain.states import RunState
from tests.dashboards.conftest import reachable
from tests.dashboards.seed import CASES, Seeded
from tests.fakes.api import new_key


@pytest.fixture(scope="module")
def server(seeded: Seeded) -> Iterator[str]:
    """The address of a server with them."""
    with reachable() as address:
        yield address


@pytest.fixture(scope="module")
def client(server: str) -> Iterator[Client]:
    with Client(server) as opened:
        yield opened


def test_documents_are_typed(client: Client) -> None:
    target = client.targets.get("norms")
    assert (target.kind, target.open_regressions, target.devices) == ("git", 1, ["h200", "cpu"])
    [regression, *_] = client.regressions.list(state=["open"], expand=["events"])
    assert client.regressions.get(regression.id).model_dump().items() >= regression.model_dump().items()
    series = client.targets.series("norms", CASES[0], provider="norms", device="h200")
    assert {point.state for point in series.points} == {"measured", "invalid"}
    assert "kernelwatch" in client.runs.comment(series.points[-1].run_id)


def test_lists_are_read_page_by_page(client: Client) -> None:
    runs = client.targets.runs("norms")
    ids = [run.id for run in runs]
    assert len(ids) == 12
    assert [len(page.items) for page in runs.pages(limit=5)] == [5, 5, 2]
    first = runs.page(limit=5)
    assert [run.id for run in runs.page(first.next, limit=5).items] == ids[5:10]
    assert {run.device for run in client.targets.runs("norms", device="cpu")} == {"cpu"}


def test_both_clients_return_the_same(server: str, client: Client) -> None:
    async def asked() -> tuple[Any, ...]:
        async with AsyncClient(server) as other:
            runs = [run async for run in other.targets.runs("norms")]
            both = await asyncio.gather(other.runs.get(runs[0].id), other.calibration.get(days=3))
            return runs, *both

    runs = list(client.targets.runs("norms"))
    assert asyncio.run(asked()) == (runs, client.runs.get(runs[0].id), client.calibration.get(days=3))


@pytest.mark.parametrize("name", ["norms/runs", "", ".."])
def test_a_name_cannot_lead_to_another_path(client: Client, name: str) -> None:
    with pytest.raises(BadArgument, match="is not the name of anything"):
        client.targets.get(name)


def test_a_worker_is_named_with_its_slash(server: str) -> None:
    name = "box/h200-0"  # as workers name themselves
    with transaction() as session:
        now = clock(session)
        session.add(Worker(name=name, device="h200", description="NVIDIA H200", started_at=now, seen_at=now))
    with Client(server, new_key("worker")) as admin:
        assert admin.workers.pause(name).paused_at is not None
        assert admin.workers.drain(name).paused_at is not None
        assert admin.workers.resume(name).paused_at is None
        for wrong in ("", "host/", "/h200-0", "host//h200-0", "host/../h200-0", "./h200-0", "../runs/7"):
            with pytest.raises(BadArgument, match="is not the name of anything"):
                admin.workers.pause(wrong)


def test_the_example_ends_at_a_held_run_as_the_command_does(seeded: Seeded, client: Client) -> None:
    example = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "client" / "gate.py"))
    held = client.runs.get(seeded.runs["held"])
    requested = RequestedRunsDocument.model_construct(created=[], items=[held])
    runs = SimpleNamespace(start=lambda *_: requested, events=client.runs.events, get=client.runs.get)
    [run] = example["measured"](SimpleNamespace(runs=runs), "norms", held.revision)
    assert (run.state, run.gate.exit_code) == ("held", 2)


@pytest.mark.parametrize(
    "server", ["http://host:abc", "http://host:99999", "https://", "https://watch.example\n", "http://[::1", "ftp://a"]
)
def test_what_is_no_address_is_an_error_before_anything_is_sent(server: str) -> None:
    with pytest.raises(BadArgument, match="is no address of a server"):
        Client(server)


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(BadArgument, match=r"^'localhost:8712' is no address of a server; write it as https://"):
        Client("localhost:8712")
    with (
        Client("http://127.0.0.1:9", retries=Retries(attempts=1)) as client,
        pytest.raises(Unreachable, match=r"No answer from http://127\.0\.0\.1:9/"),
    ):
        client.targets.get("norms")


def test_wait_returns_when_the_run_has_ended(client: Client) -> None:
    [cpu, _] = client.targets.runs("norms", device="cpu")
    assert cpu.state == "queued"
    with pytest.raises(StillRunning, match=f"Run {cpu.id} is still queued after 0 s; wait longer, or look at http"):
        client.runs.wait(cpu.id, timeout_s=0)

    def cancel() -> None:
        with transaction() as session:
            session.get_one(Run, cpu.id).state = RunState.CANCELLED

    timer = threading.Timer(0.2, cancel)
    timer.start()
    assert client.runs.wait(cpu.id, timeout_s=20).state == "cancelled"
    timer.join()
