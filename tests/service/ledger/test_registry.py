"""Targets are added, changed and removed as wholes: what is refused leaves database and folders as they were."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from service import cli
from service.db.engine import reading, transaction
from service.db.models import Base, Run, Worker
from service.errors import ServiceError
from service.ledger import targets
from service.ledger.intake import deliveries, registry
from service.settings import settings
from tests.dashboards import seed_deciding
from tests.dashboards.asking import asking, words
from tests.fakes.contracts import webhooks
from tests.fakes.repository import Repository
from tests.shell import attempt

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
    """Numbers of rows by table, without the audit log, to which every change adds."""
    with reading() as session:
        tables = [one for one in Base.metadata.sorted_tables if one.name != "audit_entries"]
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
        (
            _bad(files={"kernelwatch.toml": 'adapters = ["gone.py"]' + RECIPE}),
            "recipe do not exist: gone.py",
        ),
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


def test_an_edit_changes_what_is_named(norms: Repository, tmp_path: Path) -> None:
    _add(tmp_path, recipe=RECIPE, forge="acme/norms")
    run = kernelwatch
    norms.git("branch", "release", "HEAD~1")
    assert run("target", "edit", "norms", "--branch", "release", "--trusted").exit_code == 0
    after = _columns()
    assert (after["branch"], after["trusted"], after["forge"]) == ("release", True, "acme/norms")
    assert run("target", "edit", "norms", "--branch", "", "--forge", "", "--recipe-from-branch").exit_code == 0
    after = _columns()
    assert (after["branch"], after["forge"], after["recipe_from_branch"]) == (None, None, True)
    norms.folder.rename(tmp_path / "moved")
    assert run("target", "edit", "norms", "--location", str(tmp_path / "moved")).exit_code == 0
    assert _columns()["location"] == str(tmp_path / "moved")
    assert len(mirrors()) == 1, "the copy of the old address is deleted"


def test_what_leaves_the_source_as_it_is_does_not_ask_for_it(
    norms: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _add(tmp_path, recipe=RECIPE)
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", "[]")
    settings.cache_clear()
    assert kernelwatch("target", "edit", "norms", "--private", "--forge", "acme/norms").exit_code == 0
    assert (_columns()["private"], _columns()["forge"]) == (True, "acme/norms")
    done = kernelwatch("target", "edit", "norms", "--recipe-from-branch")
    assert (done.exit_code, "allowed" in str(done.exception)) == (2, True), str(done.exception)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ([], "Nothing to change"),
        (["--branch", "nope"], "No branch nope"),
        (["--forge", "github.com/acme/norms"], "is not owner/name"),
        (["--location", "empty"], "The repository is empty: push a first commit"),
        (["--location", "nothing"], "does not exist, is no git repository"),
        (["--location", "other"], "does not have .*, the newest known revision of norms"),
        (["--recipe", "missing.toml"], "No such file"),
        (["--recipe", "wrong.toml"], "The recipe has mistakes"),
        (["--recipe", "right.toml", "--recipe-from-branch"], "not both"),
        (["--recipe-from-branch", "--branch", "bare"], "has no kernelwatch.toml"),
    ],
)
def test_a_refused_edit_changes_nothing(norms: Repository, tmp_path: Path, options: list[str], why: str) -> None:
    _folders(tmp_path)
    other = Repository(tmp_path / "other")
    other.commit("another history", {"kernelwatch.toml": RECIPE})
    (tmp_path / "wrong.toml").write_text("devices = []")
    (tmp_path / "right.toml").write_text(RECIPE)
    norms.git("checkout", "--quiet", "-b", "bare")
    norms.git("rm", "--quiet", "kernelwatch.toml")
    norms.git("commit", "--quiet", "--message", "No recipe")
    norms.git("checkout", "--quiet", "main")
    _add(tmp_path, recipe=RECIPE)
    before = rows(), mirrors(), _columns()

    named = [str(tmp_path / one) if (tmp_path / one).exists() or one == "missing.toml" else one for one in options]
    done = kernelwatch("target", "edit", "norms", *named)
    assert done.exit_code == 2
    assert re.search(why, str(done.exception))
    assert (rows(), mirrors(), _columns()) == before


def test_a_renamed_target_keeps_its_history(norms: Repository, tmp_path: Path) -> None:
    _add(tmp_path)
    before, first = rows(), _columns()["id"]
    assert kernelwatch("target", "rename", "norms", "No Name").exit_code == 2
    assert kernelwatch("target", "rename", "norms", "norms").exit_code == 2
    assert kernelwatch("target", "rename", "norms", "layers").exit_code == 0
    with reading() as session:
        assert targets.target_named(session, "layers").id == first
    assert rows() == before
    norms.commit("third", {"norms.py": "# third"})
    assert deliveries.poll(first)
    assert rows()["revisions"] == before["revisions"] + 1
    assert len(mirrors()) == 1


def test_a_paused_target_takes_nothing_new_until_it_resumes(norms: Repository, tmp_path: Path) -> None:
    _add(tmp_path, forge="acme/norms")
    before = rows()
    assert kernelwatch("target", "pause", "norms").exit_code == 0
    assert kernelwatch("target", "pause", "norms").exit_code == 2
    pushed = norms.commit("third", {"norms.py": "# third"})
    assert deliveries.poll_due() == 0
    body = webhooks.body_from_github("push", webhooks.push(webhooks.NO_COMMIT, pushed))
    with transaction() as session:
        stored, _ = deliveries.store_delivery(session, "one", "push", body)
    assert "norms: the target is paused" in deliveries.process_delivery(stored)
    assert rows() == before | {"deliveries": 1}
    ask = asking()
    assert "‖ paused" in words(ask("/"))
    assert re.search("Paused since .* kernelwatch target resume norms", words(ask("/targets/norms")))
    assert ask("/api/v1/targets/norms").json()["paused_at"] is not None
    assert ", paused" in attempt("status").stdout
    assert "  paused" in attempt("target", "list").stdout

    assert kernelwatch("target", "resume", "norms").exit_code == 0
    assert kernelwatch("target", "resume", "norms").exit_code == 2
    assert deliveries.poll_due() == 1
    assert rows()["revisions"] == before["revisions"] + 1


def test_a_removed_target_leaves_nothing(either: str) -> None:
    with transaction() as session:
        seeded = seed_deciding.seed(session)
    full = rows()
    assert min(full[name] for name in ("attempts", "measurements", "regression_events", "bisections", "gaps")) > 0

    busy = kernelwatch("target", "remove", seeded.target, "--yes")
    assert (busy.exit_code, rows()) == (2, full)
    assert f"`kernelwatch run cancel {seeded.runs['running']}`" in str(busy.exception)
    assert kernelwatch("run", "cancel", str(seeded.runs["running"])).exit_code == 0
    asked = attempt("target", "remove", seeded.target, input="n\n")
    assert f"Delete target norms: {full['revisions']} revisions" in asked.stderr
    assert (asked.exit_code, rows()) == (1, full)

    assert kernelwatch("target", "remove", seeded.target, "--yes").exit_code == 0
    shared = {"targets", "recipes", "stacks", "policies", "workers", "deliveries"}
    left = {name for name, count in rows().items() if count}
    assert left <= shared
    with reading() as session:
        assert [one.name for one in targets.all_targets(session)] == [seeded.empty]
        assert session.scalars(select(Worker.run_id)).all() == [None] * rows()["workers"]


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
