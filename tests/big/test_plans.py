"""No statement of the service reads more in a database with a past that is many times longer.

The statements are those that the app sends for every address that it has and for what changes something, and those of
control and of a worker.
"""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session
from structlog.testing import capture_logs

from kernels.cases import Role
from service.app import create_app
from service.db import models as m
from service.db.engine import analyze, engine, reading, transaction
from service.domain.exports import Exportable
from service.domain.states import OutboxState, Priority, RunState
from service.ledger.intake import deliveries
from service.ledger.runs import queue
from tests import world
from tests.big.addresses import every
from tests.big.plans import Statement, measured
from tests.big.routes import Values, addresses, with_values
from tests.big.seed import seed
from tests.big.seeder import Places
from tests.big.story import SMALL
from tests.dashboards.seed import watched
from tests.fakes.api import Api, app_openapi
from tests.fakes.contracts import webhooks
from tests.workers.periodic import run_control

# Few cases, and so many revisions in the small one that no page has room for all of them.
SIZE = replace(SMALL, cases=6, team_cases=2)
SMALL_PAST, LARGE_PAST = 100_000, 400_000  # measurements
# What a statement may read more in the large database, 2,000 rows: a millisecond.  Small tables are read as a whole.
NEGLIGIBLE = {"postgresql": 2_000, "sqlite": 20_000}
# Addresses whose statements may read more of a longer past, by a pattern, and why.
ACCEPTED = {
    r"since": "the reader asks for a longer past",
    r"regressions\.csv": "the file has all regressions of a state, at most 10,000",
    r"runs\?purpose": "the newest runs for a rare purpose are looked for among all runs",
    r"/replay$": "all runs of a target and a period are judged again",
    r"feeds/": "at most 2,000 events, which the small database does not have",
    r"liger/series|trend\?case$": "at most 2,000 revisions, and what other targets measured of the case meanwhile",
    r"days$": "of all revisions 1,000 are named, so that PostgreSQL reads a small table of revisions as a whole",
}
Database = tuple[str | None, str | None]  # the addresses of the small one and of the large one


@pytest.fixture(params=["sqlite", "postgres"])
def databases(request: pytest.FixtureRequest) -> Database:
    if request.param == "sqlite":
        return None, None
    return request.getfixturevalue("postgres"), request.getfixturevalue("other_postgres")


Read = Callable[[Places], dict[tuple[str, str], Statement]]


def of_readers(at: Places) -> dict[tuple[str, str], Statement]:
    """The statements of every address, by route or name and text."""
    api = Api().with_key("admin", name="reader")
    named = {f"{name}: {path}": path for name, path in every(at).items()}
    with reading() as session:
        values = values_of(session, at)
    enumerated = {path: path for path in addresses(create_app(), values)}
    found = {}
    for name, path in (named | enumerated).items():
        with measured() as statements:
            # Of an export the first part: the others send the same statements.
            answer = api.request("HEAD" if "/export/" in path else "GET", path, below="")
        assert answer.status_code in (200, 302, 303, 307, 400, 401, 403, 404, 409, 422, 503), (path, answer.text[:500])
        label = re.sub(r"=[^&]*", "", re.sub(r"\d+|[0-9a-f]{10,}", "N", name))
        for sql, one in statements.items():
            if (label, sql) not in found or found[label, sql].work < one.work:
                found[label, sql] = one
    return found


def values_of(session: Session, at: Places) -> Values:
    """What is in the database, by the parameters that name it: the newest, and the oldest where that may differ."""

    def ids(table: type[m.Base]) -> tuple[str, ...]:
        key = m.Base.metadata.tables[table.__tablename__].c.id
        return tuple(str(session.scalar(select(key).order_by(order).limit(1)) or 1) for order in (key.desc(), key))

    target = session.scalars(select(m.Target).where(m.Target.name == at.target)).one()
    of_line = select(m.Revision.sha).where(m.Revision.target_id == target.id, m.Revision.ordinal.is_not(None))
    oldest = session.scalars(of_line.order_by(m.Revision.ordinal).offset(3).limit(1)).one()
    policy = session.scalars(select(m.PolicyRow.digest)).first() or ""
    runs = (str(at.newest), str(at.failed), ids(m.Run)[1])
    return {
        **dict.fromkeys(("name", "target"), (at.target, "liger")),
        **dict.fromkeys(("sha", "revision", "base", "head", "at", "a", "b"), (at.shas[1], oldest, at.shas[0][:8])),
        **dict.fromkeys(("by", "assignee", "worker"), ("ada",)),
        **dict.fromkeys(("run_id", "runs", "run"), runs),
        **dict.fromkeys(("regression_id", "regressions"), (str(at.regression), *ids(m.RegressionRow))),
        **dict.fromkeys(("incident_id", "incidents"), ids(m.Incident)),
        "bisection_id": ids(m.Bisection),
        "workers": ids(m.Worker),
        "pulls": (str(at.pull_number),),
        "pull": (str(at.pull_number),),
        "q": ("rmsnorm", oldest[:8], "Tune"),
        "case": (quote(at.case), "rmsnorm.*"),
        "device": ("h200",),
        "provider": ("norms",),
        "contender": ("head:norms",),
        "digest": (policy,),
        "what": tuple(Exportable),
        "form": ("svg", "json"),
        "kind": ("ptx",),
        "part": ("gaps", "small"),
        "week": ("2026-W30",),
        "days": ("7", "365", "all"),
        "since": ("2020-01-01T00:00:00Z",),
        "state": ("open", "fixed", "done", "queued", "failed", "found"),
        "purpose": ("watch", "calibration"),
        "closed": ("true",),
        "released": ("true",),
        "running": ("true",),
        "expand": ("counts", "events", "runs"),
        "cursor": (),
    }


def of_writers(at: Places) -> dict[tuple[str, str], Statement]:
    """The statements of every request that changes something, with webhooks and measurements made elsewhere."""
    api = Api().with_key("admin", name="writer")
    with reading() as session:
        values = {**values_of(session, at), **_CHANGED}
    found = dict[tuple[str, str], Statement]()

    def ask(label: str, method: str, path: str, **options: Any) -> None:
        with measured() as statements:
            answer = api.request(method, path, below="", **options)
        assert answer.status_code < 500, (path, answer.text[:500])
        for sql, one in statements.items():
            if (label, sql) not in found or found[label, sql].work < one.work:
                found[label, sql] = one

    head, base = at.shas[1], at.shas[0]
    for event, body in (
        ("push", webhooks.push(base, head, repository="acme/norms")),
        ("pull_request", webhooks.pull_request(at.pull_number, "opened", head, base)),
    ):
        sent = webhooks.from_github(event, body, guid=event, secret="s3cret")
        ask(event, "POST", "/webhooks/github", **sent)
        ask(f"{event}, again", "POST", "/webhooks/github", **sent)
    ndjson = {"Content-Type": "application/x-ndjson"}
    line = {"revision": head, "provider": "norms", "case": at.case, "samples": [7.0]}
    batch = {"batch": {"tool": "a study", "machine": "here", "device": "h200"}}
    sent = {"content": f"{json.dumps(batch)}\n{json.dumps(line)}\n", "headers": ndjson}
    ask("ingest", "POST", "/api/v1/targets/norms/ingested", **sent)
    described = app_openapi()["paths"].items()
    writing = [(path, method) for path, methods in described for method in methods if method not in ("get", "head")]
    for path, method in writing:
        if path.startswith("/api/") and not path.endswith(("/ingested", *_OF_REPOSITORIES)):
            if (path, method) == ("/api/v1/targets/{name}", "delete"):
                continue  # a target goes with all that it has
            for filled in with_values(path, values):
                options = {"json": _BODIES.get(path.rpartition("/")[2], {})} if method != "delete" else {}
                ask(f"{method} {path}", method.upper(), filled, **options)
    assert len(found) > 150
    return found


_REASON = {"reason": "measured while the machine was in use"}
# By the end of a path, what is sent to it; nothing to the others.
_BODIES: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("acknowledge", "dismiss", "reopen"), _REASON),
    **dict.fromkeys(("quarantine", "release"), _REASON | {"case": "rmsnorm.fwd.512x512.fp32", "device": "h200"}),
    "assign": {"assignee": "ada"},
    "note": {"text": "seen on another machine, too"},
    "due": {"due_at": "2030-01-01T00:00:00Z"},
    "calibrate": {"device": "h200"},
    "replay": {
        "policy": "[policy]\nsmallest_change = 0.05",
        "since": "2020-01-01T00:00:00Z",
    },
    "keys": {"name": "a job", "scopes": ["read"]},
    "subscriptions": {"channel": "nowhere"},
    "{name}": {"branch": "main"},
    "check": {"recipe": 'devices = ["h200"]'},
}
_OF_REPOSITORIES = ("/targets", "/backfill", "/bisections", "/runs")  # what these begin with is not here
_CHANGED = {"change": ("disable", "enable"), "login": ("ada",), "which": ("a job",), "batch_id": ("1",)}


def of_control(_: Places) -> dict[tuple[str, str], Statement]:
    """The statements of two polls of control, with nothing to be sent to forges and no remote to be polled."""
    with transaction() as session:
        session.execute(update(m.OutboxMessage).values(state=OutboxState.SENT))
        session.execute(update(m.Target).values(paused_at=1.0))  # no remote is polled
    found = {}
    for _ in range(2):
        with measured() as statements, capture_logs() as logs:
            deliveries.poll_due()
            run_control()
        assert [one for one in logs if one["event"] == "periodic task failed"] == []
        found |= {("control", sql): one for sql, one in statements.items()}
    assert len(found) > 40
    return found


def of_a_worker(at: Places) -> dict[tuple[str, str], Statement]:
    """The statements of a worker that claims a run of the mainline, measures its cases and records them."""
    with transaction() as session:
        session.execute(update(m.Run).where(m.Run.state == RunState.QUEUED).values(device="another"))
        before = session.scalars(select(m.Revision).where(m.Revision.sha == at.shas[1])).one()
        usual = {"subject": "work", "author": "Ada", "committed_at": before.committed_at + 60, "paths": []}
        made = m.Revision(target_id=before.target_id, sha="f" * 40, parent=before.sha, ordinal=10**6, **usual)
        session.add(made)
        session.flush()
        world.run(session, made, device="h200", suite="all", priority=Priority.PULL_REQUEST)
        measurements = select(m.Measurement.case).where(m.Measurement.run_id == at.newest, m.Measurement.role == "head")
        cases = sorted(session.scalars(measurements))
    with measured() as statements:
        with transaction() as session:
            queue.sweep(session)
            lease = queue.next_run(session, "h200", "a worker", 60)
            assert lease
            queue.register(session, "a worker", "h200", "NVIDIA H200", None, lease.run_id)
        taken = [
            world.took(role, case, us, provider)
            for case in cases
            for role, us, provider in (
                (Role.HEAD, 130.0 if case == cases[0] else 100.0, "norms"),
                (Role.PARENT, 100.0, "norms"),
                (Role.CONTROL, 100.0, "norms"),
                (Role.SOTA, 90.0, "quack"),
            )
        ]
        world.recorded(lease, world.session_of(taken, at.shas[1]))
    assert len(statements) > 30
    return {("worker", sql): one for sql, one in statements.items()}


@pytest.mark.parametrize("read", [of_readers, of_writers, of_control, of_a_worker])
def test_no_statement_reads_more_after_a_longer_past(
    databases: Database, read: Read, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWATCH_WEBHOOK_SECRET", "s3cret")
    with sown(tmp_path / "small", SMALL_PAST, databases[0]) as at:
        small = read(at)
    with sown(tmp_path / "large", LARGE_PAST, databases[1]) as at:
        large = read(at)
        most = NEGLIGIBLE[engine().dialect.name]
    known = {key: one.work for key, one in small.items()}
    grown = defaultdict[str, list[tuple[int, int, str, str]]](list)
    for (label, sql), one in large.items():
        if any(re.search(pattern, label) for pattern in ACCEPTED):
            continue
        if one.work > 2 * (before := known.get((label, sql), 0)) + most:
            grown[sql].append((one.work, before, label, one.plan))
    shown = [
        f"{before:,} -> {work:,} for {len(ways)}, such as {ways[0][2]}, {ways[-1][2]}:\n{sql}\n{plan}"
        for sql, ways in grown.items()
        for work, before, _, plan in [max(ways)]
    ]
    if shown:
        pytest.fail("\n\n".join([f"{len(shown)} statements read more", *shown]), pytrace=False)


@contextmanager
def sown(folder: Path, measurements: int, url: str | None) -> Iterator[Places]:
    """The large database made small, with about so many measurements."""
    folder.mkdir()
    with watched(folder, lambda session, _now: seed(session, SIZE, measurements), database_url=url) as at:
        analyze()
        if url is not None:  # as its autovacuum does
            with engine().begin() as connection:
                connection.execute(text("ANALYZE"))
        yield at
