"""Measure two revisions of a checkout against each other in this process, as a worker measures a run.

The ledger is thrown away; environments and the commits stay in a cache, so that the next comparison is quick.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

from service.db import migrate, schema
from service.db.engine import disconnect, reading, transaction
from service.db.models import Run
from service.domain.policy import recipes
from service.domain.states import OPEN_STATES, TargetKind
from service.errors import BadInput, Refused
from service.ledger import targets
from service.ledger.runs import revisions
from service.settings import settings
from service.sources import open_source
from service.sources.checkout import Checkout
from workers import control
from workers.machine import environments
from workers.machine.device import exclusive
from workers.run.heartbeat import stopping
from workers.sandbox import sandbox

BASE, HEAD = "base", "head"  # branches of the cached repository
_LEFT_OUT = ("KERNELWATCH_DATABASE_URL", "KERNELWATCH_DATABASE_PASSWORD", "KERNELWATCH_BROKER_URL")


@dataclass(frozen=True)
class Wanted:
    """Two revisions of a checkout, and how to measure them."""

    checkout: Checkout
    base: str  # sha
    head: str
    recipe: str
    adapters: Mapping[str, str]
    suite: str | None = None
    python: Path | None = None  # with torch, instead of the recipe's stack
    without_sandbox: bool = False


@contextmanager
def prepared(wanted: Wanted) -> Iterator[None]:
    """Settings, stack and an empty ledger of their own for this checkout, for the block.

    Raises:
        Refused: There is no sandbox, and it may not go without one.
        BadInput: There is no Python with torch, or the recipe does not name the device of this machine.
    """
    stack = environments.with_torch(recipes.parse(wanted.recipe).base.stack, wanted.python)
    state = _cache(wanted.checkout.root)
    state.mkdir(mode=0o700, parents=True, exist_ok=True)
    repository = state / "commits.git"
    changed = {"KERNELWATCH_STATE": str(state), "KERNELWATCH_ALLOWED_ROOTS": json.dumps([str(repository)])}
    with _environment(changed):
        name = recipes.parse(wanted.recipe).base.stack
        environments.adopt_stack(name, stack.python, stack.paths)
        _check_sandbox(wanted)
        _copy_commits(wanted, repository)
        _empty_ledger(state)
        yield


def measured(wanted: Wanted, say: Callable[[str], None]) -> int:
    """Measure the head against the base, and return the id of the run.  `say` gets the stage, again and again."""
    here = control.here().name
    known = recipes.parse(wanted.recipe)
    if here not in known.devices:
        devices = ", ".join(known.devices)
        raise BadInput(f"This machine has {here}, and the recipe measures on {devices}: add it to `devices`.")
    with exclusive(*(one.key for one in control.devices())):
        run_id = _queued(wanted, here)
        with stoppable(), _reported(run_id, say):
            while _is_open(run_id) and not stopping.is_set():
                if not control.work(here):  # a retry waits for its time
                    stopping.wait(1.0)
        if stopping.is_set():
            stopping.clear()
            raise KeyboardInterrupt
    with transaction() as session:  # no calibration follows: the ledger is of this comparison alone
        session.get_one(Run, run_id).provisional = False
    return run_id


def _queued(wanted: Wanted, device: str) -> int:
    with transaction() as session:
        target = targets.register(
            session,
            _name(wanted.checkout.name),
            location=str(settings().state / "commits.git"),
            kind=TargetKind.GIT,
            branch=BASE,
            trusted=True,
            allow_unsandboxed=wanted.without_sandbox,
            recipe_text=wanted.recipe,
            adapters=dict(wanted.adapters),
        )
    source = open_source(target)
    source.refresh()
    found = replace(source.describe(source.resolve(wanted.head)), parent=wanted.base)
    with transaction() as session:
        row = targets.target_named(session, target.name)
        run = revisions.run_wanted(session, row, found, device=device, trusted=True, suite=wanted.suite)
        return run.id


def _is_open(run_id: int) -> bool:
    with reading() as session:
        return session.get_one(Run, run_id).state in OPEN_STATES


def _cache(root: Path) -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "kernelwatch" / "compare" / hashlib.sha256(str(root).encode()).hexdigest()[:16]


def _name(folder: str) -> str:
    """The folder's name as a target may be called."""
    name = re.sub(r"[^a-z0-9._]+", "-", folder.lower()).strip("._-")[:60].rstrip("._-") or "checkout"
    try:
        targets.check_name(name)
    except BadInput:  # a word of the dashboard
        return f"checkout-{name}"
    return name


@contextmanager
def _environment(changed: Mapping[str, str]) -> Iterator[None]:
    before = dict(os.environ)
    for name in _LEFT_OUT:
        os.environ.pop(name, None)
    os.environ.update(changed)
    _forget()
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        _forget()


def _forget() -> None:
    """Let settings and database be read anew."""
    disconnect()
    settings.cache_clear()


def _empty_ledger(state: Path) -> None:
    """A database without rows.  Migrations take seconds, so an empty one is kept for each version."""
    database, empty = state / "kernelwatch.db", state / f"empty-{schema.newest()}.db"
    for name in ("", "-wal", "-shm"):
        Path(f"{database}{name}").unlink(missing_ok=True)
    if not empty.exists():
        made = state / "empty.part"
        made.unlink(missing_ok=True)
        migrate.upgrade(f"sqlite:///{made}")
        made.replace(empty)
    shutil.copy(empty, database)


def _copy_commits(wanted: Wanted, repository: Path) -> None:
    """Fetch both commits into a repository of ours: they may be on no branch, and the checkout is only read.

    A push from the checkout would obey its configuration, which may name another repository and its hooks.
    """
    # Git passes `-c` to no process of another repository, and `Checkout` has refused one of a stranger.
    trusting = repository.parent / "gitconfig"
    trusting.write_text("[safe]\n\tdirectory = *\n")
    plain = {"PATH": os.environ.get("PATH", "/usr/bin:/bin"), "HOME": str(repository.parent), "LC_ALL": "C"}
    plain |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": str(trusting), "GIT_ALLOW_PROTOCOL": "file"}
    plain |= {"GIT_NO_LAZY_FETCH": "1"}  # a partial clone names the program that fetches the rest
    if not (repository / "HEAD").exists():
        _git(["init", "--quiet", "--bare", "--initial-branch", BASE, str(repository)], plain)
    refs = [f"+{wanted.base}:refs/heads/{BASE}", f"+{wanted.head}:refs/heads/{HEAD}"]
    taking = ("fetch", "--quiet", "--no-tags", "--update-shallow", "--no-write-fetch-head")
    _git(["-C", str(repository), *taking, str(wanted.checkout.root), *refs], plain)


def _git(arguments: Sequence[str], environment: Mapping[str, str]) -> None:
    done = subprocess.run(["git", *arguments], env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode:
        raise BadInput(f"git could not copy the commits: {done.stderr.strip() or done.returncode}.")


def _check_sandbox(wanted: Wanted) -> None:
    if (trouble := sandbox.self_test()) and not wanted.without_sandbox:
        fix = "Fix it, or use --allow-unsandboxed if this is your own code."
        raise Refused(f"The sandbox does not work: {trouble}. {fix}")


@contextmanager
def stoppable() -> Iterator[None]:
    """Let Ctrl-C end the measurement in good order in the block."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        stopping.set()

    stopping.clear()
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _reported(run_id: int, say: Callable[[str], None]) -> Iterator[None]:
    """Say the stage of the run every second, from another thread."""
    import threading

    over = threading.Event()

    def look() -> None:
        while not over.wait(1.0):
            with reading() as session:
                run = session.get_one(Run, run_id)
                said = run.stage or run.state.value
            say(said)

    thread = threading.Thread(target=look, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
