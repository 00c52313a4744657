"""Which tests take so long that they run at night: `slow.txt`, written from measured durations.

A test in the list has the mark `long`, unless it is marked `every_run` because the main job depends on it.  The time
of a test is that of its call and of its own fixtures; a fixture that it shares with other tests is none of its own.

Measure again with `make slow`, on two idle cores.
"""

import os
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

LIST = Path(__file__).parent / "slow.txt"
WRITE = "KERNELWATCH_WRITE_SLOW"
SLOW_S, LONGEST_S = 2.0, 10.0
SHARED = "seconds of shared fixtures"
HEAD = f"""# Tests that take more than {SLOW_S:g} s, which run at night (tests/slow.py).  Written by `make slow`.
# A change of this file is a decision: look at each line of its difference.
"""


def stored() -> frozenset[str]:
    """The ids of the slow tests; without parameters where every variant of a test is slow."""
    return frozenset(line for line in LIST.read_text().splitlines() if line and not line.startswith("#"))


def mark(items: list[pytest.Item]) -> None:
    """Give the tests of the list their mark."""
    slow = stored()
    for item in items:
        if slow & {item.nodeid, item.nodeid.partition("[")[0]} and not item.get_closest_marker("every_run"):
            item.add_marker("long")


class Durations:
    """Measures every test of a session, and writes the list at its end.

    Tests that did not run keep their place in it.  A file all of whose tests are slow keeps the quickest in every run,
    if that takes no more than LONGEST_S.
    """

    def __init__(self) -> None:
        self._shared: dict[str, float] = defaultdict(float)
        self._took: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> Iterator[None]:
        began = time.perf_counter()
        try:
            return (yield)
        finally:
            if fixturedef.scope != "function":
                self._shared[os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0]] += time.perf_counter() - began

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Iterator[None]:
        report = yield
        report.user_properties = [*report.user_properties, (SHARED, self._shared.pop(item.nodeid, 0.0))]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[report.nodeid] += report.duration - sum(
            float(str(value)) for name, value in report.user_properties if name == SHARED
        )

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if getattr(session.config, "workerinput", None) is None:
            LIST.write_text(written(self._took))


def written(took: dict[str, float]) -> str:
    """The list, for the seconds of each test that ran."""
    files = defaultdict[str, dict[str, float]](dict)
    for test, seconds in took.items():
        files[test.split("::")[0]][test] = seconds
    measured = {each for test in took for each in (test, test.partition("[")[0])}
    slow = set(stored()) - measured if LIST.exists() else set()
    for tests in files.values():
        every = {test for test, seconds in tests.items() if seconds > SLOW_S}
        quickest = min(tests, key=tests.__getitem__)
        if len(every) == len(tests) and tests[quickest] <= LONGEST_S:
            every.discard(quickest)
        quick = {test.partition("[")[0] for test in set(tests) - every}
        slow |= {test if (function := test.partition("[")[0]) in quick else function for test in every}
    return HEAD + "".join(f"{test}\n" for test in sorted(slow))
