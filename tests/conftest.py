"""What every room's tests may use: a state folder of their own, with a migrated database in it."""

import os
import re
import shutil
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from service.db import migrate
from service.db.engine import disconnect
from service.db.models import Base
from service.ledger.locking import backoff
from service.settings import settings
from tests import common, needs, skipped, slow
from tests.databases import copy_migrated, hasten
from tests.turns import turn

# A slow machine is no mistake of an example; what must be quick has a benchmark.
hypothesis.settings.register_profile("kernelwatch", deadline=None, derandomize=True)
hypothesis.settings.load_profile("kernelwatch")

POSTGRES = "postgresql+psycopg://root@127.0.0.1:5432/postgres"


COMMON = pytest.StashKey[str]()

# Marks of tests that run only when `--with MARK` asks for them: they take long or install much.
ON_REQUEST = ("attack", "image", "long")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--with", dest="requested", action="append", default=[], choices=ON_REQUEST, metavar="MARK")
    parser.addoption("--attack-table", type=Path, default=None, help="a file for the table of attacks and outcomes")


def pytest_configure(config: pytest.Config) -> None:
    needs.watch_skips(config)
    os.environ.pop("COLUMNS", None)  # pytest-xdist sets the width of its own lines
    for name in ("KERNELWATCH_SERVER", "KERNELWATCH_KEY"):  # commands of tests are for this machine
        os.environ.pop(name, None)
    logins = tempfile.TemporaryDirectory(prefix="kernelwatch-logins-")
    config.add_cleanup(logins.cleanup)
    os.environ["XDG_CONFIG_HOME"] = logins.name
    process = getattr(config, "workerinput", None)
    config.stash[COMMON] = process["common"] if process else _new_folder(config)
    common.share(Path(config.stash[COMMON]))
    hasten()
    if slow.WRITE in os.environ:
        config.pluginmanager.register(slow.Durations())
    # What was compiled for an earlier session would hide a fault of compiling, and only on this machine.
    for name in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
        os.environ[name] = str(common.folder() / name.removesuffix("_CACHE_DIR").lower())


def _new_folder(config: pytest.Config) -> str:
    made = tempfile.TemporaryDirectory(prefix="kernelwatch-tests-", ignore_cleanup_errors=True)
    config.add_cleanup(made.cleanup)
    return made.name


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give each process of pytest-xdist the folder that they have in common, in which they also take turns."""
    node.workerinput["common"] = node.config.stash[COMMON]


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Outermost, so that a test's time limit does not include the time until its turn."""
    process = getattr(item.config, "workerinput", None)
    # A test that skips measures nothing.
    skips = any(mark.args[:1] == (True,) for mark in item.iter_markers("skipif"))
    alone = item.get_closest_marker("alone") is not None and not skips
    with turn(common.folder(), alone=alone) if process else nullcontext():
        return (yield)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import torch where no test with it is wanted: that takes seconds."""
    if "not torch" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return re.search("^(import|from) torch", collection_path.read_text(), re.MULTILINE) is not None or None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    gpu = needs.skip_unless(shutil.which("nvidia-smi"), "gpu")
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(gpu)
        if hasattr(item.module, "torch") or "open_contender" in item.fixturenames:
            item.add_marker("torch")
    slow.mark(items)
    skipped.note(config, items)
    unwanted = set(ON_REQUEST) - set(config.option.requested)
    left_out = {item for item in items if unwanted & {mark.name for mark in item.iter_markers()}}
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item in left_out])
        items[:] = [item for item in items if item not in left_out]
    items.sort(key=_turn)


def _turn(item: pytest.Item) -> int:
    """Long files first, so that two processes end together: the demo, what compiles, stories, and the short rest."""
    marks = {mark.name for mark in item.iter_markers()}
    return 0 if "alone" in marks else 1 if "torch" in marks else 3 if "service" in item.path.parts else 2


@pytest.fixture(autouse=True)
def _forges_were_real() -> Iterator[None]:
    """No request to a fake forge, and no answer of it, was one that the real forge does not know."""
    yield
    if used := sys.modules.get("tests.fakes.contracts.contract"):
        broken, used.BROKEN[:] = [*used.BROKEN], []
        assert broken == []


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A fresh state folder: settings read anew, SQLite migrated, nothing left open afterwards."""
    folder = tmp_path / "state"
    monkeypatch.setenv("KERNELWATCH_STATE", str(folder))
    monkeypatch.setenv("KERNELWATCH_LOCKS", str(folder / "locks"))  # several workers of `cpu` may run at once
    monkeypatch.delenv("KERNELWATCH_DATABASE_URL", raising=False)
    _forget()
    folder.mkdir()
    copy_migrated(folder)
    yield folder
    _forget()


@contextmanager
def _database() -> Iterator[str]:
    """The URL of an empty scratch database on the machine's PostgreSQL."""
    name = f"kernelwatch_{uuid.uuid4().hex[:12]}"
    server = create_engine(POSTGRES, isolation_level="AUTOCOMMIT", connect_args={"connect_timeout": 3})
    try:
        with server.connect() as connection:
            connection.execute(text(f"CREATE DATABASE {name}"))
            connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = off"))  # no test cuts the power
    except OperationalError:
        server.dispose()
        needs.skip("postgresql")
    yield make_url(POSTGRES).set(database=name).render_as_string(hide_password=False)
    with server.connect() as connection:
        connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
    server.dispose()


@pytest.fixture
def postgres() -> Iterator[str]:
    with _database() as url:
        yield url


other_postgres = postgres  # for a test that compares two


@pytest.fixture(scope="session")
def migrated_postgres() -> Iterator[Engine]:
    """A migrated database that tests use one after the other: making one takes longer than most of them."""
    with _database() as url:
        migrate.upgrade(url)
        server = create_engine(url, poolclass=NullPool)  # no connection stays open: a restore refuses others
        yield server
        server.dispose()


def _emptied(server: Engine) -> None:
    """Reset a database to its state after the migrations, even if the previous test left open connections."""
    others = "datname = current_database() AND pid <> pg_backend_pid()"
    tables = [table.name for table in Base.metadata.sorted_tables]
    has_rows = " UNION ALL ".join(f"SELECT '{name}' WHERE EXISTS (SELECT 1 FROM {name})" for name in tables)
    with server.begin() as connection:
        connection.execute(text(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}"))
        connection.execute(text("SET LOCAL session_replication_role = replica"))  # tables refer to each other
        for name in connection.execute(text(has_rows)).scalars().all():
            connection.execute(text(f"DELETE FROM {name}"))
        connection.execute(text("SELECT setval(oid::regclass, 1, false) FROM pg_class WHERE relkind = 'S'"))


# Imported only where they are asked for: most tests need neither the app nor a database with days in it.


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The story of tests/dashboards/seed.py, for all tests of a module: they only read."""
    from tests.dashboards import seed

    with seed.watched(tmp_path_factory.mktemp("state")) as story:
        yield story


@pytest.fixture(scope="module")
def decided(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The same with what deciding adds: tests/dashboards/seed_deciding.py."""
    from tests.dashboards import seed, seed_deciding

    with seed.watched(tmp_path_factory.mktemp("decided"), seed_deciding.seed) as story:
        yield story


@pytest.fixture(scope="module")
def get() -> Any:
    """GET an address of the app, in this process."""
    from tests.dashboards.asking import asking

    return asking()


@pytest.fixture(params=["sqlite", "postgres"])
def either(request: pytest.FixtureRequest, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The state fixture on SQLite, and once more on PostgreSQL: for what locks, or has SQL of its own for each."""
    with _on(request, monkeypatch):
        yield request.param


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.long)])
def either_nightly(request: pytest.FixtureRequest, state: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The state fixture on SQLite, and every night on PostgreSQL: for SQL that is the same on both."""
    with _on(request, monkeypatch):
        yield request.param


@contextmanager
def _on(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if request.param == "postgres":
        server = request.getfixturevalue("migrated_postgres")
        _emptied(server)
        monkeypatch.setenv("KERNELWATCH_DATABASE_URL", server.url.render_as_string(hide_password=False))
        _forget()
    yield
    _forget()


def _forget() -> None:
    disconnect()
    settings.cache_clear()
    backoff.forget()
