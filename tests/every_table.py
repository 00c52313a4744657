"""A private target with a row in every table that has rows of targets, in which every text can be recognised."""

import json
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import Column, Enum, LargeBinary, select
from sqlalchemy.orm import Session
from sqlalchemy.types import JSON, Boolean, String

from kernels.cases import Metric
from service.db.models import (
    Account,
    AnyJSON,
    AnyText,
    ApiKey,
    AuditEntry,
    Base,
    ChannelHealth,
    Delivery,
    PolicyRow,
    RepeatableRequest,
    ShortText,
    Stack,
    Worker,
    pack,
)
from service.db.visibility import ways
from service.domain.codefacts.texts import packed
from service.domain.states import ActorKind, BaselineKind, ForgeKind, Purpose, RunState

MARK = "zq7x"
SHA = "5ec7e7" * 6 + "beef"
CASE = "rmsnorm.fwd.7919x7907.bf16-fp32"
DIGEST = "2" * 64  # of the policy that judged it
_FIRST_ID = 7_770_000  # of its rows
IDS = str(_FIRST_ID)[:5]  # which begin so
MARKS = (MARK, SHA[:7], "7919x7907", IDS)
NAME = f"{MARK}-target"
# Words of ours, in columns that have no text of anybody.
_WORDS: Mapping[str, Any] = {
    "arch": "sm_90",
    "cause_by": None,
    "cause_code": None,
    "cause_args": None,
    "cause_kind": None,
    "course": None,
    "doubt": None,
    "kind": "comment",
    "kinds": None,
    "level": "notify",
    "notified_state": "",
    "outcome": "regression",
    "permission": "none",
    "reason_args": None,
    "reason_code": None,
    "role": "head",
    "seconds": None,
    "summary": None,
    "telemetry": None,
    "what": "comment",
}
_CONTENT: Mapping[str, Any] = {  # what pages read of a column, by its name or with its table's
    "case": CASE,
    "cases": [CASE],
    "contender": f"head:{MARK}",
    "device": f"{MARK}-device",
    "provider": MARK,
    "only_cases": None,
    "findings": None,  # of a form that a page reads
    "line": [SHA],
    "kernel_texts.kind": "ptx",
    "build_logs.packed": zlib.compress(f"{MARK} log".encode()),
    "code_texts.packed": packed(f"{MARK} code").packed,  # type: ignore[union-attr]
    "code_texts.sha256": SHA[:16] * 4,
    "measurements.samples": pack([[1.0]], []),
    "ingested_measurements.samples": "[1.0]",
    "regressions.fixed_at": 1.0,
    "recipes.text": f'# {MARK}\n[suites.smoke]\ncases = ["{CASE}"]\n',
    "recipes.adapters": {f"{MARK}.py": f"# {MARK}"},
    "revisions.ordinal": 1,
    "revisions.paths": [f"{MARK}/path.py"],
    "runs.purpose": Purpose.WATCH,
    "runs.state": RunState.FAILED,
    "series.metric": Metric.KERNEL,
    "verdicts.baseline_kind": BaselineKind.PARENT,
    "targets.forge_kind": ForgeKind.GITHUB,
    "targets.name": NAME,
    "targets.private": True,
}
_SHAS = {"sha", "head", "good", "bad", "culprit", "baseline", "base", "last_good", "pinned", "accepted_head"}


def filled(session: Session) -> dict[str, Any]:
    """Add the target with a row of each table; returns the rows by their tables' names."""
    rows: dict[str, Any] = {
        "stacks": Stack(digest="1" * 64, versions={"torch": f"{MARK}-version"}),
        "policies": PolicyRow(digest=DIGEST, values={"cases": {f"{MARK}*": {}}}, created_at=0.0),
        "accounts": Account(issuer="https://id", subject="7", login="grace", created_at=0.0, signed_in_at=0.0),
        "api_keys": ApiKey(name="CI", prefix="kw_0", digest="3" * 64, created_at=0.0, created_by="ada"),
        "deliveries": Delivery(guid="1", event="push", body=MARK.encode(), received_at=0.0, outcome=MARK),
    }
    session.add_all(rows.values())
    session.flush()
    waiting = list(ways())
    while waiting:
        for table in [one for one in waiting if _parents(one) <= rows.keys()]:
            row = table(**dict(_values(table, rows)))
            session.add(row)
            session.flush()
            rows[table.__tablename__] = row
            waiting.remove(table)
    rows["targets"].recipe_id = rows["recipes"].id
    _write_about(session, rows)
    return rows


def _write_about(session: Session, rows: Mapping[str, Any]) -> None:
    """Rows of tables that belong to no target, and what they say of this one."""
    worker = session.scalars(select(Worker).order_by(Worker.id).limit(1)).first()
    worker = worker or Worker(name="box", device="cpu", description="", started_at=0.0, seen_at=0.0)
    worker.run_id = rows["runs"].id
    session.add_all(
        [
            worker,
            AuditEntry(
                at=0.0, actor_kind=ActorKind.LOCAL, actor=MARK, action="target.add", target=NAME, details={MARK: 1}
            ),
            RepeatableRequest(owner="key 1", key="1", digest="4" * 64, begun_at=0.0, status=200, body=MARK),
            ChannelHealth(channel="hook", error=MARK),
        ]
    )
    session.flush()


def _parents(table: type[Base]) -> set[str]:
    return {key.column.table.name for key in table.__table__.foreign_keys if not key.parent.nullable}


def _values(table: type[Base], rows: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for column in table.__table__.c:
        if column.foreign_keys:
            [key] = column.foreign_keys
            parent = rows.get(key.column.table.name)
            yield column.key, parent.id if parent is not None else None
        elif column.primary_key and column.name == "id":
            yield column.key, _FIRST_ID + len(rows)
        else:
            yield column.key, _value(f"{table.__tablename__}.{column.name}", column)


def _value(name: str, column: Column[Any]) -> Any:
    for known in (_CONTENT, _WORDS):
        for key in (name,) if isinstance(column.type, Enum) else (name, column.name):
            if key in known:
                return known[key]
    if column.name in _SHAS:
        return SHA
    match column.type:
        case Enum():
            return None if column.nullable else next(iter(column.type.enum_class or ()))
        case JSON() | AnyJSON():
            return {MARK: MARK}
        case LargeBinary():
            return MARK.encode()
        case String() | AnyText() | ShortText():
            return f"{MARK}-{name.replace('.', '-')}"[: column.type.length or None]
        case Boolean():
            return column.name in ("private", "complete", "alarmed", "confirmed")
        case _:
            return None if column.nullable else 1


def unmarked(rows: Mapping[str, Any]) -> set[str]:
    """The columns that may hold a text of somebody, in which nothing would be recognised."""
    return {
        f"{table}.{column.name}"
        for table, row in rows.items()
        if type(row) in ways()
        for column in row.__table__.c
        if isinstance(column.type, String | AnyText | ShortText | JSON | AnyJSON) and not isinstance(column.type, Enum)
        if column.name not in _WORDS and not any(mark in json.dumps(getattr(row, column.key)) for mark in MARKS)
    }
