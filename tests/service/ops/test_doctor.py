"""`kernelwatch doctor`: what is missing, and the fix for it."""

import socket
from pathlib import Path

import pytest

from service.commands.output.layout import lines
from service.commands.views import machine as views
from service.ops import doctor
from service.ops.doctor import Check
from service.settings import settings
from tests import needs

FINE = ["host"]


def works() -> None:
    return None


def by_name(found: list[Check]) -> dict[str, Check]:
    return {check.name: check for check in found}


def said(*checks: Check) -> tuple[str, int]:
    view = views.checks(checks)
    return "\n".join(line.plain for line in lines(view.parts, 200)), view.code


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine on which no program is found."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> object:
    """Change settings for this test."""

    def change(**variables: str) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(f"KERNELWATCH_{name.upper()}", value)
        settings.cache_clear()

    return change


def test_a_machine_with_all_that_is_needed(state: Path) -> None:
    found = by_name(doctor.checks(works, FINE))
    assert found["Python"].ok
    assert found["git"].ok
    assert found["stack"] == Check("stack", True, "host", found["stack"].effect, found["stack"].fix)
    assert found["database"].ok
    assert "broker" not in found  # none is configured


def test_a_bare_machine_is_told_the_commands(state: Path, bare: Path) -> None:
    found = by_name(doctor.checks(works, []))
    assert found["git"].fix == "sudo apt-get install -y git"
    assert found["bubblewrap"].fix.startswith("sudo apt-get install -y bubblewrap")
    assert found["stack"].fix == "kernelwatch stack create host"
    assert not found["C++ compiler"].needed
    text, code = said(*found.values())
    assert code == 1
    assert "Missing requirements: git, bubblewrap, stack." in text


@pytest.mark.parametrize(
    ("allowed", "found", "fix"),
    [
        (True, "not found", "sudo apt-get install -y bubblewrap"),
        (False, "not found; user namespaces, which it needs, are not allowed either", "; then "),
    ],
)
def test_without_bubblewrap_it_says_whether_installing_it_is_enough(
    state: Path, bare: Path, allowed: bool, found: str, fix: str
) -> None:
    unshare = bare / "unshare"
    unshare.write_text(f"#!/bin/sh\n{'echo works' if allowed else 'exit 1'}\n")
    unshare.chmod(0o755)
    sandbox = by_name(doctor.checks(works, FINE))["bubblewrap"]
    assert sandbox.found == found
    assert fix in sandbox.fix
    assert "only the demo" in sandbox.effect


@needs.skip_unless(doctor._output("bwrap", "--version"), "bubblewrap")
def test_a_sandbox_that_cannot_work_says_why(state: Path) -> None:
    sandbox = by_name(doctor.checks(lambda: "user namespaces are refused", FINE))["bubblewrap"]
    assert not sandbox.ok
    assert sandbox.found.endswith("user namespaces are refused")
    assert sandbox.fix


def test_what_is_merely_useful_does_not_fail(state: Path) -> None:
    text, code = said(
        Check("git", True, "2.39"), Check("chromium", False, "not found", "tests miss it", "get it", needed=False)
    )
    assert code == 0
    assert "optional  chromium" in text
    assert "fix: get it" in text
    assert "All requirements are met." in text


def test_a_database_of_another_version(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.db.schema.newest", lambda: "9999")
    database = by_name(doctor.checks(works, FINE))["database"]
    assert not database.ok
    assert database.effect == "this version needs 9999"
    assert database.fix == "kernelwatch db upgrade"


def test_a_database_that_is_not_there(state: Path, changed) -> None:
    changed(database_url=f"postgresql://root:secret@127.0.0.1:{_nobody_listens()}/x")
    database = by_name(doctor.checks(works, FINE))["database"]
    assert not database.ok
    assert "does not answer" in database.found
    assert "secret" not in database.found


def test_a_broker_that_is_not_there_costs_seconds_and_is_not_needed(state: Path, changed) -> None:
    changed(broker_url=f"amqp://guest:secret@127.0.0.1:{_nobody_listens()}//")
    broker = by_name(doctor.checks(works, FINE))["broker"]
    assert not broker.ok
    assert not broker.needed
    assert "secret" not in broker.found


def test_a_full_disk(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.ops.doctor.MIN_ROOM", 1 << 80)
    monkeypatch.setattr("service.ops.doctor.ROOM_FOR_WORK", 1 << 80)
    disk = by_name(doctor.checks(works, FINE))["disk"]
    assert not disk.ok
    assert disk.needed
    assert "KERNELWATCH_STATE" in disk.fix


def _nobody_listens() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_a_policy_with_a_mistake(state: Path, tmp_path: Path, changed) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("blocking = true\nsmallest_change = 3\n")
    changed(policy=str(file))
    found = by_name(doctor.checks(works, FINE))["policy"]
    assert not found.ok
    assert "line 2: smallest_change: Input should be less than 1" in found.found
    file.write_text("smallest_change = 0.03\n")
    assert by_name(doctor.checks(works, FINE))["policy"].ok
