"""The sample: a public history that was measured on an H200, copied into the database as a paused target of its own.

The file is a backup of a service that watched it, which docs/measurements/2026-11-28-h200-histories keeps and explains.
Nothing is changed but the name of the target, and what would make this service act for it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, RowMapping, Table, insert, select, update
from sqlalchemy.orm import Session

from service.db import backup
from service.db.engine import clock, transaction
from service.db.models import SAMPLE_LOCATIONS, SAMPLES, Base, Target
from service.domain.states import TargetKind
from service.errors import Conflict
from service.ledger import audit, targets
from service.ledger.intake import registry

FILE = Path(__file__).parents[2] / "samples" / "liger-h200.db.gz"
PREFIX = "sample-"

# Parents first.  Workers, webhooks and messages to the forge stay behind: nothing is to happen for a sample.
_COPIED = (
    "recipes", "revisions", "stacks", "policies", "series", "pulls", "pushes", "incidents", "bisections", "runs",
    "attempts", "build_logs", "measurements", "verdicts", "facts_checks", "code_texts", "kernel_texts", "regressions",
    "regression_events", "change_points", "calibrations", "quarantines", "gaps", "run_totals", "calibration_totals",
)  # fmt: skip
_SHARED = ("stacks", "policies")  # of all targets; known by their digests


@dataclass(frozen=True)
class Loaded:
    """The targets of the sample, and how much there is of them."""

    names: tuple[str, ...]
    runs: int
    measurements: int
    new: bool  # nothing of it was there before


def load() -> Loaded:
    """Copy the sample into the database.  A second time changes nothing.

    Raises Conflict if another target has one of its names.
    """
    with backup.opened(FILE) as source:
        wanted = [PREFIX + name for name in source.scalars(select(Target.name).order_by(Target.id))]
        with transaction() as session:
            loaded_before = _known(session, wanted)
            if not loaded_before:
                _Copy(source, session).all()
            held = [registry.holdings(session, targets.target_named(session, name)) for name in wanted]
    return Loaded(
        tuple(wanted),
        sum(holdings.runs for holdings in held),
        sum(holdings.measurements for holdings in held),
        not loaded_before,
    )


def remove() -> tuple[str, ...]:
    """Delete the targets of the sample with everything of them.  Returns their names, none if there are none."""
    with transaction() as session:
        ours = select(Target.name).where(Target.location.in_(SAMPLE_LOCATIONS)).order_by(Target.id)
        names = tuple(session.scalars(ours))
    for name in names:
        registry.remove(name)
    return names


def is_loaded(session: Session) -> bool:
    return session.scalar(SAMPLES.limit(1)) is not None


def _known(session: Session, wanted: list[str]) -> bool:
    found = [target for name in wanted if (target := targets.find(session, name))]
    if other := [target.name for target in found if target.location != SAMPLE_LOCATIONS[0]]:
        raise Conflict(f"Target {other[0]} is not of the sample: rename it with `kernelwatch target rename`.")
    return bool(found)


@dataclass
class _Copy:
    """Copies rows table by table; each gets a new id, by which those that refer to it are found.

    Workers that renew a lease wait meanwhile.  Executing a statement for each row held SQLite for 0.35 s (two cores,
    November 2026); executing one for each table holds it for 0.11 s.
    """

    source: Connection
    session: Session
    ids: dict[str, dict[int, int]] = field(default_factory=dict)  # of the source to the new ones, by table

    def all(self) -> None:
        self.ids["targets"] = {row["id"]: self._target(row) for row in self._rows("targets")}
        for name in _COPIED:
            self._table(Base.metadata.tables[name])
        for row in self._rows("targets"):
            recipe = self.ids["recipes"][row["recipe_id"]]
            self.session.execute(
                update(Target).where(Target.id == self.ids["targets"][row["id"]]).values(recipe_id=recipe)
            )

    def _rows(self, table: str) -> Sequence[RowMapping]:
        rows = Base.metadata.tables[table]
        keys = list(rows.primary_key.columns)
        return self.source.execute(select(rows).order_by(*keys)).mappings().all()

    def _target(self, row: RowMapping) -> int:
        """A target that nothing is done for: paused, of no forge, not trusted."""
        now = clock(self.session)
        values = {name: row[name] for name in ("branch", "created_at", "poll_at")} | {"location": SAMPLE_LOCATIONS[0]}
        made = Target(name=PREFIX + row["name"], kind=TargetKind.GIT, paused_at=now, **values)
        self.session.add(made)
        self.session.flush()
        audit.record(self.session, "target.add", target=made.name, of=f"target {made.name}", details={"sample": True})
        return made.id

    def _table(self, table: Table) -> None:
        """Copy a table.  No row of it refers to another of its own, so that one statement takes many."""
        rows = self._rows(table.name)
        ids = self.ids[table.name] = self._known_here(table, rows) if table.name in _SHARED else {}
        fresh = [row for row in rows if row.get("id") not in ids]
        if not fresh:
            return
        values = [self._values(table, row) for row in fresh]
        if "id" in table.c:
            made = self.session.scalars(insert(table).returning(table.c.id, sort_by_parameter_order=True), values)
            ids.update(zip((row["id"] for row in fresh), made, strict=True))
        else:
            self.session.execute(insert(table), values)

    def _values(self, table: Table, row: RowMapping) -> dict[str, Any]:
        parents = {
            key.parent.name: self._new(key.column.table.name, row[key.parent.name]) for key in table.foreign_keys
        }
        values = dict(row) | parents
        if table.name == "runs":
            values["dedupe"] = f"{PREFIX}{row['dedupe']}"
        values.pop("id", None)
        return values

    def _known_here(self, table: Table, rows: Sequence[RowMapping]) -> dict[int, int]:
        """The ids of rows that this database has already, by those of the source."""
        here = {row.digest: row.id for row in self.session.execute(select(table.c.digest, table.c.id))}
        return {row["id"]: here[row["digest"]] for row in rows if row["digest"] in here}

    def _new(self, table: str, old: int | None) -> int | None:
        """The new id of a row; None if it stayed behind."""
        return None if old is None or table not in self.ids else self.ids[table][old]
