"""Functions in threads of their own: what happens to them when a request is cancelled."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from service.api.common import in_thread_of


def test_a_cancelled_caller_waits_for_the_function_that_has_started_and_starts_no_other() -> None:
    """The connection of a thread must be back in its pool before the service disconnects from the database."""
    started, events = threading.Event(), list[str]()

    def work(name: str) -> None:
        started.set()
        time.sleep(0.1)
        events.append(name)

    async def story(threads: ThreadPoolExecutor) -> None:
        callers = [asyncio.create_task(in_thread_of(threads, work, name)) for name in ("first", "second")]
        await asyncio.to_thread(started.wait)
        for caller in callers:
            caller.cancel()
        for caller in callers:
            with pytest.raises(asyncio.CancelledError):
                await caller
        assert events == ["first"]

    with ThreadPoolExecutor(1) as threads:
        asyncio.run(story(threads))
    assert events == ["first"]


def test_an_error_of_the_function_is_raised_for_the_caller() -> None:
    with ThreadPoolExecutor(1) as threads, pytest.raises(ZeroDivisionError):
        asyncio.run(in_thread_of(threads, divmod, 1, 0))
