"""The periodic tasks of control, for tests that drive them themselves."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from service.ledger.bisections import advance
from service.ledger.intake import deliveries
from workers import control


def run_control() -> None:
    """Run every periodic task but polls once, one after another, until what each has begun is done.

    Reports come last, so that they tell what the others did.
    """
    deliveries.process_due()
    for lane in sorted(control.LANES, key=lambda lane: lane.name in ("reports", "notices")):
        if lane.name == "bisections":
            advance.advance_due()
        elif lane.name != "polls":
            lane.run()


@contextmanager
def running_control() -> Iterator[None]:
    """Control runs as in its process, until the end of the block."""
    threads = control.start()
    try:
        yield
    finally:
        control.stopping.set()
        control.wake()
        _join(threads)
        until_idle()
        control.stopping.clear()


def until_idle() -> None:
    """Wait for what works for a repository: it would go on with the database, and the listeners, of what follows."""
    _join([thread for thread in threading.enumerate() if thread.name in ("poll", "deliveries", "bisections")])


def _join(threads: Iterable[threading.Thread]) -> None:
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()


def happens(what: Callable[[], bool], within_s: float = 60.0) -> bool:
    """Whether it happens in time."""
    ends = time.monotonic() + within_s
    while not what():
        if time.monotonic() > ends:
            return False
        time.sleep(0.05)
    return True
