"""Rates of equal code and quarantined cases, as commands print them."""

from kernels.cases import Metric
from kernelwatch.client import Page
from kernelwatch.client.models import CalibrationDocument, QuarantineItem, RateItem, RunItem
from service.commands.output.views import Column, Columns, Part, Table, View, text
from service.domain.metrics import WORDS

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
CASES = Columns(
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


def shown(found: CalibrationDocument) -> View:
    """Rates by worker and metric, the worst cases, and what is quarantined."""
    parts = list[Part]()
    if not found.metrics:
        parts.append(text("No calibrations yet. An idle worker runs one every night (policy key calibrate.every_h)."))
    else:
        parts.append(METRICS.table(found.metrics))
    if worst := [one for one in found.cases[:WORST] if one.differed]:
        parts.append(CASES.table(worst, "Cases that differed most often"))
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


def started(run: RunItem, address: str) -> View:
    """A calibration that is queued now."""
    return View(run, [text("Queued run ", (str(run.id), "bold"), f": {address}/runs/{run.id}")])
