"""What is wrong with a machine is one line that says what to do; a traceback is for a log."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from service import cli
from service.ledger.reading import queries
from service.settings import settings
from tests import needs
from tests.fakes.processes import ROOT

NOWHERE = "/proc/kernelwatch"  # not even root makes a folder there


@pytest.mark.parametrize(
    ("words", "variables", "expected"),
    [
        ("target list", {"DATABASE_URL": "nonsense"}, "KERNELWATCH_DATABASE_URL: write sqlite:////PATH or postgresql:"),
        ("target list", {"DATABASE_URL": "postgresql://h:port/kw"}, "KERNELWATCH_DATABASE_URL: write sqlite:////PATH"),
        (
            "db upgrade",
            {"DATABASE_URL": "mysql://kw:hush-hush@h/kw"},
            "KERNELWATCH_DATABASE_URL: write sqlite:////PATH",
        ),
        ("db upgrade", {"DATABASE_URL": "postgresql://kw:hush-hush@127.0.0.1:1/kw"}, "Check that the server runs"),
        ("db upgrade", {"DATABASE_URL": f"sqlite:///{NOWHERE}/x.db"}, "Make its folder exist."),
        ("target list", {"PORT": "seven", "LEASE_S": "-1"}, "KERNELWATCH_PORT: Input should be a valid integer"),
        ("target list", {"TRUSTED_HOSTS": "a,b"}, "Write lists as JSON"),
        ("target list", {"CHANNELS": '{"a": "slack://hush-hush"'}, "KERNELWATCH_CHANNELS: write JSON"),
        ("target list", {"SECRETS_DIR": NOWHERE}, f"KERNELWATCH_SECRETS_DIR: {NOWHERE} is not a folder."),
        ("target list", {"STATE": NOWHERE}, "Make its folder exist"),
        ("db upgrade", {"STATE": NOWHERE}, f"{NOWHERE}: No such file or directory. Make its folder exist."),
        ("up", {"STATE": NOWHERE}, f"{NOWHERE}: No such file or directory. Make its folder exist."),
        ("worker start", {"STATE": NOWHERE}, f"{NOWHERE}: No such file or directory. Make its folder exist."),
        ("worker start", {"POLICY": NOWHERE}, f"The policy {NOWHERE} cannot be read"),
        ("target list --server http://127.0.0.1:1", {}, "Check the address, and that it runs."),
        ("api", {"HOST": "203.0.113.1"}, "Set KERNELWATCH_HOST to an address of this machine"),
    ],
)
def test_each_is_one_line(
    state: Path,
    words: str,
    variables: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(f"KERNELWATCH_{name}", value)
    told = fault(words, monkeypatch, capfd)
    assert expected in told
    assert "hush-hush" not in told


def fault(words: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    """The one line of a command that fails."""
    settings.cache_clear()
    monkeypatch.setattr(cli, "_prepare", lambda: None)  # it would outlive the captured stderr
    monkeypatch.setattr(sys, "argv", ["kernelwatch", *words.split()])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capfd.readouterr().err
    assert ended.value.code == 2
    assert told.startswith("kernelwatch: ")
    assert told.count("\n") == 1, told
    return told


def test_a_port_in_use_is_named(
    state: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setenv("KERNELWATCH_PORT", str(port))
        assert f"such as KERNELWATCH_PORT={port + 1}." in fault("api", monkeypatch, capfd)


FULL_DISK = """
mount -t tmpfs -o size=1m tmpfs "$1" && head -c 2000000 /dev/zero > "$1/large" 2>/dev/null
shift; exec "$@"
"""


@pytest.mark.parametrize(
    ("words", "on_it", "expected"),
    [
        ("db backup {folder}/new.gz", False, "Free space on its disk"),
        ("db upgrade", True, "Free space on its disk"),
        ("up", True, "Free space on its disk"),
    ],
)
def test_a_full_disk_asks_for_space(state: Path, tmp_path: Path, words: str, on_it: bool, expected: str) -> None:
    own = ["unshare", "--user", "--map-root-user", "--mount"]
    if subprocess.run([*own, "true"], check=False).returncode != 0:
        needs.skip("bubblewrap", "user namespaces are refused; `kernelwatch doctor` prints the command")
    (tmp_path / "full").mkdir()
    command = [sys.executable, "-P", "-m", "service.cli", *words.format(folder=tmp_path / "full").split()]
    done = subprocess.run(
        [*own, "sh", "-c", FULL_DISK, "sh", tmp_path / "full", *command],
        env=os.environ | {"PYTHONPATH": str(ROOT), "KERNELWATCH_STATE": str(tmp_path / "full" if on_it else state)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert expected in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(("terminal", "debug", "traceback"), [(False, "", True), (True, "", False), (True, "1", True)])
def test_a_mistake_of_kernelwatch_is_one_line_on_a_terminal(
    state: Path,
    terminal: bool,
    debug: str,
    traceback: bool,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object) -> None:
        raise TypeError("a mistake of ours")

    monkeypatch.setattr(cli, "_prepare", lambda: None)  # it would outlive the captured stderr
    monkeypatch.setattr(queries, "workers_by_name", broken)
    monkeypatch.setattr(sys, "argv", ["kernelwatch", "status"])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    monkeypatch.setenv("KERNELWATCH_DEBUG", debug)
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capfd.readouterr().err
    assert ended.value.code == 2
    assert told.count("TypeError: a mistake of ours") == 1
    assert told.startswith("Traceback") == traceback
    assert ("KERNELWATCH_DEBUG=1 shows the place" in told) != traceback
