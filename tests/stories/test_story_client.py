"""Programs elsewhere, which use the service with the Python client and a key."""

import os
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path

import httpx
import pytest

from kernelwatch.client import Client, Conflict, NotAllowed, Retries
from service.domain.states import CODES, worst_exit_code
from tests.fakes.api import new_key
from tests.stories.test_story import FAST, WIDE, Story, story  # noqa: F401  (a fixture)
from workers import control

GATE = Path(__file__).parents[2] / "examples" / "client" / "gate.py"


@contextmanager
def worker() -> Iterator[None]:
    """A device worker that measures what is queued meanwhile."""
    ended = threading.Event()

    def work() -> None:
        while not ended.wait(0.1):
            control.work("cpu")

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def gate(address: str, revision: str, key: str) -> subprocess.CompletedProcess[str]:
    """Run the example as a step of continuous integration does."""
    environment = {**os.environ, "KERNELWATCH_KEY": key, "PYTHONPATH": str(GATE.parents[2])}
    command = [sys.executable, GATE, address, "norms", revision]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_of_several_devices_the_code_counts_that_the_command_would_exit_with() -> None:
    gravest = runpy.run_path(str(GATE))["gravest"]
    for count in range(len(CODES) + 1):
        for codes in permutations(CODES, count):
            assert gravest(codes) == worst_exit_code(codes)


def test_a_step_of_ci_measures_its_commit_and_fails_for_a_regression(story: Story) -> None:  # noqa: F811
    key = new_key("run:norms")
    steady, slow = story.commit("as fast as before"), story.commit("two passes", wide=260.0)
    with worker():
        passed, failed = gate(story.address, steady, key), gate(story.address, slow, key)

    assert passed.returncode == 0, passed.stderr
    assert "cpu: " in passed.stdout
    assert failed.returncode == 1, failed.stderr
    assert re.search(rf"norms {re.escape(WIDE)}: (29|30)\.\d % slower", failed.stdout)
    assert FAST not in failed.stdout

    refused = gate(story.address, slow, new_key("run:norms") + "0")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.count("\n") == 1


class Lossy(httpx.HTTPTransport):
    """A network on which the answer to the first change is lost, after the server has made it."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = 0

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        answer = super().handle_request(request)
        if request.method == "POST" and not self.lost:
            self.lost += 1
            answer.read()
            raise httpx.ReadError("the cable was cut")
        return answer


def test_an_answer_that_is_lost_is_asked_for_again_and_nothing_happens_twice(story: Story) -> None:  # noqa: F811
    before = len(story.runs())
    sha = story.commit("once")
    network = Lossy()
    with Client(story.address, new_key("run:norms"), transport=network) as client:
        started = client.runs.start("norms", sha)
        assert network.lost == 1
        assert started.created == [started.items[0].id], "the answer is that of the first request"
        assert len(story.runs()) == before + 1

        [run] = started.items
        assert client.runs.cancel(run.id).state == "cancelled"
        assert client.runs.retry(run.id).state == "queued"
        with worker():
            seen = [progress.state for progress in client.runs.events(run.id)]
        assert seen[-1] == "done"
        with pytest.raises(Conflict):
            client.runs.cancel(run.id)


class Impatient(httpx.HTTPTransport):
    """A network on which the first change takes longer than the client waits."""

    def __init__(self) -> None:
        super().__init__()
        self.statuses: list[int] = []
        self.first: threading.Thread | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self.first is None:
            self.first = threading.Thread(target=super().handle_request, args=(request,))
            self.first.start()
            raise httpx.ReadTimeout("timed out")
        answer = super().handle_request(request)
        self.statuses.append(answer.status_code)
        return answer


def test_a_client_that_does_not_wait_long_enough_gets_the_answer_to_its_first_request(story: Story) -> None:  # noqa: F811
    before = len(story.runs())
    sha = story.commit("takes long to fetch")
    network = Impatient()
    soon = Retries(first_wait_s=0.01)
    with Client(story.address, new_key("run:norms"), transport=network, retries=soon) as client:
        started = client.runs.start("norms", sha)
        assert network.first is not None
        network.first.join()
    assert set(network.statuses) <= {409, 201}, "still handled, then the stored answer"
    assert started.created == [started.items[0].id]
    assert len(story.runs()) == before + 1


def test_a_key_of_another_scope_changes_nothing(story: Story) -> None:  # noqa: F811
    with Client(story.address, new_key("read")) as client, pytest.raises(NotAllowed, match="scope run"):
        client.runs.start("norms", story.commit())
    with Client(story.address, new_key("admin")) as client:
        assert client.targets.edit("norms", private=True).private
        assert client.targets.remove("norms", dry_run=True).runs == len(story.runs())
        assert client.targets.get("norms").private
