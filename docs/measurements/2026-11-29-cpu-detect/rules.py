"""What each rule buys: labelled series, made noise and injected steps without it: `python rules.py`, in a checkout."""

import math

import numpy as np

from benchmarks.detect.noises import NOISES, SIGMA, sessions
from benchmarks.detect.patterns import PATTERNS, stretches
from benchmarks.detect.score import LARGE, matched, read, score
from benchmarks.detect.study import SERIES
from service.domain.changepoints import segmentation, step_test
from service.domain.changepoints.segmentation import HistoryLimits, levels_of

LABELLED = read(SERIES)
QUIET = 0.025  # robust deviation of the stretches in which steps are injected
CHANCE = {
    "modes 30:70 by chance": lambda random, count: (
        0.03 * (random.random(count) < 0.3) + random.normal(0, SIGMA / 4, count)
    ),
    "random walk": lambda random, count: np.cumsum(random.normal(0, SIGMA / 10, count)),
}
DRAWN = np.random.default_rng(1).integers(0, len(LABELLED), (2000, len(LABELLED)))


def found(logs, limits):
    return levels_of(logs, limits)


def measured(limits):
    every = {one.name: found(np.log(one.values), limits) for one in LABELLED}
    places = {name: levels.starts for name, levels in every.items()}
    blocks = {
        name: [
            start
            for start, step in zip(levels.starts, levels.steps, strict=True)
            if start in levels.certain and abs(step.shift) >= math.log1p(limits.block)
        ]
        for name, levels in every.items()
    }
    each = np.array([(one.hits, one.false, one.missed) for one in (score([one], places) for one in LABELLED)])
    return score(LABELLED, places), score(LABELLED, places, LARGE), score(LABELLED, blocks), each


def f1(counts):
    hits, false, missed = counts.T
    return 2 * hits / (2 * hits + false + missed)


def row(name, limits, reference=None):
    every, large, block, each = measured(limits)
    gain = ""
    if reference is not None:
        low, high = np.quantile(f1(each[DRAWN].sum(axis=1)) - f1(reference[DRAWN].sum(axis=1)), (0.025, 0.975))
        gain = f"{low:+.3f} to {high:+.3f}"
    false = []
    for kind, noise in {**NOISES, **CHANCE}.items():
        levels = [found(one.machine, limits) for one in sessions(noise, 20261124, 100, 400)]
        count, certain = sum(len(one.starts) for one in levels), sum(len(one.certain) for one in levels)
        false.append((kind, count / 40, certain / 40))
    worst = ", ".join(f"{kind} {count:.2f} ({certain:.2f})" for kind, count, certain in false if count > 0.5)
    quiet = [one for one in stretches(LABELLED) if 1.4826 * np.median(np.abs(one - np.median(one))) <= QUIET]
    recalls = []
    for pattern in PATTERNS:
        hits = wanted = 0
        for noise in quiet:
            places = pattern.places(len(noise))
            hits += len(matched(found(noise + pattern.levels(len(noise), 0.05), limits).starts, places))
            wanted += len(places)
        recalls.append(f"{hits / wanted:.2f}")
    print(f"| {name} | {every.precision:.3f} | {every.recall:.3f} | {every.f1:.3f} ({large.f1:.3f}) | {gain} | "
          f"{block.precision:.3f}, {block.recall:.3f} | {worst} | {' '.join(recalls)} |", flush=True)  # fmt: skip
    return each


def without(module, name, replacement, label, limits, reference):
    kept = getattr(module, name)
    setattr(module, name, replacement)
    row(label, limits, reference)
    setattr(module, name, kept)


print("| rule | P | R | F1 (from 2 %) | F1 less that of all rules | block P, R | false per 1,000 (blocks), "
      "where above .5 | injected 5 % in quiet noise |")  # fmt: skip
print("|---|---|---|---|---|---|---|---|")
limits = HistoryLimits()
all_rules = row("all", limits)
without(step_test, "MEMORIES", (1,), "memory of one revision alone", limits, all_rules)
without(segmentation, "without_flips", lambda _, starts, __: list(starts), "no modes", limits, all_rules)
pruned = segmentation._pruned


class AnyNumber:
    """Of steps that were tested: each is compared with the whole rate."""

    def __rtruediv__(self, _):
        return limits.fdr


def each_alone(logs, starts, limits, _):
    return pruned(logs, starts, limits, AnyNumber())


without(segmentation, "_pruned", each_alone, "no correction for several steps", limits, all_rules)
between = step_test.step_between


def pooled(before, after):
    step = between(before, after)
    sides = step_test._pulled_in((before[-step_test.WINDOW :], after[: step_test.WINDOW]))
    level = np.concatenate(sides)
    left = np.concatenate([side - side.mean() for side in sides])
    squares = len(sides[0]) * len(sides[1]) / len(level)
    return step_test.effect(level - level.mean(), left, step.shift, squares, parameters=2)


without(segmentation, "step_between", pooled, "no variance of each level", limits, all_rules)
searched = step_test.Step.searched_p
step_test.Step.searched_p = property(lambda self: self.p)
row("no correction for places", limits, all_rules)
step_test.Step.searched_p = searched
without(segmentation, "_differ", lambda *_: True, "undone changes block", limits, all_rules)
for window in (40, 100):
    without(step_test, "WINDOW", window, f"{window} revisions a side", limits, all_rules)
for penalty in (0.35, 0.75):
    without(segmentation, "PENALTY", penalty, f"penalty {penalty}", limits, all_rules)
for fdr in (0.05, 0.002):
    row(f"fdr {fdr}", HistoryLimits(fdr=fdr), all_rules)
