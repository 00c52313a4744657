"""What `kernelwatch compare` copies of a checkout, which may be a stranger's."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.errors import BadInput
from service.ledger.targets import check_name
from service.settings import settings
from service.sources.checkout import Checkout
from tests.fakes.repository import Repository
from workers import checkouts
from workers.checkouts import BASE, HEAD, Wanted, prepared

RECIPE = (
    'devices = ["cpu"]\n[suites]\nall = ["rmsnorm.fwd.4x4.fp32"]\n[providers.norms]\nrmsnorm.fwd = "norms:forward"\n'
)


@pytest.fixture
def norms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """A checkout of three commits, and a machine on which nothing was compared yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Repository(tmp_path / "norms")
    for number in range(3):
        made.commit(f"work {number}", {"norms.py": str(number)})
    return made


def copied(norms: Repository) -> list[str]:
    """Copy the head and its parent.  Returns the subjects of the copy, the newest first."""
    python = norms.folder.parent / "python"  # nothing of this test runs torch
    python.write_text(f'#!/bin/sh\n[ "$2" = "import torch" ] || exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    base, head = norms.git("rev-parse", "HEAD~1", "HEAD").splitlines()
    wanted = Wanted(Checkout(norms.folder), base, head, RECIPE, {}, python=python, without_sandbox=True)
    with prepared(wanted):
        copy = Repository(settings().state / "commits.git")
    assert copy.git("rev-parse", BASE, HEAD).splitlines() == [base, head]
    return copy.git("log", "--format=%s", HEAD).splitlines()


def test_a_base_that_no_branch_is_at_is_copied(norms: Repository) -> None:
    assert copied(norms) == ["work 2", "work 1", "work 0"]


def test_a_shallow_checkout_is_copied_as_far_as_it_goes(norms: Repository, tmp_path: Path) -> None:
    norms.git("clone", "--quiet", "--depth=2", f"file://{norms.folder}", str(tmp_path / "shallow"))
    assert copied(Repository(tmp_path / "shallow")) == ["work 2", "work 1"]


def test_a_checkout_whose_configuration_sends_pushes_elsewhere_executes_nothing(
    norms: Repository, tmp_path: Path
) -> None:
    copied(norms)
    [copy] = tmp_path.glob("cache/kernelwatch/compare/*/commits.git")
    evil = Repository(tmp_path / "evil")
    for hook in ("pre-receive", "reference-transaction"):
        (evil.folder / ".git" / "hooks" / hook).write_text(f"#!/bin/sh\ntouch {tmp_path}/executed\n")
        (evil.folder / ".git" / "hooks" / hook).chmod(0o755)
    for name in ("insteadOf", "pushInsteadOf"):
        norms.git("config", f"url.{evil.folder}.{name}", str(copy))
    norms.git("config", "uploadpack.packObjectsHook", f"touch {tmp_path}/executed; false")
    norms.commit("work 3")
    assert copied(norms)[0] == "work 3"
    assert not (tmp_path / "executed").exists()


def test_a_partial_clone_does_not_name_the_program_that_fetches_the_rest(norms: Repository, tmp_path: Path) -> None:
    for name, value in (
        ("core.repositoryFormatVersion", "1"),
        ("extensions.partialClone", "evil"),
        ("remote.evil.url", str(tmp_path)),
        ("remote.evil.promisor", "true"),
        ("remote.evil.uploadpack", f"touch {tmp_path}/executed; false"),
    ):
        norms.git("config", name, value)
    missing = norms.git("rev-parse", "HEAD:norms.py")
    (norms.folder / ".git" / "objects" / missing[:2] / missing[2:]).unlink()
    with pytest.raises(BadInput, match="git could not copy the commits"):
        copied(norms)
    assert not (tmp_path / "executed").exists()


@given(st.text())
def test_any_folder_gives_the_name_of_a_target(folder: str) -> None:
    check_name(checkouts._name(folder))


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("FlagAttention", "flagattention"),
        ("my kernels (2)", "my-kernels-2"),
        ("new", "checkout-new"),
        ("…", "checkout"),
    ],
)
def test_a_folder_keeps_what_a_name_may_have(folder: str, name: str) -> None:
    assert checkouts._name(folder) == name
