"""Targets are added, changed and removed as wholes: what is refused leaves database and folders as they were."""

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service import cli
from service.database import reading
from service.errors import ServiceError
from service.ledger import registry, targets
from service.models import Base, Run
from service.settings import settings
from tests.fakes.repository import Repository

RECIPE = """
devices = ["cpu"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""


@pytest.fixture
def norms(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A repository with two commits, which brings a recipe."""
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    repository = Repository(tmp_path / "norms")
    repository.commit("first", {"norms.py": "", "kernelwatch.toml": RECIPE})
    repository.commit("second", {"norms.py": "# quicker"})
    return repository


def rows() -> dict[str, int]:
    with reading() as session:
        tables = Base.metadata.sorted_tables
        return {one.name: session.scalar(select(func.count()).select_from(one)) or 0 for one in tables}


def mirrors() -> set[str]:
    """What is kept of origins, without what all mirrors share."""
    found = (settings().state / "mirrors").glob("*")
    return {path.name for path in found if path.name != "gitconfig" and path.suffix != ".lock"}


def test_a_target_is_added_with_its_newest_revisions(norms: Repository) -> None:
    assert registry.add("norms", location=str(norms.folder), backfill=2) == 2
    with reading() as session:
        assert targets.target_named(session, "norms").recipe_from_branch
        assert session.scalar(select(func.count()).select_from(Run)) == 2
    assert len(mirrors()) == 1


def _bad(files: Mapping[str, str] | None = None, **named: Any) -> dict[str, Any]:
    return {"files": files, **named}


@pytest.mark.parametrize(
    ("case", "why"),
    [
        (_bad(recipe="devices = []"), "The recipe has mistakes"),
        (_bad(recipe='adapters = ["missing.py"]' + RECIPE), "missing.py"),
        (_bad(files={"kernelwatch.toml": "devices = []"}), "The recipe has mistakes"),
        (_bad(files={"kernelwatch.toml": 'adapters = ["gone.py"]' + RECIPE}), "adapters that are not there: gone.py"),
        (_bad(files={"kernelwatch.toml": "\udce9"}), "is not text in UTF-8"),
        (_bad(location="empty"), "The repository is empty: push a first commit"),
        (_bad(location="empty", recipe=RECIPE, backfill="0"), "The repository is empty: push a first commit"),
        (_bad(location="empty", recipe=RECIPE, branch="main"), "The repository is empty: push a first commit"),
        (_bad(location="nothing", recipe=RECIPE), "does not exist, is no git repository, or is not public"),
        (_bad(location="/etc", recipe=RECIPE), "KERNELWATCH_ALLOWED_ROOTS"),
        (_bad(location="https://127.0.0.1:9/norms", recipe=RECIPE), "127.0.0.1"),
        (_bad(branch="nope", recipe=RECIPE), "No branch nope"),
        (_bad(forge="github.com/acme/norms", recipe=RECIPE), "is not owner/name"),
        (_bad(name="No Name", recipe=RECIPE), "cannot be a target's name"),
        (_bad(location="wheels", package="norms", recipe=RECIPE), "No wheel of norms"),
        (_bad(location="wheels", package="no/rms", recipe=RECIPE), "is not the name of a package"),
    ],
)
def test_a_refused_add_changes_nothing(norms: Repository, tmp_path: Path, case: dict[str, Any], why: str) -> None:
    """Neither a row nor a mirror is left, and the name is free for the next try."""
    _folders(tmp_path)
    if files := case.pop("files"):
        for name, text in files.items():
            (norms.folder / name).write_bytes(text.encode(errors="surrogateescape"))
        norms.git("add", "--all")
        norms.git("commit", "--quiet", "--message", "Break the recipe")
    before = rows(), mirrors()

    done = _add(tmp_path, **case)
    assert (done.exit_code, str(done.exception)) == (2, str(done.exception))
    assert why in str(done.exception)
    assert (rows(), mirrors()) == before

    norms.commit("Repair it", {"kernelwatch.toml": RECIPE})
    assert _add(tmp_path).exit_code == 0


def test_a_refused_change_of_a_known_target_changes_nothing(norms: Repository, tmp_path: Path) -> None:
    _folders(tmp_path)
    assert _add(tmp_path, recipe=RECIPE).exit_code == 0
    before = rows(), mirrors(), _columns()
    for change in ({"recipe": "devices = []"}, {"branch": "nope", "recipe": RECIPE}, {"location": "empty"}):
        assert _add(tmp_path, **change).exit_code == 2
        assert (rows(), mirrors(), _columns()) == before


def _columns() -> dict[str, Any]:
    with reading() as session:
        row = targets.target_named(session, "norms")
        return {name: value for name, value in vars(row).items() if not name.startswith("_") and name != "recipe"}


def _folders(tmp_path: Path) -> None:
    for name in ("wheels", "empty", "nothing"):
        (tmp_path / name).mkdir()
    subprocess.run(["git", "init", "--quiet", "--initial-branch=main", str(tmp_path / "empty")], check=True)


class Done:
    """What the command line makes of a call: its exit code and the error that it prints."""

    def __init__(self, exit_code: int, exception: BaseException | None) -> None:
        self.exit_code, self.exception = exit_code, exception


def _add(tmp_path: Path, name: str = "norms", location: str = "norms", recipe: str | None = None, **named: str) -> Done:
    options = [part for option, value in named.items() for part in (f"--{option}", value)]
    if recipe is not None:
        (tmp_path / "recipe.toml").write_text(recipe)
        options += ["--recipe", str(tmp_path / "recipe.toml")]
    where = location if location.startswith(("/", "https:")) else str(tmp_path / location)
    return kernelwatch("target", "add", name, where, *options)


def kernelwatch(*arguments: str) -> Done:
    """The command's exit code, as `main` makes it of an error."""
    try:
        cli.app(arguments, standalone_mode=False)
    except ServiceError as error:
        return Done(2, error)
    return Done(0, None)
