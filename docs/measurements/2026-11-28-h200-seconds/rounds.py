"""Judge stored sessions again as if each trial had had fewer rounds: `rounds.py DATABASE.gz|.xz...` prints a table.

For each number of rounds it keeps the first rounds of each trial.  *Undecided* are cases that would have requested
trials that were never made; *new* and *missed* are alarms.
"""

import gzip
import lzma
import sqlite3
import sys
import tempfile
from collections import Counter
from pathlib import Path
from statistics import median, stdev

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from service.db.models import RecipeRow, pack, unpack
from service.domain.policy import recipes
from service.domain.states import Outcome
from service.domain.verdicts.replay import Fate, replay
from service.ledger.calibration.sessions import known_variances
from service.ledger.policies import effective
from service.ledger.runs.replays import rebuilt

ROUNDS = (8, 6, 5, 4)


def main() -> None:
    fates = "alarms stay | new | missed | undecided"
    print(f"| database | rounds | cases | {fates} | used trials | deviation of trials, % |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|")
    for name in map(Path, sys.argv[1:]):
        unpacked = (lzma if name.suffix == ".xz" else gzip).decompress(name.read_bytes())
        for count in ROUNDS:
            with tempfile.NamedTemporaryFile(suffix=".db") as file:
                file.write(unpacked)
                file.flush()
                shorten(file.name, count)
                row = judged(file.name)
            print(f"| {name.parent.name}/{name.name} | {count} | " + " | ".join(row) + " |", flush=True)


def shorten(database: str, count: int) -> None:
    """Keep the first rounds of each trial."""
    with sqlite3.connect(database) as rows:
        stored = rows.execute("SELECT id, samples FROM measurements WHERE samples IS NOT NULL").fetchall()
        for number, samples in stored:
            parts = ([tuple(trial[:count]) for trial in part] for part in unpack(samples))
            rows.execute("UPDATE measurements SET samples = ? WHERE id = ?", (pack(*parts), number))


def judged(database: str) -> list[str]:
    fates, used, deviations = Counter[Fate](), 0, list[float]()
    with Session(create_engine(f"sqlite:///{database}")) as session:
        for stored in rebuilt(session):
            text = session.get_one(RecipeRow, stored.run.recipe_id).text
            policy = effective(recipes.parse(text), stored.run.device)
            cells = stored.cells(policy)
            before = {(cell.provider, cell.case): None for cell in cells}
            before |= {
                (provider, case): Outcome(row.outcome)
                for (provider, case, against), row in stored.verdicts.items()
                if against == "parent"
            }
            for one in replay(cells, before, (), policy, known_variances(session, stored.run, policy)):
                fates[one.fate] += 1
                used += one.trials_used
            trials = [cell.screened.effects() for cell in cells]
            deviations += [stdev(effects) for effects in trials if len(effects) > 2]
    counts = [fates[fate] for fate in (Fate.STAYS, Fate.NEW, Fate.MISSED, Fate.UNDECIDED)]
    return [str(fates.total()), *map(str, counts), str(used), f"{median(deviations):.3%}" if deviations else "-"]


main()
