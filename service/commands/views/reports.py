"""The result of a run: what matters first, then the rest if it is asked for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kernels.cases import Metric
from kernelwatch.client.models import MeasurementItem, RunDocument, SummaryItem, VerdictItem
from service.commands.output.views import Column, Columns, Part, Sentence, Table, View, text
from service.domain.metrics import WORDS, amount, metric_of, percent, ratio_text
from service.domain.roofline import Speed
from service.domain.text import counted, interval, last_lines, listed, one_line, short

STYLES = {
    "regression": "bold red",
    "invalid": "bold magenta",
    "failed": "red",
    "improvement": "green",
    "steady": "dim",
    "inconclusive": "yellow",
    "new": "cyan",
    "removed": "cyan",
}
NEWS = ("invalid", "failed", "regression", "improvement")  # the outcomes that are shown case by case, in this order
SHOWN = 20  # changed cases


@dataclass(frozen=True)
class Judged:
    """A case against its baseline, with the times of both sides and its distance to SOTA."""

    verdict: VerdictItem
    head: MeasurementItem | None
    baseline: MeasurementItem | None
    sota: VerdictItem | None

    @property
    def metric(self) -> Metric:
        return metric_of(self.verdict.case)

    @property
    def outcome(self) -> str:
        return f"{self.verdict.outcome}{' (quarantined)' * self.verdict.quarantined}"

    @property
    def of_ceiling(self) -> str:
        """The head's share of what the device can do."""
        if self.head is None:
            return ""
        speed = self.head.speed
        return Speed(speed.copy_share, speed.l2_resident, utilisation=speed.utilisation).of_ceiling

    def taken(self, side: MeasurementItem | None) -> str:
        return amount(side.median if side else None, self.metric)


class ReportRow(VerdictItem):
    """A line of CSV: a verdict, with the run that it belongs to and the times of both sides."""

    run_id: int
    revision: str
    device: str
    unit: str | None
    head_median: float | None
    baseline_median: float | None


def rows_of(run: RunDocument) -> list[ReportRow]:
    """All verdicts of a run, against every baseline."""
    sides = {(one.role, one.provider, one.case): one for one in run.measurements}
    found = list[ReportRow]()
    for verdict in run.verdicts:
        head = sides.get(("head", verdict.provider, verdict.case))
        other = sides.get((verdict.baseline_kind, verdict.provider, verdict.case))
        named = {
            "run_id": run.id,
            "revision": run.revision,
            "device": run.device,
            "unit": head.unit if head else None,
            "head_median": head.median if head else None,
            "baseline_median": other.median if other else None,
        }
        found.append(ReportRow.model_validate(verdict.model_dump() | named))
    return found


def report(
    run: RunDocument, *, every: bool = False, texts: Mapping[str, Callable[[], str]] | None = None, page: bool = True
) -> View:
    """The result of a run: its changed cases, or `every` case; the address of its `page` if there is one."""
    rows = judged(run)
    parts: list[Part] = [
        text((run.headline, "bold")),
        *(text((note, "yellow")) for note in run.notes),
    ]
    if run.log:
        parts.append(text((last_lines(run.log), "dim")))
    shown = rows if every else [row for row in rows if row.verdict.outcome in NEWS][:SHOWN]
    if shown:
        parts.append(Table(Judged, shown, columns(run)))
    if rows and (counts := _counts(run, rows, shown)):
        parts.append(text(counts))
    if run.summaries:
        parts.append(SUMMARIES.table(run.summaries))
    parts += _unsupported(run, every=every)
    if page:
        parts.append(text((run.url, "underline")))
    return View(run, parts, code=run.gate.exit_code, texts=texts or {}, table=Table(ReportRow, rows_of(run), ()))


def judged(run: RunDocument) -> list[Judged]:
    """The cases of a run, the most severe first."""
    sides = {(one.role, one.provider, one.case): one for one in run.measurements}
    sota = {(one.provider, one.case): one for one in run.verdicts if one.baseline_kind == "sota"}
    found = [
        Judged(
            one,
            sides.get(("head", one.provider, one.case)),
            sides.get(("parent", one.provider, one.case)),
            sota.get((one.provider, one.case)),
        )
        for one in run.verdicts
        if one.baseline_kind == "parent"
    ]
    order = {outcome: n for n, outcome in enumerate((*NEWS, "new", "removed", "inconclusive", "steady"))}
    return sorted(found, key=lambda one: (order.get(one.verdict.outcome, 0), -(one.verdict.ratio or 0.0)))


def baseline_of(run: RunDocument, row: Judged) -> str:
    """The short name of the revision that a case was compared with."""
    revision = row.verdict.baseline or run.baseline
    return short(revision) if revision else "the baseline"


def columns(run: RunDocument) -> Sequence[Column[Judged]]:
    """The columns of the cases of a run."""
    several = len({one.provider for one in run.verdicts}) > 1
    return (
        Column("case", lambda row: row.verdict.case),
        Column("provider", lambda row: row.verdict.provider, spare=1 if several else 6),
        Column("outcome", lambda row: row.outcome, lambda row: STYLES.get(row.verdict.outcome, "")),
        Column("ratio", lambda row: ratio_text(row.verdict.ratio, row.metric), right=True),
        Column("interval", lambda row: interval(row.verdict.low, row.verdict.high), spare=2),
        Column("baseline", lambda row: row.taken(row.baseline), right=True, spare=4),
        Column("head", lambda row: row.taken(row.head), right=True, spare=3),
        Column("of ceiling", lambda row: row.of_ceiling, right=True, spare=7),
        Column(f"to {run.sota}", _to_sota, _sota_style, spare=5),
        Column("reason", lambda row: row.verdict.summary, lambda _: "dim", below=True),
    )


def _to_sota(row: Judged) -> str:
    if row.sota is None or row.sota.ratio is None:
        return ""
    return f"{ratio_text(row.sota.ratio, row.metric, 2)}{' behind' * row.sota.behind_sota}"


def _sota_style(row: Judged) -> str:
    return "yellow" if row.sota is not None and row.sota.behind_sota else ""


def _counts(run: RunDocument, rows: Sequence[Judged], shown: Sequence[Judged]) -> str:
    """`200 cases: 1 regression, 199 steady; 3 behind quack.  --all lists every case.`"""
    outcomes = [f"{number} {outcome}" for outcome, number in run.counts.items() if number]
    if quarantined := sum(row.verdict.quarantined for row in rows):
        outcomes.append(f"{quarantined} quarantined")
    behind = f"; {run.behind_sota} behind {run.sota}" if run.behind_sota else ""
    said = f"{counted(len(rows), 'case')}: {', '.join(outcomes)}{behind}."
    return said if len(shown) == len(rows) else f"{said} Use --all to list every case."


SUMMARIES = Columns(
    SummaryItem,
    Column("geometric mean of", lambda one: _mean_of(one)),
    Column("provider", lambda one: one.provider, spare=1),
    Column("interval", lambda one: interval(one.low, one.high), spare=2),
    Column("change", lambda one: percent(one.ratio, Metric(one.metric))),
)


def _mean_of(one: SummaryItem) -> str:
    metric = Metric(one.metric)
    more = f" ({WORDS[metric].name})" if metric is not Metric.KERNEL else ""
    return f"{one.cases} x {'.'.join(filter(None, (one.op, one.direction)))}{more}"


def _unsupported(run: RunDocument, *, every: bool) -> list[Sentence]:
    """What providers do not support: how many cases, or which and why."""
    if not run.unsupported:
        return []
    if not every:
        names = listed(sorted({one.provider for one in run.unsupported}))
        return [text((f"{counted(len(run.unsupported), 'case')} not supported by {names}.", "dim"))]
    why: dict[tuple[str, str], list[str]] = {}
    for one in run.unsupported:
        why.setdefault((one.provider, one.reason), []).append(one.case)
    return [
        text((f"Not supported by {provider}: {listed(cases)} ({one_line(reason)})", "dim"))
        for (provider, reason), cases in why.items()
    ]


def several(runs: Sequence[RunDocument], code: int, texts: Mapping[str, Callable[[], str]]) -> View:
    """The results of the runs of one revision."""
    parts = [part for run in runs for part in report(run).parts]
    rows = [row for run in runs for row in rows_of(run)]
    return View(list(runs), parts, code=code, texts=texts, table=Table(ReportRow, rows, ()))
