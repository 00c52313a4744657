"""Equal code in trials one by one and side by side: `equal_code.py DATABASE.gz|.xz...` prints a line for each.

The control is a second process of the parent's build.  For each case, its effect in each screening trial is the log of
its time over the parent's.  `spread`: the root mean square of the deviations over trials, and of all effects;
`correlation` of the effects of two trials over all cases.
"""

import gzip
import lzma
import math
import sqlite3
import sys
import tempfile
from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np

from service.db.models import unpack


def main() -> None:
    correlation = "correlation of trials 1-2, 1-3, 2-3"
    print(f"| session | cases | deviation of trials, % | largest, % | all effects, % | {correlation} |")
    print("|---|--:|--:|--:|--:|---|")
    for name in map(Path, sys.argv[1:]):
        with tempfile.NamedTemporaryFile(suffix=".db") as file:
            file.write((lzma if name.suffix == ".xz" else gzip).decompress(name.read_bytes()))
            file.flush()
            for run, effects in sessions(file.name).items():
                effects = effects[~np.isnan(effects).any(axis=1)]
                deviation = effects.std(axis=1, ddof=1)
                pairs = [np.corrcoef(effects[:, a], effects[:, b])[0, 1] for a, b in combinations(range(3), 2)]
                shown = ", ".join(f"{one:+.2f}" for one in pairs)
                print(
                    f"| {name.name.partition('.')[0]}, run {run} | {len(effects)} | {rms(deviation):.3%} | "
                    f"{deviation.max():.3%} | {rms(effects):.3%} | {shown} |"
                )


def rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(np.square(values))))


def sessions(database: str) -> dict[int, np.ndarray]:
    """By run, the effect of the control at each case in the first three trials."""
    taken: dict[int, dict[tuple[str, str], list]] = defaultdict(dict)
    sides = "role IN ('parent', 'control') AND samples NOT NULL"
    query = f'SELECT run_id, role, "case", samples FROM measurements WHERE {sides}'
    for run, role, case, samples in sqlite3.connect(database).execute(query):
        taken[run][case, role] = unpack(samples)[0][:3]
    found = {}
    for run, of in taken.items():
        cases = sorted({case for case, _ in of})
        both = [(of.get((case, "control")), of.get((case, "parent"))) for case in cases]
        measured = [zip(mine, theirs, strict=False) for mine, theirs in both if mine and theirs]
        effects = [[effect(a, b) for a, b in trials] for trials in measured]
        found[run] = np.array([one for one in effects if len(one) == 3])
    return found


def effect(mine: list, theirs: list) -> float:
    logs = [math.log(a / b) for a, b in zip(mine, theirs, strict=False) if a and b]
    return float(np.median(logs)) if logs else math.nan


main()
