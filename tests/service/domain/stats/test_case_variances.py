"""The prior that a worker's earlier sessions give: what it learns, and what it never does."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.domain.stats.case_variances import CaseVariances, PastComparison, RunVariance, learn
from service.domain.stats.variance_prior import priors

NAMES = [("norms", f"rmsnorm.fwd.{n}x4096.bf16") for n in range(205)]
GROUP = "rmsnorm.fwd.bf16"


def truths(cases: int, seed: int = 0) -> np.ndarray:
    """The standard deviations of cases that differ as on an H200."""
    return 0.0015 * np.exp(np.random.default_rng(seed).normal(0, 0.7, cases))


def sampled(sds: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return sds**2 * rng.chisquare(2, len(sds)) / 2


def past(
    sds: np.ndarray, sessions: int = 10, seed: int = 1, level: float = 1.0, offset: float = 0.0
) -> list[PastComparison]:
    rng = np.random.default_rng(seed)
    return [
        PastComparison(session, name, math.sqrt(level) * centre, level * own, 2)
        for session in range(sessions)
        for name, centre, own in zip(NAMES, centres(sds, offset, rng), sampled(sds, rng).tolist(), strict=False)
    ]


def centres(sds: np.ndarray, offset: float, rng: np.random.Generator) -> list[float]:
    """Means of three trials, which share an offset of the session."""
    return (rng.normal(size=len(sds)) * np.sqrt(sds**2 / 3 + offset**2)).tolist()


def run(sds: np.ndarray, seed: int = 2, level: float = 1.0) -> dict[tuple[str, str], RunVariance]:
    rng = np.random.default_rng(seed)
    pairs = zip(NAMES, sampled(sds, rng).tolist(), sampled(sds, rng).tolist(), strict=False)
    return {name: RunVariance(GROUP, level * head, level * control) for name, head, control in pairs}


def known(sds: np.ndarray, **more: float) -> CaseVariances:
    """Of these cases and five others, which no run of these tests has."""
    found = learn(past(np.append(sds, truths(5, seed=99)), **more), 2)
    assert found is not None
    return found


@pytest.mark.parametrize(("cases", "off"), [(6, 0.35), (200, 0.25)])
def test_the_variance_of_a_case_is_known_before_it_is_measured(cases, off):
    """Standard deviations, by the typical error of their logs; three trials alone are off by .6."""
    sds = truths(cases)
    found = known(sds).priors(run(sds), 2)
    errors = [math.log(found[name].variance) / 2 - math.log(sd) for name, sd in zip(NAMES, sds, strict=False)]
    assert math.sqrt(np.mean(np.square(errors))) < off


def test_six_cases_get_a_prior_that_their_run_alone_cannot_give():
    sds = truths(6)
    of_run = run(sds)
    assert priors([one.head for one in of_run.values()], [GROUP] * 6, 2) == {}
    weights = [prior.df for prior in known(sds).priors(of_run, 2).values()]
    assert 3 < min(weights) <= max(weights) < 2 * 2 * 6, "no more than what the run says of its level"


@pytest.mark.parametrize("cases", [1, 2, 6, 20, 200])
@pytest.mark.parametrize("quieter", [0.5, 0.25, 4.0])
def test_a_calibration_from_a_quieter_time_changes_nothing(cases, quieter):
    sds = truths(cases)
    usual, quiet = (known(sds, sessions=10, level=level).priors(run(sds), 2) for level in (1.0, quieter**2))
    assert {name: (one.variance, one.df) for name, one in quiet.items()} == {
        name: pytest.approx((one.variance, one.df)) for name, one in usual.items()
    }


def test_cases_that_became_noisier_by_themselves_weaken_the_prior():
    sds = truths(200)
    noisier = sds * np.where(np.arange(200) % 2, 4.0, 1.0)
    weights = [np.median([prior.df for prior in known(sds).priors(run(now), 2).values()]) for now in (sds, noisier)]
    assert weights[1] < 0.25 * weights[0]


@given(st.floats(1e-6, 1e6), st.integers(0, 100))
def test_the_level_is_that_of_the_run(factor, seed):
    sds = truths(12, seed)
    once, scaled = (known(sds).priors(run(sds, seed, level), 2) for level in (1.0, factor))
    assert [one.variance for one in scaled.values()] == pytest.approx(
        [factor * one.variance for one in once.values()], rel=1e-6
    )


@given(st.integers(1, 50), st.floats(1e-9, 1e-3))
def test_in_small_runs_the_head_of_a_case_has_no_part_in_its_level(cases, other):
    """Otherwise a precise head would narrow its own interval twice.  It has a part in the weight of the prior."""
    sds = truths(cases)
    of_run, learned = run(sds), known(sds)
    changed = {**of_run, NAMES[0]: RunVariance(GROUP, other, of_run[NAMES[0]].control)}
    before, after = (learned.priors(one, 2)[NAMES[0]] for one in (of_run, changed))
    assert after.variance == pytest.approx(before.variance)


@given(st.sampled_from([6, 20, 80]), st.floats(1.0, 1e4))
def test_a_noisier_case_never_makes_the_others_more_certain(cases, factor):
    sds = truths(cases)
    of_run, learned = run(sds), known(sds)
    wild = of_run[NAMES[0]]
    noisier = {**of_run, NAMES[0]: RunVariance(GROUP, wild.head * factor, (wild.control or 0.0) * factor)}
    before, after = learned.priors(of_run, 2), learned.priors(noisier, 2)
    assert all(after[name].variance >= 0.999 * before[name].variance for name in list(of_run)[1:])


@pytest.mark.parametrize("cases", [3, 6, 9, 12])
def test_one_wild_case_hardly_raises_the_level_of_the_others(cases):
    sds = truths(cases)
    raised = []
    for seed in range(40):
        of_run, learned = run(sds, seed), known(sds)
        wild = {**of_run, NAMES[0]: RunVariance(GROUP, 400 * of_run[NAMES[0]].head, 400 * of_run[NAMES[0]].control)}
        before, after = learned.priors(of_run, 2), learned.priors(wild, 2)
        raised += [after[name].variance / before[name].variance for name in list(of_run)[1:]]
    assert np.median(raised) < 2


@given(st.permutations(range(30)))
def test_order_does_not_matter(order):
    sds = truths(10)
    seen = past(sds, sessions=3)
    one, other = learn(seen, 2), learn([seen[place] for place in order], 2)
    assert other.usual == pytest.approx(one.usual)
    assert other.spread == pytest.approx(one.spread)


def test_a_session_that_was_louder_throughout_is_no_trait_of_its_cases():
    """Half of the cases took part in loud sessions alone: they are not noisier than the others."""
    sds = np.full(40, 0.001)
    seen = [
        PastComparison(one.session, one.name, one.centre, one.variance * (9 if one.session % 2 else 1), 2)
        for one in past(sds, sessions=40)
        if one.session % 2 or NAMES.index(one.name) < 30
    ]
    usual = learn(seen, 2).usual
    early, late = ([usual[name] for name in NAMES[first:end]] for first, end in ((0, 30), (30, 40)))
    assert np.mean(late) - np.mean(early) == pytest.approx(0, abs=0.3)


def test_cases_that_do_not_differ_are_taken_for_alike():
    found = learn(past(np.full(50, 0.002)), 2)
    assert np.std(list(found.usual.values())) < 0.15, "the log of a mean of ten has an sd of .4"


@pytest.mark.parametrize(
    ("seen", "df"),
    [
        ([], 2),
        (past(truths(20), sessions=2), 2),
        (past(truths(20)), 4),
        ([PastComparison(session, NAMES[0], 0.0, 0.0, 2) for session in range(9)], 2),
        ([PastComparison(session, NAMES[session], 0.0, 1e-6, 2) for session in range(9)], 2),
    ],
    ids=["nothing", "two sessions", "other numbers of trials", "what does not vary", "each case once"],
)
def test_without_enough_sessions_nothing_is_known(seen, df):
    assert learn(seen, df) is None


def test_a_new_case_and_one_that_did_not_vary_get_no_prior():
    sds = truths(8)
    of_run = run(sds)
    new, still = ("norms", "rmsnorm.fwd.1x1.bf16"), NAMES[3]
    found = known(sds).priors({**of_run, new: of_run[NAMES[0]], still: RunVariance(GROUP, 0.0, 1e-6)}, 2)
    assert set(found) == set(of_run) - {still}


def test_a_single_case_is_told_by_its_control():
    sds = truths(1)
    learned = known(sds)
    assert learned.priors({NAMES[0]: RunVariance(GROUP, 1e-6)}, 2) == {}
    [prior] = learned.priors({NAMES[0]: RunVariance(GROUP, 1e-6, 4e-6)}, 2).values()
    assert prior.variance == pytest.approx(4e-6, rel=0.6)
    assert prior.df < 2


@pytest.mark.parametrize(("offset", "low", "high"), [(0.0, 0.0, 0.0005), (0.003, 0.0022, 0.0038)])
def test_what_trials_of_a_session_share_is_learned_too(offset, low, high):
    found = known(truths(6), sessions=20, offset=offset).offset
    assert low <= math.sqrt(found.variance) <= high


def builds(
    sds: np.ndarray, sessions: int, own: float = 0.0, common: float = 0.0, offset: float = 0.0, seed: int = 5
) -> list[PastComparison]:
    """Calibrations: the copy of the baseline, and two builds that differ at each case and at all cases alike."""
    rng = np.random.default_rng(seed)
    compared = past(sds, sessions, seed, offset=offset)
    apart = past(sds, sessions, seed + 1, offset=offset)
    alike = rng.normal(0, common, sessions)
    moved = [one.centre + rng.normal(0, own) + alike[one.session] for one in apart]
    return compared + [replace(one, centre=centre, control=False) for one, centre in zip(apart, moved, strict=True)]


@pytest.mark.parametrize("offset", [0.0, 0.003], ids=["quiet sessions", "sessions with offsets"])
@pytest.mark.parametrize(("own", "common"), [(0.003, 0.0), (0.0, 0.003), (0.005, 0.0)])
def test_what_two_builds_differ_by_is_learned_apart_from_sessions(own, common, offset):
    learned = [learn(builds(truths(12), 20, own, common, offset, seed), 2) for seed in range(10)]
    assert math.sqrt(np.mean([one.build.own for one in learned])) == pytest.approx(math.hypot(own, common), rel=0.3)
    assert math.sqrt(np.mean([one.offset.own for one in learned])) == pytest.approx(offset, abs=0.0006)


def test_builds_that_do_not_differ_add_nothing():
    found = [learn(builds(truths(12), 20, seed=seed), 2).build.own for seed in range(10)]
    assert np.median(found) < 0.0003**2


@pytest.mark.parametrize("sessions", [3, 10, 20])
def test_what_all_cases_of_a_build_share_was_drawn_once_for_each_session(sessions):
    """Each case of a session tells more only of what it has of its own."""
    alike, apart = (
        np.median([learn(builds(truths(12), sessions, *of, seed=seed), 2).build.df for seed in range(10)])
        for of in ((0.0, 0.005), (0.005, 0.0))
    )
    assert sessions <= alike < 1.5 * sessions < 3 * sessions < apart <= 12 * sessions


@pytest.mark.parametrize(("calibrations", "is_known"), [(0, False), (2, False), (3, True)])
def test_builds_are_known_from_three_calibrations(calibrations, is_known):
    seen = past(truths(6), 20) + [one for one in builds(truths(6), calibrations) if not one.control]
    assert (learn(seen, 2).build is not None) is is_known


@given(st.floats(0.01, 100))
def test_offsets_grow_with_the_noise_of_the_run_and_never_shrink(factor):
    learned = known(truths(6), sessions=20, offset=0.003)

    def scaled(level: float) -> float:
        return learned.offset_of(learned.priors(run(truths(6), level=level), 2).items()).own / learned.offset.own

    assert scaled(factor) == pytest.approx(max(1.0, factor * scaled(1e4) / 1e4))


@pytest.mark.parametrize(("squared", "low", "high"), [(1.0, 0.0, 0.3), (4.0, 2.0, 4.0)])
def test_trials_that_are_alike_shift_noisy_cases_further(squared, low, high):
    """The squares of controls are `squared` times what independent trials make them, at each case."""
    seen = [replace(one, centre=one.centre * math.sqrt(squared)) for one in past(truths(60), sessions=20)]
    found = learn(seen, 2).offset
    assert low <= found.relative <= high
    noisy, quiet = (found.at(error) for error in (1e-5, 1e-8))
    assert noisy.own - found.own == pytest.approx(found.relative * 1e-5)
    assert noisy.relative == quiet.relative == 0, "it is added once"
