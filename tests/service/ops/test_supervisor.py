"""The supervisor: one start, one stop, and no process left.  Its processes here are small and real."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from service.ops.supervisor import FIRST_DELAY_S, LONG_LIFE_S, _Child
from tests.fakes.processes import free_port

CHECKOUT = Path(__file__).parents[3]
HOUSE = """
import json, sys
from pathlib import Path
from service.ops.supervisor import supervise
sys.exit(supervise(json.loads(sys.argv[1]), Path(sys.argv[2])))
"""
SLEEPER = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(100)"]
LISTENER = [sys.executable, "-m", "http.server", "--bind", "127.0.0.1"]


class House:
    """A supervisor in a process of its own, as `make run` starts it."""

    def __init__(self, folder: Path) -> None:
        self.state, self.out = folder / "state", folder / "out"
        self.process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def start(self, **commands: list[str]) -> subprocess.Popen[bytes]:
        variables = {
            "KERNELWATCH_STATE": str(self.state),
            "KERNELWATCH_PORT": str(self.port),
            "PYTHONPATH": str(CHECKOUT),
        }
        with self.out.open("ab") as out:
            started = subprocess.Popen(
                [sys.executable, "-c", HOUSE, json.dumps(commands), str(self.state)],
                env={**os.environ, **variables, "PYTHONPATH": str(CHECKOUT)},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        self.process = self.process or started
        return started

    def says(self, what: str) -> None:
        """Wait until it has said that."""
        _until(lambda: re.search(what, self.out.read_text(), re.S), f"{what!r} in:\n{self.out.read_text()}")

    def children(self) -> list[psutil.Process]:
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    house = House(tmp_path)
    yield house
    if house.process is not None and house.process.poll() is None:
        for child in house.children():
            child.kill()
        house.process.kill()
        house.process.wait()


def test_one_ctrl_c_ends_everybody(house: House) -> None:
    parent_of_two = [sys.executable, "-c", f"import subprocess; print('up', flush=True); subprocess.run({SLEEPER})"]
    process = house.start(worker=SLEEPER, control=parent_of_two)
    house.says(r"worker +\| here")
    house.says(r"control +\| here")
    everybody = house.children()
    assert len(everybody) == 3

    process.send_signal(signal.SIGINT)

    assert process.wait(60) == 0
    house.says("All processes have stopped")
    assert not [child for child in everybody if _lives(child)]


def test_who_does_not_listen_to_term_is_killed_at_the_second_ctrl_c(house: House) -> None:
    deaf = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(100)"
    )
    process = house.start(worker=[sys.executable, "-c", deaf])
    house.says("deaf")
    [child] = house.children()

    process.terminate()
    house.says("Stopping")
    process.terminate()

    assert process.wait(60) == 0
    assert not _lives(child)


def test_the_dead_are_restarted_more_and_more_patiently(house: House) -> None:
    process = house.start(worker=[sys.executable, "-c", "import sys; sys.exit('no device')"], control=SLEEPER)

    house.says("(no device.*){3}")

    told = house.out.read_text()
    assert "worker  | ended with exit code 1" in told
    assert told.count("control | here") == 1  # others are left alone
    process.terminate()
    assert process.wait(60) == 0


@pytest.mark.parametrize(("lived_s", "next_delay_s"), [(LONG_LIFE_S - 5, 8.0), (LONG_LIFE_S, FIRST_DELAY_S)])
def test_a_long_life_is_restarted_as_if_for_the_first_time(tmp_path: Path, lived_s: float, next_delay_s: float) -> None:
    """Else each crash of a process that runs for months would make the next restart later."""
    child = _Child("api", ["true"], tmp_path)
    child.delay_s = 8.0
    child.start()
    assert child.process is not None
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    child.started_at -= lived_s
    before = time.monotonic()
    child.reap()
    child.log.close()
    assert child.start_at - before >= next_delay_s
    assert child.delay_s == 2 * next_delay_s


def test_one_that_was_killed_is_restarted(house: House) -> None:
    house.start(worker=SLEEPER)
    house.says("here")
    house.children()[0].kill()
    house.says("ended with SIGKILL.*here")


def test_a_command_that_is_not_there_is_said_and_does_not_end_the_others(house: House) -> None:
    house.start(worker=["/no/such/program"], control=SLEEPER)
    house.says("worker .*cannot be started.*No such file")
    house.says(r"control +\| here")


def test_logs_are_kept_for_each_process(house: House) -> None:
    house.start(worker=SLEEPER)
    house.says("here")
    assert (house.state / "logs" / "worker.log").read_text() == "here\n"


def test_a_terminal_that_takes_nothing_more_ends_nobody(house: House) -> None:
    house.out = Path("/dev/full")
    process = house.start(worker=SLEEPER)
    log = house.state / "logs" / "worker.log"
    _until(lambda: log.exists() and log.read_text() == "here\n", "its log")
    house.children()[0].kill()
    _until(lambda: log.read_text().endswith("here\n") and "SIGKILL" in log.read_text(), "a restart")
    assert process.poll() is None


def test_a_second_start_says_where_the_first_is(house: House) -> None:
    first = house.start(worker=SLEEPER)
    house.says("here")

    second = house.start(worker=SLEEPER)

    assert second.wait(60) == 0
    house.says(f"already running at http://127.0.0.1:{house.port}, process {first.pid}")
    assert first.poll() is None


def test_the_address_is_announced_when_it_answers(house: House) -> None:
    house.start(api=[*LISTENER, str(house.port)])
    house.says(f"kernelwatch is at http://127.0.0.1:{house.port} ")


def test_a_port_in_use_is_said_before_anything_starts(house: House) -> None:
    with socket.create_server(("127.0.0.1", house.port)):
        process = house.start(api=[*LISTENER, str(house.port)])
        assert process.wait(60) == 1
    house.says(f"Cannot listen on 127.0.0.1:{house.port}.*KERNELWATCH_PORT={house.port + 1}")


def test_a_supervisor_killed_outright_leaves_nobody_behind(house: House) -> None:
    process = house.start(worker=SLEEPER)
    house.says("here")
    [child] = house.children()

    process.kill()
    process.wait()

    _until(lambda: not _lives(child), "the child to end")


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE  # ended, and the machine's first process has not noticed yet
    except psutil.NoSuchProcess:
        return False


def _until(happens: Callable[[], object], what: str) -> None:
    patience = time.monotonic() + 60
    while not happens():
        assert time.monotonic() < patience, f"waited in vain for {what}"
        time.sleep(0.05)
