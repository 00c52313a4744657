"""Trials of equal code that were measured on an H200, from which simulated runs draw their noise.

    python -m benchmarks.verdicts.h200             collect them from docs/measurements again, into h200.json.gz
    python -m benchmarks.verdicts.h200 --show      print how much they vary

A side is a process of its own in each trial.  Sides of one case in one session are equal if they are the baseline, its
A/A copy, or a revision that compiled to the same code.  Every stored session with such sides takes part.
"""

import argparse
import gzip
import json
import math
import sqlite3
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.power_judged import with_new_names
from kernels.cases import Case, Role
from service.db.models import unpack
from service.domain.stats.estimates import trial_effect, variance, winsorised_mean
from service.domain.verdicts.session_result import same_code

ROOT = Path(__file__).parents[2]
STORED = Path(__file__).with_name("h200.json.gz")
# Sessions of one kind form a source: a simulated run draws all its cases from one.
SOURCES: Mapping[str, tuple[str, ...]] = {
    "deciding": ("2026-11-21-h200-deciding",),
    "service": ("2026-11-21-h200-arena", "2026-11-21-h200-main-path"),
    "commits": ("2026-11-22-h200-commits",),
}
EQUAL = (Role.PARENT.value, Role.CONTROL.value)
UNIT = 1e-5  # of the stored logarithms
LONG_US = 100.0
MANY = 30  # cases in two sessions, of which a correlation says something
Times = Sequence[Sequence[float | None]]  # by trial and round


@dataclass(frozen=True)
class Measured:
    """The equal sides of one case in one session, trial by trial: the logs of the times, sides x rounds.

    A side that sat out a trial is NaN there.
    """

    source: str
    session: str
    case: str
    us: float
    trials: tuple[NDArray[np.float64], ...]

    @property
    def long(self) -> bool:
        return self.us >= LONG_US

    def effects(self) -> Iterator[list[float]]:
        """For each pair of sides, the log of one over the other for each trial."""
        for one, other in combinations(range(len(self.trials[0])), 2):
            pairs = ((np.exp(trial[one]).tolist(), np.exp(trial[other]).tolist()) for trial in self.trials)
            seen = [trial_effect(mine, theirs) for mine, theirs in pairs if not math.isnan(mine[0] + theirs[0])]
            yield [effect for effect in seen if effect is not None]

    def apart(self) -> Iterator[list[float]]:
        """The same for pairs that have no side in common."""
        sides = len(self.trials[0])
        places = list(combinations(range(sides), 2))
        for place, effects in zip(places, self.effects(), strict=True):
            if place[0] % 2 == 0 and place[1] == place[0] + 1:
                yield effects


@dataclass(frozen=True)
class Donor:
    """One case of one source: what a process added in each trial, by trial, side and round, over all its sessions."""

    source: str
    case: str
    us: float
    trials: tuple[NDArray[np.float64], ...]

    @property
    def long(self) -> bool:
        return self.us >= LONG_US


@cache
def measured() -> tuple[Measured, ...]:
    kept = json.loads(gzip.decompress(STORED.read_bytes()))
    return tuple(
        Measured(one["source"], one["session"], one["case"], one["us"], tuple(map(_logs, one["trials"])))
        for one in kept
    )


def _logs(trial: Sequence[Sequence[int] | None]) -> NDArray[np.float64]:
    rounds = next(len(side) for side in trial if side is not None)
    return np.array([side if side is not None else [math.nan] * rounds for side in trial]) * UNIT


def donors(wanted: Callable[[Measured], bool] = lambda _: True) -> list[Donor]:
    """The cases of the sessions that are `wanted`.

    What all sides of a round share cancels in every comparison and is taken out.  The mean of a side over the trials of
    its session is taken out as well: it is mostly chance, and would be an offset of the whole simulated session.  What
    both took from the variance is given back.
    """
    found = defaultdict[tuple[str, str], list[Measured]](list)
    for one in measured():
        if wanted(one) and len(one.trials) > 1:
            found[one.source, one.case].append(one)
    return [
        Donor(source, case, median(one.us for one in ones), tuple(trial for one in ones for trial in _own(one)))
        for (source, case), ones in found.items()
    ]


def _own(one: Measured) -> Iterator[NDArray[np.float64]]:
    """What each side that took part in a trial has of its own there: sides x rounds."""
    taken = [(~np.isnan(trial[:, 0]), trial) for trial in one.trials]
    apart = [trial - np.nanmean(trial, axis=0) for _, trial in taken]
    means = np.array([[winsorised_mean(side) for side in trial.tolist()] for trial in apart])
    counts = np.sum(~np.isnan(means), axis=0)
    centres = np.nansum(means, axis=0) / np.maximum(counts, 1)
    for (took_part, _), trial, mean in zip(taken, apart, means, strict=True):
        there = took_part & (counts > 1)
        if there.sum() > 1:
            moved = (mean - centres) * np.sqrt(counts / np.maximum(counts - 1, 1))
            rounds = trial - mean[:, None]
            yield (moved[:, None] + rounds)[there]


# -- collecting -------------------------------------------------------------------------------------------------------


def collect() -> list[dict[str, Any]]:
    """Every session of `SOURCES`."""
    kept = []
    for source, folders in SOURCES.items():
        for folder in folders:
            place = ROOT / "docs" / "measurements" / folder
            for file in sorted(place.rglob("*.gz")):
                name = f"{folder}/{file.relative_to(place)}"
                if file.name.endswith(".db.gz"):
                    sessions = _of_database(file)
                elif file.name.startswith(("equal-", "power-")):
                    sessions = iter([(name, _of_power(file))])
                else:
                    continue
                for number, (session, cases) in enumerate(sessions):
                    label = session if session == name else f"{name}#{session}"
                    kept += [_kept(source, label, case, sides) for case, sides in cases.items() if len(sides) > 1]
                    sys.stderr.write(f"{label}: {len(cases)} cases ({number + 1})\n")
    return [one for one in kept if one["trials"]]


def _of_power(file: Path) -> dict[str, list[Times]]:
    """A session of `make bench-power`: all sides are equal, except heads in which a slow-down was planted."""
    kept = json.loads(gzip.decompress(file.read_bytes()))
    planted = {one["case"] for one in kept["plants"] if one["how"] != "nothing"}
    found = defaultdict[str, list[Times]](list)
    for one in map(with_new_names, kept["taken"]):
        equal = one["role"] in EQUAL or one["case"] not in planted
        if one["state"] == "measured" and equal and _is_kernel(one["case"]):
            found[one["case"]].append([*one["screened"], *one["confirmed"]])
    return dict(found)


def _of_database(file: Path) -> Iterator[tuple[str, dict[str, list[Times]]]]:
    """The sessions of a service's database, of whatever version: these columns have always been there."""
    with tempfile.NamedTemporaryFile() as plain:
        plain.write(gzip.decompress(file.read_bytes()))
        plain.flush()
        rows = sqlite3.connect(plain.name).execute(
            'SELECT run_id, role, provider, "case", facts, samples FROM measurements '
            "WHERE lower(state) = 'measured' AND samples IS NOT NULL ORDER BY id"
        )
        runs = defaultdict[int, dict[str, dict[tuple[str, str], tuple[Times, Any]]]](lambda: defaultdict(dict))
        for run, role, provider, case, facts, samples in rows:
            if _is_kernel(case):
                screened, confirmed, _ = unpack(samples)
                runs[run][case][role, provider] = [*screened, *confirmed], json.loads(facts or "{}")
    for run, cases in runs.items():
        yield str(run), {case: _equal(sides) for case, sides in cases.items()}


def _equal(sides: Mapping[tuple[str, str], tuple[Times, Any]]) -> list[Times]:
    """The copy, what it is a copy of, and the head where it compiled to the same code as its parent."""
    [provider] = {name for role, name in sides if role == Role.CONTROL.value} or {""}
    own = {role: side for (role, name), side in sides.items() if name == provider}
    head, parent = own.get(Role.HEAD.value), own.get(Role.PARENT.value)
    roles = list(EQUAL)
    if head and (parent is None or same_code(head[1], parent[1])):
        roles.append(Role.HEAD.value)
    return [own[role][0] for role in roles if role in own]


def _is_kernel(case: str) -> bool:
    try:
        return Case.parse(case).metric == "kernel"
    except ValueError:
        return False


def _kept(source: str, session: str, case: str, sides: Sequence[Times]) -> dict[str, Any]:
    """The rounds that all sides of a trial have, as logs relative to the median, in `UNIT`."""
    us = median(time for side in sides for trial in side for time in trial if time)
    trials = []
    for made in zip(*sides, strict=False):
        there = [side for side in made if side]
        whole = [n for n in range(min(map(len, there), default=0)) if all(side[n] for side in there)]
        if len(there) > 1 and whole:
            logs = [[round(math.log(side[n] / us) / UNIT) for n in whole] if side else None for side in made]
            trials.append(logs)
    return {"source": source, "session": session, "case": case, "us": round(us, 3), "trials": trials}


# -- showing ----------------------------------------------------------------------------------------------------------


def show() -> str:
    """How the trials of each source vary: the sd of log(one side / another) over trials, in per cent."""
    lines = [
        "| sessions | length | sessions | cases | pairs of sides | median sd | 90th percentile | largest |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    groups = defaultdict[tuple[str, bool], list[Measured]](list)
    for one in measured():
        groups[one.session.split("#")[0], one.long].append(one)
    for (name, long), ones in sorted(groups.items()):
        lines.append(_row(name, "from 100 us" if long else "below 100 us", ones))
    for long in (False, True):
        ones = [one for one in measured() if one.long is long]
        lines.append(_row("**all**", "from 100 us" if long else "below 100 us", ones))
    lines += ["", "| one session | another | cases in both | correlation of the log sds |", "|---|---|--:|--:|"]
    return "\n".join([*lines, *_constancy()]) + "\n"


def _constancy() -> Iterator[str]:
    """Whether a case varies alike in two sessions: those with many cases in common."""
    logs = defaultdict[str, dict[str, float]](dict)
    for one in measured():
        variances = [variance(effects) for effects in one.effects() if len(effects) > 2]
        if variances and fmean(variances) > 0:
            logs[one.session][one.case] = math.log(fmean(variances)) / 2
    for (first, mine), (second, theirs) in combinations(logs.items(), 2):
        both = sorted(mine.keys() & theirs.keys())
        if len(both) >= MANY:
            pairs = [mine[case] for case in both], [theirs[case] for case in both]
            yield f"| {first} | {second} | {len(both)} | {np.corrcoef(*pairs)[0, 1]:.2f} |"


def _row(name: str, length: str, ones: Sequence[Measured]) -> str:
    sds = [100 * math.sqrt(variance(effects)) for one in ones for effects in one.effects() if len(effects) > 2]
    figures = (f"{median(sds):.3f}", f"{np.quantile(sds, 0.9):.3f}", f"{max(sds):.2f}") if sds else ("", "", "")
    counts = len({one.session for one in ones}), len({one.case for one in ones}), len(sds)
    return f"| {name} | {length} | {' | '.join(map(str, counts))} | {' | '.join(figures)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--show", action="store_true", help="print how much the stored trials vary")
    if parser.parse_args().show:
        sys.stdout.write(show())
        return
    packed = json.dumps(collect(), separators=(",", ":")).encode()
    STORED.write_bytes(gzip.compress(packed, 9, mtime=0))
    sys.stdout.write(f"{STORED.relative_to(ROOT)}: {STORED.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
