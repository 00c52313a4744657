"""The trials of an H200 that simulated runs draw: all sessions, as they were stored, and as noisy as they were."""

import gzip
import json
import math
from collections import defaultdict
from statistics import median

import numpy as np
import pytest

from benchmarks.verdicts.h200 import STORED, collect, donors, measured, show
from service.domain.stats.estimates import variance, winsorised_mean


def test_the_stored_trials_are_those_of_the_stored_sessions():
    assert json.loads(gzip.decompress(STORED.read_bytes())) == collect()


def test_every_session_has_sides_to_compare():
    assert len({one.session for one in measured()}) > 40
    assert all(len(trial) > 1 for one in measured() for trial in one.trials)
    assert {one.source for one in donors()} == {"deciding", "service", "commits"}


def test_what_is_drawn_varies_as_it_was_measured():
    """For each case the sd over trials of one side over another, in the sessions and as it is redrawn."""
    was = defaultdict[tuple[str, str], list[tuple[float, int]]](list)
    for one in measured():
        for effects in one.effects():
            if len(effects) > 1:
                was[one.source, one.case].append((variance(effects), len(effects) - 1))
    dice, ratios = np.random.default_rng(1), []
    for donor in donors():
        drawn = []
        for _ in range(150):
            trial = donor.trials[dice.integers(len(donor.trials))]
            one, other = dice.permutation(len(trial))[:2]
            drawn.append(winsorised_mean((trial[one] - trial[other]).tolist()))
        seen = was[donor.source, donor.case]
        ratios.append(math.sqrt(variance(drawn) / (sum(v * df for v, df in seen) / sum(df for _, df in seen))))
    assert median(ratios) == pytest.approx(1, abs=0.05)
    assert 0.8 < min(ratios) < max(ratios) < 1.4


def test_the_table_names_every_file():
    said = show()
    assert all(one.session.split("#")[0] in said for one in measured())
