"""Build the demo repository: the commits of `commits/`, with the same ids on every machine."""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

PULL = 7
COMMITS = Path(__file__).parent / "commits"
_FIRST_COMMIT = 1_780_300_800  # 2026-06-01 08:00 UTC; one commit an hour from there
_AUTHOR = ("Ada Norman", "ada@example.org")


def build(folder: Path) -> Path:
    """Make the repository in `folder` (nothing is done when it is there already) and return `folder`."""
    if (folder / ".git").exists():
        return folder
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    _git(unfinished, "init", "--quiet", "--initial-branch=main", "--template=")
    made: dict[str, str] = {}
    for number, commit in enumerate(commits()):
        made[commit["name"]] = _commit(unfinished, commit, made, _FIRST_COMMIT + 3600 * number)
    unfinished.replace(folder)  # an interrupted build leaves no half repository behind
    return folder


def is_built(folder: Path) -> bool:
    """Does the repository have exactly the branches and commits that `build` makes?  Ids cover every byte."""
    with tempfile.TemporaryDirectory(prefix="kernelwatch-") as fresh:
        return _references(build(Path(fresh) / "demo")) == _references(folder)


def _references(repository: Path) -> str:
    return _git(repository, "for-each-ref", "--format=%(refname) %(objectname)") + _git(repository, "rev-parse", "HEAD")


def commits() -> list[dict[str, Any]]:
    """The commits to be made, oldest first, as `commits.toml` says."""
    listed: list[dict[str, Any]] = tomllib.loads((COMMITS / "commits.toml").read_text())["commit"]
    return listed


def shas(folder: Path) -> dict[str, str]:
    """The commit ids of the built repository by the names of `commits.toml`."""
    found = dict(line.split(" ", 1) for line in _git(folder, "log", "--all", "--format=%H %s").splitlines())
    subjects = {subject: sha for sha, subject in found.items()}
    return {commit["name"]: subjects[commit["subject"]] for commit in commits()}


def _commit(repository: Path, commit: dict[str, Any], made: dict[str, str], when: int) -> str:
    if "back_to" in commit:
        _git(repository, "read-tree", "-u", "--reset", made[commit["back_to"]])
    else:
        compiled = shutil.ignore_patterns("__pycache__")
        shutil.copytree(COMMITS / commit["folder"], repository, dirs_exist_ok=True, ignore=compiled)
        _git(repository, "add", "--all")
    off_the_mainline = "ref" in commit
    if off_the_mainline:
        _git(repository, "checkout", "--quiet", "--detach")
    _git(repository, "commit", "--quiet", "--message", commit["subject"], when=when)
    sha = _git(repository, "rev-parse", "HEAD").strip()
    if off_the_mainline:
        _git(repository, "update-ref", commit["ref"], sha)
        _git(repository, "checkout", "--quiet", "main")
    return sha


def _git(repository: Path, *arguments: str, when: int = _FIRST_COMMIT) -> str:
    """Run git without user settings: hooks, signing or line endings of this machine must not change the ids."""
    who = (("NAME", _AUTHOR[0]), ("EMAIL", _AUTHOR[1]))
    environment = {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_GLOBAL": os.devnull,
        **{f"GIT_{role}_{part}": value for role in ("AUTHOR", "COMMITTER") for part, value in who},
        "GIT_AUTHOR_DATE": f"@{when} +0000",
        "GIT_COMMITTER_DATE": f"@{when} +0000",
    }
    command = ["git", "-c", "core.autocrlf=false", "-c", "core.fileMode=false", *arguments]
    done = subprocess.run(command, cwd=repository, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"git {arguments[0]} failed in {repository}: {done.stderr.strip()}")
    return done.stdout


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
