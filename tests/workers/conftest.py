"""A repository of norms as small as it can be, and the interpreter of these tests as base environment."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from service.models import TargetKind
from service.settings import settings
from service.sources import Source, open_source
from workers import environments


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
