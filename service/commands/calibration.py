"""`kernelwatch calibration`: how often equal code differed, and the cases that are quarantined for it."""

import json
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kernels.cases import Metric
from service.commands.people import this_person
from service.commands.printing import Format, line, out
from service.db.engine import clock, reading, transaction
from service.db.models import Quarantine
from service.domain.metrics import WORDS
from service.domain.text import printable
from service.domain.verdicts.calibration import Rate
from service.ledger.calibration import quarantines, schedule
from service.ledger.calibration.rates import CaseRate, MetricRate, by_metric, rates
from service.ledger.intake import targets
from service.reports.markdown import grid
from service.reports.schema import rfc3339

calibration_app = typer.Typer(invoke_without_command=True)

WORST = 10
OnDevice = Annotated[str, typer.Option(help="The device on which it is.")]
Provider = Annotated[str | None, typer.Option(help="Only this provider's; by default every one's.")]


@calibration_app.callback()
def alone(context: typer.Context) -> None:
    """Equal code against itself, and cases that alarm nobody.  Alone as `show`."""
    if context.invoked_subcommand is None:
        show()


@calibration_app.command("show")
def show(
    target: Annotated[str | None, typer.Argument(help="Only of this target.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only of this worker.")] = None,
    device: Annotated[str | None, typer.Option(help="Only on this device.")] = None,
    days: Annotated[int, typer.Option(help="Of the last so many days.", min=1)] = 90,
    form: Annotated[Format, typer.Option("--format")] = Format.TABLE,
) -> None:
    """How often comparisons of equal code differed beyond chance, by worker and metric, and at which cases most."""
    with reading() as session:
        of = targets.target_named(session, target) if target else None
        since = clock(session) - days * 86400
        found = rates(session, of, device=device, worker=worker, since=since)
        standing = quarantines.listed(session, of, device=device)
    metrics = by_metric(found)
    if form is Format.JSON:
        print(json.dumps(_document(found, metrics, standing), indent=2))  # noqa: T201  (for pipes)
        return
    if not found:
        line("Nothing was compared with itself yet; a worker does so every night (calibrate.every_h of the policy).")
    else:
        _print([_METRICS, *(_metric(one) for one in metrics)], form)
        _print([_CASES, *(_case(one) for one in found[:WORST] if one.rate.differed)], form)
    _print([_QUARANTINES, *(_quarantine(*one) for one in standing)], form)


@calibration_app.command("run")
def run(
    target: str,
    device: OnDevice,
    revision: Annotated[str | None, typer.Option(help="By default the newest fit one of the mainline.")] = None,
    suite: Annotated[str | None, typer.Option(help="By default that of the device.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker takes it.")] = None,
) -> None:
    """Calibrate now: queue two builds of one revision, and a copy, to be measured against each other."""
    with transaction() as session:
        of = targets.target_named(session, target)
        asked = schedule.ask_now(session, of, device, sha=revision, suite=suite, worker=worker)
        number = asked.id
    line("Queued as run ", (str(number), "bold"), f": `kernelwatch status {number}` shows it.")


@calibration_app.command("quarantine")
def quarantine(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why; it stands beside every verdict.")],
    provider: Provider = None,
) -> None:
    """Let a case alarm nobody until it is released.  It is measured and shown as ever."""
    with transaction() as session:
        of = targets.target_named(session, target)
        for name in quarantines.providers_of(session, of, device, case, provider):
            made = quarantines.quarantine(session, of.id, device, (name, case), this_person(), reason)
            line((case, "bold"), f" of {name} is quarantined{'' if made else ' already; nothing was changed'}.")


@calibration_app.command("release")
def release(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why it may be believed again.")],
    provider: Provider = None,
) -> None:
    """Let a quarantined case alarm again.  What equal code did before counts no more."""
    with transaction() as session:
        of = targets.target_named(session, target)
        released = quarantines.release(session, of, device, case, provider, this_person(), reason)
    line((case, "bold"), f" alarms again ({released} released).")


_METRICS = ("worker", "device", "metric", "equal", "comparisons", "differed", "rate", "95 %", "nominal", "alarmed")
_CASES = ("case", "provider", "target", "worker", "equal", "comparisons", "differed", "rate", "95 %")
_QUARANTINES = ("quarantined", "provider", "target", "device", "by", "why")
Cells = tuple[str, ...]


def _metric(one: MetricRate) -> Cells:
    counts = (f"{one.rate.comparisons:,}", str(one.rate.differed), _share(one.rate), _interval(one.rate))
    return (
        one.worker,
        one.device,
        WORDS[one.metric].name,
        one.kind.value,
        *counts,
        f"{one.nominal:.1%}",
        str(one.rate.alarmed),
    )


def _case(one: CaseRate) -> Cells:
    counts = (f"{one.rate.comparisons:,}", str(one.rate.differed), _share(one.rate), _interval(one.rate))
    return one.case, one.provider, one.target, one.worker, one.kind.value, *counts


def _quarantine(row: Quarantine, target: str) -> Cells:
    return row.case, row.provider, target, row.device, row.by, row.reason


def _share(rate: Rate) -> str:
    return "" if rate.share is None else f"{rate.share:.1%}"


def _interval(rate: Rate) -> str:
    return f"{rate.low:.1%} to {rate.high:.1%}"


def _print(rows: list[Cells], form: Format) -> None:
    head, *cells = rows
    if not cells:
        return
    if form is Format.MD:
        print(*grid(head, cells), "", sep="\n")  # noqa: T201
        return
    table = Table(*head, box=None, pad_edge=False)
    for one in cells:
        table.add_row(*(Text(printable(cell)) for cell in one))
    out.print(table, "")


def _document(found: list[CaseRate], metrics: list[MetricRate], standing: Any) -> dict[str, Any]:
    def counted(one: CaseRate | MetricRate) -> dict[str, Any]:
        return {
            **asdict(one),
            "metric": Metric(one.metric).value,
            "kind": one.kind.value,
            "rate": one.rate.share,
            **asdict(one.rate),
        } | {"interval": [one.rate.low, one.rate.high]}

    return {
        "metrics": [counted(one) for one in metrics],
        "cases": [counted(one) for one in found],
        "quarantined": [
            {
                "target": target,
                "device": row.device,
                "provider": row.provider,
                "case": row.case,
                "since": rfc3339(row.since),
            }
            | {"by": row.by, "reason": row.reason}
            for row, target in standing
        ],
    }
