"""Measurements made elsewhere as commands print them."""

from collections.abc import Sequence

from kernelwatch.client.models import BatchItem
from service.commands.output.views import Column, Table, View, text
from service.commands.output.wording import minute, some

BATCHES = (
    Column[BatchItem]("batch", lambda one: str(one.id), lambda _: "bold", right=True),
    Column[BatchItem]("device", lambda one: one.device),
    Column[BatchItem]("machine", lambda one: one.machine, folds=True),
    Column[BatchItem]("tool", lambda one: one.tool, spare=2),
    Column[BatchItem]("measured", lambda one: minute(one.measured_at), spare=1),
    Column[BatchItem]("measurements", lambda one: f"{one.measurements:,}", right=True),
    Column[BatchItem]("samples", lambda one: f"{one.samples:,}", right=True),
)


def imported(stored: Sequence[BatchItem], target: str, left_out: int) -> View:
    """What was stored of imported files."""
    batches = f"{len(stored):,} batch{'es' * (len(stored) != 1)}"
    samples = some(sum(one.samples for one in stored), "sample")
    lines = [text(f"{batches} with {samples} of ", (target, "bold"), ", as measurements made elsewhere:")]
    if left_out:
        lines.append(text(f"Left out: {some(left_out, 'measurement')} in other roles or without samples."))
    return View(list(stored), [lines[0], Table(BatchItem, stored, BATCHES), *lines[1:]])
