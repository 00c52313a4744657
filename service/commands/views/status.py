"""What is going on: targets, workers and the queue in one view."""

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import BaseModel

from kernelwatch.client.models import ChannelItem, QueueItem, TargetDocument, WorkerItem
from service.commands.output.views import Sentence, Table, View, text
from service.commands.output.wording import some
from service.commands.views import subscriptions
from service.commands.views.runs import QUEUE, WORKERS
from service.domain.text import in_bytes, lasted


class StatusDocument(BaseModel):
    """Documents of the API side by side."""

    targets: Sequence[TargetDocument]
    workers: Sequence[WorkerItem]
    queue: Sequence[QueueItem]
    channels: Sequence[ChannelItem]


def status(
    *,
    targets: Sequence[TargetDocument],
    workers: Sequence[WorkerItem],
    queue: Sequence[QueueItem],
    channels: Sequence[ChannelItem],
) -> View:
    """Targets with what is wrong about them, channels that do not work, then workers, then the queue."""
    lines = [line for one in targets for line in _target(one)]
    parts = (
        *(lines or [text("No targets. Add one with `kernelwatch target add NAME LOCATION`.")]),
        *subscriptions.failing(channels),
        *([Table(WorkerItem, workers, WORKERS)] if workers else [text("No workers.")]),
        *([Table(QueueItem, queue, QUEUE)] if queue else [text("The queue is empty.")]),
    )
    return View(StatusDocument(targets=targets, workers=workers, queue=queue, channels=channels), parts, over=False)


def _target(one: TargetDocument) -> list[Sentence]:
    counts = f": {some(one.open_regressions, 'open regression')}, {some(one.behind_sota, 'case')} behind SOTA"
    size = f", mirror {in_bytes(one.mirror_bytes)}" if one.mirror_bytes else ""
    found = [text("target ", (one.name, "bold"), f"{counts}{size}{', paused' if one.paused_at else ''}")]
    if one.poll_error:
        found.append(text("  ", (f"the last poll failed: {one.poll_error}", "red")))
    if one.forge_paused_until and (wait_s := (one.forge_paused_until - datetime.now(UTC)).total_seconds()) > 0:
        found.append(text(f"  comments and checks are sent in {lasted(wait_s)}: {one.forge_error}"))
    return found
