"""The ids that pytest really gives, and those that are read from the source."""

import subprocess
import sys
from pathlib import Path

from kernels.functions import label_of
from service.domain.adopt.recipe import find

# Each test has at most four cases, so that all of them are in a recipe.
SOURCE = """\
import enum
import functools

import pytest

SIZES = [(1, 128), (8, 4096)]
HALVES = [size // 2 for _, size in SIZES]


def relu(x):
    return x


@pytest.mark.parametrize("outer", [True, None])
@pytest.mark.parametrize("inner", [1.5, "a-b"])
def test_stacked(benchmark, inner, outer): ...


@pytest.mark.parametrize(("rows", "cols"), SIZES)
def test_pairs(benchmark, rows, cols): ...


@pytest.mark.parametrize("rows, cols", SIZES, ids=["small", "large"])
def test_named(benchmark, rows, cols): ...


@pytest.mark.parametrize("shape", SIZES)
def test_tuples(benchmark, shape): ...


@pytest.mark.parametrize("half", HALVES)
def test_computed(benchmark, half): ...


@pytest.mark.parametrize("function", [relu])
def test_functions(benchmark, function): ...


@pytest.mark.parametrize("x,y", [pytest.param(1, 2, id="one_two"), pytest.param(3, 4), (5, 6)])
def test_param(benchmark, x, y): ...


@pytest.mark.parametrize("x", [{"a": 1}, [1]], ids=[None, "list"])
def test_objects(benchmark, x): ...


@pytest.mark.parametrize(argnames=["x"], argvalues=[(7,)])
def test_keywords(benchmark, x): ...


@pytest.mark.parametrize("of_class", ["c"])
class TestClass:
    @pytest.mark.parametrize("own", [1, 2])
    def test_method(self, benchmark, own, of_class): ...

    def test_plain(self, benchmark, of_class): ...


def test_alone(benchmark): ...
"""
HIDDEN = """\
import pytest
from somewhere import SIZES, Colour

@pytest.mark.parametrize("x", SIZES)
def test_imported(benchmark, x): ...

@pytest.mark.parametrize("x", [Colour.RED])
def test_member(benchmark, x): ...

@pytest.mark.parametrize("x", [1, 2], ids=lambda x: f"{x}!")
def test_made(benchmark, x): ...

@pytest.mark.parametrize("x", [1, 1])
def test_equal(benchmark, x): ...
"""


def test_ids_are_those_of_pytest(tmp_path: Path):
    (tmp_path / "test_ids.py").write_text(SOURCE)
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "test_ids.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    collected = [line.removesuffix("]").partition("[") for line in done.stdout.splitlines() if "::" in line]
    assert len(collected) > 20, done.stdout

    candidates = find({"test_ids.py": SOURCE}, ["test_ids.py"]).all
    read = sorted((candidate.entry["test"], case) for candidate in candidates for case in candidate.cases)
    assert read == sorted((test, label_of(label) if label else "-") for test, _, label in collected)


def test_ids_that_only_running_shows_are_left_to_the_reader():
    candidates = find({"test_hidden.py": HIDDEN}, ["test_hidden.py"])
    assert len(candidates.all) == 4
    assert not candidates.taken
