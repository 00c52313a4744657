"""How many steps of 30 deviations are lost among smaller ones: `python lost.py`, in a checkout of kernelwatch."""

import numpy as np

from service.domain.changepoints import HistoryLimits
from service.domain.changepoints.segmentation import levels_of


def correlated(seed: int, count: int, r: float) -> np.ndarray:
    random = np.random.default_rng(seed)
    shocks, values = random.normal(0, 0.01 * np.sqrt(1 - r * r), count), np.zeros(count)
    values[0] = random.normal(0, 0.01)
    for place in range(1, count):
        values[place] = r * values[place - 1] + shocks[place]
    return values


lost = 0
for seed in range(3000):
    random, kind = np.random.default_rng(seed), seed % 6
    changes = random.integers(1, 20)
    lengths = random.integers(5 if kind < 3 else 8, [9, 20, 60, 9, 20, 60][kind], changes + 1)
    sizes = random.uniform(0, 0.08, changes) * random.choice([-1, 1], changes)
    large = random.integers(0, changes)
    sizes[large] = 0.3 * random.choice([-1, 1])
    noise = random.normal(0, 0.01, lengths.sum()) if seed % 2 else correlated(seed, lengths.sum(), 0.6)
    logs = np.repeat(np.concatenate([[0], np.cumsum(sizes)]), lengths) + noise
    place = np.cumsum(lengths)[large]
    lost += not any(abs(start - place) <= 2 for start in levels_of(logs, HistoryLimits()).starts)
print(f"{lost} of 3000 lost")
