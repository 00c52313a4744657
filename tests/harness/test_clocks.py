"""No test compares the time that something took with a limit that a busy machine exceeds."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent
CLOCKS = {"time.monotonic", "time.perf_counter", "time.time"}
LEAST_S = 30  # of a limit; count CPU time, events or the seconds of an injected clock for less


def short_limits(text: str) -> Iterator[int]:
    """The lines that assert `clock() - began < limit` with a number below `LEAST_S`."""
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Assert):
            continue
        for compared in ast.walk(node.test):
            if isinstance(compared, ast.Compare) and isinstance(compared.ops[0], ast.Lt | ast.LtE):
                limit = compared.comparators[0]
                short = isinstance(limit, ast.Constant) and isinstance(limit.value, int | float)
                if short and limit.value < LEAST_S and _took(compared.left):
                    yield node.lineno


def _took(value: ast.expr) -> bool:
    """Whether this is the time since something."""
    return (
        isinstance(value, ast.BinOp)
        and isinstance(value.op, ast.Sub)
        and isinstance(value.left, ast.Call)
        and ast.unparse(value.left.func) in CLOCKS
    )


def test_no_test_asserts_that_something_took_less_than_half_a_minute() -> None:
    files = [file for file in TESTS.rglob("*.py") if "- began" in file.read_text()]
    assert len(files) > 5
    found = [f"{file.relative_to(TESTS)}:{line}" for file in files for line in short_limits(file.read_text())]
    assert found == []


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("assert time.monotonic() - began < 5", [1]),
        ("assert done and time.perf_counter() - began <= 0.2, 'slow'", [1]),
        ("assert time.monotonic() - began < 60", []),
        ("assert time.monotonic() - began > 5", []),
        ("assert clock.now() - began < 5", []),
        ("while time.monotonic() - began < 5:\n    pass", []),
    ],
)
def test_limits_are_found(text: str, lines: list[int]) -> None:
    assert list(short_limits(text)) == lines
