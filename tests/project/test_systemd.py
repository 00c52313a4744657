"""The units of systemd: valid, as closed as they claim, and what they need of the commands exists."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from service.settings import Settings
from tests import needs
from tests.project.test_docs import mistake

FOLDER = Path(__file__).parents[2] / "deploy" / "systemd"
UNITS = sorted(FOLDER.glob("*.service"))
# The exposure that `systemd-analyze security` gives out of 10, in tenths: 9.6 without any hardening.
EXPOSURE = {"kernelwatch-api": 20, "kernelwatch-control": 40, "kernelwatch-migrate": 20, "kernelwatch-worker@": 40}
analyze = needs.skip_unless(shutil.which("systemd-analyze"), "systemd")


def values(unit: Path, key: str) -> list[str]:
    return re.findall(rf"^{key}=(.*)$", unit.read_text(), re.MULTILINE)


@analyze
def test_systemd_reads_the_units(tmp_path: Path) -> None:
    """With a command in place of ours, which is not installed here."""
    for unit in UNITS:
        text = unit.read_text().replace("/opt/kernelwatch/bin/kernelwatch", "/bin/true")
        (tmp_path / unit.name).write_text(text)
    named = [tmp_path / unit.name.replace("@", "@0") for unit in UNITS]
    (tmp_path / "kernelwatch-worker@0.service").symlink_to("kernelwatch-worker@.service")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *named],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@analyze
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_as_closed_as_it_claims(unit: Path) -> None:
    limit = EXPOSURE[unit.stem]
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={limit}", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_the_commands_are_ours(unit: Path) -> None:
    [command] = values(unit, "ExecStart")
    assert command.startswith("/opt/kernelwatch/bin/kernelwatch ")
    assert mistake(Path(command).name) is None
    assert values(unit, "User") == ["kernelwatch"]


def test_what_uses_the_sandbox_may_make_it() -> None:
    """The kernel refuses a new /proc where a part of the old one is covered, and bubblewrap makes namespaces."""
    covers = {"ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "RestrictNamespaces"}
    for name in ("kernelwatch-control", "kernelwatch-worker@"):
        text = (FOLDER / f"{name}.service").read_text()
        assert {key for key in covers if re.search(rf"^{key}=", text, re.MULTILINE)} == set()
        assert values(FOLDER / f"{name}.service", "KillMode") == ["mixed"]
        assert values(FOLDER / f"{name}.service", "Delegate") == ["memory pids"]


def test_workers_have_no_secrets_of_the_forge() -> None:
    assert values(FOLDER / "kernelwatch-worker@.service", "EnvironmentFile") == ["/etc/kernelwatch/kernelwatch.env"]


def test_the_files_of_the_environment_name_settings() -> None:
    for file in FOLDER.glob("*.env"):
        named = re.findall(r"^#?KERNELWATCH_(\w+)=", file.read_text(), re.MULTILINE)
        assert named
        assert {name.lower() for name in named} <= Settings.model_fields.keys()
