"""A checkout as CI systems fetch it, and the command with nothing but the client's requirements."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.project.test_wheel import FILES, ROOT, SOURCES

CHECKED_OUT = (*SOURCES, *FILES, "action.yml", "ci")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with a commit of the working tree."""
    folder = tmp_path_factory.mktemp("checkout") / "kernelwatch"
    folder.mkdir()
    for name in CHECKED_OUT:
        path = ROOT / name
        if path.is_dir():
            shutil.copytree(path, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(path, folder / name)
    author = "-c user.name=Ada -c user.email=ada@example.org"
    for command in ("init --quiet --initial-branch=main", "add .", f"{author} commit --quiet --message 1"):
        subprocess.run(["git", *command.split()], cwd=folder, check=True)
    return folder
