"""Runs, the queue and workers as commands print them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from kernelwatch.client.models import BackfillDocument, KernelTextItem, QueueItem, RunDocument, RunItem, WorkerItem
from service.commands.output.views import Column, Columns, Sentence, Table, View, minute, text
from service.domain.phases import in_words
from service.domain.states import OPEN_STATES
from service.domain.text import counted, lasted, short

STYLES = {"done": "", "failed": "red", "held": "yellow", "leased": "cyan", "queued": "", "skipped": "dim"}
OPEN = tuple(state.value for state in OPEN_STATES)


def purpose(run: RunItem | RunDocument | QueueItem) -> str:
    """What a run is for; empty for a mainline revision."""
    if run.purpose == "watch":
        return f"pull {run.pull}" if run.pull else ""
    return f"bisection {run.bisection_id}" if run.bisection_id else run.purpose


COLUMNS = Columns(
    RunItem,
    Column("run", lambda run: str(run.id), right=True),
    Column("target", lambda run: run.target, spare=1),
    Column("revision", lambda run: short(run.revision)),
    Column("device", lambda run: run.device),
    Column("for", purpose, spare=2),
    Column("state", lambda run: run.state, lambda run: STYLES.get(run.state, "")),
    Column("created", lambda run: minute(run.created_at), spare=3),
    Column("stage", lambda run: run.stage or "", spare=4),
    Column("worker", lambda run: run.worker or "", spare=5),
    Column("reason", lambda run: run.reason or "", lambda _: "dim", below=True),
    empty="No runs. Start one with `kernelwatch run start`.",
)
QUEUE = Columns(
    QueueItem,
    Column("place", lambda run: "" if run.position is None else str(run.position), right=True, spare=4),
    Column("run", lambda run: str(run.id), right=True),
    Column("target", lambda run: run.target, spare=1),
    Column("revision", lambda run: short(run.revision)),
    Column("device", lambda run: run.device),
    Column("for", lambda run: purpose(run), spare=2),
    Column("state", lambda run: run.state, lambda run: STYLES.get(run.state, "")),
    Column("done in", lambda run: "" if run.eta_s is None else lasted(run.eta_s), right=True, spare=3),
    Column("stage", lambda run: run.stage or "", spare=5),
    Column("worker", lambda run: run.worker or "", spare=6),
    Column("reason", lambda run: run.reason or "", lambda _: "dim", below=True),
    empty="The queue is empty.",
)


TEXTS = Columns(
    KernelTextItem,
    Column("contender", lambda one: one.contender),
    Column("case", lambda one: one.case, spare=1),
    Column("kernel", lambda one: one.kernel or "", spare=2),
    Column("kind", lambda one: one.kind),
    Column("for", lambda one: one.arch or ""),
    Column("bytes", lambda one: f"{one.bytes:,}", right=True),
    Column("sha256", lambda one: one.sha256),
    empty="No texts: both sides have equal code, or they have expired.",
)


def progress(run: RunDocument) -> View:
    """A run with its state and how far it is."""
    subject = f" ({run.subject})" if run.subject else ""
    title = text((f"run {run.id}", "bold"), f": {run.target} {short(run.revision)}{subject} on {run.device}")
    facts = {
        "state": run.state + (f", {run.stage}" if run.stage and run.state == "leased" else ""),
        "reason": run.reason or "",
        "result": run.headline if run.state not in OPEN else "",
        "for": purpose(run),
        "compared with": short(run.baseline) if run.baseline else "",
        "suite": run.suite,
        "worker": run.worker or "",
        "attempt": f"{run.attempt} of {run.max_attempts}" if run.attempt > 1 else "",
        "created": minute(run.created_at),
        "measured": _measured(run),
        "page": run.url,
    }
    lines: list[Sentence] = [title, *(text(f"  {name}: {value}") for name, value in facts.items() if value)]
    return View(run, lines, over=run.state not in OPEN)


def _measured(run: RunDocument) -> str:
    if run.started_at is None:
        return ""
    until = run.finished_at or datetime.now(UTC)
    return f"{minute(run.started_at)}, for {lasted((until - run.started_at).total_seconds())}"


WORKERS = Columns(
    WorkerItem,
    Column("worker", lambda one: one.name, lambda _: "bold"),
    Column("device", lambda one: one.device),
    Column("state", lambda one: _state(one), lambda one: "green" if one.online else "dim"),
    Column("run", lambda one: str(one.run_id or ""), right=True),
    Column("seen", lambda one: f"{lasted((datetime.now(UTC) - one.seen_at).total_seconds())} ago", spare=1),
    Column("description", lambda one: one.description, spare=2),
    Column("sandbox", lambda one: one.sandbox_error or "", lambda _: "yellow", below=True),
    Column("mean of a run, last day", lambda one: in_words(one.seconds), below=True),
    empty="No workers. Run `kernelwatch worker start` on a machine with the device.",
)


def _state(worker: WorkerItem) -> str:
    if not worker.online:
        return "gone"
    return "online" if worker.paused_at is None else "paused" if worker.run_id is None else "draining"


def started(runs: Sequence[RunDocument]) -> View:
    """Runs that were asked for: new ones, and those that exist already."""
    return View(list(runs), [text(f"{_answer(run)}  ({run.url})") for run in runs])


def queued(runs: Sequence[RunItem]) -> View:
    """Runs that wait to be measured now."""
    lines = [text("Queued run ", (str(run.id), "bold"), f" on {run.device}.") for run in runs]
    return View(list(runs), lines, table=Table(RunItem, runs, ()))


def cancelled(run: RunItem) -> View:
    """A run that was cancelled."""
    return View(run, [text(f"Cancelled run {run.id}.")])


def backfilled(found: BackfillDocument) -> View:
    """How many runs a backfill queued."""
    about = (
        f", about {counted(max(1, round(found.estimate_s / 60)), 'minute')} for one worker" if found.estimate_s else ""
    )
    return View(found, [text(f"Queued {counted(found.queued, 'run')}{about}.")])


def _answer(run: RunDocument) -> str:
    """`Queued: run 12`, `Already measured: run 7, regression; …`."""
    again = "use --again to measure it again"
    match run.state:
        case "queued":
            return f"Queued: run {run.id} on {run.device}"
        case "leased":
            return f"Already being measured: run {run.id} on {run.device}"
        case "held":
            how = f"approve it with `kernelwatch run approve {run.id}`"
            return f"Waiting for approval: run {run.id} on {run.device}; {how}"
        case "done":
            worst = next((outcome for outcome, cases in run.counts.items() if cases), "no cases")
            return f"Already measured: run {run.id} on {run.device}, {worst}; {again}"
        case _:
            return f"Already {run.state}: run {run.id} on {run.device}, {run.reason}; {again}"


def worker(found: WorkerItem) -> View:
    """A worker after a change."""
    if found.paused_at is None:
        said = " takes runs again."
    elif found.run_id is not None:
        said = f" takes no further run; it still measures run {found.run_id}."
    else:
        said = " takes no further run, and measures none."
    return View(found, [text("Worker ", (found.name, "bold"), said)])
