"""Other users of the machine, and the state folder."""

import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.db import migrate
from service.settings import make_private, settings
from tests import needs
from tests.attacks.conftest import Outcome

NOBODY = 65534


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    for folder in (tmp_path, *tmp_path.parents):
        if folder.is_relative_to("/tmp") and folder != Path("/tmp"):
            folder.chmod(0o755)
    monkeypatch.setenv("KERNELWATCH_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("KERNELWATCH_DATABASE_URL", raising=False)
    settings.cache_clear()
    yield tmp_path / "state"
    settings.cache_clear()


@needs.skip_unless(os.getuid() == 0, "root")
def test_another_user_reads_nothing_in_the_state_folder(state: Path, outcome: Outcome) -> None:
    state.mkdir(mode=0o755)
    migrate.upgrade()
    command = ["cat", str(state / "kernelwatch.db")]
    done = subprocess.run(command, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True, check=False)
    seen = f"{stat.filemode(state.stat().st_mode)}, {len(done.stdout)} bytes read"
    outcome("state", "another user reads the database", held=not done.stdout, seen=seen, goal="drwx------, 0 bytes")


def test_a_state_folder_is_made_private(state: Path) -> None:
    assert make_private(state) is None
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    state.chmod(0o2750)
    assert make_private(state) is None
    assert stat.S_IMODE(state.stat().st_mode) == 0o700


def test_a_state_folder_that_cannot_be_made_private_is_reported(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    state.mkdir(mode=0o755)
    monkeypatch.setattr(Path, "chmod", refused)
    assert f"run `chmod 700 {state}`" in (make_private(state) or "")
