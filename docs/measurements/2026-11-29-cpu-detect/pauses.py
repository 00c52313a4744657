"""False changes of a machine that drifts while nothing is measured: `python pauses.py`, in a checkout of kernelwatch.

A revision of the code before this session has no time of measurement: there, no time is given.
"""

import dataclasses
import math

import numpy as np

from service.domain.changepoints import Seen, changes

DAY_S, COUNT, SERIES = 86_400.0, 400, 100
DATED = "at" in {field.name for field in dataclasses.fields(Seen)}
KINDS = {
    "log-normal days (median 1, sigma 1), forgets in 10 days": (lambda r: r.lognormal(0, 1, COUNT), 10, 0.2),
    "log-normal days (median 1, sigma 2), forgets in 50 days": (lambda r: r.lognormal(0, 2, COUNT), 50, 0.2),
    "daily, three weeks after one in 40": (lambda r: np.where(r.random(COUNT) < 1 / 40, 21, 1.0), 30, 0.2),
    "five a day, three weeks after one in 40": (lambda r: np.where(r.random(COUNT) < 1 / 40, 21, 0.2), 30, 0.2),
    "the same, with more white noise": (lambda r: np.where(r.random(COUNT) < 1 / 40, 21, 0.2), 30, 0.5),
    "20 a day, three weeks after one in 80": (lambda r: np.where(r.random(COUNT) < 1 / 80, 21, 0.05), 30, 0.2),
}

for kind, (gaps_of, days, white) in KINDS.items():
    false = 0
    for seed in range(SERIES):
        random = np.random.default_rng((5, seed))
        gaps = gaps_of(random)
        drift = [random.normal()]
        for memory in np.exp(-gaps[1:] / days):
            drift.append(memory * drift[-1] + math.sqrt(1 - memory**2) * random.normal())
        values = np.exp(0.01 * np.array(drift) + random.normal(0, 0.01 * white, COUNT)).tolist()
        times = (np.cumsum(gaps) * DAY_S).tolist()
        seen = [
            Seen(place, value, **({"at": at} if DATED else {}))
            for place, (value, at) in enumerate(zip(values, times, strict=True))
        ]
        false += len(changes(seen))
    print(f"{kind}: {1000 * false / SERIES / COUNT:.2f} per 1,000", flush=True)
