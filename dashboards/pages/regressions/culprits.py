"""The bisection that finds the culprit of a regression, or of most regressions of an incident."""

import shlex
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import RegressionRow, Revision, Run
from service.domain.states import RegressionState
from service.domain.text import short
from service.ledger.bisections import advance
from service.ledger.bisections.advance import RequestedBisection

MAX_PATTERNS = 200  # as in the API
_SEARCHED = (RegressionState.OPEN, RegressionState.ACKNOWLEDGED)


@dataclass(frozen=True)
class CulpritSearch:
    """A bisection that has not started: its ends, and the cases of which it finds the culprit."""

    target: str
    device: str
    suite: str
    good: str
    bad: str
    cases: tuple[str, ...]
    incident_id: int | None

    @property
    def command(self) -> str:
        """The command that starts it."""
        ends = f"{short(self.good)}..{short(self.bad)}"
        words = ["kernelwatch", "bisection", "start", self.target, ends, "--device", self.device, "--suite", self.suite]
        return shlex.join([*words, *(word for case in self.cases for word in ("--case", case))])

    def start(self, asked_by: str) -> RequestedBisection:
        """Start it, or find the open one of the same.  Raises what `advance.search` raises."""
        return advance.search(
            self.target,
            self.good,
            self.bad,
            device=self.device,
            suite=self.suite,
            patterns=self.cases,
            incident_id=self.incident_id,
            asked_by=asked_by,
        )


def can_search(row: RegressionRow) -> bool:
    """Whether its culprit is unknown, no bisection searches for it, and a good revision is known."""
    return bool(row.good) and row.culprit is None and row.state in _SEARCHED


def search_of(session: Session, target: str, rows: Sequence[RegressionRow]) -> CulpritSearch | None:
    """The bisection that fits most of these regressions of one device and incident; None where nothing is left to find.

    One bisection has one suite and two ends.  What it does not cover can be searched after it has started.
    """
    together = defaultdict[tuple[str, str, str], list[RegressionRow]](list)
    wanted = [row for row in rows if can_search(row)]
    measured = (
        select(Run.id, Run.suite, Revision.sha)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.id.in_({row.run_id for row in wanted}))
    )
    where = {run_id: (suite, sha) for run_id, suite, sha in session.execute(measured)} if wanted else {}
    for row in wanted:
        suite, bad = where[row.run_id]
        together[suite, row.good or "", bad].append(row)
    if not together:
        return None
    ends = max(together, key=lambda each: _weight(together[each]))
    cases = sorted({row.case for row in together[ends]})[:MAX_PATTERNS]
    suite, good, bad = ends
    first = together[ends][0]
    return CulpritSearch(target, first.device, suite, good, bad, tuple(cases), first.incident_id)


def _weight(rows: Sequence[RegressionRow]) -> tuple[int, int, float]:
    """Open ones count most, before accepted ones; then the number of regressions, then the largest."""
    return sum(row.state is RegressionState.OPEN for row in rows), len(rows), max(row.ratio for row in rows)
