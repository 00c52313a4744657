"""Who is alone is alone, and is let in soon."""

import multiprocessing
import time
from multiprocessing.synchronize import Event
from pathlib import Path

from tests.turns import turn

SPAWN = multiprocessing.get_context("spawn")


def share(folder: Path, started: Event, stop: Event, log: Path) -> None:
    """Take short turns, one right after the other, and write down when each ended."""
    while not stop.is_set():
        with turn(folder, alone=False):
            started.set()
            time.sleep(0.02)
            with log.open("a") as file:
                file.write(f"{time.monotonic()}\n")


def test_who_is_alone_is_let_in_and_nobody_else_is_there(tmp_path):
    log = tmp_path / "log"
    (tmp_path / "turns").mkdir()
    stop = SPAWN.Event()
    started = [SPAWN.Event() for _ in range(2)]
    others = [SPAWN.Process(target=share, args=(tmp_path / "turns", event, stop, log)) for event in started]
    for other in others:
        other.start()
    try:
        assert all(event.wait(60) for event in started)
        with turn(tmp_path / "turns", alone=True):
            began = time.monotonic()
            time.sleep(0.3)
            ended = time.monotonic()
            inside = log.read_text()
        time.sleep(0.2)
    finally:
        stop.set()
        for other in others:
            other.join(60)
    times = [float(line) for line in log.read_text().splitlines()]
    assert not [one for one in times if began < one < ended]
    assert len(times) > len(inside.splitlines()), "they went on afterwards"
