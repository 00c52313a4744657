"""How well changes of history are found: ours and peers' on the same labelled series, and how fast.

python -m tests.studies.detect.study [CSV] [--peers PYTHON] [--choose] [--arriving] [--out FILE]

CSV has the columns series, index, value, is_change, is_ambiguous (.gz or not); without one the series are simulated,
and say nothing about real benchmarks.  Every tool's setting is chosen on the tuning part alone, which is half of the
series by a hash of their names; the scoring part has no say.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np

from service.domain.changepoints import Change, HistoryLimits, Level, Seen, changes
from tests.studies.detect.arriving import delays, replayed
from tests.studies.detect.rules import RULES
from tests.studies.detect.score import LARGE, Labelled, Predictions, Score, read, score

PEERS = Path(__file__).with_name("peers.py")
GRID = [
    HistoryLimits(penalty=penalty, separation=separation, alpha=alpha, notify=notify)
    for penalty, separation, alpha, notify in product(
        (0.45, 0.5, 0.55, 0.6, 0.65), (0.4, 0.5, 0.6), (1e-2, 1e-3), (0.005, 0.01)
    )
]


@dataclass(frozen=True)
class Row:
    """What one tool with one setting found."""

    tool: str
    setting: str
    found: Predictions
    ms_per_1000: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("csv", type=Path, nargs="?", help="labelled series; simulated ones without it")
    parser.add_argument("--peers", type=Path, help="the interpreter of the environment with the peers")
    parser.add_argument("--choose", action="store_true", help="the grid, and leave one project out, instead")
    parser.add_argument("--arriving", action="store_true", help="the same series revision by revision, instead")
    parser.add_argument("--out", type=Path, help="what each tool found, as JSON")
    chosen = parser.parse_args()
    if chosen.csv is not None and not chosen.csv.exists():
        sys.exit(
            f"There is no {chosen.csv}.  Give a CSV with the columns series, index, value, is_change and is_ambiguous: "
            "make bench-detect ARGS=FILE.csv.gz"
        )
    if chosen.csv is None:
        say("Simulated series: another seed of the same kind gives other figures, and real benchmarks do as well.")
    labelled = read(chosen.csv) if chosen.csv else simulated()
    if chosen.choose:
        choose(labelled)
    elif chosen.arriving:
        arriving(labelled)
    else:
        rows = [*ours(labelled), *rules(labelled), *packages(labelled, chosen.peers)]
        table(labelled, rows)
        speed()
        if chosen.out:
            chosen.out.write_text(json.dumps([row.__dict__ for row in rows]))


def simulated(count: int = 44, points: int = 300, seed: int = 11) -> list[Labelled]:
    """Series with AR(1) noise and outliers, and steps of 1 to 20 % at known places; a third of them have none."""
    random, found = np.random.default_rng(seed), []
    for number in range(count):
        sd, carried = random.uniform(0.003, 0.02), random.uniform(0, 0.35)
        noise = np.empty(points)
        last = 0.0
        for place, shock in enumerate(random.normal(0, sd * np.sqrt(1 - carried**2), points)):
            noise[place] = last = carried * last + shock
        noise += (random.random(points) < 0.01) * random.exponential(10 * sd, points)
        steps = sorted(random.choice(np.arange(20, points - 20, 20), 0 if number % 3 == 0 else 4, replace=False))
        levels = np.zeros(points)
        for place in steps:
            levels[place:] += random.choice((-1, 1)) * random.uniform(max(0.01, 2 * sd), 0.2)
        name = f"simulated-{number % 8}|steps|{number}"
        found.append(Labelled(name, tuple(100 * np.exp(levels + noise)), tuple(map(int, steps)), ()))
    return found


def seen(values: Sequence[float]) -> list[Seen]:
    return [Seen(place, value) for place, value in enumerate(values)]


def ours(labelled: Collection[Labelled], limits: HistoryLimits | None = None) -> Iterator[Row]:
    """The notify point at its default and at 1 %, and the block point."""
    limits = limits or HistoryLimits()
    series = {one.name: seen(one.values) for one in labelled}

    def found(limits: HistoryLimits) -> tuple[dict[str, list[Change]], float]:
        began = time.process_time()
        every = {name: changes(revisions, limits) for name, revisions in series.items()}
        return every, per_1000(labelled, time.process_time() - began)

    every, ms = found(limits)
    one_percent, _ = found(HistoryLimits(notify=0.01))
    yield Row("kernelwatch, notify", f"{limits.notify:.1%}", _places(every), ms)
    yield Row("kernelwatch, notify", "1.0%", _places(one_percent), ms)
    yield Row("kernelwatch, block", f"{limits.block:.1%}", _places(every, Level.BLOCK), ms)


def _places(found: Mapping[str, Sequence[Change]], level: Level | None = None) -> dict[str, list[int]]:
    return {
        name: [change.ordinal for change in every if level is None or change.level is level]
        for name, every in found.items()
    }


def rules(labelled: Collection[Labelled]) -> Iterator[Row]:
    for tool, settings in RULES.items():
        rows = []
        for setting, rule in settings.items():
            began = time.process_time()
            found = {one.name: rule(one.values) for one in labelled}
            rows.append(Row(f"{tool} *", setting, found, per_1000(labelled, time.process_time() - began)))
        yield from own_and_best(labelled, rows)


def packages(labelled: Collection[Labelled], interpreter: Path | None) -> Iterator[Row]:
    """Peers run in their own environment: nothing of theirs is imported here."""
    if interpreter is None or not interpreter.exists():
        say("The packages of peers are left out: --peers names the interpreter of their environment (.venv-peers).")
        return
    series = json.dumps({one.name: one.values for one in labelled})
    ran = subprocess.run([interpreter, PEERS], input=series, capture_output=True, text=True, check=False)
    if ran.returncode:
        sys.exit(f"The peers stopped:\n{ran.stderr[-2000:]}")
    answers = json.loads(ran.stdout)
    for tool in dict.fromkeys(answer["tool"] for answer in answers):
        rows = [
            Row(tool, one["setting"], one["found"], per_1000(labelled, one["seconds"]))
            for one in answers
            if one["tool"] == tool
        ]
        yield from own_and_best(labelled, rows)


def own_and_best(labelled: Collection[Labelled], rows: Sequence[Row]) -> list[Row]:
    """A tool's own setting, and the one that is best on the tuning part."""
    tuning = [one for one in labelled if one.tuned_on]
    best = max(rows, key=lambda row: score(tuning, row.found).f1)
    return [rows[0]] if best is rows[0] else [rows[0], best]


def table(labelled: Collection[Labelled], rows: Sequence[Row]) -> None:
    for part, series in parts(labelled).items():
        marks = sum(len(one.changes) for one in series)
        say(f"\n{part}: {len(series)} series, {sum(len(one.values) for one in series)} points, {marks} changes\n")
        say("| detector | setting | P | R | F1 | F1 of >= 2 % | false per 1,000 | ms per 1,000 |")
        say("|---|---|---|---|---|---|---|---|")
        for row in rows:
            every, large = score(series, row.found), score(series, row.found, LARGE)
            say(f"| {row.tool} | {row.setting} | {_figures(every)} | {large.f1:.3f} | {every.false_per_1000:.2f} | "
                f"{row.ms_per_1000:.3g} |")  # fmt: skip
    first = rows[0]
    low, high = resampled(labelled, first.found)
    say(f"\n{first.tool}, {first.setting}: F1 over all lies in {low:.3f} to {high:.3f} (95 %, series drawn again)")
    say("\n* written from the tool's public description; the others are the tools' own packages.")


def resampled(labelled: Collection[Labelled], found: Predictions, draws: int = 2000) -> tuple[float, float]:
    """Bounds of F1, had other such series been labelled: the bootstrap (Efron, 1979) over whole series."""
    scores = [score([one], found) for one in labelled]
    counts = np.array([(one.hits, one.false, one.missed) for one in scores])
    random = np.random.default_rng(1)
    hits, false, missed = counts[random.integers(0, len(counts), (draws, len(counts)))].sum(axis=1).T
    low, high = np.quantile(2 * hits / (2 * hits + false + missed), (0.025, 0.975))
    return float(low), float(high)


def parts(labelled: Collection[Labelled]) -> dict[str, list[Labelled]]:
    return {
        "Tuning part": [one for one in labelled if one.tuned_on],
        "Scoring part": [one for one in labelled if not one.tuned_on],
        "All": list(labelled),
    }


def choose(labelled: Collection[Labelled]) -> None:
    """The grid on the tuning part; then each project scored with what the others chose."""
    tuning = [one for one in labelled if one.tuned_on]
    found = [next(ours(labelled, limits)).found for limits in GRID]

    def best(series: Collection[Labelled]) -> int:
        return max(range(len(GRID)), key=lambda place: score(series, found[place]).f1)

    say("| penalty | separation | alpha | notify | P | R | F1 (tuning part) |")
    say("|---|---|---|---|---|---|---|")
    for limits, predicted in zip(GRID, found, strict=True):
        say(f"| {limits.penalty} | {limits.separation} | {limits.alpha} | {limits.notify} | "
            f"{_figures(score(tuning, predicted))} |")  # fmt: skip
    for part, series in parts(labelled).items():
        held_out: dict[str, Sequence[int]] = {}
        for project in dict.fromkeys(one.project for one in series):
            place = best([one for one in series if one.project != project])
            held_out |= {one.name: found[place][one.name] for one in series if one.project == project}
        every, large = score(series, held_out), score(series, held_out, LARGE)
        say(f"\nOne project left out, {part.lower()}: {_figures(every)} | {large.f1:.3f} (>= 2 %)")


def arriving(labelled: Collection[Labelled]) -> None:
    """As in service: one revision after the other, nothing known of what comes, and nobody who answers."""
    for words, paired in (("the pair of each revision was steady", True), ("no pair says anything", False)):
        every = {one.name: replayed(one.values, paired=paired) for one in labelled}
        for part, series in parts(labelled).items():
            say(f"\n{part}, where {words}\n\n| | P | R | F1 | false per 1,000 |\n|---|---|---|---|---|")
            for when, level in product(("at the end", "ever told"), ("notify", "block")):
                predicted = {
                    name: [one.place for one in told if (one.open or when == "ever told") and one.reaches(level)]
                    for name, told in every.items()
                }
                scored = score(series, predicted)
                say(f"| {when}, {level} | {_figures(scored)} | {scored.false_per_1000:.2f} |")
            if late := delays(series, every):
                half, most, nearly_all = np.quantile(late, (0.5, 0.75, 0.9))
                say(f"\nRevisions until told: half within {half:.0f}, three quarters within {most:.0f}, 90 % within "
                    f"{nearly_all:.0f}")  # fmt: skip


def speed() -> None:
    """Simulated series with sigma 1 %, calm or with a step of some 5 % every 250 revisions; the best of five."""
    random = np.random.default_rng(5)
    for count in (1_000, 10_000):
        noise, steps = random.normal(0, 0.01, count), np.repeat(random.normal(0, 0.05, count // 250), 250)
        for what, logs in (("calm", noise), ("with steps", noise + steps)):
            revisions = seen(np.exp(logs).tolist())
            say(f"{count:,} points, {what}: {best_of(5, partial(changes, revisions)):.2f} ms")


def best_of(count: int, measured: Callable[[], object]) -> float:
    """Milliseconds of the processor, which other work on the machine does not lengthen much."""
    times = []
    for _ in range(count):
        began = time.process_time()
        measured()
        times.append(time.process_time() - began)
    return 1000 * min(times)


def per_1000(labelled: Collection[Labelled], seconds: float) -> float:
    """Milliseconds for 1,000 points."""
    return 1e6 * seconds / sum(len(one.values) for one in labelled)


def _figures(score: Score) -> str:
    return f"{score.precision:.3f} | {score.recall:.3f} | {score.f1:.3f}"


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
