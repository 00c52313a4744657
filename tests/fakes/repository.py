"""A real repository on disk that tests commit to, and what a source needs to know of a target."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from service.domain.states import ForgeKind, TargetKind
from workers.sandbox import sandbox

# How a test registers its own target, so that it is measured on a machine without a sandbox as well.
MEASURED_ANYWHERE = {"trusted": True, "allow_unsandboxed": True} if sandbox.self_test() else {}


@dataclass
class Target:
    location: str
    name: str = "norms"
    kind: TargetKind = TargetKind.GIT
    package: str | None = None
    forge_kind: ForgeKind | None = None


class Repository:
    """A real repository on disk that tests write commits into; made where there is none."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        if not folder.exists():
            folder.mkdir(parents=True)
            self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments: str, given: str | None = None) -> str:
        who = {
            f"GIT_{role}_{part}": "ada@example.org" for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")
        }
        environment = {**os.environ, **who, "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1"}
        command = ["git", "-C", str(self.folder), *arguments]
        return subprocess.run(
            command, env=environment, input=given, check=True, capture_output=True, text=True
        ).stdout.strip()

    def commit(self, subject: str, files: dict[str, str] | None = None) -> str:
        for path, text in (files or {}).items():
            target = self.folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", subject)
        return self.git("rev-parse", "HEAD")

    def link(self, path: str, target: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).symlink_to(target)
