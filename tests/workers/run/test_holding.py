"""A worker that dies leaves a note of what it held, and its successor reports it."""

import json

import pytest

from service.errors import SourceFailed
from service.ledger.runs.queue import Lease
from workers.machine.device import DeviceHere
from workers.run import heartbeat
from workers.run.heartbeat import Holding

CPU = DeviceHere("cpu", "the processor")
LEASE = Lease(7, 2, "host/cpu-0")


def killed(*, in_code: bool) -> None:
    """What is left of a worker that was killed."""
    held = Holding(LEASE, CPU)
    held.__enter__()
    if in_code:
        held.code_starts()


@pytest.mark.parametrize("in_code", [False, True])
def test_what_a_killed_worker_held_is_known(state, in_code):
    killed(in_code=in_code)
    assert heartbeat.remains(CPU) == heartbeat.Remains(LEASE, in_code)
    assert heartbeat.remains(DeviceHere("h200", "another", uuid="GPU-1")) is None
    heartbeat.forget(CPU)
    assert heartbeat.remains(CPU) is None


def test_a_worker_that_ends_an_attempt_in_any_way_leaves_nothing(state):
    def attempt() -> None:
        with Holding(LEASE, CPU) as held:
            held.code_starts()
            raise SourceFailed("away")

    with pytest.raises(SourceFailed):
        attempt()
    assert heartbeat.remains(CPU) is None


def test_a_machine_that_was_restarted_says_nothing_about_the_code(state, monkeypatch, tmp_path):
    killed(in_code=True)
    (tmp_path / "boot").write_text("another")
    monkeypatch.setattr(heartbeat, "_BOOT", tmp_path / "boot")
    assert heartbeat.remains(CPU) == heartbeat.Remains(LEASE, in_code=False)


@pytest.mark.parametrize("text", ["", "{", "[]", json.dumps({"run": 1})])
def test_a_note_that_was_cut_off_is_ignored(state, text):
    killed(in_code=True)
    (state / "holding" / "cpu.json").write_text(text)
    assert heartbeat.remains(CPU) is None


def test_a_full_disk_does_not_keep_a_run_from_being_measured(state):
    (state / "holding").write_text("no folder")
    with Holding(LEASE, CPU) as held:
        held.code_starts()
    assert held.in_code
