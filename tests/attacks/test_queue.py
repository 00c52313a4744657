"""Attacks on the queue and the outbox: a forge that fails, clocks that jump, processes and databases that die."""

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row, func, make_url, select, text, update
from sqlalchemy.exc import SQLAlchemyError

from service.db.engine import clock, make_engine, reading, transaction
from service.db.models import Delivery, FactsCheck, OutboxMessage, Run, Target
from service.domain.states import FactsState, OutboxState, RunState
from service.forge.github import GitHub, Token
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.notify import outbox
from service.ledger.runs import facts_checks, queue
from tests import needs, world
from tests.attacks.conftest import Outcome
from tests.attacks.house import RECIPE as SCRIPTED_RECIPE
from tests.attacks.house import Author, FailingGitHub, House, Proxy, served, until
from tests.fakes.github import FakeGitHub
from tests.fakes.repository import MEASURED_ANYWHERE

RECIPE = 'devices = ["cpu"]\n[providers.norms]\nrmsnorm.fwd = "norms:rmsnorm"\n'


def say(repository: str, pulls: int) -> None:
    """Put a comment and a check of each pull request of a new target into the outbox."""
    owner, _, name = repository.partition("/")
    with transaction() as session:
        target = targets.register(session, f"{owner}-{name}", location="/x", forge=repository, recipe_text=RECIPE)
        for pull in range(1, pulls + 1):
            sha = f"{pull:040}"
            usual = {"pull": pull, "created_at": clock(session), "state": RunState.DONE}
            run = world.run(session, world.commit(session, target.id, sha), **usual)
            comment = {"pull": pull, "body": "steady"}
            check = {"sha": sha, "name": "kernelwatch", "status": "completed", "conclusion": "success"}
            check |= {"title": "Steady", "summary": "", "url": None, "commit_status": "success"}
            outbox.enqueue(session, f"comment:{target.id}:{pull}", "comment", target, run, comment)
            outbox.enqueue(session, f"check:{target.id}:{sha}", "check", target, run, check)


def sent() -> int:
    with reading() as session:
        state = OutboxMessage.state == OutboxState.SENT
        return session.scalar(select(func.count()).select_from(OutboxMessage).where(state)) or 0


@pytest.mark.usefixtures("either")
@pytest.mark.parametrize("fault", ["502", "502-after-commit", "unreachable"])
def test_a_failed_request_delays_its_own_message(outcome: Outcome, fault: str) -> None:
    for repository in ("acme/norms", "beta/norms"):
        say(repository, 5)
    forge = FakeGitHub()
    client = GitHub(Token("a-token"), forge.client(), sleep=lambda _: None)
    forge.fail_next(fault)
    outbox.deliver_due(lambda _: client)
    held = sent() == 19
    outcome("outbox", f"one of 20 writes fails: {fault}", held=held, seen=f"{sent()} of 20 sent at once", goal="19")


HOUR_S = 3600.0


@pytest.mark.usefixtures("either")
def test_a_clock_that_jumps_back_an_hour_holds_nothing_up(outcome: Outcome, monkeypatch: pytest.MonkeyPatch) -> None:
    """The times in the database are those of a clock that was an hour ahead; each wait was about to end."""
    say("acme/norms", 1)
    with transaction() as session:
        now = clock(session)
        target = session.scalars(select(Target)).one()
        retried, leased = (world.run(session, world.commit(session, target.id, sha)) for sha in ("a", "b"))
        retried.not_before = now + HOUR_S + 30
        leased.state, leased.lease_until, leased.worker, leased.attempt = RunState.LEASED, now + HOUR_S + 60, "dead", 1
        check = FactsCheck(revision_id=retried.revision_id, base="", attempt=1, lease_until=now + HOUR_S + 900)
        check.target_id, check.recipe_id, check.trusted = target.id, retried.recipe_id, True
        check.state, check.created_at = FactsState.LEASED, now + HOUR_S
        session.add(check)
        target.poll_at, target.forge_paused_until = now + HOUR_S + 60, now + HOUR_S + 3600
        deliveries.store_delivery(session, "guid", "ping", b"{}")
        session.execute(update(Delivery).values(received_at=now + HOUR_S))
        session.execute(update(OutboxMessage).values(next_at=now + HOUR_S + 3600))

    forge = FakeGitHub()
    client = GitHub(Token("a-token"), forge.client(), sleep=lambda _: None)
    monkeypatch.setattr(deliveries, "poll", lambda *_, **__: True)
    with transaction() as session:
        queue.sweep(session)
        lease = queue.next_run(session, "cpu", "worker", 60)
        dead_until = session.get_one(Run, leased.id).lease_until or 0.0
        seen = {
            "second attempt": lease is not None and lease.run_id == retried.id,
            "dead worker's run, after one lease": dead_until <= now + 70,
            "facts": facts_checks.claim(session, 900) is not None,
        }
    seen |= {"delivery": deliveries.process_due() == 1, "poll": deliveries.poll_due() == 1}
    seen |= {"outbox": outbox.deliver_due(lambda _: client) == 2}
    late = [name for name, due in seen.items() if not due]
    outcome(
        "queue",
        "the database's clock jumps back an hour",
        held=not late,
        seen=f"{len(seen) - len(late)} of {len(seen)} due: late are {', '.join(late) or 'none'}",
        goal="all due, or within one lease",
    )


# -- everything dies


KERNELWATCH = ["-m", "service.cli"]
CELERY = ["-m", "celery", "--app", "workers.app"]
STORM_S = {"sqlite": 30.0, "fleet": 50.0}
DRAIN_S = {"sqlite": 120.0, "fleet": 150.0}
RUNS = {"sqlite": 14, "fleet": 20}


@pytest.mark.attack
@pytest.mark.alone
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "fleet"])
def test_nothing_is_lost_or_doubled_while_processes_and_connections_die(
    outcome: Outcome, tmp_path: Path, request: pytest.FixtureRequest, kind: str
) -> None:
    """Every delivery is sent twice, and the remote is polled as well.

    `CHAOS_SEED` chooses what dies and when; `CHAOS_S` makes the storm longer, with as many more runs.  Storms side by
    side need a virtual host of the broker each, `CHAOS_VHOST`.
    """
    if os.geteuid() != 0:
        needs.skip("root", "it runs two workers with host names of their own")
    dice = random.Random(int(os.environ.get("CHAOS_SEED", "1")))
    forge = FailingGitHub(dice, 0.1)
    with ExitStack() as stack:
        hub = stack.enter_context(served(forge.app))
        environment = {"GITHUB_API": hub, "GITHUB_TOKEN": "a-token"}
        cuts: dict[str, Proxy] = {}
        if kind == "fleet":
            url = make_url(request.getfixturevalue("postgres"))
            if not is_reachable(5672):
                needs.skip("rabbitmq")
            cuts = {"database": Proxy(("127.0.0.1", url.port or 5432)), "broker": Proxy(("127.0.0.1", 5672))}
            for proxy in cuts.values():
                stack.callback(proxy.close)
            through = url.set(host="127.0.0.1", port=cuts["database"].port)
            vhost = os.environ.get("CHAOS_VHOST", "/")
            environment["DATABASE_URL"] = through.render_as_string(hide_password=False)
            environment["BROKER_URL"] = f"amqp://guest:guest@127.0.0.1:{cuts['broker'].port}/{vhost}"
            direct = url.render_as_string(hide_password=False)
        else:
            environment["DATABASE_URL"] = direct = f"sqlite:///{tmp_path}/kernelwatch.db"
        house = House(tmp_path, environment)
        stack.callback(house.close)
        house.run("db", "upgrade")
        house.add("api", [*KERNELWATCH, "api"])
        if kind == "fleet":
            one = [*CELERY, "worker", "--concurrency", "1", "--hostname"]
            house.add("control", [*one, f"c{house.port}@x", "--queues", "control"])
            house.add("beat", [*CELERY, "beat", "--schedule", str(tmp_path / "beat"), "--pidfile", ""])
            house.add("first", [*one, f"a{house.port}@x", "--queues", "cpu"], "first", "first")
            house.add("second", [*one, f"b{house.port}@x", "--queues", "cpu"], "second", "second")
        else:
            house.add("control", [*KERNELWATCH, "control"])
            house.add("first", [*KERNELWATCH, "worker", "start"], "first", "first")
            house.add("second", [*KERNELWATCH, "worker", "start"], "second", "second")
        storm_s = float(os.environ.get("CHAOS_S", STORM_S[kind]))
        longer = storm_s / STORM_S[kind]
        storm = Storm(house, Author(tmp_path / "norms"), cuts, direct, dice)
        seen = storm.run(round(RUNS[kind] * longer), storm_s, DRAIN_S[kind] * longer)
    comments = Counter(one.number for one in forge.comments.values())
    pending = [key for key, said in forge.statuses.items() if said[-1]["state"] == "pending"]
    one_each = sum(comments[number] == 1 for number in seen.pulls)
    held = (
        not (seen.lost or seen.doubled or seen.failed or pending)
        and one_each == len(seen.pulls) == len(comments)
        and seen.longest_wait_s <= 120
    )
    hits = ", ".join(f"{name} {count}" for name, count in sorted(seen.hits.items()))
    outcome(
        "queue",
        f"{kind}: kill processes, cut connections, answer 502 for a tenth of the writes",
        held=held,
        seen=(
            f"{seen.runs} runs submitted twice, {sum(seen.hits.values())} kills and cuts ({hits}), "
            f"{forge.failed} answers 502: "
            f"{len(seen.lost)} lost, {len(seen.doubled)} doubled, {len(seen.failed)} failed {seen.failed or ''}, "
            f"{one_each} of {len(seen.pulls)} pull requests with one comment, {len(pending)} statuses pending, "
            f"longest wait with a free worker {seen.longest_wait_s:.0f} s"
        ),
        goal="0 lost, doubled, failed, pending; one comment each; at most 120 s",
    )


@dataclass
class Seen:
    """What a storm left behind."""

    runs: int
    pulls: list[int]
    hits: Mapping[str, int]
    lost: list[str]
    doubled: list[str]
    failed: list[str]
    longest_wait_s: float


class Storm:
    """Submits commits, kills and cuts, and watches how long runs wait while a worker is free."""

    def __init__(
        self, house: House, author: Author, cuts: dict[str, Proxy], database: str, dice: random.Random
    ) -> None:
        self.house, self.author, self.cuts, self.dice = house, author, cuts, dice
        self.engine = make_engine(database).execution_options(reading=True)
        self.wanted: dict[str, int | None] = {}
        self.waited: dict[int, float] = defaultdict(float)
        self.hits: Counter[str] = Counter()
        self.over = threading.Event()

    def run(self, runs: int, storm_s: float, drain_s: float) -> Seen:
        house = self.house
        for name in house.names:
            house.start(name)
        assert until(lambda: house.answers() == 200, 60), house.log("api").read_text()[-2000:]
        recipe = house.folder / "recipe.toml"
        recipe.write_text(SCRIPTED_RECIPE)
        at = [str(self.author.repository.folder), "--recipe", str(recipe), "--forge", "acme/norms", "--backfill", "1"]
        house.run("target", "add", "norms", *at, *(["--trusted"] if MEASURED_ANYWHERE else []))
        if MEASURED_ANYWHERE:
            house.run("target", "allow-unsandboxed", "norms")
        threads = [threading.Thread(target=self._watch), threading.Thread(target=self._submit, args=(runs,))]
        for thread in threads:
            thread.start()
        deadline = time.monotonic() + storm_s
        while time.monotonic() < deadline:
            self._hit()
        threads[1].join()
        house.kill("control")  # else what it sends at this moment would be claimed, and sent, twice
        with self.engine.begin() as connection:
            # Ends the claims of senders that were killed, which would last for minutes.
            connection.execute(text("UPDATE outbox_messages SET next_at = 0 WHERE state = 'waiting'"))
        house.start("control")
        until(self._is_quiet, drain_s)
        self.over.set()
        threads[0].join()
        seen = self._seen()
        self.engine.dispose()
        return seen

    def _submit(self, runs: int) -> None:
        for number in range(1, runs + 1):
            pull = self.dice.random() < 0.6
            sha, event, body = self.author.pull(number) if pull else self.author.push(number)
            self.wanted[sha] = number if pull else None
            for guid in (f"first-{number}", f"second-{number}"):
                until(lambda event=event, body=body, guid=guid: self.house.deliver(event, body, guid) == 202, 60, 0.5)
            time.sleep(self.dice.uniform(0.5, 2))

    def _hit(self) -> None:
        """Kill one process, or cut one connection, and restore it after some seconds."""
        house = self.house
        time.sleep(self.dice.uniform(1, 4))
        what = self.dice.choice([*house.names, "first", "second", *(2 * [*self.cuts])])
        self.hits[what] += 1
        if what in self.cuts:
            self.cuts[what].cut()
            time.sleep(self.dice.uniform(1, 10))
            self.cuts[what].restore()
        else:
            house.kill(what)
            time.sleep(self.dice.uniform(0, 2))
            house.start(what)
        for name in set(house.names) - set(house.alive):
            self.hits[f"{name} by itself"] += 1
            house.start(name)

    def _watch(self) -> None:
        """Add up for each run how long it waits while a worker is free."""
        before = time.monotonic()
        while not self.over.wait(1.0):
            with suppress(SQLAlchemyError):
                rows = self._ask(
                    "SELECT id, state, worker, started FROM (SELECT r.id, r.state, r.worker, a.started_at"
                    " AS started FROM runs r LEFT JOIN attempts a ON a.run_id = r.id"
                    " AND a.attempt = r.attempt WHERE r.state IN ('queued', 'leased')) x"
                )
                held = {str(row.worker).partition("/")[0]: row for row in rows if row.state == "leased"}
                # A lease from before its worker was started is that of a dead worker.
                orphans = {row.id for host, row in held.items() if row.started < self.house.started_at.get(host, 0.0)}
                busy = {host for host, row in held.items() if row.id not in orphans}
                now = time.monotonic()
                for row in rows if {"first", "second"} & set(self.house.alive) - busy else ():
                    if row.state == "queued" or row.id in orphans:
                        self.waited[row.id] += now - before
            before = time.monotonic()

    def _is_quiet(self) -> bool:
        waiting = self._ask(
            "SELECT (SELECT count(*) FROM runs WHERE state IN ('queued', 'leased') OR notified_state <> state)"
            " + (SELECT count(*) FROM deliveries WHERE processed_at IS NULL)"
            " + (SELECT count(*) FROM outbox_messages WHERE state = 'waiting')"
        )
        known = self._ask("SELECT count(*) FROM revisions r JOIN runs u ON u.revision_id = r.id")
        return bool(waiting[0][0] == 0 and known[0][0] >= len(self.wanted))

    def _seen(self) -> Seen:
        rows = self._ask("SELECT r.sha, u.state, u.reason FROM runs u JOIN revisions r ON r.id = u.revision_id")
        found = Counter(row.sha for row in rows)
        failed = [f"{row.sha[:8]} {row.state}: {row.reason}" for row in rows if row.state not in ("done", "skipped")]
        return Seen(
            runs=len(self.wanted),
            pulls=[number for number in self.wanted.values() if number is not None],
            hits=self.hits,
            lost=[sha for sha in self.wanted if sha not in found],
            doubled=[sha for sha, count in found.items() if count > 1],
            failed=failed,
            longest_wait_s=max(self.waited.values(), default=0.0),
        )

    def _ask(self, query: str) -> Sequence[Row[Any]]:
        with self.engine.connect() as connection:
            return connection.execute(text(query)).all()


def is_reachable(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


# -- the database is mistreated


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of this size in memory; skips where it cannot be mounted."""
    folder.mkdir()
    mounted = os.geteuid() == 0 and _mount("-t", "tmpfs", "-o", f"size={size}", "none", str(folder))
    if not mounted:
        needs.skip("root", "it mounts a small file system, which needs CAP_SYS_ADMIN")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], check=False, capture_output=True).returncode == 0


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler, suppress(OSError):
        while True:
            filler.write(bytes(65_536))


def spoil(file: Path, start: int, length: int) -> None:
    with file.open("r+b") as opened:
        opened.seek(start)
        opened.write(random.Random(1).randbytes(length))


@pytest.fixture
def mistreated(tmp_path: Path) -> Iterator[House]:
    """API and control with their database on a disk of 12 MB."""
    with small_disk(tmp_path / "disk", "12m"):
        house = House(tmp_path, {"DATABASE_URL": f"sqlite:///{tmp_path}/disk/kernelwatch.db", "FACTS": "false"})
        house.add("api", [*KERNELWATCH, "api"])
        house.add("control", [*KERNELWATCH, "control"])
        house.run("db", "upgrade")
        try:
            yield house
        finally:
            house.close()


def up(house: House) -> None:
    for name in house.names:
        house.start(name)
    assert until(lambda: house.answers("/healthz") == 200, 60), house.log("api").read_text()[-2000:]


def works(house: House, guid: str) -> bool:
    """Whether a webhook is taken and processed, and the file is whole."""
    taken = until(lambda: house.deliver("ping", {}, guid) == 202, 30)
    file = house.folder / "disk" / "kernelwatch.db"

    def processed() -> bool:
        with closing(sqlite3.connect(file, timeout=10)) as connection:
            query = "SELECT count(*) FROM deliveries WHERE guid = ? AND processed_at IS NOT NULL"
            return bool(connection.execute(query, (guid,)).fetchone()[0])

    done = taken and until(processed, 30)
    with closing(sqlite3.connect(file, timeout=10)) as connection:
        return done and connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@pytest.mark.attack
@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["full disk", "read-only", "first page", "middle"])
def test_a_database_that_is_mistreated_ends_no_process_and_works_once_it_is_repaired(
    mistreated: House, outcome: Outcome, what: str
) -> None:
    house, disk = mistreated, mistreated.folder / "disk"
    file, backup = disk / "kernelwatch.db", mistreated.folder / "backup.db"
    up(house)
    assert works(house, "before")
    match what:
        case "full disk":
            fill(disk / "filler")
        case "read-only":
            house.close()  # the kernel refuses while a file is open for writing
            assert _mount("-o", "remount,ro", str(disk))
            up(house)
        case _:
            house.close()
            with closing(sqlite3.connect(file)) as connection:
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            shutil.copy(file, backup)
            spoil(file, 0, 4096) if what == "first page" else spoil(file, 8192, 200_000)
            up(house)
    large = {"zen": "x" * 300_000}
    refused = [house.deliver("ping", large, f"{what}-{number}") for number in range(6)]
    time.sleep(3)
    alive = sorted(house.alive) == sorted(house.names)
    remedy = any(REMEDIES[what] in house.log(name).read_text() for name in house.names)
    match what:
        case "full disk":
            (disk / "filler").unlink()
        case "read-only":
            house.close()
            assert _mount("-o", "remount,rw", str(disk))
            up(house)
        case _:
            house.close()
            shutil.copy(backup, file)
            up(house)
    again = works(house, "after")
    outcome(
        "database",
        f"SQLite: {what}",
        held=alive and 503 in refused and remedy and again,
        seen=f"webhooks {sorted(set(refused))}, processes alive: {alive}, remedy in the log: {remedy}, "
        f"works after the repair: {again}",
        goal="503, alive, a remedy, works again",
    )


REMEDIES = {
    "full disk": "Free space on its disk",
    "read-only": "writable for the user",
    "first page": "restore a backup",
    "middle": "restore a backup",
}
