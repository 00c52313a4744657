"""Settings: what a person may write, and what is made of it."""

import json
from pathlib import Path

import pytest
from pydantic import ValidationError

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


URL, SECRET = "slack://T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ", "whsec_QUJDQUJDQUJDQUJDQUJDQUJDQUJDQUJD"


def test_channels_are_urls_or_urls_with_secrets_also_in_a_file(tmp_path: Path) -> None:
    named = {"kernels": URL, "ci": {"url": "https://ci.example.org", "secret": SECRET, "secret_old": None}}
    (tmp_path / "kernelwatch_channels").write_text(json.dumps(named))
    channels = Settings(_secrets_dir=tmp_path).channels
    assert channels["kernels"].url.get_secret_value() == URL
    secret = channels["ci"].secret
    assert secret is not None
    assert secret.get_secret_value() == SECRET
    assert URL not in repr(channels)
    (tmp_path / "kernelwatch_channels").write_text("")
    assert Settings(_secrets_dir=tmp_path).channels == {}


@pytest.mark.parametrize("written", [f'{{"kernels": "{URL}"', f'["{URL}"]', f'{{"kernels": {{"uri": "{URL}"}}}}'])
def test_a_mistake_in_the_channels_shows_no_address(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KERNELWATCH_CHANNELS", written)
    with pytest.raises(ValidationError) as found:
        Settings()
    assert "channels" in str(found.value)
    assert URL not in str(found.value)
