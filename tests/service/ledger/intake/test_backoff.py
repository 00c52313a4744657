"""What failed often in a row waits longer, and a success begins the count again."""

from types import SimpleNamespace

import pytest

from service.ledger.locking import WAITS_S, Backoff


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    clock = [0.0]
    monkeypatch.setattr("service.ledger.locking.time", SimpleNamespace(monotonic=lambda: clock[0]))
    return clock


def test_each_failure_in_a_row_waits_as_long_as_it_says(now: list[float]) -> None:
    backoff = Backoff()
    for wait_s in (*WAITS_S, WAITS_S[-1]):
        backoff.failed("mirror")
        if wait_s:
            now[0] += wait_s - 0.5
            assert backoff.should_skip("mirror"), wait_s
            now[0] += 0.5
        assert not backoff.should_skip("mirror"), wait_s
        assert not backoff.should_skip("another")


def test_a_success_begins_the_count_again(now: list[float]) -> None:
    backoff = Backoff()
    for _ in WAITS_S:
        backoff.failed("mirror")
    assert backoff.should_skip("mirror")
    backoff.succeeded("mirror")
    assert not backoff.should_skip("mirror")
    backoff.failed("mirror")
    assert not backoff.should_skip("mirror"), "the first failure waits for nothing"


def test_the_longest_wait_is_bounded(now: list[float]) -> None:
    backoff = Backoff()
    for _ in WAITS_S:
        backoff.failed("forge", longest_s=60.0)
    now[0] += 60.0
    assert not backoff.should_skip("forge")
