"""False alarms of a machine: comparisons of equal code, and quarantine of unreliable cases.  Pure.

Two copies of the same code differ by chance alone, so a test at level `nominal` calls `nominal` of the comparisons
different where the machine is fair.  A case above that rate is unreliable: it is *quarantined*: measured, shown,
but raises no alarm until it has been quiet for long enough.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev

import scipy

from kernels.cases import Role
from service.domain.metrics import metric_of
from service.domain.policy.policy import Calibrating, Policy
from service.domain.states import CellState, Equal
from service.domain.stats.case_variances import MIN_SESSIONS
from service.domain.stats.estimates import CONSTANT
from service.domain.stats.sequential import MIN_SHARE
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances
from service.domain.verdicts.judge import CHANGES, Cell, Pairs, judge
from service.domain.verdicts.samples import usual
from service.domain.verdicts.session_result import ContenderResult, cells

WINDOW = 60  # of so many comparisons the last count: what a machine did last winter is no reason
SURE = 0.05  # probability that one check quarantines a case at twice the nominal rate
# A lying case is quiet now and then.  Each release must have waited twice as long as the one before; with these numbers
# a case at four times the nominal rate is let go 0.6 times in 1,000 comparisons (simulated, test_calibrating.py).
FIRST_RELEASE = 2
# Without any, offsets of sessions and builds are in no interval: with an sd of 0.3 % each, 13 % of harmless runs of six
# cases have a false report (docs/statistics.md).
MIN_CALIBRATIONS = MIN_SESSIONS
MAX_PATIENCE = 16


@dataclass(frozen=True)
class Compared:
    """A copy against its original at one case.  `p` of "there is no difference", two-sided."""

    provider: str
    case: str
    ratio: float
    p: float
    trials: int
    alarmed: bool  # it would have been reported as a change
    kind: Equal = Equal.COPY
    value: float = 0.0  # what the original took, in the unit of the metric


@dataclass(frozen=True)
class Rate:
    """Number of comparisons that differed beyond chance, with an exact 95 % interval of the share."""

    comparisons: int
    differed: int
    alarmed: int

    @property
    def share(self) -> float | None:
        return self.differed / self.comparisons if self.comparisons else None

    @property
    def low(self) -> float:
        """Clopper and Pearson (1934), as is `high`: for comparisons that are independent of each other."""
        k, n = self.differed, self.comparisons
        return float(scipy.special.betaincinv(k, n - k + 1, 0.025)) if k else 0.0

    @property
    def high(self) -> float:
        k, n = self.differed, self.comparisons
        return float(scipy.special.betaincinv(k + 1, n - k, 0.975)) if k < n else 1.0

    def __add__(self, other: "Rate") -> "Rate":
        return Rate(self.comparisons + other.comparisons, self.differed + other.differed, self.alarmed + other.alarmed)


NONE = Rate(0, 0, 0)


def compared(
    taken: Sequence[ContenderResult], policy: Policy, variances: KnownVariances = NONE_KNOWN, *, calibration: bool
) -> list[Compared]:
    """Every comparison of equal code in a session: the controls, and in a calibration head and baseline: two builds.

    Not of counts, which leave the case inconclusive wherever copies differ.

    p is Student's (1908), over the effects of the first look's trials alone: how many more there are depends on
    what was seen, and would make it smaller than it is.
    """
    of_one_build = {metric: replace(known, build=None) for metric, known in variances.items()}
    comparisons = _compared(list(_controls(taken)), policy, of_one_build, Equal.COPY)
    if calibration:  # two copies of the head, judged like any comparison, except that equal code does not overrule it
        builds = [cell for cell in cells(taken, code_decides=False) if cell.comparable]
        comparisons += _compared(builds, policy, variances, Equal.BUILD)
    return comparisons


def _compared(copies: Sequence[Cell], policy: Policy, variances: KnownVariances, kind: Equal) -> list[Compared]:
    copies = [cell for cell in copies if not metric_of(cell.case).counts]
    judged, trials = judge(copies, policy, variances), policy.screening[0]
    comparisons = []
    for cell in copies:
        effects = Pairs(cell.screened.candidate[:trials], cell.screened.baseline[:trials]).effects()
        if len(effects) >= 2:
            alarmed = judged[cell.name].outcome in CHANGES
            ratio = math.exp(fmean(effects))
            p, value = student(effects), usual(cell.screened.baseline, trials) or 0.0
            comparisons.append(
                Compared(
                    provider=cell.provider,
                    case=cell.case,
                    ratio=ratio,
                    p=p,
                    trials=len(effects),
                    alarmed=alarmed,
                    kind=kind,
                    value=value,
                )
            )
    return comparisons


def _controls(taken: Iterable[ContenderResult]) -> Iterator[Cell]:
    """The control against the baseline that it is a copy of."""
    measured = {
        (result.role, result.provider, result.case): result for result in taken if result.state is CellState.MEASURED
    }
    for (role, provider, case), result in measured.items():
        originals = (measured.get((original, provider, case)) for original in (Role.PARENT, Role.HEAD))
        of = next(filter(None, originals), None)
        if role is Role.CONTROL and of is not None:
            yield Cell(provider, str(case), Pairs(result.screened, of.screened), Pairs(result.confirmed, of.confirmed))


def student(effects: Sequence[float]) -> float:
    """Two-sided p of no difference; what does not vary at all, as bytes do not, is either the same or not."""
    centre, spread = fmean(effects), stdev(effects)
    if spread == 0:
        return 1.0 if centre == 0 else 0.0
    return float(2 * scipy.special.stdtr(len(effects) - 1, -abs(centre) / spread * math.sqrt(len(effects))))


def variance_of(ratio: float, p: float, trials: int) -> float | None:
    """The sample variance of the effects of which `student` made p; None if p hides it or it is rounding."""
    if trials < 2 or ratio == 1 or not 0 < p < 1:
        return None
    t = -float(scipy.special.stdtrit(trials - 1, p / 2))
    variance = trials * (math.log(ratio) / t) ** 2 if t > 0 else 0.0
    return variance if variance > CONSTANT**2 else None


def matters(ratio: float, p: float, case: str, policy: Policy, value: float = 0.0) -> bool:
    """Whether a comparison of equal code counts against its case: beyond chance, and enough for a suspicion.

    `value`: what the case takes, on which its smallest change depends; 0 if that is unknown.

    A precise case whose copies differ by a hair all the same has never alarmed anybody, and would be lost to its
    quarantine.
    """
    least = MIN_SHARE * math.log1p(policy.smallest_change_at(case, value))
    return p < policy.calibrate.nominal and abs(math.log(ratio)) > least


def is_provisional(calibrations: int, rules: Calibrating) -> bool:
    """Whether times may not block yet, after so many calibrations of the target on the worker.

    Who switches calibrations off decides with what the session alone shows.
    """
    return rules.every_h > 0 and calibrations < MIN_CALIBRATIONS


def most(rules: Calibrating) -> int:
    """Number of comparisons of a case that `distrusted` uses."""
    return max(WINDOW, rules.min_comparisons)


def distrusted(against: Sequence[bool], rules: Calibrating) -> str | None:
    """Why a case is to be quarantined, when it is; `against`, oldest first, says which comparisons speak against it.

    That is where its rate is over twice the nominal one with evidence: by the binomial test of the last comparisons
    (exact, one-sided) against a rate that is just that.
    """
    last = against[-most(rules) :]
    differed, limit = sum(last), 2 * rules.nominal
    if (
        len(last) < rules.min_comparisons
        or differed == 0
        or scipy.special.bdtrc(differed - 1, len(last), limit) >= SURE
    ):
        return None
    return (
        f"{differed} of its last {len(last)} comparisons of equal code differed beyond chance: "
        f"{differed / len(last):.0%} where {rules.nominal:.0%} may"
    )


def patience(earlier: int, rules: Calibrating) -> int:
    """Number of quiet comparisons that release a case that was released `earlier` times before."""
    return rules.min_comparisons * min(FIRST_RELEASE << earlier, MAX_PATIENCE)


def trusted_again(against: Sequence[bool], earlier: int, rules: Calibrating) -> str | None:
    """Why a quarantined case is released, when it is; `against` holds the comparisons since its quarantine."""
    needed = patience(earlier, rules)
    differed = sum(against[-needed:])
    if len(against) < needed or differed > rules.nominal * needed:
        return None
    return f"{differed} of its last {needed} comparisons of equal code differed, no more than chance allows"
