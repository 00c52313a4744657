"""The files of the fleet: valid, and as careful as they claim to be."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "docker-compose.yml"
BIN = Path(sys.executable).parent


def passes(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_files_fit_the_specification() -> None:
    files = sorted(ROOT.glob("docker-compose*.yml"))
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


def test_secrets_are_readable_in_containers_whatever_the_umask(tmp_path: Path) -> None:
    """Their user is not ours; the folder keeps the other users of this machine out."""
    passes("sh", "-c", f"umask 077; make --silent --file {ROOT / 'Makefile'} --directory {tmp_path} secrets")
    made = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "secrets").iterdir()}
    assert len(made) == 5
    assert set(made.values()) == {0o644}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".env").read_text().startswith("HOST=")


def test_workflow_fits_its_schema() -> None:
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", ".github/workflows/test.yml")


def test_dockerfile_passes_its_linter() -> None:
    passes(BIN / "hadolint", "--failure-threshold", "info", "Dockerfile")


def test_every_secret_is_a_file_and_none_a_value() -> None:
    text = COMPOSE.read_text()
    assert not re.search(r"(PASSWORD|SECRET|TOKEN|BROKER_URL): *(?!/run/secrets)\S", text)
    declared = set(re.findall(r"^  (\w+): \{file: \./secrets/(?:\w+)\}$", text, re.M))
    used = {name for names in re.findall(r"secrets: \[([\w, ]+)\]", text) for name in names.split(", ")}
    assert used <= declared


@pytest.mark.parametrize("device", ["cpu", "h100", "h200", "b200"])
def test_each_device_has_a_worker_behind_its_profile(device: str) -> None:
    [service] = re.findall(rf"^  worker-{device}:\n((?:    .*\n)+)", COMPOSE.read_text(), re.M)
    assert f"profiles: [{device}]" in service
    assert f"--queues, {device}," in service


def test_nothing_of_ours_runs_as_root() -> None:
    assert 'user: "10001:10001"' in COMPOSE.read_text()
    stages = re.split(r"^FROM ", (ROOT / "Dockerfile").read_text(), flags=re.M)[2:]
    assert [re.findall(r"^USER (.*)$", stage, re.M)[-1] for stage in stages] == ["10001:10001"] * 2


def test_what_the_image_copies_is_not_ignored() -> None:
    let_through = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M))
    copied = set(re.findall(r"^COPY (?!--from)(\S+)", (ROOT / "Dockerfile").read_text(), re.M))
    assert copied == let_through
