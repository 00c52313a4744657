"""What programs use of the disk, also where they hide it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from workers.sandbox import usage
from workers.sandbox.walls import remove

ROOT = Path(__file__).parents[3]
NOBODY = 65534
MIB = 1 << 20


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder of a normal user."""
    created = Path(tempfile.mkdtemp(prefix="kernelwatch-test-"))  # not `tmp_path`, which other users may not enter
    if os.geteuid() == 0:
        os.chown(created, NOBODY, NOBODY)
    yield created
    remove(created)


def used_for_a_normal_user(folder: Path, enough: int) -> int:
    """What `usage.used` returns where this process is not root, which may read every folder."""
    counting = (
        "import os, sys\nfrom pathlib import Path\nfrom workers.sandbox import usage\n"
        f"if os.geteuid() == 0: os.setresuid({NOBODY}, {NOBODY}, {NOBODY})\n"
        "print(usage.used([Path(sys.argv[1])], int(sys.argv[2])))\n"
    )
    command = [sys.executable, "-c", counting, str(folder), str(enough)]
    return int(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize("unreadable", [".", "below"])
def test_a_folder_that_its_owner_may_not_read_is_counted(folder, unreadable):
    below = folder / "below"
    below.mkdir()
    (below / "large").write_bytes(b"x" * MIB)
    if os.geteuid() == 0:
        os.chown(below, NOBODY, NOBODY)
    (folder / unreadable).chmod(0)
    assert MIB <= used_for_a_normal_user(folder, 1 << 40) < 2 * MIB


def test_a_folder_that_stays_unreadable_counts_as_too_much():
    assert used_for_a_normal_user(Path("/proc/1/fd"), MIB) == MIB + 1


def test_a_folder_may_be_given_by_a_link_but_links_in_it_are_not_followed(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "large").write_bytes(b"x" * MIB)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(tmp_path / "outside")
    (tmp_path / "name").symlink_to(tmp_path / "folder")
    assert 0 < usage.used([tmp_path / "name"], 1 << 40) < MIB
