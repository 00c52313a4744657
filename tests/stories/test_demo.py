"""The demo, measured for real on the processor, as `make run` starts it: supervised processes and SQLite."""

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from service.db.engine import reading, transaction
from service.ledger import targets
from service.ledger.runs import queue
from tests.fakes import demo
from tests.fakes.processes import free_port, running, until
from tests.shell import attempt
from workers.machine import environments
from workers.run.heartbeat import Assignment, assigned
from workers.sandbox import sandbox


@pytest.mark.demo
@pytest.mark.long
@pytest.mark.alone
def test_the_demo_comes_to_the_verdicts_that_its_commits_deserve(state, record_property):
    environments.adopt_stack("host", Path(sys.executable), [])
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    environment = {"KERNELWATCH_STATE": str(state), "KERNELWATCH_PORT": str(port)}
    began = time.monotonic()
    with running({"up": ["-m", "service.cli", "up", "--demo"]}, environment, state / "test-logs"):
        until(lambda: demo.runs(address), 800)
        took = time.monotonic() - began
        print(f"the demo took {took:.0f} s on {os.cpu_count()} cores")
        record_property("demo_s", round(took))
        assert demo.differences(demo.runs(address)) == []

        for path in ("/", "/regressions", "/targets/demo", "/workers"):
            assert httpx.get(address + path, timeout=20).status_code == 200
        page = httpx.get(f"{address}/runs/{demo.runs(address)['pull-7']['id']}/comment", timeout=20).text
        _, heading, told = page.partition("Preview of the comment")  # the demo has no forge
        comment = told.partition("As Markdown")[0]
        assert heading
        assert re.search(r"CPU: 1 of \d+ cases [\d.]+ % slower", comment)
        assert "rmsnorm.bwd.512x512.fp32" in comment


@pytest.fixture
def no_bubblewrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A PATH with everything that this machine has, but bubblewrap."""
    commands = tmp_path / "commands"
    commands.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for command in Path(folder).iterdir():
            if command.name != "bwrap" and not (commands / command.name).is_symlink():
                (commands / command.name).symlink_to(command)
    monkeypatch.setenv("PATH", str(commands))
    monkeypatch.setattr(sandbox, "_trouble", None)


def started() -> str:
    """What starting the demo prints."""
    done = attempt("demo")
    assert done.exit_code == 0, done.output
    return " ".join(done.stdout.split())


def first_of_the_queue() -> Assignment | None:
    """What a worker of this machine takes."""
    with transaction() as session:
        lease = queue.next_run(session, "cpu", "test/cpu-0", 60, has_sandbox=not sandbox.self_test())
    return assigned(lease) if lease else None


def test_without_bubblewrap_the_demo_is_measured_and_says_how(state: Path, no_bubblewrap: None) -> None:
    said = started()
    assert "The sandbox does not work: bubblewrap is not installed; install it with `sudo" in said
    assert "The demo runs without a sandbox, because its code is part of kernelwatch." in said
    assert "Other targets are not measured until the sandbox works" in said

    assignment = first_of_the_queue()
    assert assignment
    assert not assignment.sandboxed
    assert "bubblewrap is not installed" in (assignment.no_sandbox or "")


def test_the_name_of_the_demo_allows_nothing(state: Path, no_bubblewrap: None) -> None:
    recipe = (demo.EXAMPLE / "recipe.toml").read_text()
    with transaction() as session:
        targets.register(session, "demo", location="https://github.com/mallory/demo", recipe_text=recipe, trusted=True)
    done = attempt("demo")
    assert "watches https://github.com/mallory/demo already" in str(done.exception)
    with reading() as session:
        assert not targets.target_named(session, "demo").allow_unsandboxed


def test_a_demo_with_commits_of_somebody_else_needs_the_sandbox(state: Path, no_bubblewrap: None) -> None:
    started()
    identity = ("-c", "user.name=Mallory", "-c", "user.email=mallory@example.org")
    commit = ["git", "-C", str(state / "demo"), *identity, "commit", "--quiet", "--allow-empty", "-m", "mine"]
    subprocess.run(commit, check=True)

    said = started()
    assert "has commits that are not part of kernelwatch. Remove that folder to rebuild it." in said
    assert first_of_the_queue() is None
