"""The stored list of what marks and lacks leave out is that of the tests."""

from pathlib import Path

import pytest

from tests import needs, skipped

pytest_plugins = ["pytester"]


@pytest.mark.whole
def test_the_list_is_that_of_the_collected_tests(request: pytest.FixtureRequest) -> None:
    """Run `make skipped` and look at the difference: each line is a test that a run leaves out, or no longer does."""
    found, files = request.config.stash[skipped.FOUND], request.config.stash[skipped.FILES]
    before = skipped.stored()
    assert skipped.merged(before, found, files) == before
    assert skipped.written(before) == skipped.LIST.read_text()


TESTS = """
import pytest
from tests import needs

def absent():
    needs.skip("nginx")

@pytest.fixture
def server():
    absent()

@pytest.fixture(params=["sqlite", "postgres"])
def either(request):
    return request.param

@pytest.mark.long
@pytest.mark.parametrize("n", range(3))
def test_one(n):
    pass

@needs.skip_unless(True, "gpu")
def test_two(server):
    pass

def test_three(either):
    if either == "nothing":
        needs.skip("root")

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.attack)])
def test_four(n):
    pass
"""


def test_marks_and_needs_are_counted_whether_they_skip_or_not(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(skipped.ROOT))
    monkeypatch.setattr(skipped, "ROOT", pytester.path)
    pytester.makeini("[pytest]\nmarkers = long\n attack\n")
    pytester.makepyfile(test_some=TESTS.replace("def absent", "absent = None\ndef absent"))
    items, _ = pytester.inline_genitems()
    assert skipped.counted(items) == {
        "attack": {"test_some.py": 1},
        "gpu": {"test_some.py": 1},
        "long": {"test_some.py": 3},
        "postgresql": {"test_some.py": 1},
        "root": {"test_some.py": 2},
    }


def ask() -> None:
    needs.skip("nginx")


def test_a_need_that_another_function_of_the_tests_asks_for_counts() -> None:
    def outer() -> None:
        ask()

    assert list(skipped.asked_by(outer)) == ["nginx"]


def test_a_file_that_is_not_collected_here_keeps_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skipped, "ROOT", tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).touch()
    before = {"gpu": {"a": 3, "b": 1, "deleted": 4}, "long": {"a": 2}}
    found = {"long": {"a": 5}, "root": {"a": 1}}
    assert skipped.merged(before, found, frozenset({"a"})) == {"gpu": {"b": 1}, "long": {"a": 5}, "root": {"a": 1}}


@pytest.mark.parametrize(
    "narrowed", [["tests/harness/test_needs.py"], ["-k", "one"], ["-m", "not torch"], ["--ignore", "x"]]
)
def test_a_narrowed_run_is_not_compared_with_the_counts(pytester: pytest.Pytester, narrowed: list[str]) -> None:
    pytester.makeini("[pytest]\ntestpaths = tests\n")
    (pytester.path / "tests").mkdir()
    (pytester.path / "tests" / "test_needs.py").touch()
    assert skipped.is_whole(pytester.parseconfigure())
    assert not skipped.is_whole(pytester.parseconfigure(*narrowed))
