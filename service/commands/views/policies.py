"""Policies, what another one would have decided, rates of equal code and quarantined cases, as commands print them."""

import json

from kernels.cases import Metric
from kernelwatch.client import Page
from kernelwatch.client.models import (
    CalibrationDocument,
    PolicyDocument,
    PolicyItem,
    QuarantineItem,
    RateItem,
    ReplayDocument,
    ReplayedItem,
    ReplayGroupItem,
    RunItem,
)
from service.commands.output.views import Column, Columns, Part, Table, View, day, minute, text
from service.domain.metrics import WORDS, metric_of, percent

COLUMNS = Columns(
    PolicyItem,
    Column("version", lambda one: one.digest[:10], lambda _: "bold"),
    Column("first used", lambda one: minute(one.created_at)),
    empty="No policy has made a verdict yet.",
)


def whole(found: PolicyDocument) -> View:
    """A version with its values, a line for each."""
    title = text((f"policy {found.digest[:10]}", "bold"), f", first used {minute(found.created_at)}")
    values = {name: json.dumps(value, ensure_ascii=False) for name, value in found.values.items()}
    return View(found, [title, *(text(f"  {name} = {value}") for name, value in values.items())])


SHOWN = 40  # cases of each kind; JSON and CSV have all
TITLES = {
    "new": "New alarms",
    "missed": "Missed: alarmed before, and would not alarm",
    "spared": "Spared: dismissed by a person, and would not alarm",
    "undecided": "Undecided: it needs trials that were never made",
}
COUNTS = ("cases", "alarmed", "stay", "new", "missed", "spared", "undecided")
GROUPS = Columns(
    ReplayGroupItem,
    Column("device", lambda one: one.device),
    Column("provider", lambda one: one.provider, spare=1),
    Column("metric", lambda one: WORDS[Metric(one.metric)].name),
    *(
        Column(name, lambda one, name=name: str(getattr(one, name)), right=True)  # type: ignore[misc]
        for name in COUNTS
    ),
)
CASES = Columns(
    ReplayedItem,
    Column("run", lambda one: str(one.run_id), right=True),
    Column("revision", lambda one: one.revision, spare=1),
    Column("device", lambda one: one.device, spare=4),
    Column("provider", lambda one: one.provider, spare=5),
    Column("case", lambda one: one.case),
    Column("was", lambda one: one.outcome_before or "not judged", spare=2),
    Column("would be", lambda one: one.outcome),
    Column("change", lambda one: percent(one.ratio, metric_of(one.case)), spare=3),
    Column("why", lambda one: one.reason, below=True),
)


def replayed(found: ReplayDocument) -> View:
    """What would be different, by kind, and the sums."""
    parts: list[Part] = [text((headline(found), "bold"))]
    if found.groups:
        parts.append(GROUPS.table(found.groups))
    for fate, title in TITLES.items():
        cases = [one for one in found.cases if one.fate == fate]
        if cases:
            parts.append(CASES.table(cases[:SHOWN], f"{title}: {len(cases)}"))
            if len(cases) > SHOWN:
                parts.append(text(f"… and {len(cases) - SHOWN} more"))
    parts += [text(said) for said in sentences(found)]
    return View(found, parts, table=Table(ReplayedItem, found.cases, ()))


def headline(found: ReplayDocument) -> str:
    """Summarise the replay in one sentence."""
    if not found.runs:
        return "No stored runs to replay."
    versions = ", ".join(f"{device} {digest[:10]}" for device, digest in sorted(found.policy_versions.items()))
    whole = found.total
    return (
        f"{found.runs} runs from {day(found.since)} to {day(found.until)}, policy {versions}: "
        f"{whole.alarmed} alarmed, of which {whole.stay} stay, {whole.missed} missed and {whole.spared} spared; "
        f"{whole.new} new; {whole.undecided} undecided with the stored trials."
    )


def sentences(found: ReplayDocument) -> list[str]:
    """Sentences on the cost in trials, the flags, and equal code."""
    whole, said = found.total, list[str]()
    if whole.trials_made:
        lacking = f", and at least {whole.trials_lacking:,} more needed." if whole.trials_lacking else "."
        used = f"{whole.trials_used:,} of them would have been used"
        said.append(f"Trials at cases: {whole.trials_made:,} were made, {used}{lacking}")
    if whole.behind_sota_before or whole.behind_sota:
        said.append(f"Cases behind SOTA: {whole.behind_sota_before}; it would have been {whole.behind_sota}.")
    if whole.slower_than_pinned_before or whole.slower_than_pinned:
        before, now = whole.slower_than_pinned_before, whole.slower_than_pinned
        said.append(f"Cases slower than the pinned baseline: {before}; it would have been {now}.")
    if found.equal_code.comparisons:
        equal = found.equal_code
        alarms = f"{equal.alarmed_before} alarmed, {equal.alarmed} would have"
        said.append(f"Comparisons of equal code: {equal.comparisons:,}; {alarms}.")
    return said


WORST = 10

_COUNTS = (
    Column[RateItem]("equal", lambda one: one.kind, spare=2),
    Column[RateItem]("comparisons", lambda one: f"{one.comparisons:,}", right=True, spare=3),
    Column[RateItem]("differed", lambda one: str(one.differed), right=True),
    Column[RateItem]("rate", lambda one: "" if one.rate is None else f"{one.rate:.1%}", right=True),
    Column[RateItem]("95 %", lambda one: f"{one.low or 0:.1%} to {one.high or 0:.1%}", spare=1),
)
METRICS = Columns(
    RateItem,
    Column("worker", lambda one: one.worker),
    Column("device", lambda one: one.device, spare=4),
    Column("metric", lambda one: WORDS[Metric(one.metric)].name),
    *_COUNTS,
    Column("nominal", lambda one: f"{one.nominal_rate:.1%}", right=True),
    Column("alarmed", lambda one: str(one.alarmed), right=True),
)
RATES = Columns(
    RateItem,
    Column("case", lambda one: one.case or ""),
    Column("provider", lambda one: one.provider or "", spare=5),
    Column("target", lambda one: one.target or "", spare=6),
    Column("worker", lambda one: one.worker, spare=4),
    *_COUNTS,
)
QUARANTINES = Columns(
    QuarantineItem,
    Column("case", lambda one: one.case),
    Column("provider", lambda one: one.provider, spare=1),
    Column("target", lambda one: one.target, spare=2),
    Column("device", lambda one: one.device),
    Column("by", lambda one: one.quarantined_by, spare=3),
    Column("reason", lambda one: one.reason, below=True),
)


def calibration(found: CalibrationDocument) -> View:
    """Rates by worker and metric, the worst cases, and what is quarantined."""
    parts = list[Part]()
    if not found.metrics:
        parts.append(text("No calibrations yet. An idle worker runs one every night (policy key calibrate.every_h)."))
    else:
        parts.append(METRICS.table(found.metrics))
    if worst := [one for one in found.cases[:WORST] if one.differed]:
        parts.append(RATES.table(worst, "Cases that differed most often"))
    if found.quarantines:
        parts.append(QUARANTINES.table(found.quarantines, "Quarantined"))
    return View(found, parts, table=Table(RateItem, [*found.metrics, *found.cases], ()))


def quarantined(found: Page[QuarantineItem], case: str) -> View:
    """A case that is quarantined now, for each of its providers."""
    of_case = [one for one in found.items if one.case == case]
    lines = [text((case, "bold"), f" of {one.provider} is quarantined.") for one in of_case]
    return View(found, lines, table=Table(QuarantineItem, found.items, ()))


def released(found: Page[QuarantineItem], case: str) -> View:
    """A case that is reported again."""
    return View(found, [text((case, "bold"), " is released.")], table=Table(QuarantineItem, found.items, ()))


def calibration_started(run: RunItem, address: str) -> View:
    """A calibration that is queued now."""
    return View(run, [text("Queued run ", (str(run.id), "bold"), f": {address}/runs/{run.id}")])
