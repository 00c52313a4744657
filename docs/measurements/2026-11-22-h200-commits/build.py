"""Make the repository of commits: `build.py FOLDER`.  The ids are the same on every machine.

first/ is its first commit, commits.toml has all others.
"""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).parent
FIRST = "import"
TAG = "v0.1"
_AUTHOR = ("Mira Okafor", "mira@warpnorm.example")
_BEGAN = 1_793_606_400  # one commit every two hours from there


def commits():
    """The commits after the first one, oldest first, as commits.toml has them."""
    return tomllib.loads((HERE / "commits.toml").read_text())["commit"]


def build(folder):
    """Make the repository in `folder`.  Returns the commit ids by name; pull requests are refs/pull/N/head."""
    folder.mkdir(parents=True)
    git(folder, "init", "--quiet", "--initial-branch=main", "--template=")
    shutil.copytree(HERE / "first", folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    made, edits = {FIRST: commit(folder, "Import warpnorm", 0)}, {}
    git(folder, "tag", TAG)
    for number, one in enumerate(commits(), 1):
        if "on" in one:
            git(folder, "checkout", "--quiet", "--detach", made[one["on"]])
        mine = [back for name in reversed(one.get("undo", [])) for back in undone(edits[name])] + one.get("edit", [])
        for edit in mine:
            change(folder / edit["path"], edit["old"], edit["new"], one["name"])
        message = one["subject"] + ("\n\n" + one["body"].strip() if "body" in one else "")
        made[one["name"]], edits[one["name"]] = commit(folder, message, number), mine
        if "on" in one:
            git(folder, "update-ref", f"refs/pull/{one['pull']}/head", made[one["name"]])
            git(folder, "checkout", "--quiet", "main")
    return made


def undone(edits):
    return [{"path": one["path"], "old": one["new"], "new": one["old"]} for one in reversed(edits)]


def change(path, old, new, name):
    text = path.read_text()
    if text.count(old) != 1:
        raise SystemExit(f"{name}: {path.name} has {text.count(old)} times {old!r}")
    path.write_text(text.replace(old, new))


def commit(folder, message, number):
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", message, when=_BEGAN + 7200 * number)
    return git(folder, "rev-parse", "HEAD").strip()


def git(folder, *words, when=_BEGAN):
    name, mail = _AUTHOR
    mine = {
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_AUTHOR_NAME": name,
        "GIT_AUTHOR_EMAIL": mail,
        "GIT_COMMITTER_NAME": name,
        "GIT_COMMITTER_EMAIL": mail,
        "GIT_AUTHOR_DATE": f"{when} +0000",
        "GIT_COMMITTER_DATE": f"{when} +0000",
    }
    done = subprocess.run(["git", *words], cwd=folder, env=mine, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    for name, sha in build(Path(sys.argv[1]).absolute()).items():
        print(sha, name)
