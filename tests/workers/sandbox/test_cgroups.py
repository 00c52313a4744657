"""Where control groups can be made: version 2 by delegation, on a tree of files in the place of the kernel's."""

import os
from pathlib import Path

import pytest

from workers.sandbox import cgroups
from workers.sandbox.cgroups import Limits

OWN = "user.slice/kernelwatch.scope"


class Kernel:
    """/sys/fs/cgroup of version 2, in which this process is in group `own`."""

    def __init__(self, root: Path, own: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.own = root, root / own
        self._marks: dict[Path, bytes] = {}
        for group in (root, self.own):
            self.group(group)
        monkeypatch.setattr(cgroups, "_ROOT", root)
        monkeypatch.setattr(cgroups, "_own", lambda: {"": f"/{own}"})
        monkeypatch.setattr(os, "getxattr", self._getxattr)
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        cgroups._delegated.cache_clear()

    def group(self, folder: Path, controllers: str = "cpu memory pids", enabled: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(enabled)
        (folder / "cgroup.procs").write_text("11\n12\n" if folder == self.own else "")

    def delegate(self, folder: Path) -> None:
        self._marks[folder] = b"1"

    def _getxattr(self, path: Path, name: str) -> bytes:
        if name != "user.delegate" or path not in self._marks:
            raise OSError(61, "No data available")
        return self._marks[path]


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path / "cgroup", OWN, monkeypatch)


def test_a_group_that_was_not_delegated_is_left_alone(kernel: Kernel) -> None:
    assert cgroups._bases() == {}
    assert list(kernel.own.glob("*/")) == []


def test_in_a_delegated_group_its_processes_move_into_a_leaf(kernel: Kernel) -> None:
    kernel.delegate(kernel.own)
    assert cgroups._bases() == {"pids": kernel.own, "memory": kernel.own}
    assert (kernel.own / "worker/cgroup.procs").read_text() == "12", "the last that was written"
    assert (kernel.own / "cgroup.subtree_control").read_text() == "+pids +memory"


def test_a_process_in_the_leaf_finds_the_delegated_group_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path / "cgroup", f"{OWN}/worker", monkeypatch)
    kernel.group(kernel.own.parent, enabled="memory pids")
    assert cgroups._bases() == dict.fromkeys(("pids", "memory"), kernel.own.parent)


def test_without_the_controller_for_memory_nothing_is_divided(kernel: Kernel) -> None:
    kernel.group(kernel.own, controllers="cpu pids")
    kernel.delegate(kernel.own)
    assert cgroups._bases() == {}


def test_a_container_that_sees_its_group_as_root_uses_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Kernel(tmp_path / "cgroup", "", monkeypatch)
    assert cgroups._bases() == {}, "the root of the system"
    cgroups._delegated.cache_clear()
    (kernel.root / "cgroup.events").write_text("populated 1\n")
    assert cgroups._bases() == dict.fromkeys(("pids", "memory"), kernel.root)


def test_a_group_has_the_limits_and_says_when_memory_ran_out(kernel: Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []
    mkdir = Path.mkdir

    def with_files(self: Path, *arguments: object, **more: object) -> None:
        mkdir(self, *arguments, **more)
        if self.name.startswith("kernelwatch-"):
            made.append(self)
            for name in ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max"):
                (self / name).touch()

    kernel.delegate(kernel.own)
    monkeypatch.setattr(Path, "mkdir", with_files)
    group = cgroups.make(Limits(memory=300 << 20, processes=100))
    assert group
    folder = made[0]
    limits = {name: (folder / name).read_text() for name in ("memory.max", "memory.swap.max", "pids.max")}
    assert limits == {"memory.max": str(300 << 20), "memory.swap.max": "0", "pids.max": "100"}
    assert group.joins == [f"echo $$ > {folder}/cgroup.procs"], "once, for both limits"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 0\noom_kill 0\n")
    assert not group.ran_out_of_memory()
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 1\noom_kill 3\n")
    assert group.ran_out_of_memory()
