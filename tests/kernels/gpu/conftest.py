"""Where there is no GPU, no file of this folder is imported: that takes seconds, and its tests would skip anyway.

`make skipped` imports them anywhere, to count them.
"""

import ast
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import skipped


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    wanted = shutil.which("nvidia-smi") or skipped.WRITE in os.environ
    return None if wanted else Unimported.from_parent(parent, path=module_path)


class Unimported(pytest.File):
    """The test functions that the text of a file has, each once, whatever its parameters."""

    def collect(self) -> Iterator[pytest.Item]:
        for one in ast.parse(self.path.read_bytes()).body:
            if isinstance(one, ast.FunctionDef) and one.name.startswith("test_"):
                yield OfAGpu.from_parent(self, name=one.name, line=one.lineno - 1)


class OfAGpu(pytest.Item):
    """A test that skips, because of its mark (tests/conftest.py, which reads the two names)."""

    module, fixturenames = None, ()

    def __init__(self, *, line: int, **named: object) -> None:
        super().__init__(**named)
        self._line = line
        self.add_marker("gpu")

    def reportinfo(self) -> tuple[Path, int, str]:
        return self.path, self._line, self.name

    def runtest(self) -> None:
        raise AssertionError("not imported: there was no GPU")
