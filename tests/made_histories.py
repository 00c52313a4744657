"""Histories that are made up: mainline revisions with runs and measurements, stored as if workers had measured them."""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, insert, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import Measurement, Revision, Target
from service.domain.states import CellState, RunState
from tests import world

Values = NDArray[np.float64]  # one of each revision, NaN where it was not measured
CHUNK = 20_000  # rows of one statement
# What a measurement has beside its median, so that rows are about as long as real ones.
SAMPLES = zlib.compress(np.random.default_rng(0).bytes(600))
FACTS = {"hash": "0123456789abcdef", "registers": 64, "spills": 0, "shared_bytes": 16384, "grid": [4096, 1, 1]}


@dataclass(frozen=True)
class Made:
    """What was measured of a target on one device at the next revisions of its mainline."""

    own: Mapping[tuple[str, str], Values]  # by provider and case, in the unit of the metric
    sota: Mapping[str, Values] = field(default_factory=dict)  # by case
    order: Sequence[int] | None = None  # in which the revisions were measured; None for their own
    stack_id: int | None = None
    worker: str = "made"
    begun_at: float = 0.0  # when the first was measured; one a minute follows

    @property
    def revisions(self) -> int:
        return len(next(iter(self.own.values())))


def store(session: Session, target: Target, device: str, suite: str, made: Made, sota: str = "quack") -> list[int]:
    """Append revisions to the mainline, each with a run that is done; the ids of the runs in mainline order."""
    start = session.scalar(select(func.max(Revision.ordinal)).where(Revision.target_id == target.id))
    first = 0 if start is None else start + 1
    shas = [f"{target.name}-{first + place}" for place in range(made.revisions)]
    parents = [f"{target.name}-{first - 1}" if first else None, *shas[:-1]]
    of_line = [
        {"target_id": target.id, "sha": sha, "parent": parent, "ordinal": first + place, "subject": sha}
        | {"author": "ada", "committed_at": float(first + place), "paths": []}
        for place, (sha, parent) in enumerate(zip(shas, parents, strict=True))
    ]
    session.execute(insert(Revision), of_line)
    added = select(Revision).where(Revision.target_id == target.id, Revision.ordinal >= first)
    revisions = session.scalars(added.order_by(Revision.ordinal)).all()
    runs = {}
    for number, place in enumerate(made.order or range(made.revisions)):
        at = made.begun_at + 60.0 * number
        done = {"state": RunState.DONE, "notified_state": "done", "created_at": at, "finished_at": at}
        where = {"device": device, "suite": suite, "worker": made.worker, "stack_id": made.stack_id}
        runs[place] = world.run(session, revisions[place], **done, **where).id
    rows: list[dict[str, object]] = []
    for row in _rows(made, runs, sota):
        rows.append(row)
        if len(rows) >= CHUNK:
            session.execute(insert(Measurement), rows)
            rows = []
    if rows:
        session.execute(insert(Measurement), rows)
    return [runs[place] for place in range(made.revisions)]


def _rows(made: Made, runs: Mapping[int, int], sota: str) -> Iterator[dict[str, object]]:
    sides = [(Role.HEAD, provider, case, values) for (provider, case), values in made.own.items()]
    sides += [(Role.SOTA, sota, case, values) for case, values in made.sota.items()]
    for place, run_id in runs.items():
        for role, provider, case, values in sides:
            if not np.isnan(values[place]):
                yield {
                    "run_id": run_id,
                    "contender": f"{role.value}:{provider}",
                    "role": role.value,
                    "provider": provider,
                    "case": case,
                    "state": CellState.MEASURED,
                    "median": float(values[place]),
                    "trials": 5,
                    "rounds": 40,
                    "facts": FACTS,
                    "samples": SAMPLES,
                }
