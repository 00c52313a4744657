"""What a test may need that a machine may lack.  Where a machine declares what it lacks, every other skip is an error.

The environment variable `KERNELWATCH_TESTS_LACK` holds the declaration: names of `NEEDS` with commas between them, or
nothing.  Continuous integration sets it (.ci/run).  Without the variable a test that lacks something only skips.
"""

import os
import re
from typing import NoReturn

import pytest

VARIABLE = "KERNELWATCH_TESTS_LACK"
# Name of a need to the way to meet it.
NEEDS = {
    "buildah": "`apt-get install buildah podman runc crun debootstrap slirp4netns catatonit`",
    "bubblewrap": "`kernelwatch doctor` prints the command",
    "chromium": "install one with `apt-get install chromium`",
    "gpu": "run it on a machine with an NVIDIA GPU",
    "index": "give pip a package index",
    "nginx": "`apt-get install nginx-light`",
    "npm": "install Node.js 20 or later with npm, and give npm a registry",
    "postgresql": (
        "start one with `docker run -e POSTGRES_USER=root -e POSTGRES_HOST_AUTH_METHOD=trust -p 5432:5432 postgres:18`"
    ),
    "promtool": "`apt-get install prometheus`",
    "providers": "install the Python packages of the built-in providers",
    "rabbitmq": "start one with `docker run -p 5672:5672 rabbitmq:4`",
    "root": "run it as root",
    "setpriv": "`apt-get install util-linux`",
    "systemd": "`apt-get install systemd`",
    "triton": "Triton supports Linux only",
    "two-gpus": "run it on a machine with two NVIDIA GPUs",
}


def reason(need: str, detail: str = "") -> str:
    """The text of a skip, from which `DeclaredSkips` reads the need."""
    return f"needs {need}: {detail or NEEDS[need]}"


def skip(need: str, detail: str = "") -> NoReturn:
    pytest.skip(reason(need, detail))


def skip_unless(present: object, need: str) -> pytest.MarkDecorator:
    """A mark for tests that need something."""
    return pytest.mark.skipif(not present, reason=reason(need))


class DeclaredSkips:
    """Fails the session when a test skips for anything but what the machine declares that it lacks."""

    def __init__(self, declared: str) -> None:
        self.lacks = {name.strip() for name in declared.split(",")} - {""}
        if "gpu" in self.lacks:
            self.lacks.add("two-gpus")
        self.undeclared: dict[str, str] = {}
        if unknown := self.lacks - NEEDS.keys():
            raise pytest.UsageError(f"{VARIABLE} names {', '.join(sorted(unknown))}; known: {', '.join(NEEDS)}")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if not report.skipped or hasattr(report, "wasxfail"):
            return
        *_, text = report.longrepr if isinstance(report.longrepr, tuple) else (str(report.longrepr),)
        need = re.match(r"(?:Skipped: )?needs ([\w-]+): ", text)
        if need is None or need[1] not in self.lacks:
            self.undeclared[report.nodeid] = text.removeprefix("Skipped: ")

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if self.undeclared and exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.undeclared:
            return
        terminalreporter.section("tests that skip for undeclared reasons", red=True, bold=True)
        for test, text in self.undeclared.items():
            terminalreporter.line(f"{test}: {text}", red=True)
        terminalreporter.line(f"This machine declares ({VARIABLE}): {', '.join(sorted(self.lacks)) or 'nothing'}.")


def watch_skips(config: pytest.Config) -> None:
    """Compare skips with the declaration.  The workers of pytest-xdist report to the first process, which decides."""
    if VARIABLE in os.environ and not hasattr(config, "workerinput"):
        config.pluginmanager.register(DeclaredSkips(os.environ[VARIABLE]))
