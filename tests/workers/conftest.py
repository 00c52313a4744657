"""A repository of norms as small as it can be, and base environments: these tests' interpreter and a scripted one."""

import json
import sys
from pathlib import Path

import pytest

from service.db.engine import transaction
from service.ledger import targets
from service.settings import settings
from service.sources import open_source
from service.sources.source import Source
from tests.fakes.processes import scripted_python
from tests.fakes.repository import MEASURED_ANYWHERE, Repository, Target
from workers.machine import environments

CASE = "rmsnorm.fwd.4x8.fp32"
RECIPE = f"""
devices = ["cpu"]
suite = "one"
sota = "eager"
[base]
stack = "scripted"
[build]
commands = ["test ! -e broken"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suites]
one = ["{CASE}"]
[policy]
screening = [2]
rounds = 4
"""


class Norms(Repository):
    """A target's repository that tests commit to, and its source."""

    def commit(self, files: dict[str, str]) -> str:
        return super().commit("a change", files)

    @property
    def source(self) -> Source:
        return open_source(Target(str(self.folder)))


@pytest.fixture
def norms(tmp_path, monkeypatch):
    """A repository under an allowed root, a state folder, and the stack `host`."""
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}"]')
    settings.cache_clear()
    environments.adopt_stack("host", Path(sys.executable), [])
    yield Norms(tmp_path / "norms")
    settings.cache_clear()


@pytest.fixture
def scripted(state, tmp_path, monkeypatch) -> None:
    """The stack `scripted`, whose interpreter reads its timings from the revision's `speed.json`."""
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    environments.adopt_stack("scripted", scripted_python(tmp_path / "stack"), [])


@pytest.fixture
def watched(scripted, norms):
    """A watched repository; its commits are measured only when a test says so."""
    with transaction() as database:
        where = {"location": str(norms.folder), "branch": "main"}
        targets.register(database, "norms", recipe_text=RECIPE, **where, **MEASURED_ANYWHERE)
    return norms
