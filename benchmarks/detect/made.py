"""What the detector finds where the truth is known: nothing in noise, and every step and leak that was put into it."""

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from benchmarks.detect.arriving import replayed
from benchmarks.detect.noises import DRIFT_MEMORY, NOISES, autoregressive, sessions
from benchmarks.detect.patterns import PATTERNS, in_two_modes, leaking, stretches
from benchmarks.detect.score import MARGIN, Labelled, matched
from service.domain.changepoints import Change, HistoryLimits, Level, Seen, changes
from service.domain.changepoints.scan import scan_series
from service.domain.changepoints.series_table import Histories
from service.domain.changepoints.step_test import step_between

Logs = NDArray[np.float64]

SEED = 20261124
POINTS = 40_000  # of each kind of noise
LENGTHS = (400, 1000)  # revisions of a series
SIZES = (0.02, 0.05, 0.10)
USUAL = HistoryLimits(notify=0.01, block=0.02)  # of a case above 100 us, by the default policy
SIBLINGS, PLACES = 20, 120  # cases of a device, and revisions that a close scan reads
NAME = "rmsnorm.fwd.{}x4096.bf16"


def report(labelled: Collection[Labelled], part: int = 1) -> Iterator[str]:
    """The lines of the report, from one in `part` of the series that it usually makes."""
    yield from _noises(part)
    real = list(stretches(labelled))
    yield from _patterns(real)
    yield from _leaks(real, part)
    yield from _siblings(part)
    yield from _arriving(part)


def found(own: Logs, sota: Logs | None = None, limits: HistoryLimits | None = None) -> list[Change]:
    references = [None] * len(own) if sota is None else np.exp(sota).tolist()
    pairs = zip(np.exp(own).tolist(), references, strict=True)
    return changes([Seen(place, *pair) for place, pair in enumerate(pairs)], limits or HistoryLimits())


def places_of(change: Change) -> list[int]:
    """Where a change is; a leak is at the steps that are its parts, or where half of it has passed."""
    return [part.ordinal for part in change.course[:-1]] or [change.ordinal]


def _noises(part: int) -> Iterator[str]:
    yield "\nFalse changes per 1,000 revisions of made noise (blocks in brackets), also with SOTA in the sessions:\n"
    yield "| revisions of a series | " + " | ".join(NOISES) + " |"
    yield "|---|" + "---|" * len(NOISES)
    for revisions in LENGTHS:
        series = max(POINTS // revisions // part, 2)
        alone, with_sota = [], []
        for noise in NOISES.values():
            every = list(sessions(noise, SEED, series, revisions))
            per_1000 = 1000 / (series * revisions)
            here = [change for one in every for change in found(one.machine)]
            blocks = sum(change.level is Level.BLOCK for change in here)
            alone.append(f"{len(here) * per_1000:.2f} ({blocks * per_1000:.2f})")
            with_sota.append(f"{sum(len(found(one.own, one.sota)) for one in every) * per_1000:.2f}")
        yield f"| {revisions} | " + " | ".join(alone) + " |"
        yield f"| {revisions}, with SOTA | " + " | ".join(with_sota) + " |"


def _patterns(real: Sequence[Logs]) -> Iterator[str]:
    points = sum(map(len, real))
    nothing = sum(len(found(noise)) for noise in real)
    yield f"\nPatterns in {len(real)} stretches of real noise ({points} revisions), one series alone: recall, false"
    yield "changes per 1,000 in brackets, and how many of the steps hold if their places are given.  With nothing"
    yield f"injected, {1000 * nothing / points:.1f} per 1,000 are found.\n"
    random = np.random.default_rng(SEED)
    kinds: dict[str, Callable[[Logs, float], tuple[Logs, list[int]]]] = {
        one.name: lambda noise, size, one=one: (noise + one.levels(len(noise), size), one.places(len(noise)))
        for one in PATTERNS
    }
    kinds["a level in two modes"] = lambda noise, size: in_two_modes(noise, size, random)
    yield "| pattern | " + " | ".join(f"{size:.0%} | places given" for size in SIZES) + " |"
    yield "|---|" + "---|---|" * len(SIZES)
    for name, injected in kinds.items():
        cells = []
        for size in SIZES:
            hits = wanted = false = given = 0
            for noise in real:
                logs, places = injected(noise, size)
                here = [place for change in found(logs) for place in places_of(change)]
                pairs = matched(here, places)
                hits, wanted, false = hits + len(pairs), wanted + len(places), false + len(here) - len(pairs)
                given += _hold(logs, places)
            cells.append(f"{hits / wanted:.2f} ({1000 * false / points:.1f}) | {given / wanted:.2f}")
        yield f"| {name} | " + " | ".join(cells) + " |"


def _hold(logs: Logs, places: Sequence[int]) -> int:
    """How many of the true steps hold if nothing has to be searched for: the most that these rules can find."""
    steps = [step_between(before, after) for before, after in pairwise(np.split(logs, places))]
    return sum(step.p <= HistoryLimits().fdr for step in steps)


def _leaks(real: Sequence[Logs], part: int) -> Iterator[str]:
    yield "\nLeaks named as leaks, over the newest 64 revisions of the real noise, and over 80 of made noise:\n"
    yield "| noise | " + " | ".join(f"{size:.0%} in all" for size in (0.05, 0.10, 0.20)) + " |"
    yield "|---|---|---|---|"
    cells = [np.mean([_has_leak(leaking(noise, size)[0]) for noise in real]) for size in (0.05, 0.10, 0.20)]
    yield "| real | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"
    for sigma in (0.002, 0.005, 0.01):
        for commits in (80, 8):
            cells = [
                np.mean([_has_leak(_made_leak(seed, size, sigma, commits)) for seed in range(80 // part)])
                for size in (0.05, 0.10, 0.20)
            ]
            words = f"{sigma:.1%}, {'every commit leaks' if commits == 80 else f'{commits} commits leak'}"
            yield f"| {words} | " + " | ".join(f"{cell:.2f}" for cell in cells) + " |"
    for name in ("drift", "AR(.97)"):
        every = list(sessions(NOISES[name], SEED, 100 // part, 400))
        with_sota = sum(_has_leak(one.own, one.sota) for one in every)
        alone = sum(_has_leak(one.machine) for one in every)
        yield f"\n{name}: of {len(every)} series of 400 revisions {alone} have a leak, with SOTA {with_sota}."


def _has_leak(own: Logs, sota: Logs | None = None) -> bool:
    return any(change.is_leak for change in found(own, sota, USUAL))


def _made_leak(seed: int, size: float, sigma: float, commits: int) -> Logs:
    random = np.random.default_rng((SEED, seed))
    at = np.sort(random.choice(np.arange(40, 120), commits, replace=False))
    risen = np.searchsorted(at, np.arange(120), "right") / commits
    return size * risen + random.normal(0, sigma, 120)


def _siblings(part: int) -> Iterator[str]:
    yield f"\nSteps in {SIBLINGS} siblings on a machine that drifts, with SOTA; their noise is 0.3 to 2 %.  Recall of"
    yield "the series that moved (of incidents in brackets), and false points per 1,000 of series that did not:\n"
    yield "| series that moved, size | 5 revisions after it | 10 | 15 | 30 |\n|---|---|---|---|---|"
    for moving, size in ((20, 0.02), (10, 0.02), (5, 0.02), (20, 0.01), (0, 0.0)):
        cells = []
        for after in (5, 10, 15, 30):
            hits = incidents = false = 0
            count = 40 // part
            for seed in range(count):
                table = _siblings_at(seed, moving, size, PLACES - after)
                scanned = scan_series(table, table, {}, dict.fromkeys(table.names, USUAL))
                places = [[change.ordinal for change in scanned[name].matched.new] for name in table.names]
                near = [any(abs(place - PLACES + after) <= 5 for place in here) for here in places[:moving]]
                hits, incidents = hits + sum(near), incidents + any(near)
                false += sum(map(len, places[moving:]))
            still = 1000 * false / max(count * (SIBLINGS - moving) * PLACES, 1)
            recall = f"{hits / (count * moving):.2f} ({incidents / count:.2f})" if moving else "none"
            cells.append(recall if moving == SIBLINGS else f"{recall}; {still:.2f}")
        yield f"| {moving}, {size:.0%} | " + " | ".join(cells) + " |"


def _siblings_at(seed: int, moving: int, size: float, place: int) -> Histories:
    random = np.random.default_rng((SEED, seed))
    machine = autoregressive(random, PLACES, DRIFT_MEMORY)
    sigmas = np.exp(random.uniform(math.log(0.003), math.log(0.02), SIBLINGS))
    own = random.normal(0, sigmas, (PLACES, SIBLINGS)).T + machine
    own[:moving, place:] += size
    sota = random.normal(0, 0.003, (SIBLINGS, PLACES)) + machine
    names = tuple(("norms", NAME.format(64 * number)) for number in range(1, SIBLINGS + 1))
    ones = np.ones(own.shape, dtype=np.int64)
    return Histories(names, 0, 500 * np.exp(own), 400 * np.exp(sota), ones, ones)


def _arriving(part: int) -> Iterator[str]:
    """Steps are injected into the noise in the middle of each series."""
    series, revisions = max(20 // part, 1), 120
    yield "\nOne revision after the other: points reported per 1,000 revisions without a step,"
    yield "and revisions until a step is reported (median and 90 %), with the share of steps that are reported:\n"
    yield "| noise | reported (still open) | " + " | ".join(f"step of {size:.0%}" for size in SIZES) + " |"
    yield "|---|---|" + "---|" * len(SIZES)
    for name in ("white", "AR(.9)", "odd days"):
        noises = [one.machine for one in sessions(NOISES[name], SEED, series, revisions)]
        points = [point for noise in noises for point in replayed(np.exp(noise).tolist())]
        per_1000 = 1000 / (series * revisions)
        cells = [f"{len(points) * per_1000:.1f} ({sum(one.open for one in points) * per_1000:.1f})"]
        for size in SIZES:
            late = [delay for noise in noises if (delay := _delay(noise, size)) is not None]
            half, most = np.quantile(late, (0.5, 0.9)) if late else (math.nan, math.nan)
            cells.append(f"{half:.0f}, {most:.0f} ({len(late) / series:.2f})")
        yield f"| {name} | " + " | ".join(cells) + " |"


def _delay(noise: Logs, size: float) -> int | None:
    """Revisions from the step to the first point near it; None if it is not reported."""
    at = len(noise) // 2
    logs = noise + size * (np.arange(len(noise)) >= at)
    near = [one.when - at for one in replayed(np.exp(logs).tolist()) if abs(one.place - at) <= MARGIN]
    return max(min(near), 0) if near else None
