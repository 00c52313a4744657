"""Attacks on the running service, the sandbox and the measurement.  Each records what it saw.

Quick attacks run with all other tests.  Long ones are marked `attack`; `make attack` runs both and writes the table to
build/attacks.md.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

HELD, BROKEN = "held", "BROKEN"
Outcome = Callable[..., None]


@pytest.fixture
def outcome(request: pytest.FixtureRequest) -> Outcome:
    """Record one row of the table and fail the test if the attack succeeded.

    `wall` names the protection and `attack` what was tried; `seen` is what happened, with its figures; `goal` is what
    had to happen.
    """

    def record(wall: str, attack: str, *, held: bool, seen: object, goal: str) -> None:
        row = (wall, attack, goal, str(seen), HELD if held else BROKEN)
        request.node.user_properties.append(("attack", row))
        assert held, f"{attack}: {seen} (goal: {goal})"

    return record


class Table:
    """Collects the rows of all tests, prints them, and writes them as Markdown."""

    def __init__(self, file: Path | None) -> None:
        self._file = file
        self._rows: list[tuple[str, ...]] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self._rows += [tuple(row) for name, row in report.user_properties if name == "attack"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._rows or self._file is None:
            return
        lines = ["| wall | attack | goal | seen | |", "|---|---|---|---|---|"]
        lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in sorted(self._rows)]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text("\n".join(lines) + "\n")
        terminalreporter.section("attacks")
        for line in lines[2:]:
            terminalreporter.line(line)
        broken = sum(row[-1] == BROKEN for row in self._rows)
        terminalreporter.line(f"{len(self._rows)} attacks, {broken} succeeded; table in {self._file}")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(config.getoption("--attack-table", None)))
