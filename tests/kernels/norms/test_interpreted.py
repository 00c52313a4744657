"""Findings of the interpreter are kept, failures among them, until a source changes."""

import pytest

from . import interpreted
from .interpreted import hashes, imported, keep, kept

FOUND = {"right": {"a trial": 3.5}, "properties": {"linear": "AssertionError: 2 is not 1"}}


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setattr(interpreted, "ROOT", tmp_path)
    (tmp_path / "kernel.py").write_text("right = True\n")
    (tmp_path / "trials.py").write_text("import kernel\n")
    return tmp_path / "build" / "findings.json"


def found():
    return {"sources": hashes(["kernel.py", "trials.py"]), "findings": FOUND}


def test_without_a_change_they_are_the_same(file):
    assert kept(file) is None

    keep(file, found(), began=2e9)

    assert kept(file) == FOUND
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize("name", ["kernel.py", "trials.py"])
@pytest.mark.parametrize("text", ["right = False\n", None])
def test_nothing_is_known_of_another_source(file, tmp_path, name, text):
    keep(file, found(), began=2e9)

    if text is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_text(text)

    assert kept(file) is None


def test_nothing_is_known_of_another_version(file, monkeypatch):
    keep(file, found(), began=2e9)

    monkeypatch.setattr(interpreted, "version", lambda name: "3.8.0" if name == "triton" else "2")

    assert kept(file) is None


def test_what_changed_meanwhile_is_not_kept(file, tmp_path):
    keep(file, found(), began=(tmp_path / "kernel.py").stat().st_mtime - 1)

    assert kept(file) is None


def test_a_file_that_was_cut_off_is_nothing(file):
    keep(file, found(), began=2e9)
    file.write_text(file.read_text()[:-9])

    assert kept(file) is None


def test_sources_are_those_of_the_checkout():
    sources = set(imported())

    assert {"tests/kernels/norms/interpreted.py", "kernels/__init__.py"} <= sources
    assert not [one for one in sources if "site-packages" in one]
