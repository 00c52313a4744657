"""A database with rows of every kind, public and private, and the values that requests should use to reach them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path

import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.engine import clock, reading, transaction
from service.db.models import (
    Account,
    ApiKey,
    Base,
    Bisection,
    FactsCheck,
    Incident,
    IngestBatch,
    PolicyRow,
    RegressionRow,
    Revision,
    Run,
    Target,
    Worker,
)
from service.domain.access import local, read_grants
from service.domain.states import FoundBy, RunState, TargetKind
from service.ledger.access import keys
from service.ledger.acting import as_actor
from service.ledger.ingest import batches
from service.ledger.intake import registry
from service.ledger.regressions import transitions
from service.ledger.regressions.transitions import Slower
from service.ledger.targets import target_named
from tests import world
from tests.attacks.house import RECIPE
from tests.dashboards import seed, seed_deciding
from tests.fakes.api import new_key
from tests.fakes.repository import Repository

SCOPES: Mapping[str, Sequence[str]] = {
    "admin": ("admin",),
    "one target": ("run:norms", "triage:norms", "ingest:norms"),
    "read": ("read",),
    "none": (),
}
DISPOSABLE = 12  # targets and keys of which requests may delete, rename or revoke one
KEPT_TARGETS = ("norms", "live", "secret", "liger")
DISPOSABLE_TARGETS = tuple(f"disposable-{number}" for number in range(DISPOSABLE))
_CASE = seed.CASES[0]
SENT = (
    {"batch": {"tool": "triton.testing 3.6", "machine": "ci-runner-7", "device": "h200", "stack": {"torch": "2.11"}}},
    {"revision": "1f3a9c2", "provider": "norms", "case": _CASE, "samples": [7.31, 7.29, 7.4]},
)


@dataclass(frozen=True)
class Populated:
    """Keys by the name of their rights ("" for none), values by the name of a parameter, and keys to be revoked."""

    keys: Mapping[str, str]
    values: Mapping[str, Sequence[str | int]]
    disposable_keys: Sequence[str]


@contextmanager
def populated(folder: Path, database_url: str | None = None) -> Iterator[Populated]:
    """A state folder with a few days of watching, a repository, a private target, keys, people and an audit log."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(folder)]))
        patch.setenv("KERNELWATCH_ALLOWED_HOSTS", "[]")  # no request leaves this machine
        patch.setenv("KERNELWATCH_RATE_LIMIT", "")
        patch.setenv("KERNELWATCH_WEBHOOK_SECRET", "It's a Secret to Everybody")
        patch.setenv("KERNELWATCH_LOCKS", str(folder / "locks"))
        with seed.watched(folder / "state", seed_deciding.seed, database_url=database_url):
            yield _populate(folder)


def _populate(folder: Path) -> Populated:
    repository = Repository(folder / "live")
    shas = [repository.commit(f"work {number}") for number in range(4)]
    wheels = Repository(folder / "wheels")  # of both kinds, because requests use each location as either
    with transaction() as session:
        target_named(session, "norms").location = str(repository.folder)
        target_named(session, "liger").location = str(wheels.folder)
    with as_actor(local("root")):
        registry.add("live", location=str(repository.folder), recipe=(RECIPE, {}), backfill=2)
        _private()
        _more(target_id=_named("norms"))
        for name in DISPOSABLE_TARGETS:
            world.target(name=name, location=str(repository.folder), kind=TargetKind.GIT)
    made = {name: new_key(*scopes, name=name) if scopes else "" for name, scopes in SCOPES.items()}
    return Populated(made, _values(shas, str(repository.folder)), _disposable_keys())


def _private() -> None:
    """A target of which only administrators know, with one of everything."""
    target = world.target(name="secret", private=True)
    with transaction() as session:
        run = world.run(session, world.commit(session, target.id, 1), state=RunState.HELD, trusted=False)
        world.measured(session, run, _CASE, 7.0)
        world.judged(session, run, _CASE)
        transitions.open_one(session, run, Slower("norms", _CASE, 1.2), found_by=FoundBy.PAIR, good="c0")
        ends = {"good": "c0", "bad": "c1", "line": ["c0", "c1"], "cases": [_CASE], "asked_by": "ada"}
        session.add(
            Bisection(target_id=target.id, device="cpu", suite="smoke", max_runs=9, created_at=clock(session), **ends)
        )
    _send(target)


def _more(target_id: int) -> None:
    """What the story of the dashboards lacks."""
    with transaction() as session:
        target, now = session.get_one(Target, target_id), clock(session)
        revision = session.scalars(select(Revision).where(Revision.target_id == target_id).limit(1)).one()
        session.add(
            FactsCheck(
                target_id=target_id, recipe_id=target.recipe_id, revision_id=revision.id, base="", trusted=True,
                created_at=now,
            )
        )  # fmt: skip
        session.add_all(
            Worker(name=f"box{number}/cpu-0", device="cpu", description="", started_at=now, seen_at=now)
            for number in range(2)
        )
        session.add_all(
            Account(issuer="https://github.com", subject=login, login=login, created_at=now, signed_in_at=now)
            for login in ("ada", "grace")
        )
        for state in (RunState.QUEUED, RunState.HELD, RunState.CANCELLED):
            world.run(session, revision, state=state, trusted=state is not RunState.HELD)
    _send(target)


def _send(target: Target) -> None:
    for _ in range(3):
        body = b"".join(json.dumps(line).encode() + b"\n" for line in SENT)
        batches.receive(target, BytesIO(body), compressed=False)


def _disposable_keys() -> list[str]:
    """Prefixes of keys that requests may revoke."""
    with as_actor(local("root")), transaction() as session:
        grants = read_grants(["read"])
        return [keys.create(session, f"disposable {number}", grants)[0].prefix for number in range(DISPOSABLE)]


def _named(name: str) -> int:
    with reading() as session:
        return target_named(session, name).id


def _values(shas: Sequence[str], location: str) -> dict[str, list[str | int]]:
    """Values of the database by the names of the parameters that take them."""
    with reading() as session:
        return {
            "name": [*KEPT_TARGETS, *DISPOSABLE_TARGETS[:3]],
            "worker": list(session.scalars(select(Worker.name))),
            "login": list(session.scalars(select(Account.login))),
            "digest": list(session.scalars(select(PolicyRow.digest))),
            "run_id": _some(session, Run),
            "regression_id": _some(session, RegressionRow),
            "incident_id": _some(session, Incident),
            "bisection_id": _some(session, Bisection),
            "batch_id": _some(session, IngestBatch),
            "which": [str(one) for one in _some(session, ApiKey)],
            "case": [*seed.CASES[:3], "rmsnorm.*", "rmsnorm.fwd.512x512.fp32"],
            "provider": ["norms", "quack"],
            "contender": ["head:norms", "parent:norms", "sota:quack"],
            "device": ["h200", "cpu"],
            "suite": ["norms", "one"],
            "op": ["rmsnorm", "layernorm"],
            "revision": [*shas, "main", *list(session.scalars(select(Revision.sha)))[:8], "pull/7"],
            "location": [location, "/nowhere"],
            "recipe": [RECIPE, seed.RECIPE],
            "policy": ["smallest_change = 0.03", "[policy]\nsmallest_change = 0.05"],
        }


def _some(session: Session, table: type[Base]) -> list[int]:
    """Up to 40 ids, spread over the table."""
    ids = list(session.scalars(select(table.id).order_by(table.id)))  # type: ignore[attr-defined]
    return ids[:: max(1, len(ids) // 40)]


def counts() -> dict[str, int]:
    """The number of rows of the tables that a run must not empty."""
    with reading() as session:
        tables = (Target, Run, RegressionRow, Bisection, IngestBatch)
        return {one.__tablename__: session.scalar(select(func.count()).select_from(one)) or 0 for one in tables}
