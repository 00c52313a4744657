"""Settings: what a person may write, and what is made of it."""

from pathlib import Path

import pytest

from service.settings import Settings


@pytest.mark.parametrize("written", [".state", "~/state"])
def test_the_state_folder_is_the_same_from_every_working_folder(
    written: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("KERNELWATCH_STATE", written)
    assert Settings().state == tmp_path / written.removeprefix("~/")
    assert Settings().database == f"sqlite:///{Settings().state}/kernelwatch.db"
