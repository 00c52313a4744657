"""Simulated searches for a revision end at the right one."""

import pytest

from benchmarks.bisecting import Line, searched


@pytest.mark.parametrize(("effect", "trial_sd"), [(0.02, 0.0025), (0.05, 0.01)])
def test_searches_whose_steps_are_judged_as_sessions_are(effect, trial_sd):
    found = [searched(Line(effect, trial_sd, seed)) for seed in range(5)]
    assert [end for end, _ in found] == ["right"] * 5
    assert max(steps for _, steps in found) <= 10
