"""Rules of other tools, written from their public descriptions, where no package of theirs runs on plain numbers."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

Rule = Callable[[Sequence[float]], list[int]]


def perfherder(values: Sequence[float], threshold: float = 7.0, smallest: float = 0.02) -> list[int]:
    """Mozilla's: a t of 12 to 24 earlier and 12 later revisions, the nearest weighing most, at its peaks."""
    shortest_back, longest_back, fore = 12, 24, 12
    numbers = np.asarray(values)
    ts = np.zeros(len(numbers))
    for place in range(shortest_back, len(numbers) - fore + 1):
        before = numbers[max(0, place - longest_back) : place][::-1]
        ts[place] = _weighted_t(before, numbers[place : place + fore])
    found = []
    for peak in np.flatnonzero(ts >= threshold).tolist():
        before, after = numbers[max(0, peak - longest_back) : peak], numbers[peak : peak + fore]
        highest = ts[peak] == ts[max(0, peak - 1) : peak + 2].max()
        if highest and abs(after.mean() / before.mean() - 1) >= smallest:
            found.append(peak)
    return found


def _weighted_t(before: NDArray[np.float64], after: NDArray[np.float64]) -> float:
    (a, first), (b, second) = _weighted(before), _weighted(after)
    spread = math.sqrt(first / len(before) + second / len(after))
    if a == b:
        return 0.0
    return abs(b - a) / spread if spread else math.inf


def _weighted(nearest_first: NDArray[np.float64]) -> tuple[float, float]:
    count = len(nearest_first)
    mean = float(np.average(nearest_first, weights=np.arange(count, 0, -1)))
    return mean, float(((nearest_first - mean) ** 2).sum()) / (count - 1)


def skia(values: Sequence[float], radius: int, interesting: float) -> list[int]:
    """Skia's step fit by Cohen's d: two levels of `radius` revisions, apart by so many of their deviations."""
    numbers = np.asarray(values)
    d = np.zeros(len(numbers))
    for place in range(radius, len(numbers) - radius + 1):
        before, after = numbers[place - radius : place], numbers[place : place + radius]
        spread = math.sqrt((before.var(ddof=1) + after.var(ddof=1)) / 2)
        apart = abs(float(after.mean() - before.mean()))
        d[place] = apart / spread if spread else (math.inf if apart else 0.0)
    return _peaks(d, interesting, radius)


def _peaks(strength: NDArray[np.float64], threshold: float, radius: int) -> list[int]:
    """The strongest place within each radius."""
    found: list[int] = []
    for place in sorted(np.flatnonzero(strength >= threshold), key=lambda place: -strength[place]):
        if all(abs(place - other) > radius for other in found):
            found.append(int(place))
    return sorted(found)


def bencher(values: Sequence[float], most: int, boundary: float, fewest: int = 10) -> list[int]:
    """Bencher's t test threshold: a value outside the interval of the last `most`; the first of each run is counted."""
    numbers = np.asarray(values)
    out = np.zeros(len(numbers), dtype=bool)
    for place in range(fewest, len(numbers)):
        usual = numbers[max(0, place - most) : place]
        reach = float(stdtrit(len(usual) - 1, boundary)) * usual.std(ddof=1)
        out[place] = abs(numbers[place] - usual.mean()) > reach
    return [int(place) for place in np.flatnonzero(out) if not out[place - 1]]


# Each with the settings among which the tuning part chooses; the first is the tool's own.
RULES: dict[str, dict[str, Rule]] = {
    "Perfherder t": {
        f"t {threshold:g}": partial(perfherder, threshold=threshold) for threshold in (7.0, 3.5, 5.0, 10.0)
    },
    "Skia step fit (cohen)": {
        f"radius {radius}, {interesting:g}": partial(skia, radius=radius, interesting=interesting)
        for radius in (7, 5, 10)
        for interesting in (2.0, 1.5, 2.5, 3.0, 4.0)
    },
    "Bencher t": {
        f"{most} revisions, {boundary:g}": partial(bencher, most=most, boundary=boundary)
        for most in (64, 16, 32)
        for boundary in (0.98, 0.999, 0.99999)
    },
}
