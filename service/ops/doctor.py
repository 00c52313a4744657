"""Check a machine, and print a fix for everything that is missing."""

import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service.db import migrate, schema
from service.db.engine import clock, reading, remedy
from service.db.models import Target
from service.domain.forges import NAMES
from service.domain.states import ForgeKind
from service.errors import BadInput
from service.forge import clients
from service.ledger.notices import subscriptions
from service.ledger.policies import policy_file
from service.ops import torch_install
from service.settings import GIB, settings

ROOM_FOR_WORK = 10 * GIB  # a base environment with torch for a GPU takes 6 GB, its caches and revisions some more
MIN_ROOM = 2 * GIB


@dataclass(frozen=True)
class Check:
    """One check.  `effect` and `fix` matter if it is not `ok`; `needed`: nothing works without it."""

    name: str
    ok: bool
    found: str
    effect: str = ""
    fix: str = ""
    needed: bool = True


def checks(self_test: Callable[[], str | None], stacks: Sequence[str]) -> list[Check]:
    """Run all checks.  `self_test` returns why the sandbox does not work, or None; `stacks` are names."""
    broker = settings().broker_url
    return [
        _python(),
        _git(),
        _sandbox(self_test),
        _stack(stacks),
        _compiler(),
        _room(settings().state),
        _private(settings().state),
        _database(),
        *_forge(),
        *_channels(),
        *([_policy(named)] if (named := settings().policy) else []),
        *([_broker(broker.get_secret_value())] if broker else []),
        _driver(),
        _browser(),
    ]


def _python() -> Check:
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    fix = f"{install('python3 python3-venv')}, then `make clean run`"
    return Check("Python", fits, platform.python_version(), "kernelwatch needs 3.11 to 3.13", fix)


def _git() -> Check:
    version = _output("git", "--version").removeprefix("git version ")
    return Check("git", bool(version), version or "not found", "repositories cannot be read", install("git"))


def _sandbox(self_test: Callable[[], str | None]) -> Check:
    effect = (
        "only the demo, and trusted targets that are allowed to run without a sandbox, are measured; "
        "runs of all other targets wait"
    )
    if version := _output("bwrap", "--version"):
        trouble = self_test()
        return Check("bubblewrap", trouble is None, f"{version}: {trouble or 'works'}", effect, allow_user_namespaces())
    if _output("unshare", "--user", "--map-root-user", "echo", "works"):
        return Check("bubblewrap", False, "not found", effect, install("bubblewrap"))
    state = "not found; user namespaces, which it needs, are not allowed either"
    return Check("bubblewrap", False, state, effect, f"{install('bubblewrap')}; then {allow_user_namespaces()}")


def allow_user_namespaces() -> str:
    """Return the command that allows user namespaces on this machine, or a hint if there is none."""
    if _setting("kernel/apparmor_restrict_unprivileged_userns") == "1":
        return "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0 (or an AppArmor profile for bwrap)"
    if _setting("kernel/unprivileged_userns_clone") == "0":
        return "sudo sysctl kernel.unprivileged_userns_clone=1"
    if _setting("user/max_user_namespaces") == "0":
        return "sudo sysctl user.max_user_namespaces=15000"
    return "allow this process to create user namespaces; for a container see the worker in docker-compose.yml"


def _stack(stacks: Sequence[str]) -> Check:
    names = ", ".join(stacks) or "none"
    return Check("stack", bool(stacks), names, "nothing can be measured without torch", "kernelwatch stack create host")


def _compiler() -> Check:
    found = next((path for name in ("g++", "clang++", "c++") if (path := shutil.which(name))), None)
    effect = "torch.compile has no back end on the CPU, and Triton cannot build its launchers"
    return Check("C++ compiler", bool(found), found or "not found", effect, install("g++"), needed=False)


def _room(state: Path) -> Check:
    there = next(folder for folder in (state, *state.parents) if folder.exists())
    free = shutil.disk_usage(there).free
    effect = f"base environments, builds and caches need {ROOM_FOR_WORK / GIB:.0f} GiB"
    fix = f"free space in {there}, or set KERNELWATCH_STATE to another folder"
    needed = free < MIN_ROOM
    return Check("disk", free >= ROOM_FOR_WORK, f"{free / GIB:.1f} GiB free in {there}", effect, fix, needed)


def _private(state: Path) -> Check:
    private = not state.exists() or not state.stat().st_mode & 0o077
    access = "only its owner may enter" if private else f"other users may enter {state}"
    effect = "they may read the database and private repositories, and reach what strangers build"
    return Check("state folder", private, access, effect, f"chmod 700 {state}", needed=False)


def _database() -> Check:
    kind = "SQLite" if settings().database_url is None else "the configured database"
    try:
        at, newest = migrate.current(), schema.newest()
    except SQLAlchemyError as error:
        first = str(error.__cause__ or error).splitlines()[0]
        return Check(
            "database",
            False,
            f"{kind} does not answer: {first}",
            "nothing works",
            remedy(error) if isinstance(error, DBAPIError) else "correct KERNELWATCH_DATABASE_URL",
        )
    if at is None and settings().database_url is None:
        return Check("database", True, f"{kind}, created at the first start")
    found = f"{kind}, at {at or 'no schema'}"
    newer = at is not None and not schema.is_known(at)
    fix = "restart kernelwatch with the version that made it" if newer else "kernelwatch db upgrade"
    return Check("database", at == newest, found, f"this version needs {newest}", fix)


def _forge() -> list[Check]:
    """What this process lacks for the forges of targets, and the repositories to which nothing is sent now.

    Nothing where there are none, or no database yet.
    """
    try:
        with reading() as session:
            now = clock(session)
            paused = (Target.forge.is_not(None), Target.forge_paused_until > now)
            targets = list(session.scalars(select(Target).where(*paused).order_by(Target.name)))
            used = sorted(filter(None, session.scalars(select(Target.forge_kind).distinct())))
    except SQLAlchemyError:
        return []
    effect = "its comments and checks wait"
    away = [
        Check(f"{_name(target)}: {target.name}", False, target.forge_error or "", effect, needed=False)
        for target in targets
    ]
    return [*map(_settings_of, used), *away]


def _name(target: Target) -> str:
    return NAMES[target.forge_kind or ForgeKind.GITHUB]


def _settings_of(kind: ForgeKind) -> Check:
    """The settings for a forge that some target is on; a worker of a fleet has none of them, and needs none."""
    lacking = clients.missing(kind)
    credentials = f"{' and '.join(lacking)} not set" if lacking else "credentials and the webhook's secret are set"
    effect = "comments and checks are not sent, or webhooks not taken, by this process"
    fix = f"set {' and '.join(lacking)} for the API and the control worker"
    return Check(NAMES[kind], not lacking, credentials, effect, fix, needed=False)


def _channels() -> list[Check]:
    """A check for each channel of notices."""
    try:
        with reading() as session:
            channels = subscriptions.known_channels(session)
    except SQLAlchemyError:
        return []
    effect = "its notices wait"
    fix = "correct KERNELWATCH_CHANNELS (docs/notices.md), then `kernelwatch subscription test ID`"
    return [
        Check(
            f"channel: {view.name}",
            not (view.trouble or view.error),
            view.trouble or view.error or view.service,
            effect,
            fix,
            False,
        )
        for view in channels
    ]


def _policy(named: Path) -> Check:
    try:
        policy_file(named)
    except BadInput as error:
        mistake = "; ".join(str(error).splitlines())
        return Check("policy", False, mistake, "no process starts", "correct the file, or unset KERNELWATCH_POLICY")
    return Check("policy", True, str(named))


def _broker(url: str) -> Check:
    from kombu.connection import Connection

    effect = "wake-ups are lost: work starts seconds later, at the next poll of a worker"
    with Connection(url, connect_timeout=3) as connection:  # type: ignore[no-untyped-call]
        where = connection.as_uri()  # without the password
        try:
            connection.ensure_connection(max_retries=1, interval_start=0, timeout=5)
        except Exception as error:  # each transport has its own
            return Check(
                "broker",
                False,
                f"{where}: {error}",
                effect,
                "start it, or correct KERNELWATCH_BROKER_URL",
                needed=False,
            )
        return Check("broker", True, where)


def _driver() -> Check:
    version = Path("/proc/driver/nvidia/version")
    there = torch_install.has_driver()
    driver = version.read_text().splitlines()[0] if version.exists() else "nvidia-smi" if there else "none"
    effect = "this machine measures only on the device `cpu`"
    return Check("NVIDIA driver", there, driver, effect, "", needed=False)


def _browser() -> Check:
    found = next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )
    effect = "tests of the pages in a browser are skipped"
    return Check("chromium", bool(found), found or "not found", effect, install("chromium"), needed=False)


def install(names: str) -> str:
    """Return the install command of this machine's package manager; `names` are those on Debian."""
    managers = {"apt-get": "install -y", "dnf": "install -y", "zypper": "install -y", "pacman": "-S", "brew": "install"}
    elsewhere = {"g++": "gcc-c++"} if shutil.which("dnf") or shutil.which("zypper") else {}
    manager = next((name for name in managers if shutil.which(name)), "apt-get")
    root = "" if manager == "brew" else "sudo "
    return f"{root}{manager} {managers[manager]} {' '.join(elsewhere.get(name, name) for name in names.split())}"


def _output(*command: str) -> str:
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
