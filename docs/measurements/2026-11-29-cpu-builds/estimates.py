"""The learned variance of builds over the truth, by noise, cases and calibrations (PYTHONPATH=. python FILE)."""

import numpy as np

from benchmarks.verdicts.simulated import NOISES, Family
from kernels.cases import Metric

BY_NAME = {noise.name: noise for noise in NOISES}

for name in ("builds", "layouts", "links", "both"):
    for size, calibrations, seeds in ((6, 3, 150), (6, 10, 150), (20, 10, 40)):
        noise = BY_NAME[name]
        truth = noise.build**2 + noise.build_side**2
        learned = [Family(noise, [0.0] * size, seed).past(calibrations) for seed in range(seeds)]
        found = [known[Metric.KERNEL].build for known in learned if known]
        dfs = np.quantile([build.df for build in found], (0.1, 0.5, 0.9)).round(1)
        print(name, size, calibrations, round(float(np.mean([build.own for build in found])) / truth, 2), dfs)
