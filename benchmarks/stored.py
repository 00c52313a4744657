"""Databases for `benchmarks.same`, by the code of their own tree.

python -P benchmarks/stored.py sow FOLDER    fills SQLite databases, each in a state folder of its own
python -P benchmarks/stored.py judge FOLDER  judges the runs of every stored database again, a text file for each

Only this knows the modules of the product, so that a move of them changes this file with them.
"""

import gzip
import lzma
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from service.db import migrate
from service.db.engine import clock, disconnect, reading, transaction
from service.db.models import RecipeRow
from service.domain.policy import recipes
from service.domain.states import BaselineKind
from service.domain.verdicts.baselines import judge_baseline
from service.domain.verdicts.judge import judge
from service.domain.verdicts.session_result import baseline_cases
from service.ledger.policies import effective
from service.ledger.runs import replays
from service.settings import settings
from tests.big import seed as big
from tests.big.story import SMALL
from tests.dashboards import seed_deciding, seed_metrics

OPENERS = {".gz": gzip.decompress, ".xz": lzma.decompress}
SOWN: Mapping[str, Callable[[Session], Any]] = {
    "big": lambda session: big.seed(session, SMALL),
    "decided": lambda session: seed_deciding.seed(session, clock(session)),
    "metrics": lambda session: seed_metrics.seed(session, clock(session)),
    "sample": lambda session: None,  # loaded by its command
}


@contextmanager
def state(folder: Path, database: str | None = None) -> Iterator[None]:
    """The database of this state folder, or at this URL, brought to the schema of this tree."""
    os.environ["KERNELWATCH_STATE"] = str(folder)
    if database:
        os.environ["KERNELWATCH_DATABASE_URL"] = database
    settings.cache_clear()
    migrate.upgrade()
    yield
    disconnect()
    settings.cache_clear()


def sow(goal: Path) -> None:
    for name, fill in SOWN.items():
        with state(goal / name), transaction() as session:
            fill(session)


def judged(session: Session) -> Iterator[str]:
    """A line for each verdict that the policy of today gives for what was measured."""
    for stored in replays.rebuilt(session):
        policy = effective(recipes.parse(session.get_one(RecipeRow, stored.run.recipe_id).text), stored.run.device)
        again = {(*name, BaselineKind.PARENT): one for name, one in judge(stored.cells(policy), policy).items()}
        result = replace(stored.result, telemetry=stored.run.telemetry or {})
        for kind in sorted({kind for _, _, kind in stored.verdicts} - {BaselineKind.PARENT}):
            verdicts = judge_baseline(kind, baseline_cases(kind, result), policy)
            again |= {(*name, kind): one for name, one in verdicts.items()}
        for (provider, case, kind), one in sorted(again.items()):
            means = vars(one.comparison) if one.comparison else {}
            said = [f"{key}={value}" for key, value in sorted({**means, **one.reason.args}.items())]
            words = (stored.run.id, provider, case, kind.value, one.outcome.value, one.reason.code.value, *said)
            yield " ".join(map(str, words))


def judge_all(goal: Path) -> None:
    """Judge what the tree in this folder has stored."""
    goal.mkdir(parents=True, exist_ok=True)
    files = [*Path("service/samples").glob("*.db.gz"), *Path("docs/measurements").rglob("*.db.?z")]
    for file in sorted(files):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "kernelwatch.db").write_bytes(OPENERS[file.suffix](file.read_bytes()))
            with state(Path(folder)), reading() as session:
                lines = list(judged(session))
        (goal / f"{str(file).replace('/', '_')}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    what, folder = sys.argv[1:]
    {"sow": sow, "judge": judge_all}[what](Path(folder))
