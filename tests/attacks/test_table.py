"""The table of attacks: a row for each outcome, also for attacks that succeed."""

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]
ATTACKS = Path(__file__).parent


def test_the_table_has_a_row_for_each_attack_and_a_success_fails_the_test(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makeconftest((ATTACKS / "conftest.py").read_text())
    pytester.makepyfile(
        """
        def test_one(outcome):
            outcome("disk", "a full disk", held=True, seen="1 | 2 MiB", goal="64 MiB")

        def test_two(outcome):
            outcome("clock", "a slow clock", held=False, seen=0.5, goal="1.0")
        """
    )
    table = tmp_path / "table.md"
    config = "def pytest_addoption(parser):\n    parser.addoption('--attack-table', type=__import__('pathlib').Path)\n"
    (pytester.path / "conftest.py").write_text((ATTACKS / "conftest.py").read_text() + "\n" + config)
    done = pytester.runpytest_subprocess("--attack-table", str(table), "-p", "no:xdist", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=1)
    assert table.read_text().splitlines()[2:] == [
        "| clock | a slow clock | 1.0 | 0.5 | BROKEN |",
        "| disk | a full disk | 64 MiB | 1 \\| 2 MiB | held |",
    ]
