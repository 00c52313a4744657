"""The statistics of each cell of a run, from which its verdict is worded.

Trials are read in the order in which they were made, as they were read when the next ones were asked for: a case
that was decided after three trials stays so, whatever the others were asked for later.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from statistics import median
from types import MappingProxyType

from kernels.cases import Metric
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.states import BaselineKind
from service.domain.stats.case_variances import CaseVariances, RunVariance
from service.domain.stats.estimates import Estimate, variance
from service.domain.stats.offsets import Control, Offset, offset
from service.domain.stats.sequential import Decision, Effects, Limits, Suspect, Zone, confirm, screen
from service.domain.stats.variance_prior import Prior
from service.domain.verdicts.baselines import RULES
from service.domain.verdicts.samples import Cell, Name, family, group_of, is_off, made
from service.domain.verdicts.session_result import MIN_CASES, most_moved

KnownVariances = Mapping[Metric, CaseVariances]
NONE_KNOWN: KnownVariances = MappingProxyType({})
_RULE = RULES[BaselineKind.PARENT]
PHASES = 2  # screening and confirmation, which share beta: either may call a change of the smallest size steady
EXPLAINED = 0.5  # of the size by which they moved: equal code that moved by this share of it explains them


class Doubt(StrEnum):
    """Evidence from the session's equal code against deciding a case."""

    CONTROL = "control"  # the control of the case is off
    OFFSET = "offset"  # the offsets of the session are too large for what is to be decided
    EARLIER = "earlier"  # offsets were too large in earlier sessions, and this one cannot show its own
    BUILD = "build"  # two builds of one source differed too much in earlier calibrations
    MACHINE = "machine"  # most cases moved alike, and equal code with them


@dataclass(frozen=True)
class Reading:
    """One cell in numbers.  `smallest_change` is the smallest relevant change that held here, relative."""

    smallest_change: float
    prior: Prior | None
    screened: Effects
    first: Decision
    confirmed: Effects = ()
    fresh: Decision = field(default_factory=Decision)
    suspect: Suspect | None = None
    control: Estimate | None = None  # of the copy over its original, over all trials
    before: Estimate | None = None  # of the first session, where this is the second
    offset: Offset | None = None  # of the session at cases of this kind
    off: bool = False  # the control is beyond its limit, and not by chance
    machine: bool = False  # most cases of the provider moved this way, and equal code with them

    @property
    def suspected(self) -> bool:
        return self.first.zone in (Zone.MORE, Zone.LESS)

    @property
    def last(self) -> Decision:
        """The deciding trials: the confirmation of a suspected case, else the screening."""
        return self.fresh if self.suspected else self.first

    @property
    def doubt(self) -> Doubt | None:
        if self.machine:
            return Doubt.MACHINE
        if self.off:
            return Doubt.CONTROL
        if not self.last.futile:
            return None
        if self.offset and self.offset.build > self.offset.variance / 2:
            return Doubt.BUILD
        return Doubt.EARLIER if self.offset and self.offset.learned else Doubt.OFFSET


def readings(cells: Sequence[Cell], policy: Policy, past: KnownVariances = NONE_KNOWN) -> dict[Name, Reading]:
    """One for each cell that has something to be compared with; counts are compared without statistics (`judge`).

    `past`: what earlier sessions of the worker say of the variance of each case's trials, by metric.
    """
    compared = [cell for cell in cells if cell.comparable and not cell.screened.counts]
    policies = {cell.name: policy.at(cell.case) for cell in compared}
    screened, confirmed, controls = (
        dict(zip([cell.name for cell in compared], made(pairs), strict=True))
        for pairs in (
            [cell.screened for cell in compared],
            [cell.confirmed for cell in compared],
            [cell.control for cell in compared],
        )
    )
    by_sessions = _known_priors(compared, screened, controls, policy, past)
    prior = by_sessions
    if any(cell.name not in by_sessions for cell in compared):
        # From the other cases of the run.
        by_family = family([(cell.case, screened[cell.name]) for cell in compared], policy)
        in_family = {cell.name: by_family.get(group_of(cell.case)) for cell in compared}
        prior = {name: own for name, own in in_family.items() if own is not None} | by_sessions
    read = {
        cell.name: _controlled(
            cell, screened[cell.name], controls[cell.name], policies[cell.name], prior.get(cell.name)
        )
        for cell in compared
    }
    offsets = _offsets(compared, read, controls, policies)
    usual = {
        metric: variances.offset_of((name, own) for name, own in by_sessions.items() if metric_of(name[1]) is metric)
        for metric, variances in past.items()
    }
    for cell in compared:
        own = policies[cell.name]
        metric = metric_of(cell.case)
        offset_here = _with_known(offsets.get(_kind(cell, read[cell.name], own)), usual.get(metric))
        build = past[metric].build if metric in past else None
        first = past[metric].first.get(cell.name, ()) if metric in past else ()
        read[cell.name] = _first(read[cell.name], own, offset_here, build, first)
    typical = _typical(compared, read)
    for name in _moved_with_equal_code(compared, read):
        read[name] = replace(read[name], machine=True)
    # What may not be reported must not make room among the discoveries for what is.
    for reported in (True, False):
        members = [cell for cell in compared if _may_be_reported(cell, read[cell.name]) is reported]
        together = [cell for cell in members if read[cell.name].suspected]
        suspects = [
            _suspect(read[cell.name], confirmed[cell.name], policies[cell.name], typical[_provider_metric(cell)])
            for cell in together
        ]
        for cell, suspect, fresh in zip(together, suspects, confirm(suspects, len(members)), strict=True):
            read[cell.name] = replace(read[cell.name], suspect=suspect, confirmed=suspect.confirmation, fresh=fresh)
    return read


def _known_priors(
    cells: Sequence[Cell],
    screened: Mapping[Name, Effects],
    controls: Mapping[Name, Effects],
    policy: Policy,
    past: KnownVariances,
) -> dict[Name, Prior]:
    """By earlier sessions, of the cases that they know."""
    run = defaultdict[Metric, dict[Name, RunVariance]](dict)
    for cell in cells:
        head, control = (_first_step(some[cell.name], policy) for some in (screened, controls))
        if metric_of(cell.case) in past and len(head) == policy.screening[0]:
            copies = variance(control) if len(control) == len(head) and cell.borrowed is None else None
            run[metric_of(cell.case)][cell.name] = RunVariance(group_of(cell.case), variance(head), copies)
    priors = dict[Name, Prior]()
    for metric, variances in run.items():
        priors |= past[metric].priors(variances, policy.screening[0] - 1)
    return priors


def _first_step(effects: Effects, policy: Policy) -> list[float]:
    return [effect for effect in effects[: policy.screening[0]] if effect is not None]


def _controlled(cell: Cell, screened: Effects, control: Effects, policy: Policy, prior: Prior | None) -> Reading:
    """Analyse the control and set the smallest change of this case, before the first test."""
    smallest_change = _RULE.limit(policy, cell.case, cell.screened)
    estimate = Estimate.of([effect for effect in control if effect is not None], prior)
    off = estimate is not None and is_off(estimate, smallest_change, policy)
    return Reading(smallest_change, prior, screened, Decision(), control=estimate, off=off)


def _first(
    reading: Reading, policy: Policy, offset: Offset | None, build: Offset | None, first_session: Sequence[float]
) -> Reading:
    beta = policy.beta / PHASES
    limits = Limits(math.log1p(reading.smallest_change), policy.screening, beta, policy.alpha)
    if offset and offset.relative:
        first = Estimate.of(_first_step(reading.screened, policy), reading.prior)
        offset = offset.at(first.error**2) if first else offset
    if build is not None:
        offset = offset.with_build(build) if offset else build
    before = Estimate.of(first_session, reading.prior)
    if before is not None and offset is not None:
        offset = offset.of_two_sessions()
    first_step = screen(reading.screened, limits, reading.prior, offset, before)
    return replace(reading, offset=offset, before=before, first=first_step)


def _with_known(offset: Offset | None, usual: Offset | None) -> Offset | None:
    """The offsets of this session, or the usual ones if it has too few controls; noisy cases as far as is usual."""
    if offset is None or usual is None:
        return usual or offset
    return replace(offset, relative=usual.relative)


def _suspect(reading: Reading, confirmed: Effects, policy: Policy, typical: float) -> Suspect:
    beta, fdr = policy.beta / PHASES, _RULE.error_rate(policy)
    limits = Limits(math.log1p(reading.smallest_change), policy.confirmation, beta, fdr)
    first, offset = reading.first.zone, reading.offset
    return Suspect(first, reading.screened, confirmed, limits, reading.prior, offset, typical, reading.before)


def _provider_metric(cell: Cell) -> tuple[str, Metric]:
    return cell.provider, metric_of(cell.case)


def _typical(cells: Sequence[Cell], read: Mapping[Name, Reading]) -> dict[tuple[str, Metric], float]:
    """By how much the middle case of each provider moved, metric by metric."""
    moved = defaultdict[tuple[str, Metric], list[float]](list)
    for cell in cells:
        estimate = read[cell.name].first.estimate
        moved[_provider_metric(cell)].append(estimate.centre if estimate else 0.0)
    return {of: median(centres) for of, centres in moved.items()}


def _may_be_reported(cell: Cell, reading: Reading) -> bool:
    """Whether a confirmed change of this case would be reported."""
    return not (cell.same_code or cell.quarantined or reading.off or reading.machine)


# -- what equal code shows of the session -----------------------------------------------------------------------------


def _kind(cell: Cell, reading: Reading, policy: Policy) -> tuple[Metric, bool]:
    """Cases with offsets alike: those of one metric, the short ones apart, because placement weighs more there."""
    return metric_of(cell.case), reading.smallest_change > policy.smallest_change


def _offsets(
    cells: Sequence[Cell],
    read: Mapping[Name, Reading],
    controls: Mapping[Name, Effects],
    policies: Mapping[Name, Policy],
) -> dict[tuple[Metric, bool], Offset]:
    """The offsets of each kind of case, from the first trials, for the same reason as the priors; bytes have none."""
    kinds = defaultdict[tuple[Metric, bool], list[Control]](list)
    for cell in cells:
        reading, policy = read[cell.name], policies[cell.name]
        first = _first_step(controls[cell.name], policy)
        estimate = Estimate.of(first, reading.prior)
        if estimate is not None and metric_of(cell.case).varies and cell.borrowed is None:
            control = Control(cell.provider, tuple(first), estimate.error**2, estimate.df)
            kinds[_kind(cell, reading, policy)].append(control)
    return {kind: own_offset for kind, seen in kinds.items() if (own_offset := offset(seen)) is not None}


def _moved_with_equal_code(cells: Sequence[Cell], read: Mapping[Name, Reading]) -> Iterator[Name]:
    """The cases of a provider that moved the way in which most of them did, where equal code moved that way as well.

    A change of shared code moves most cases too.  Equal code in the same session distinguishes the two: the copies
    of the baseline, and cases that compiled to the same code on both sides.
    """
    kinds = defaultdict[tuple[str, Metric], list[Cell]](list)
    for cell in cells:
        kinds[_provider_metric(cell)].append(cell)
    for members in kinds.values():
        seen = {cell.name: read[cell.name] for cell in members}
        sizes = {name: reading.first.estimate.centre for name, reading in seen.items() if reading.first.estimate}
        copies = [
            reading.control.centre for cell in members if (reading := seen[cell.name]).control and not cell.borrowed
        ]
        same = [sizes[cell.name] for cell in members if cell.same_code and cell.name in sizes]
        equal = [median(some) for some in (copies, same) if len(some) >= MIN_CASES]
        for sign in (1, -1):
            moved = {
                name: size
                for name, size in sizes.items()
                if sign * size >= _RULE.share * math.log1p(read[name].smallest_change)
            }
            if len(moved) < MIN_CASES or not most_moved(len(moved), len(members)):
                continue  # most cases that move one way share their code, or the machine
            explained = max((sign * shift for shift in equal), default=0.0) / EXPLAINED
            yield from (name for name, size in moved.items() if abs(size) <= explained)
