"""What each rule buys on the projects that are not kept apart: `python rules.py`, in a checkout of kernelwatch.

`python rules.py apart` scores the projects that are kept apart, and the others, with all rules.
"""

import os
import sys
from dataclasses import replace
from zlib import crc32

import numpy as np

from benchmarks.detect.arriving import delays, replayed
from benchmarks.detect.noises import NOISES, SIGMA, sessions
from benchmarks.detect.patterns import PATTERNS, stretches
from benchmarks.detect.score import LARGE, matched, read, score
from benchmarks.detect.study import SERIES
from service.domain.changepoints import HistoryLimits, Level, Seen, changes, detector, scan, segmentation, step_test
from service.domain.changepoints import series_table as tables

APART = 3  # one in so many projects, by the hash of its name
EVERY = read(SERIES)
KEPT = [one for one in EVERY if crc32(one.project.encode()) % APART == 0]
OTHERS = [one for one in EVERY if one not in KEPT]
QUIET = 0.025  # robust deviation of the stretches in which steps are injected
CHANCE = {
    "modes 30:70 by chance": lambda random, count: (
        0.03 * (random.random(count) < 0.3) + random.normal(0, SIGMA / 4, count)
    ),
    "random walk": lambda random, count: np.cumsum(random.normal(0, SIGMA / 10, count)),
}


def found(values, limits=None):
    return changes([Seen(place, value) for place, value in enumerate(values)], limits or HistoryLimits())


def places(every, level=None):
    return [
        place
        for change in every
        if level in (None, change.level)
        for place in [part.ordinal for part in change.course[:-1]] or [change.ordinal]
    ]


def counts(labelled, predicted):
    """Hits, false and missed changes of each series."""
    each = [score([one], predicted) for one in labelled]
    return np.array([(one.hits, one.false, one.missed) for one in each])


def f1(counts):
    hits, false, missed = np.moveaxis(counts, -1, 0)
    return 2 * hits / (2 * hits + false + missed)


def drawn(counts, draws=2000):
    """F1 of the same number of series, drawn again."""
    random = np.random.default_rng(1)
    return f1(counts[random.integers(0, len(counts), (draws, len(counts)))].sum(axis=1))


def left_out(labelled, counts):
    """F1 without each project in turn."""
    names = np.array([one.project for one in labelled])
    return np.array([f1(counts[names != name].sum(axis=0)) for name in dict.fromkeys(names)])


def row(name, reference):
    every = {one.name: found(one.values) for one in OTHERS}
    predicted = {series: places(some) for series, some in every.items()}
    blocks = score(OTHERS, {series: places(some, Level.BLOCK) for series, some in every.items()})
    all_, large, each = score(OTHERS, predicted), score(OTHERS, predicted, LARGE), counts(OTHERS, predicted)
    gain = ""
    if reference is not None:
        low, high = np.quantile(drawn(each) - drawn(reference), (0.025, 0.975))
        without = left_out(OTHERS, each) - left_out(OTHERS, reference)
        gain = f"{low:+.3f} to {high:+.3f}; {without.min():+.3f} to {without.max():+.3f}"
    noises = []
    for kind, noise in {**NOISES, **CHANCE}.items():
        false = [change for one in sessions(noise, 20261124, 100, 400) for change in found(np.exp(one.machine))]
        certain = sum(change.level is Level.BLOCK for change in false)
        if len(false) > 20:
            noises.append(f"{kind} {len(false) / 40:.2f} ({certain / 40:.2f})")
    recalls = []
    quiet = [one for one in stretches(OTHERS) if 1.4826 * np.median(np.abs(one - np.median(one))) <= QUIET]
    for pattern in PATTERNS:
        hits = wanted = 0
        for noise in quiet:
            at = pattern.places(len(noise))
            hits += len(matched(places(found(np.exp(noise + pattern.levels(len(noise), 0.05)))), at))
            wanted += len(at)
        recalls.append(f"{hits / wanted:.2f}")
    arrived = as_revisions_arrive(OTHERS)
    print(f"| {name} | {all_.precision:.3f}, {all_.recall:.3f} | {all_.f1:.3f} ({large.f1:.3f}) | {gain} | "
          f"{blocks.precision:.3f}, {blocks.recall:.3f} | {', '.join(noises)} | {' '.join(recalls)} | {arrived} |",
          flush=True)  # fmt: skip
    return each


def as_revisions_arrive(labelled):
    every = {one.name: replayed(one.values) for one in labelled}
    points = [point for some in every.values() for point in some]
    notify = score(labelled, {name: [one.place for one in some] for name, some in every.items()})
    block = score(labelled, {name: [one.place for one in some if one.blocks] for name, some in every.items()})
    withdrawn = sum(not one.open for one in points) / len(points)
    half, most = np.quantile(delays(labelled, every), (0.5, 0.9))
    return (f"{notify.precision:.3f}, {notify.recall:.3f} | {block.precision:.3f}, {block.recall:.3f} | "
            f"{withdrawn:.1%} of {len(points)} | {half:.0f}, {most:.0f}")  # fmt: skip


def set_(module, **values):
    def change():
        for name, value in values.items():
            setattr(module, name, value)

    return change


def one_variance():
    """No variance of each level."""

    def pooled(before, after):
        sides = step_test._pulled_in((before, after))
        level, left = np.concatenate(sides), np.concatenate([side - side.mean() for side in sides])
        squares = len(sides[0]) * len(sides[1]) / len(level)
        return step_test.effect(level - level.mean(), left, sides[1].mean() - sides[0].mean(), squares, parameters=2)

    segmentation.step_between = scan.step_between = pooled


def no_several():
    pruned = segmentation._pruned

    class AnyNumber:
        def __rtruediv__(self, _):
            return HistoryLimits().fdr

    segmentation._pruned = lambda logs, starts, limits, _: pruned(logs, starts, limits, AnyNumber())


def no_places():
    step_test.Step.searched_p = property(lambda step: step.p)


def blocks_in_turn(most, short=False):
    """A change may block that is one of up to `most` between its two levels; if `short`, one that lasted shortly."""
    levels_of = segmentation.levels_of

    def with_reverted(logs, limits):
        levels, tested = levels_of(logs, limits), max(len(levels_of(logs, limits).candidates), 1)
        turns, edges = segmentation.changes_in_turn(logs, levels.starts, limits), [0, *levels.starts, len(logs)]
        stays, certain, first = np.diff(edges), set(), 0
        while first < len(turns):
            own = range(first, first + turns[first])
            if len(own) <= most and not (
                short and len(own) == 2 and stays[first + 1] >= min(stays[first], stays[first + 2])
            ):
                certain |= {levels.starts[n] for n in own if levels.steps[n].searched_p <= limits.block_alpha / tested}
            first += len(own)
        return replace(levels, certain=frozenset(certain))

    return set_(detector, levels_of=with_reverted)


RULES = {
    "all": lambda: None,
    "memory of one revision alone": set_(step_test, MEMORIES=(1,)),
    "no variance of each level": one_variance,
    "no value pulled in": set_(step_test, _pulled_in=list),
    "no correction for several steps": no_several,
    "no correction for places": no_places,
    "no modes": set_(segmentation, FLIPS=10**9),
    "no leaks": set_(detector, rises=lambda *_: []),
    "leaks with a jump": set_(detector, _jump=lambda *_: 0.0),
    "levels of 8 revisions": set_(segmentation, MIN_SIDE=8),
    "penalty 1": set_(segmentation, PENALTY=1.0),
    "a newest level of 5 values selects": set_(tables, NEAR=10),
    "a commit and its revert block": blocks_in_turn(2),
    "the same, if it lasted shorter than what is around it": blocks_in_turn(2, short=True),
}

if sys.argv[1:] == ["apart"]:
    print("| projects | series, changes | P, R | F1 (from 2 %) | 95 % | block P, R | as revisions arrive: P, R | "
          "block P, R | withdrawn | revisions until half, 90 % |\n" + "|---" * 10 + "|")  # fmt: skip
    for name, labelled in (("kept apart", KEPT), ("others", OTHERS), ("all", EVERY)):
        every = {one.name: found(one.values) for one in labelled}
        predicted = {series: places(some) for series, some in every.items()}
        blocks = score(labelled, {series: places(some, Level.BLOCK) for series, some in every.items()})
        total, large = score(labelled, predicted), score(labelled, predicted, LARGE)
        low, high = np.quantile(drawn(counts(labelled, predicted)), (0.025, 0.975))
        marks = sum(len(one.changes) for one in labelled)
        print(f"| {name} | {len(labelled)}, {marks} | {total.precision:.3f}, {total.recall:.3f} | {total.f1:.3f} "
              f"({large.f1:.3f}) | {low:.3f} to {high:.3f} | {blocks.precision:.3f}, {blocks.recall:.3f} | "
              f"{as_revisions_arrive(labelled)} |", flush=True)  # fmt: skip
    sys.exit()
print("| rule | P, R | F1 (from 2 %) | F1 less that of all: 95 %; a project left out | block P, R | false per 1,000 "
      "(blocks), where above .5 | injected 5 % in quiet noise | as revisions arrive: P, R | block P, R | withdrawn | "
      "revisions until half, 90 % |\n" + "|---" * 11 + "|", flush=True)  # fmt: skip
reference = row("all", None)
for name, change in list(RULES.items())[1:]:
    if child := os.fork():
        os.waitpid(child, 0)
        continue
    change()
    row(name, reference)
    os._exit(0)
