"""`kernelwatch calibration`: false-alarm rates of equal code, and quarantined cases."""

from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from service.commands.people import this_person
from service.commands.printing import Format, Formatted, line, out, print_json
from service.db.engine import clock, reading, transaction
from service.db.models import Quarantine
from service.domain.metrics import WORDS
from service.domain.series import SeriesKey
from service.domain.text import printable
from service.domain.verdicts.calibration import Rate
from service.ledger.calibration import quarantines, schedule
from service.ledger.calibration.rates import by_metric, rates
from service.ledger.intake import targets
from service.reports.markdown import grid
from service.reports.schema.calibration import CalibrationDocument
from service.reports.views import CaseRate, MetricRate
from service.settings import settings

calibration_app = typer.Typer(invoke_without_command=True)

WORST = 10
OnDevice = Annotated[str, typer.Option(help="The device.")]
Provider = Annotated[str | None, typer.Option(help="Only this provider; by default all.")]


@calibration_app.callback()
def alone(context: typer.Context) -> None:
    """Measure equal code against itself, and quarantine cases.  Without a command: `show`."""
    if context.invoked_subcommand is None:
        show()


@calibration_app.command("show")
def show(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
    days: Annotated[int, typer.Option(help="Only comparisons of the last days.", min=1)] = 90,
    form: Formatted = Format.TABLE,
) -> None:
    """Show how often equal code differed, by worker and metric, the worst cases, and the quarantined cases."""
    with reading() as session:
        of = targets.target_named(session, target) if target else None
        since = clock(session) - days * 86400
        found = rates(session, of, device=device, worker=worker, since=since)
        quarantined = quarantines.listed(session, of, device=device)
    metrics = by_metric(found)
    if form is Format.JSON:
        print_json(CalibrationDocument.of(metrics, found, quarantined))
        return
    if not found:
        line("No calibrations yet. An idle worker runs one every night (policy key calibrate.every_h).")
    else:
        _print([_METRICS, *(_metric(one) for one in metrics)], form)
        _print([_CASES, *(_case(one) for one in found[:WORST] if one.rate.differed)], form)
    _print([_QUARANTINES, *(_quarantine(*one) for one in quarantined)], form)


@calibration_app.command("run")
def run(
    target: str,
    device: OnDevice,
    revision: Annotated[str | None, typer.Option(help="By default the newest suitable mainline revision.")] = None,
    suite: Annotated[str | None, typer.Option(help="By default the recipe's for the device.")] = None,
    worker: Annotated[str | None, typer.Option(help="Run it on this worker.")] = None,
) -> None:
    """Queue a calibration: two builds of one revision, and a copy, measured against each other."""
    with transaction() as session:
        of = targets.target_named(session, target)
        queued = schedule.ask_now(session, of, device, sha=revision, suite=suite, worker=worker)
        number = queued.id
    line("Queued run ", (str(number), "bold"), f": {settings().address}/runs/{number}")


@calibration_app.command("quarantine")
def quarantine(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why; it is shown with every verdict.")],
    provider: Provider = None,
) -> None:
    """Stop reporting a case until it is released.  It is still measured and shown."""
    with transaction() as session:
        of = targets.target_named(session, target)
        for name in quarantines.providers_of(session, of, device, case, provider):
            made = quarantines.quarantine(session, SeriesKey.of(of.id, device, name, case), this_person(), reason)
            line((case, "bold"), f" of {name} is quarantined{'' if made else ' already; nothing was changed'}.")


@calibration_app.command("release")
def release(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why it is reliable again.")],
    provider: Provider = None,
) -> None:
    """Report a quarantined case again.  Earlier comparisons of equal code no longer count."""
    with transaction() as session:
        of = targets.target_named(session, target)
        released = quarantines.release(session, of, device, case, provider, this_person(), reason)
    line((case, "bold"), f" is released ({released} quarantines ended).")


_METRICS = ("worker", "device", "metric", "equal", "comparisons", "differed", "rate", "95 %", "nominal", "alarmed")
_CASES = ("case", "provider", "target", "worker", "equal", "comparisons", "differed", "rate", "95 %")
_QUARANTINES = ("quarantined", "provider", "target", "device", "by", "reason")
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
