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
    most_severe = runpy.run_path(str(GATE))["most_severe"]
    for count in range(len(CODES) + 1):
        for codes in permutations(CODES, count):
            assert most_severe(codes) == worst_exit_code(codes)


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
