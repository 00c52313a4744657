"""Judge stored sessions again as if cases of the same code had ended after their first trial.

`same_code.py DATABASE.gz|.xz...` prints a table.  *Ended* are cases of the same code that one trial would have settled;
the last columns count the other cases that would have asked for trials which were never made, and those whose verdict
differs.
"""

import gzip
import lzma
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from kernels.cases import Metric
from service.db.models import RecipeRow
from service.domain.metrics import metric_of
from service.domain.policy import recipes
from service.domain.verdicts.judge import Cell, Pairs, judge, settled, wanted
from service.ledger.calibration.sessions import known_variances
from service.ledger.policies import effective
from service.ledger.runs.replays import rebuilt

COLUMNS = ("sessions", "cases", "same code", "ended", "trials", "trials then", "others", "ask for more", "differ")


def main() -> None:
    print("| database | " + " | ".join(COLUMNS) + " |")
    print("|---|" + "--:|" * len(COLUMNS))
    for name in map(Path, sys.argv[1:]):
        unpacked = (lzma if name.suffix == ".xz" else gzip).decompress(name.read_bytes())
        with tempfile.NamedTemporaryFile(suffix=".db") as file:
            file.write(unpacked)
            file.flush()
            counts = counted(file.name)
        row = " | ".join(str(counts[column]) for column in COLUMNS)
        print(f"| {name.parent.name}/{name.name} | {row} |", flush=True)


def counted(database: str) -> Counter[str]:
    counts = Counter[str]()
    with Session(create_engine(f"sqlite:///{database}")) as session:
        for stored in rebuilt(session):
            policy = effective(recipes.parse(session.get_one(RecipeRow, stored.run.recipe_id).text), stored.run.device)
            cells = [cell for cell in stored.cells(policy) if metric_of(cell.case) is Metric.KERNEL and cell.comparable]
            known = known_variances(session, stored.run, policy)
            if not known:
                continue
            first = [once(cell) for cell in cells]
            ended = settled(first, policy, known, {cell.name for cell in cells})
            mixed = [one if one.name in ended else cell for one, cell in zip(first, cells, strict=True)]
            before, then = judge(cells, policy, known), judge(mixed, policy, known)
            others = [cell.name for cell in cells if cell.name not in ended]
            counts["sessions"] += 1
            counts["cases"] += len(cells)
            counts["same code"] += sum(cell.same_code for cell in cells)
            counts["ended"] += len(ended)
            counts["trials"] += sum(map(trials, cells))
            counts["trials then"] += sum(map(trials, mixed))
            changed = {name for name in others if before[name].outcome is not then[name].outcome}
            more = changed & wanted(mixed, policy, known).keys() - wanted(cells, policy, known).keys()
            counts["others"] += len(others)
            counts["ask for more"] += len(more)
            counts["differ"] += len(changed - more)
    return counts


def once(cell: Cell) -> Cell:
    """The case as its first trial left it."""
    first, control = (Pairs(one.candidate[:1], one.baseline[:1]) for one in (cell.screened, cell.control))
    return replace(cell, screened=first, control=control, confirmed=Pairs())


def trials(cell: Cell) -> int:
    return len(cell.screened.candidate) + len(cell.confirmed.candidate)


if __name__ == "__main__":
    main()
