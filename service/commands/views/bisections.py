"""Bisections as commands print them."""

from kernelwatch.client.models import BisectionDocument, BisectionItem, StepItem
from service.commands.output.views import Column, Columns, View, text
from service.domain.states import UNDECIDED
from service.domain.text import short

CODES = {"found": 0, "range": 1, "stopped": 2, "not reproduced": 125}  # a search that goes on has 0

COLUMNS = Columns(
    BisectionItem,
    Column("bisection", lambda one: str(one.id), right=True),
    Column("target", lambda one: one.target),
    Column("device", lambda one: one.device),
    Column("good..bad", lambda one: f"{short(one.good)}..{short(one.bad)}"),
    Column("state", lambda one: one.state, lambda _: "bold"),
    Column("result", lambda one: one.reason or "queued", below=True),
    empty="No bisections. Start one with `kernelwatch bisection start TARGET GOOD..BAD`.",
)
STEPS = Columns(
    StepItem,
    Column("run", lambda one: str(one.run_id), right=True),
    Column("revision", lambda one: short(one.revision)),
    Column("against", lambda one: short(one.baseline)),
    Column("aim", lambda one: one.aim or "", spare=1),
    Column("answer", lambda one: one.summary, folds=True),
)


def started(found: BisectionDocument, address: str) -> View:
    """A bisection that was asked for."""
    return View(found, [text(f"Bisection {found.id}  ({address}/bisections/{found.id})")])


def whole(found: BisectionDocument) -> View:
    """A bisection with its steps."""
    title = text(f"bisection {found.id} of {found.target} on {found.device}: {short(found.good)}..{short(found.bad)}")
    result = text((found.state, "bold"), ": ", found.summary)
    parts = (title, STEPS.table(found.steps), result)
    return View(found, parts, code=code(found), over=found.state in CODES)


def stopped(found: BisectionDocument) -> View:
    """A bisection that was stopped."""
    return View(found, [text(found.reason or found.summary)])


def code(found: BisectionDocument) -> int:
    """The exit code of a search."""
    if found.state == "not reproduced" and found.ending == "undecided":
        return UNDECIDED
    return CODES.get(found.state, 0)
