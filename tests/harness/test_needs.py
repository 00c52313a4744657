"""Declared skips: what a machine says that it lacks may skip, and nothing else."""

from pathlib import Path

import pytest

from tests.needs import VARIABLE, DeclaredSkips

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]

CONFTEST = """
from tests import needs

def pytest_configure(config):
    needs.watch_skips(config)
"""
TESTS = """
import pytest
from tests import needs

@needs.skip_unless(False, "gpu")
def test_by_mark():
    assert False

def test_by_call():
    needs.skip("gpu", "no driver")

def test_runs():
    pass

@pytest.mark.xfail(strict=True)
def test_expected_to_fail():
    assert False
"""


@pytest.fixture
def session(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_one=TESTS)
    return pytester


def test_without_a_declaration_a_skip_is_only_a_skip(session, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    session.makepyfile(test_two="import pytest\ndef test_other():\n    pytest.skip('for fun')\n")
    result = session.runpytest_inprocess()
    assert result.ret == 0
    result.assert_outcomes(passed=1, skipped=3, xfailed=1)


def test_a_machine_without_a_gpu_has_no_two():
    assert DeclaredSkips("gpu,root").lacks == {"gpu", "root", "two-gpus"}
    assert DeclaredSkips("root").lacks == {"root"}


@pytest.mark.parametrize("processes", [[], ["-p", "xdist", "-n", "2"]], ids=["alone", "xdist"])
def test_a_declared_skip_passes_and_any_other_fails_the_session_by_name(session, monkeypatch, processes):
    monkeypatch.setenv(VARIABLE, "gpu,root")
    assert session.runpytest_subprocess(*processes).ret == 0

    session.makepyfile(
        test_two="import pytest\ndef test_other():\n    pytest.skip('for fun')\n",
        test_three="import pytest\npytest.importorskip('a_module_nobody_has', reason='cannot be imported')\n",
        test_four="from tests import needs\n@needs.skip_unless(False, 'chromium')\ndef test_page():\n    pass\n",
    )
    result = session.runpytest_subprocess(*processes)
    assert result.ret == 1
    result.stdout.fnmatch_lines_random(
        [
            "*tests that skip for undeclared reasons*",
            "test_two.py::test_other: for fun",
            "test_three.py: *cannot be imported*",
            "test_four.py::test_page: needs chromium: install *",
            f"This machine declares ({VARIABLE}): gpu, root, two-gpus.",
        ]
    )
    result.stdout.no_fnmatch_line("test_one.py::*needs gpu*")


def test_an_empty_declaration_allows_no_skip(session, monkeypatch):
    monkeypatch.setenv(VARIABLE, "")
    result = session.runpytest_inprocess()
    assert result.ret == 1
    result.stdout.fnmatch_lines(["test_one.py::test_by_mark: needs gpu: *", "*This machine declares*: nothing."])


def test_a_declared_need_that_nobody_knows_is_refused(session, monkeypatch):
    monkeypatch.setenv(VARIABLE, "gpu,gpus")
    result = session.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: {VARIABLE} names gpus; known: buildah, *"])
