"""How well changes of history are found, and how fast: on noise and patterns whose truth is known, and on labels.

python -m benchmarks.detect.study [made | labels | projects | arriving | speed] [--csv FILE] [--peers PYTHON]

*made* is what rules were chosen by: noise without any step, patterns injected into real noise, leaks, siblings.  The
labelled series check them, compare them with peers and say what is reported and withdrawn as revisions arrive.
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

from benchmarks.detect import made
from benchmarks.detect.arriving import delays, replayed
from benchmarks.detect.rules import RULES
from benchmarks.detect.score import LARGE, Labelled, Predictions, Score, read, score
from service.domain.changepoints import Change, HistoryLimits, Level, Seen, changes

PEERS = Path(__file__).with_name("peers.py")
SERIES = Path(__file__).with_name("labelled.csv.gz")
GRID = [HistoryLimits(fdr=fdr, notify=notify) for fdr, notify in product((0.05, 0.01, 0.002), (0.005, 0.01))]
CHAPTERS = ("made", "labels", "projects", "arriving", "speed")


@dataclass(frozen=True)
class Row:
    """What one tool with one setting found."""

    tool: str
    setting: str
    found: Predictions
    ms_per_1000: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("chapters", nargs="*", choices=[*CHAPTERS, []], help="which; all by default")
    parser.add_argument("--csv", type=Path, default=SERIES, help="other labelled series")
    parser.add_argument("--peers", type=Path, help="the interpreter of the environment with the peers")
    parser.add_argument("--quick", action="store_true", help="a tenth of the made series: a test of the study itself")
    chosen = parser.parse_args()
    if not chosen.csv.exists():
        sys.exit(
            f"There is no {chosen.csv}.  Give a CSV with series, index, value, is_change and is_ambiguous (--csv)."
        )
    labelled = read(chosen.csv)
    chapters: dict[str, Callable[[], None]] = {
        "made": lambda: say("\n".join(made.report(labelled, 10 if chosen.quick else 1))),
        "labels": lambda: table(labelled, [*ours(labelled), *rules(labelled), *packages(labelled, chosen.peers)]),
        "projects": lambda: projects(labelled),
        "arriving": lambda: arriving(labelled),
        "speed": speed,
    }
    for name in chosen.chapters or CHAPTERS:
        say(f"\n## {name.capitalize()}")
        chapters[name]()


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
        name: [place for change in every if level in (None, change.level) for place in made.places_of(change)]
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
    """A tool's own setting, and the one that is best on these labels."""
    best = max(rows, key=lambda row: score(labelled, row.found).f1)
    return [rows[0]] if best is rows[0] else [rows[0], best]


def table(labelled: Collection[Labelled], rows: Sequence[Row]) -> None:
    marks = sum(len(one.changes) for one in labelled)
    say(f"\n{len(labelled)} series, {sum(len(one.values) for one in labelled)} points, {marks} changes\n")
    say("| detector | setting | P | R | F1 | F1 of >= 2 % | false per 1,000 | ms per 1,000 |")
    say("|---|---|---|---|---|---|---|---|")
    for row in rows:
        every, large = score(labelled, row.found), score(labelled, row.found, LARGE)
        say(f"| {row.tool} | {row.setting} | {_figures(every)} | {large.f1:.3f} | {every.false_per_1000:.2f} | "
            f"{row.ms_per_1000:.3g} |")  # fmt: skip
    first = rows[0]
    low, high = resampled(labelled, first.found)
    say(f"\n{first.tool}, {first.setting}: F1 is {low:.3f} to {high:.3f} (95 %, series drawn again)")
    say("\n* written from the tool's public description; the others are the tools' own packages.")


def resampled(labelled: Collection[Labelled], found: Predictions, draws: int = 2000) -> tuple[float, float]:
    """Bounds of F1, had other such series been labelled: the bootstrap (Efron, 1979) over whole series."""
    scores = [score([one], found) for one in labelled]
    counts = np.array([(one.hits, one.false, one.missed) for one in scores])
    random = np.random.default_rng(1)
    hits, false, missed = counts[random.integers(0, len(counts), (draws, len(counts)))].sum(axis=1).T
    low, high = np.quantile(2 * hits / (2 * hits + false + missed), (0.025, 0.975))
    return float(low), float(high)


def projects(labelled: Collection[Labelled]) -> None:
    """Each project alone, and scored with the limits that the other projects would choose from the grid."""
    found = [next(ours(labelled, limits)).found for limits in GRID]
    default = next(ours(labelled)).found
    held_out: dict[str, Sequence[int]] = {}
    say("\n| project | series | changes | P | R | F1 | F1 with the others' choice | fdr, notify |")
    say("|---|---|---|---|---|---|---|---|")
    for project in dict.fromkeys(one.project for one in labelled):
        own = [one for one in labelled if one.project == project]
        others = [one for one in labelled if one.project != project]
        best = max(range(len(GRID)), key=lambda place: score(others, found[place]).f1)
        held_out |= {one.name: found[best][one.name] for one in own}
        limits, marks = GRID[best], sum(len(one.changes) for one in own)
        say(f"| {project} | {len(own)} | {marks} | {_figures(score(own, default))} | "
            f"{score(own, found[best]).f1:.3f} | {limits.fdr:g}, {limits.notify} |")  # fmt: skip
    every, large = score(labelled, default), score(labelled, default, LARGE)
    say(f"| all, limits as they are | {len(labelled)} | | {_figures(every)} | | from 2 %: {large.f1:.3f} |")
    every, large = score(labelled, held_out), score(labelled, held_out, LARGE)
    say(f"| all, one left out | | | {_figures(every)} | | from 2 %: {large.f1:.3f} |")


def arriving(labelled: Collection[Labelled]) -> None:
    """As in service: one revision after the other, nothing known of what comes, and nobody who answers."""
    every = {one.name: replayed(one.values) for one in labelled}
    points = [point for of_series in every.values() for point in of_series]
    say("\n| | P | R | F1 | false per 1,000 |\n|---|---|---|---|---|")
    for when, level in product(("at the end", "ever reported"), ("notify", "block")):
        predicted = {
            name: [one.place for one in of_series if (one.open or when != "at the end") and one.reaches(level)]
            for name, of_series in every.items()
        }
        scored = score(labelled, predicted)
        say(f"| {when}, {level} | {_figures(scored)} | {scored.false_per_1000:.2f} |")
    for level in ("notify", "block"):
        reported = [one for one in points if one.reaches(level)]
        withdrawn = sum(not one.open for one in reported)
        say(f"\nWithdrawn of {len(reported)} reported ({level}): {withdrawn / max(len(reported), 1):.1%}")
    if late := delays(labelled, every):
        half, most, nearly_all = np.quantile(late, (0.5, 0.75, 0.9))
        say(f"\nRevisions until reported: half within {half:.0f}, three quarters within {most:.0f}, 90 % within "
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
