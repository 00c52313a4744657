"""Hybrids of two stacks: tiny distributions in folders, and what the stack's own interpreter imports of them."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service.domain.isolation.components import components
from service.errors import BadInput
from service.settings import settings
from tests.fakes.wheels import unpacked
from workers.isolation.arms import arms_of, contents, hybrid, notes
from workers.machine import environments
from workers.machine.environments import BaseStack

PYTHON = Path(sys.executable)


@pytest.fixture(autouse=True)
def state(tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "state"))
    settings.cache_clear()
    yield
    settings.cache_clear()


@pytest.fixture
def old(tmp_path: Path) -> Path:
    site = tmp_path / "old"
    unpacked(site, "liger-kernel", "1.0", {"liger_kernel/__init__.py": "ONE = 1\n", "liger_kernel/gone.py": ""})
    unpacked(site, "quack-kernels", "1.0", {"quack/__init__.py": "ONE = 1\n"})
    return site


@pytest.fixture
def new(tmp_path: Path) -> Path:
    site = tmp_path / "new"
    unpacked(site, "Liger_Kernel", "2.0", {"liger_kernel/__init__.py": "ONE = 2\n", "liger_kernel/ops/a.py": "A = 2\n"})
    unpacked(site, "quack-kernels", "1.0", {"quack/__init__.py": "ONE = 1\n"})
    return site


def stack(name: str, *paths: Path) -> BaseStack:
    return environments.adopt_stack(name, PYTHON, paths)


def imported(made: BaseStack, expression: str) -> str:
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(map(str, made.paths))}
    code = f"import importlib.metadata as m, liger_kernel, sys; print({expression})"
    command = [str(made.python), "-P", "-c", code]
    return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def test_a_hybrid_imports_the_component_of_the_other_stack(old: Path, new: Path) -> None:
    before, after = contents(stack("old", old)), contents(stack("new", new))
    [liger] = components(before.installed, after.installed)
    ahead, back = hybrid(before, liger, after), hybrid(after, liger, before)
    assert imported(ahead, "liger_kernel.ONE, m.version('liger-kernel')") == "2 2.0"
    assert imported(back, "liger_kernel.ONE, m.version('liger-kernel')") == "1 1.0"
    assert ahead.python == before.stack.python
    assert len({ahead.key, back.key, before.stack.key, after.stack.key}) == 4, "each has compile caches of its own"
    assert set(ahead.paths) <= set(ahead.read_only), "a sandbox sees them"


def test_an_overlay_has_the_files_of_the_component_alone_and_is_read_only(old: Path, new: Path) -> None:
    before, after = contents(stack("old", old)), contents(stack("new", new))
    [liger] = components(before.installed, after.installed)
    overlay = hybrid(before, liger, after).paths[0]
    found = sorted(str(file.relative_to(overlay)) for file in overlay.rglob("*") if file.is_file())
    assert found == [
        "Liger_Kernel-2.0.dist-info/METADATA",
        "Liger_Kernel-2.0.dist-info/RECORD",
        "liger_kernel/__init__.py",
        "liger_kernel/ops/a.py",
    ]
    modes = {file.stat().st_mode & 0o222 for file in overlay.rglob("*")}
    assert modes == {0}
    assert (new / "liger_kernel/__init__.py").stat().st_mode & stat.S_IWUSR, "the stack's own files stay as they were"
    assert hybrid(before, liger, after).paths[0] == overlay, "the same files are copied once"
    unpacked(new, "Liger_Kernel", "2.0", {"liger_kernel/__init__.py": "ONE = 3\n"})
    assert hybrid(before, liger, contents(stack("new", new))).paths[0] != overlay


def test_a_folder_inside_a_distribution_that_the_stack_searches_is_searched_in_the_overlay(tmp_path: Path) -> None:
    """The CUTLASS DSL keeps its packages in a folder of its own, which an adopted stack names with --path."""
    sites = []
    for version in ("4.1", "4.2"):
        site = tmp_path / version
        inner = {"nvidia_cutlass_dsl/packages/liger_kernel.py": f"ONE = '{version}'\n"}
        unpacked(site, "nvidia-cutlass-dsl", version, inner)
        sites.append(site)
    stacks = [stack(f"s{site.name}", site, site / "nvidia_cutlass_dsl/packages") for site in sites]
    before, after = map(contents, stacks)
    [cutlass] = components(before.installed, after.installed)
    assert imported(hybrid(before, cutlass, after), "liger_kernel.ONE") == "4.2"


def test_the_arms_of_two_stacks(old: Path, new: Path, tmp_path: Path) -> None:
    unpacked(new, "einops", "0.8", {"einops/__init__.py": ""})
    before, after = contents(stack("old", old)), contents(stack("new", new))
    made = arms_of(before, after, ())
    assert [one.name for one in made.arms] == [
        "from", "to", "control", "from+liger", "to-liger", "from+others", "to-others"
    ]  # fmt: skip
    [note] = notes(before, after, made)
    assert "Only one of the stacks has einops" in note
    assert [one.name for one in arms_of(before, after, ["liger"]).arms][3:] == ["from+liger", "to-liger"]
    with pytest.raises(BadInput, match="No component 'torch' differs between the stacks; those that do: liger, others"):
        arms_of(before, after, ["torch"])
    with pytest.raises(BadInput, match="have the same distributions: there is nothing to swap"):
        arms_of(before, contents(stack("copy", old)), ())
    wrong = tmp_path / "wrong"
    unpacked(wrong, "liger-kernel", "3.0", {"liger_kernel/__init__.py": ""}, record=False)
    missing = arms_of(before, contents(stack("wrong", wrong)), ["liger"]).missing
    assert missing["from+liger"] == "liger-kernel has no list of its files (RECORD)"


def test_stacks_of_two_pythons_are_refused(old: Path, tmp_path: Path) -> None:
    other = tmp_path / "python"
    packages = "/x/lib/python3.9/site-packages"
    places = json.dumps(["/x", "/x", packages, packages, "3.9.2"])
    other.write_text(f'#!/bin/sh\ncase "$*" in *purelib*) echo \'{places}\' ;; *) exec {PYTHON} "$@" ;; esac\n')
    other.chmod(0o755)
    before, after = contents(stack("old", old)), contents(environments.adopt_stack("other", other, []))
    with pytest.raises(BadInput, match=r"old has Python 3\.\d+ and other has Python 3\.9: compiled modules of one"):
        arms_of(before, after, ())
