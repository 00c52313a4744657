"""Behind SOTA: the flag, since when, and who moved."""

import pytest

from service.domain.policy.policy import Policy
from service.domain.verdicts.baselines import Beside, Stand
from service.domain.verdicts.samples import Pairs
from service.domain.verdicts.sota import Standing, stand_all, told

POLICY = Policy(smallest_change=0.02, behind_sota=0.05)
CASE = "rmsnorm.fwd.4096x1024.bf16"


def times(ratio: float) -> Pairs:
    return Pairs(
        ((100 * ratio, 101 * ratio), (100 * ratio, 100 * ratio), (101 * ratio, 100 * ratio)),
        ((100, 101), (100, 100), (101, 100)),
    )


def stand(pairs: Pairs, case: str = CASE, trouble: str | None = None) -> Stand:
    [only] = stand_all([Beside("norms", case, "quack", pairs, trouble)], POLICY).values()
    return only


@pytest.mark.parametrize(
    ("ratio", "behind", "said"),
    [
        (1.20, True, "takes 1.20 times as long as quack"),
        (1.03, False, "within 5% of quack"),
        (1.00, False, "within 5% of quack"),
        (0.80, False, "1.25 times as fast as quack"),
    ],
)
def test_the_flag(ratio, behind, said):
    standing = stand(times(ratio))
    assert (standing.slower, standing.reason) == (behind, said)


def test_without_times_of_sota_nothing_is_behind():
    standing = stand(Pairs(), trouble="quack is unsupported here: no CUDA")
    assert (standing.slower, standing.reason) == (False, "quack is unsupported here: no CUDA")


def now(ratio: float = 1.2, own: float = 120, sota: float = 100, stack: int = 1) -> Standing:
    return Standing("bbbb", ratio, own, sota, stack, behind=True)


@pytest.mark.parametrize(
    ("current", "before", "parent", "said"),
    [
        (now(), None, None, "behind quack since bbbb, the first revision measured."),
        (
            now(),
            Standing("aaaa", 1.0, 100, 100, 1),
            1.2,
            "behind quack since bbbb: this revision is 20% slower than its baseline.",
        ),
        (
            now(1.2, 100, 83, stack=2),
            Standing("aaaa", 1.0, 100, 100, 1),
            1.0,
            "behind quack since bbbb: quack became 17% faster after a change of stack, not this revision.",
        ),
        (
            now(),
            Standing("aaaa", 1.2, 120, 100, 1, True, "9999"),
            1.0,
            "behind quack since 9999; the gap is as wide as it was.",
        ),
        (
            now(1.5, 150, 100),
            Standing("aaaa", 1.2, 120, 100, 1, True, "9999"),
            1.25,
            "behind quack since 9999; "
            "the gap grew from 1.20 to 1.50 times: this revision is 25% slower than its baseline.",
        ),
        (
            now(1.1, 110, 100),
            Standing("aaaa", 1.2, 120, 100, 1, True, "9999"),
            0.92,
            "behind quack since 9999; "
            "the gap shrank from 1.20 to 1.10 times: this revision is 8% faster than its baseline.",
        ),
        (  # quack became slower too, which is no reason to be behind it
            now(1.067, 112, 105),
            Standing("aaaa", 1.0, 100, 100, 1),
            1.01,
            "behind quack since bbbb: "
            "our own time became 12% slower since aaaa, in steps of which none was certain by itself.",
        ),
        (
            now(1.067, 112, 105, stack=2),
            Standing("aaaa", 1.0, 100, 100, 1),
            None,
            "behind quack since bbbb: our own time became 12% slower since aaaa after a change of stack.",
        ),
        (  # we became faster, and quack more so
            now(1.2, 95, 79.2),
            Standing("aaaa", 1.1, 100, 91, 1, True, "9999"),
            0.95,
            "behind quack since 9999; "
            "the gap grew from 1.10 to 1.20 times: quack became 13% faster, not this revision.",
        ),
        (
            now(1.1, 95, 86.4),
            Standing("aaaa", 1.0, 100, 100, 1),
            0.95,
            "behind quack since bbbb: quack became 13.6% faster, not this revision.",
        ),
    ],
)
def test_it_says_since_when_and_who_moved(current, before, parent, said):
    assert told(current, before, "quack", parent, CASE, POLICY) == said


def test_memory_is_no_time():
    """Nor is it said to be one; a case is behind by what is a change in its metric at all."""
    less, more = (stand(times(ratio), f"{CASE}.memory") for ratio in (0.5, 1.2))
    assert (less.slower, less.reason) == (False, "takes 0.50 times as much memory as quack")
    assert (more.slower, more.reason) == (True, "takes 1.20 times as much memory as quack")
    assert not stand(times(1.1), f"{CASE}.compile").slower
    said = told(now(), Standing("aaaa", 1.0, 100, 100, 1), "quack", 1.2, f"{CASE}.memory", POLICY)
    assert said == "behind quack since bbbb: this revision takes 20% more memory than its baseline."
