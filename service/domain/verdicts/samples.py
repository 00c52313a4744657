"""The input of a verdict, and ratios from its trials: estimates, intervals, and the counts of trials.  Pure.

The input is the samples of one case of one provider in a run and those of its baseline.  Each session compares in
turns, so its ratios are free of what differs between sessions.  Ratios to the same code on the same stack and machine
can be multiplied and divided; the squares of their intervals, as logarithms, add up, so the result is less certain than
any of its parts.

No statistics take part: a count of equal code does not vary.  Where it does, no number of trials can say which value is
right, and the case is inconclusive.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median

from kernels.cases import Comparison, Metric
from service.domain.metrics import metric_of, print_case
from service.domain.policy.policy import Policy
from service.domain.states import Direction, Outcome, Rounds
from service.domain.stats import counts
from service.domain.stats.estimates import Estimate, trial_effects, variance
from service.domain.stats.sequential import Effects
from service.domain.stats.variance_prior import Prior, priors
from service.domain.verdicts.reasons import Quarantined, Reason, ReasonCode, reason

Name = tuple[str, str]  # provider and case


@dataclass(frozen=True)
class Pairs:
    """Candidate and baseline, trial by trial and round by round, in the unit of their metric."""

    candidate: tuple[Rounds, ...] = ()
    baseline: tuple[Rounds, ...] = ()
    counts: bool = False  # the metric counts things

    def made(self, most: int | None = None) -> list[float | None]:
        """The log of candidate over baseline for each trial that was made, or for the first `most` of them.

        None for a trial that lost all its rounds.
        """
        trials = self.trials[:most]
        return [counts.trial_effect(*trial) for trial in trials] if self.counts else trial_effects(trials)

    @property
    def trials(self) -> list[tuple[Rounds, Rounds]]:
        """Candidate and baseline in each trial that was made."""
        return [(mine, theirs) for mine, theirs in zip(self.candidate, self.baseline, strict=False) if mine]

    def effects(self) -> list[float]:
        """The effects of the trials that did not lose all their rounds."""
        return [effect for effect in self.made() if effect is not None]

    @property
    def rounds(self) -> int:
        return sum(len(rounds) for rounds in self.candidate)


def made(many: Sequence[Pairs]) -> list[list[float | None]]:
    """`Pairs.made` for many pairs, none of which are counts, in one call, which is faster."""
    trials = [pairs.trials for pairs in many]
    effects = iter(trial_effects([trial for some in trials for trial in some]))
    return [list(islice(effects, len(some))) for some in trials]


@dataclass(frozen=True)
class Trouble:
    """The head is invalid or failed at a case; `known_before`: so was a revision before it."""

    outcome: Outcome
    reason: Reason
    known_before: bool = False


@dataclass(frozen=True)
class Cell:
    """Everything that decides the verdict of one case of one provider in one run."""

    provider: str
    case: str
    screened: Pairs = Pairs()
    confirmed: Pairs = Pairs()  # trials of the confirmation
    control: Pairs = Pairs()  # the baseline against a second copy of itself
    borrowed: str | None = None  # the provider whose control it is, if this one has none
    trouble: Trouble | None = None  # why the head has no times here, where it has none
    baseline_trouble: Reason | None = None  # why the baseline has no times here, where it has none
    same_code: bool = False  # facts say that head and parent compiled to the same code
    quarantined: Quarantined | None = None  # why this case raises no alarm

    @property
    def name(self) -> Name:
        return self.provider, self.case

    @property
    def comparable(self) -> bool:
        """Did both the head and the baseline produce times from correct results?"""
        return not (self.trouble or self.baseline_trouble) and bool(self.screened.baseline)


def family(screened: Iterable[tuple[str, Effects]], policy: Policy) -> dict[str, Prior]:
    """Estimate the usual variance of trials by group, from the first trials of these cases.

    Only from those that every case has: which cases got more must not change what is known of all of them.  Bytes
    and counts have no such family, for they vary or do not vary for reasons of their own.
    """
    by_metric = defaultdict[Metric, list[tuple[float, str, int]]](list)
    for case, effects_of in screened:
        effects = [effect for effect in effects_of[: policy.screening[0]] if effect is not None]
        if len(effects) > 1 and (metric := metric_of(case)).varies:
            by_metric[metric].append((variance(effects), group_of(case), len(effects) - 1))
    priors_of: dict[str, Prior] = {}
    for seen in by_metric.values():
        most = max(df for _, _, df in seen)
        whole = [(own, group) for own, group, df in seen if df == most]  # trials were lost of the others
        priors_of |= priors([own for own, _ in whole], [group for _, group in whole], most)
    return priors_of


def group_of(case: str) -> str:
    """Cases of which the trials vary alike: op, direction, dtype and metric, at any shape; those of a function."""
    function, _, label = case.rpartition("/")
    if function:
        return print_case(function, metric_of(label))
    first, *rest = case.split(".")
    return ".".join([first, *rest[:1], *rest[2:]])


def compare(pairs: Pairs, confidence: float) -> Comparison | None:
    """The ratio with a t interval over its own trials alone; None with fewer than two trials."""
    estimate = Estimate.of(pairs.effects())
    return None if estimate is None else comparison(estimate, pairs, confidence)


def comparison(estimate: Estimate, pairs: Pairs, confidence: float) -> Comparison:
    low, high = estimate.interval(confidence)
    return Comparison(math.exp(estimate.centre), math.exp(low), math.exp(high), pairs.rounds, estimate.trials)


def is_off(control: Estimate, smallest_change: float, policy: Policy) -> bool:
    """Whether the control exceeds its share of the smallest change, and not by chance."""
    beyond = abs(control.centre) > policy.control_limit * math.log1p(smallest_change)
    return beyond and control.p_no_change() <= 1 - policy.confidence


def usual(baseline: Sequence[Sequence[float | None]], trials: int | None = None) -> float | None:
    """Median over all or the first trials of a side, in the unit of the metric; None without values."""
    took = [median(some) for rounds in baseline[:trials] if (some := [each for each in rounds if each is not None])]
    return median(took) if took else None


MAX_LINKS = 8  # ratios in a chain; the interval of a longer one says nothing


@dataclass(frozen=True)
class PairedRatio:
    """A ratio that one session measured, with its interval."""

    ratio: float
    low: float
    high: float

    @property
    def inverse(self) -> "PairedRatio":
        return PairedRatio(1 / self.ratio, 1 / self.high, 1 / self.low)

    @property
    def half_width(self) -> float:
        """The larger half of the interval, as a logarithm."""
        return max(math.log(self.high / self.ratio), math.log(self.ratio / self.low), 0.0)


def paired(ratio: float | None, low: float | None, high: float | None) -> PairedRatio | None:
    """None unless all three are known and can be ratios."""
    if ratio is None or low is None or high is None or not 0 < low <= ratio <= high < math.inf:
        return None
    return PairedRatio(ratio, low, high)


def product(links: Sequence[PairedRatio]) -> PairedRatio:
    """The product of independent ratios."""
    ratio = math.prod(link.ratio for link in links)
    half = math.sqrt(sum(link.half_width**2 for link in links))
    return PairedRatio(ratio, ratio * math.exp(-half), ratio * math.exp(half))


def direction(ratio: PairedRatio, smallest_change: float) -> Direction:
    """`slower` or `faster` if the whole interval says so, `same` if it holds no relevant change, else `unknown`."""
    limit = 1 + smallest_change
    if ratio.low > limit:
        return "slower"
    if ratio.high < 1 / limit:
        return "faster"
    return "same" if 1 / limit <= ratio.low and ratio.high <= limit else "unknown"


def counted(pairs: Pairs, baseline: str, smallest: int) -> Reason | None:
    """The counts of the head and of a baseline other than its parent; None for what is not counted."""
    if not pairs.counts:
        return None
    now, before = (counts_of(side, pairs) for side in ("candidate", "baseline"))
    if len(set(now)) == len(set(before)) == 1:
        return reason(ReasonCode.COUNTED, now=now[0], before=before[0], smallest=smallest, baseline=baseline)
    return reason(ReasonCode.COUNTS_VARY, now=sorted(set(now)), before=sorted(set(before)), baseline=baseline)


def counts_of(side: str, *pairs: Pairs) -> tuple[int, ...]:
    """The counts of a side, one for each trial that was not lost."""
    trials: Sequence[Rounds] = [rounds for pair in pairs for rounds in getattr(pair, side)]
    return tuple(int(value) for rounds in trials for value in rounds[:1] if value is not None)


def count_comparison(pairs: Pairs) -> Comparison | None:
    """The difference as a ratio, without an interval around it."""
    effects = pairs.effects()
    if not effects:
        return None
    lowest, middle, highest = min(effects), sorted(effects)[len(effects) // 2], max(effects)
    return Comparison(math.exp(middle), math.exp(lowest), math.exp(highest), pairs.rounds, len(effects))
