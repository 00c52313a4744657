"""Work for repositories, each in a thread of its own."""

import fcntl
import time
from pathlib import Path

import pytest

from service.ledger import side_by_side
from service.ledger.side_by_side import SideBySide
from service.settings import settings
from service.sources import git, open_source
from tests.fakes.repository import Repository, Target


@pytest.mark.usefixtures("state")
def test_more_work_for_a_repository_does_not_end_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}"]')
    monkeypatch.setenv("KERNELWATCH_REPOSITORIES_AT_ONCE", "1")
    settings.cache_clear()
    monkeypatch.setattr(side_by_side, "PLACE_S", 0.1)
    monkeypatch.setattr(side_by_side, "WAITING", 1)
    repository = Repository(tmp_path / "norms")
    repository.commit("work", {"norms.py": "1"})
    mirror = git.mirror_of("norms", str(repository.folder))
    mirror.parent.mkdir(parents=True, exist_ok=True)

    def fetch() -> int:
        open_source(Target(str(repository.folder))).refresh()
        return 1

    places = SideBySide("test")
    with open(mirror.with_suffix(".lock"), "w") as elsewhere:
        fcntl.flock(elsewhere, fcntl.LOCK_EX)
        longest, other = (places.begin(name, fetch, time.monotonic() + 10.0) for name in ("norms", "copy"))
        assert places.begin("norms", fetch, time.monotonic() + 1.0) is None
    assert longest is not None
    assert other is not None
    assert (longest.result(30.0), other.result(30.0)) == (1, 1)
