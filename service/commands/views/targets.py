"""Targets as commands print them."""

from kernelwatch.client.models import AddedTargetDocument, DriftItem, HoldingsDocument, TargetDocument, TargetItem
from service.commands.output.views import Column, Columns, Sentence, View, minute, text
from service.domain.text import counted, in_bytes, short


def _state(one: TargetItem) -> str:
    return ", ".join(name for name, holds in (("private", one.private), ("paused", one.paused_at)) if holds)


COLUMNS = Columns(
    TargetItem,
    Column("target", lambda one: one.name, lambda _: "bold"),
    Column("kind", lambda one: one.kind, spare=2),
    Column("devices", lambda one: ", ".join(one.devices), spare=1),
    Column("location", lambda one: one.location, spare=3),
    Column("state", _state, lambda _: "yellow"),
    Column("problem", lambda one: one.poll_error or "", lambda _: "red", below=True),
    empty="No targets. Add one with `kernelwatch target add NAME LOCATION`.",
)


_BY = {"commit": "a commit", "stack": "another stack", "nothing": "nothing"}
DRIFTS = Columns(
    DriftItem,
    Column("case", lambda one: one.case, lambda _: "bold"),
    Column("provider", lambda one: one.provider, spare=2),
    Column("device", lambda one: one.device, spare=3),
    Column("changed by", lambda one: _BY[one.by]),
    Column("revision", lambda one: short(one.revision)),
    Column("run", lambda one: str(one.run_id), right=True, spare=1),
    Column("when", lambda one: minute(one.at), spare=4),
    Column("before", lambda one: one.before, below=True),
    Column("now", lambda one: one.now, below=True),
    empty="No session ran another configuration than the one before.",
)


def one(found: TargetDocument) -> View:
    """A target with its recipe."""
    what = found.package or found.branch or "the default branch"
    facts = {
        "location": f"{found.location} ({found.kind}, {what})",
        "forge": f"{found.forge} on {'GitLab' if found.forge_kind == 'gitlab' else 'GitHub'}" if found.forge else "",
        "devices": ", ".join(found.devices),
        "trusted": _trust(found),
        "private": "yes" if found.private else "",
        "polled next": minute(found.poll_at),
        "last poll": f"failed: {found.poll_error}" if found.poll_error else "",
        "mirror": in_bytes(found.mirror_bytes) if found.mirror_bytes else "",
        "paused since": minute(found.paused_at),
        "nothing is sent until": minute(found.forge_paused_until),
    }
    now = f": {counted(found.open_regressions, 'open regression')}, {counted(found.behind_sota, 'case')} behind SOTA"
    lines: list[Sentence] = [text((f"target {found.name}", "bold"), now)]
    lines += [text(f"  {name}: {value}") for name, value in facts.items() if value]
    lines.append(text(f"\n{found.recipe.strip()}" if found.recipe else "  It has no recipe, so nothing is measured."))
    return View(found, lines)


def _trust(found: TargetDocument) -> str:
    if not found.trusted:
        return ""
    return "yes, also without a sandbox" if found.allow_unsandboxed else "yes"


def added(found: AddedTargetDocument) -> View:
    """A target that is watched now."""
    name, queued = (found.name, "bold"), f"queued {counted(found.queued, 'run')}."
    if found.existed:
        said = [text("Target ", name, f" exists already, and is now as described; {queued}")]
    else:
        said = [text("Added target ", name, f"; {queued}")]
    if found.without_worker:
        devices = ", ".join(found.without_worker)
        said.append(text(f"No worker has ever run on {devices}: runs for it wait until one is started there."))
    return View(found, said)


def changed(found: TargetDocument, *said: str | tuple[str, str]) -> View:
    """A target after a change."""
    return View(found, [text(*said)])


def holdings(found: HoldingsDocument) -> str:
    """`300 revisions, 900 runs, …`."""
    counts = {
        "revision": found.revisions,
        "run": found.runs,
        "measurement": found.measurements,
        "regression": found.regressions,
    }
    return ", ".join(counted(number, noun) for noun, number in counts.items())


def removed(name: str, found: HoldingsDocument) -> View:
    """What was deleted."""
    return View(found, [text(f"Deleted target {name}: {holdings(found)}.")])
