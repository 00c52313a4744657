"""What the launches of a run say of each of its cells, in numbers: after this there are only words to find.

Launches are read in the order in which they were made, as they were read when the next ones were asked for: a case
that was decided after three launches stays so, whatever the others were asked for later.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

from kernels.words import Comparison, Lane
from service.cells import Cell, Name, Pairs
from service.lanes import lane_of
from service.policy import Policy
from service.statistics.estimates import Estimate, variance
from service.statistics.looking import Effects, Limits, Seen, Suspect, Zone, confirm, first_look
from service.statistics.moderation import Prior, priors


@dataclass(frozen=True)
class Reading:
    """One cell in numbers.  `smallest` is the smallest relevant change that held here, relative."""

    smallest: float
    prior: Prior | None
    looked: Effects
    first: Seen
    confirmed: Effects = ()
    fresh: Seen = field(default_factory=Seen)

    @property
    def suspected(self) -> bool:
        return self.first.zone in (Zone.MORE, Zone.LESS)


def readings(cells: Sequence[Cell], policy: Policy) -> dict[Name, Reading]:
    """One for each cell that has something to be compared with."""
    looked = [(cell, cell.looked.made()) for cell in cells if cell.comparable]
    known = family([(cell.case, made) for cell, made in looked], policy)
    read = {
        cell.name: _first(cell, made, policy.at(cell.case), known.get(group_of(cell.case))) for cell, made in looked
    }
    suspected = [cell for cell, _ in looked if read[cell.name].suspected]
    # What nobody may be told of must not make room among the discoveries for what somebody is told of.
    for told in (True, False):
        together = [cell for cell in suspected if may_be_told(cell, policy.at(cell.case)) is told]
        suspects = [_suspect(cell, read[cell.name], policy.at(cell.case)) for cell in together]
        for cell, suspect, fresh in zip(together, suspects, confirm(suspects), strict=True):
            read[cell.name] = replace(read[cell.name], confirmed=suspect.fresh, fresh=fresh)
    return read


def _first(cell: Cell, looked: Effects, policy: Policy, prior: Prior | None) -> Reading:
    smallest = policy.relevant(cell.case, usual(cell.looked.baseline, policy.looks[0]))
    limits = Limits(math.log1p(smallest), policy.looks, policy.missed, policy.suspicion)
    return Reading(smallest, prior, looked, first_look(looked, limits, prior))


def _suspect(cell: Cell, reading: Reading, policy: Policy) -> Suspect:
    limits = Limits(math.log1p(reading.smallest), policy.confirms, policy.missed, policy.false_alarms)
    return Suspect(reading.first.zone, reading.looked, cell.confirmed.made(), limits, reading.prior)


def may_be_told(cell: Cell, policy: Policy) -> bool:
    """Could a change of this case be told to anybody, were it confirmed?"""
    return not (cell.same_code or cell.quarantined or control_lean(cell, policy) is not None)


def family(looked: Iterable[tuple[str, Effects]], policy: Policy) -> dict[str, Prior]:
    """How much launches usually vary, by group, from the first launches of each of these cases.

    Only from those that every case has: which cases got more must not change what is known of all of them.  Memory has
    no such family, for bytes vary or do not vary for reasons of their own.
    """
    by_lane = defaultdict[Lane, list[tuple[float, str, int]]](list)
    for case, made in looked:
        effects = [effect for effect in made[: policy.looks[0]] if effect is not None]
        if len(effects) > 1 and (lane := lane_of(case)) is not Lane.MEMORY:
            by_lane[lane].append((variance(effects), group_of(case), len(effects) - 1))
    known: dict[str, Prior] = {}
    for seen in by_lane.values():
        most = max(df for _, _, df in seen)
        whole = [(own, group) for own, group, df in seen if df == most]  # launches were lost of the others
        known |= priors([own for own, _ in whole], [group for _, group in whole], most)
    return known


def group_of(case: str) -> str:
    """Cases of which the launches vary alike: op, direction, dtype and lane, at any shape."""
    first, *rest = case.split(".")
    return ".".join([first, *rest[:1], *rest[2:]])


def compare(pairs: Pairs, confidence: float) -> Comparison | None:
    """The ratio with a t interval over its own launches alone; None with fewer than two launches."""
    estimate = Estimate.of(pairs.effects())
    return None if estimate is None else comparison(estimate, pairs, confidence)


def comparison(estimate: Estimate, pairs: Pairs, confidence: float) -> Comparison:
    low, high = estimate.interval(confidence)
    return Comparison(math.exp(estimate.centre), math.exp(low), math.exp(high), pairs.rounds, estimate.launches)


def control_lean(cell: Cell, policy: Policy) -> float | None:
    """How far the A/A control of this case is off, when it is further than the policy allows and not by chance."""
    control = compare(cell.control, policy.confidence)
    if control is None or control.low <= 1 <= control.high:
        return None
    lean = control.ratio - 1
    return lean if abs(lean) > policy.control_limit else None


def usual(baseline: Sequence[Sequence[float | None]], launches: int | None = None) -> float:
    """What a side takes, by all or its first launches, in the unit of the lane; 0 where they have nothing."""
    took = [median(times) for rounds in baseline[:launches] if (times := [each for each in rounds if each])]
    return median(took) if took else 0.0
