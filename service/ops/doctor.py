"""What is missing on this machine, what that costs, and the command that mends it."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from service.db import migrate
from service.errors import BadInput
from service.ledger.server_policy import policy_file
from service.ops import torch_install
from service.settings import GIB, settings

ROOM_FOR_WORK = 10 * GIB  # a base environment with torch for a GPU takes 6 GB, its caches and revisions some more
MIN_ROOM = 2 * GIB


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.  `costs` and `mend` matter when it is not `ok`; `needed`: nothing works without."""

    name: str
    ok: bool
    found: str
    costs: str = ""
    mend: str = ""
    needed: bool = True


def checks(self_test: Callable[[], str | None], stacks: Sequence[str]) -> list[Check]:
    """Look at everything.  `self_test` says why the sandbox does not work (None: it does), `stacks` which there are."""
    broker = settings().broker_url
    return [
        _python(),
        _git(),
        _sandbox(self_test),
        _stack(stacks),
        _compiler(),
        _room(settings().state),
        _database(),
        *([_policy(named)] if (named := settings().policy) else []),
        *([_broker(broker.get_secret_value())] if broker else []),
        _driver(),
        _browser(),
    ]


def show(found: Sequence[Check], out: Console) -> int:
    """Print the checks.  Returns the exit code: 1 when something that is needed is missing."""
    width = max(len(check.name) for check in found)
    for check in found:
        mark, style = ("ok", "green") if check.ok else ("missing", "red") if check.needed else ("absent", "yellow")
        out.print(Text.assemble((f"{mark:>8}", style), f"  {check.name:<{width}}  {check.found}"), soft_wrap=True)
        if not check.ok:
            for line in (check.costs, check.mend and f"mend it: {check.mend}"):
                if line:
                    out.print(Text(f"{'':>{width + 12}}{line}"), soft_wrap=True)
    missing = [check.name for check in found if check.needed and not check.ok]
    out.print(f"\nNeeded and missing: {', '.join(missing)}." if missing else "\nAll that is needed is here.")
    return 1 if missing else 0


def _python() -> Check:
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    mend = f"{install('python3 python3-venv')}, then `make clean run`"
    return Check("Python", fits, platform.python_version(), "kernelwatch is written for 3.11 to 3.13", mend)


def _git() -> Check:
    version = _said("git", "--version").removeprefix("git version ")
    return Check("git", bool(version), version or "not found", "no repository can be watched", install("git"))


def _sandbox(self_test: Callable[[], str | None]) -> Check:
    costs = (
        "only the demo, and trusted targets allowed to run without a sandbox, are measured; "
        "runs of every other target fail"
    )
    if version := _said("bwrap", "--version"):
        trouble = self_test()
        return Check("bubblewrap", trouble is None, f"{version}: {trouble or 'works'}", costs, allow_user_namespaces())
    if _said("unshare", "--user", "--map-root-user", "echo", "works"):
        return Check("bubblewrap", False, "not found", costs, install("bubblewrap"))
    found = "not found; the user namespaces that it needs are refused as well"
    return Check("bubblewrap", False, found, costs, f"{install('bubblewrap')}; then {allow_user_namespaces()}")


def allow_user_namespaces() -> str:
    """The command that lets a process make user namespaces on this machine, or what to do where there is none."""
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 (or an AppArmor profile for bwrap)"
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl kernel.unprivileged_userns_clone=1"
    if _setting("user/max_user_namespaces") == "0":
        return "sudo sysctl user.max_user_namespaces=15000"
    return "let this process make user namespaces; for a container see the worker in docker-compose.yml"


def _stack(stacks: Sequence[str]) -> Check:
    found = ", ".join(stacks) or "none"
    return Check("stack", bool(stacks), found, "nothing can be measured without torch", "kernelwatch stack create host")


def _compiler() -> Check:
    found = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
    costs = "torch.compile has no back end on the CPU, and Triton cannot build its launchers"
    return Check("C++ compiler", bool(found), found or "not found", costs, install("g++"), needed=False)


def _room(state: Path) -> Check:
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    costs = f"base environments, builds and caches want {ROOM_FOR_WORK / GIB:.0f} GiB"
    mend = f"make room in {there}, or set KERNELWATCH_STATE to a folder that has it"
    needed = free < MIN_ROOM
    return Check("disk", free >= ROOM_FOR_WORK, f"{free / GIB:.1f} GiB free in {there}", costs, mend, needed)


def _database() -> Check:
    kind = "SQLite" if settings().database_url is None else "the configured database"
    try:
        at, newest = migrate.current(), migrate.newest()
    except SQLAlchemyError as error:
        first = str(error.__cause__ or error).splitlines()[0]
        return Check(
            "database", False, f"{kind} does not answer: {first}", "nothing works", "start it, or mend database_url"
        )
    if at is None and settings().database_url is None:
        return Check("database", True, f"{kind}, made at the first start")
    found = f"{kind}, at {at or 'no schema'}"
    return Check("database", at == newest, found, f"this version wants {newest}", "kernelwatch db upgrade")


def _policy(named: Path) -> Check:
    try:
        policy_file(named)
    except BadInput as error:
        found = "; ".join(str(error).splitlines())
        return Check("policy", False, found, "no process starts", "mend the file, or unset KERNELWATCH_POLICY")
    return Check("policy", True, str(named))


def _broker(url: str) -> Check:
    from kombu.connection import Connection

    costs = "wake-ups are lost: work starts when a worker looks by its timer, seconds later"
    with Connection(url, connect_timeout=3) as connection:  # type: ignore[no-untyped-call]
        where = connection.as_uri()  # without the password
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        except Exception as error:  # each transport has its own
            return Check("broker", False, f"{where}: {error}", costs, "start it, or mend broker_url", needed=False)
        return Check("broker", True, where)


def _driver() -> Check:
    version = Path("/proc/driver/nvidia/version")
    there = torch_install.has_driver()
    found = version.read_text().splitlines()[0] if version.exists() else "nvidia-smi" if there else "none"
    costs = "this machine measures on the device `cpu` only"
    return Check("NVIDIA driver", there, found, costs, "", needed=False)


def _browser() -> Check:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    costs = "only tests miss it: those that look at the pages in a browser are skipped"
    return Check("chromium", bool(found), found or "not found", costs, install("chromium"), needed=False)


def install(names: str) -> str:
    """The command of this machine's package manager that installs packages, given by their names on Debian."""
    managers = {"apt-get": "install -y", "dnf": "install -y", "zypper": "install -y", "pacman": "-S", "brew": "install"}
    elsewhere = {"g++": "gcc-c++"} if shutil.which("dnf") or shutil.which("zypper") else {}
    manager = next((name for name in managers if shutil.which(name)), "apt-get")
    root = "" if manager == "brew" else "sudo "
    return f"{root}{manager} {managers[manager]} {' '.join(elsewhere.get(name, name) for name in names.split())}"


def _said(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _setting(name: str) -> str | None:
    try:
        return (Path("/proc/sys") / name).read_text().strip()
    except OSError:
        return None
