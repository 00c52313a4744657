"""A few months of measurements: the same numbers for kernelwatch and for LNT."""

from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median

from sqlalchemy import insert
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import Measurement, RegressionRow, Run, Stack, VerdictRow, pack
from service.domain.metrics import SeriesKey
from service.domain.states import BaselineKind, CellState, RunState
from service.ledger.targets import series_of
from tests import world

SAMPLES = 5
PROVIDER, DEVICE = "norms", "h200"
RECIPE = """
devices = ["h200"]
sota = "quack"
[base]
stack = "host"
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
"""
_STEP = 1.10  # of a series that regresses
_EVERY = 12  # revisions between two steps, more than LNT looks back, so that it makes a regression of each


@dataclass(frozen=True)
class History:
    """`series` cases measured at each of `revisions`; some of them become slower, at one revision each."""

    revisions: int
    series: int

    @property
    def cases(self) -> list[str]:
        return [f"rmsnorm.fwd.{64 * (n + 1)}x1024.bf16" for n in range(self.series)]

    @property
    def steps(self) -> dict[int, int]:
        """The revision at which a series becomes slower, by series."""
        places = range(_EVERY, self.revisions, _EVERY)
        return dict(zip(range(0, self.series, 3), places, strict=False))

    @property
    def size(self) -> int:
        """Samples in all."""
        return self.revisions * self.series * SAMPLES

    def samples(self, revision: int, series: int) -> list[float]:
        """Times in us with a noise of 0.5 %."""
        usual = 7.0 + series % 50 / 10
        slow = _STEP if revision >= self.steps.get(series, self.revisions) else 1.0
        return [
            round(usual * slow * (1 + (revision * 31 + series * 7 + n * 17) % 11 / 2000), 4) for n in range(SAMPLES)
        ]


def fill(session: Session, target_id: int, history: History) -> int:
    """Store the history as workers and control would.  Returns the id of the last run."""
    stack = Stack(digest="1" * 64, versions={"torch": "2.11.0"})
    session.add(stack)
    session.flush()
    runs = list[Run]()
    for n in range(history.revisions):
        commit = world.commit(session, target_id, n, committed_at=1e9 + n)
        facts = {"device": DEVICE, "state": RunState.DONE, "worker": "box", "stack_id": stack.id, "created_at": 1e9 + n}
        run = world.run(session, commit, **facts)
        session.execute(insert(Measurement), list(_measurements(run, n, history)))
        session.execute(insert(VerdictRow), list(_verdicts(run, n, history)))
        runs.append(run)
    for series, revision in history.steps.items():
        key = SeriesKey.of(target_id, DEVICE, PROVIDER, history.cases[series])
        regression = {
            "run_id": runs[revision].id,
            "ratio": _STEP,
            "opened_at": 1e9 + revision,
            "good": f"c{revision - 1}",
        }
        session.add(RegressionRow(series_id=series_of(session, key), **regression))
    return runs[-1].id


def _measurements(run: Run, revision: int, history: History) -> Iterator[dict[str, object]]:
    for series, case in enumerate(history.cases):
        for role, of in ((Role.HEAD, revision), (Role.PARENT, max(0, revision - 1))):
            samples = history.samples(of, series)
            yield {
                "run_id": run.id,
                "contender": f"{role}:{PROVIDER}",
                "role": role,
                "provider": PROVIDER,
                "case": case,
                "state": CellState.MEASURED,
                "median": median(samples),
                "gb_s": 4000.0,
                "trials": 1,
                "rounds": SAMPLES,
                "facts": {"registers": 32},
                "samples": pack([samples], []),
            }


def _verdicts(run: Run, revision: int, history: History) -> Iterator[dict[str, object]]:
    for series, case in enumerate(history.cases):
        ratio = _STEP if history.steps.get(series) == revision else 1.001
        yield {
            "run_id": run.id,
            "provider": PROVIDER,
            "case": case,
            "baseline_kind": BaselineKind.PARENT,
            "baseline": run.baseline,
            "outcome": "regression" if ratio == _STEP else "steady",
            "ratio": ratio,
            "low": ratio - 0.006,
            "high": ratio + 0.005,
            "trials": 1,
            "rounds": SAMPLES,
            "smallest_change": 0.01,
            "reason": "steady",
        }
