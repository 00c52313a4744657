"""A repository of norms as small as it can be, and base environments: these tests' interpreter and a scripted one."""

import json
import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.database import transaction
from service.ledger import targets
from service.models import TargetKind
from service.settings import settings
from service.sources import Source, open_source
from workers import environments

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
looks = [2]
rounds = 4
"""


@dataclass
class Target:
    location: str
    name: str = "norms"
    kind: TargetKind = TargetKind.GIT
    package: str | None = None


class Norms:
    """A target's repository that tests commit to, and its source."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True)
        self._git("init", "--quiet", "--initial-branch=main")

    def commit(self, files: dict[str, str]) -> str:
        for path, text in files.items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self._git("add", "--all")
        self._git("-c", "user.name=Ada", "-c", "user.email=ada@example.org", "commit", "--quiet", "-m", "a change")
        return self._git("rev-parse", "HEAD")

    def link(self, path: str, target: str) -> None:
        (self.folder / path).symlink_to(target)

    @property
    def source(self) -> Source:
        return open_source(Target(str(self.folder)))

    def _git(self, *arguments: str) -> str:
        environment = {**os.environ, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


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
    python = tmp_path / "stack" / "python"
    python.parent.mkdir()
    script = Path(__file__).parent.parent / "fakes" / "scripted_python.py"
    python.write_text(f"#!{sys.executable}\n{script.read_text()}")
    python.chmod(python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    environments.adopt_stack("scripted", python, [])


@pytest.fixture
def watched(scripted, norms):
    """A watched repository; its commits are measured only when a test says so."""
    with transaction() as database:
        targets.register(database, "norms", location=str(norms.folder), branch="main", recipe_text=RECIPE)
    return norms
