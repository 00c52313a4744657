"""Forms that pause, resume, rename, backfill and remove a target."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated
from urllib.parse import quote

from fastapi import Path, Request
from fastapi.responses import Response
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Done, Field, Sent, Verb
from dashboards.rendering import page_router
from service.api.access import Reading
from service.api.objects import TargetName
from service.db.engine import reading
from service.db.models import Target
from service.domain.access import Actor, Scope
from service.errors import BadInput, Conflict, NotFound
from service.ledger import audit
from service.ledger.acting import acting
from service.ledger.intake import deliveries, registry
from service.ledger.intake.registry import Holdings
from service.ledger.targets import find, target_named

router = page_router()

_TYPED = "typed"  # the field that confirms a removal


@dataclass(frozen=True)
class TargetVerb(Verb):
    """What a person may do to a target."""

    apply: Callable[[str, Sent, Actor], str | Done] = field(kw_only=True)
    command: str = field(kw_only=True)  # with {} for its name
    scope: Scope = Scope.ADMIN
    repeated: bool = False  # after it there is no target of this name, and a double click sends the form twice


def forms_of_target(target: Target) -> Sequence[ActionForm]:
    """The forms that the state of a target allows; that of its removal is for links alone."""
    first = PAUSE if target.paused_at is None else RESUME
    verbs = (REMOVE,) if target.is_sample else (first, RENAME, BACKFILL, REMOVE)
    return [_form(target.name, target, verb) for verb in verbs]


def _find(name: str, verb: TargetVerb, session: Session) -> ActionForm:
    """The form; also of a target that the sender renamed or removed, as a double click sends the form twice."""
    target = find(session, name)
    if target is not None:
        return _complete(session, target, verb)
    if verb.repeated and audit.is_recorded(session, f"target.{verb.name}", f"target {name}", actor=acting().actor):
        return _form(name, None, verb)
    raise NotFound("target", name)


def _complete(session: Session, target: Target, verb: TargetVerb) -> ActionForm:
    form = _form(target.name, target, verb)
    if verb is not REMOVE or not form.allowed:
        return form
    return replace(form, title=form.button, about=_holdings(registry.holdings(session, target)))


def _form(name: str, target: Target | None, verb: TargetVerb) -> ActionForm:
    address = f"/targets/{quote(name, safe='')}"
    form = verb.form(f"{address}/change", verb.scope, verb.command.format(name), back=address, target=target)
    if verb is RENAME:
        return form.with_values({"name": name})
    if verb is REMOVE:
        typed = Field(_TYPED, f"Type {name} to confirm", required=True, max_length=80)
        return replace(form, button=f"Remove {name}", fields=(typed,))
    return form


def _holdings(held: Holdings) -> str:
    counts = {
        "revision": held.revisions,
        "run": held.runs,
        "measurement": held.measurements,
        "regression": held.regressions,
    }
    words = [f"{count:,} {noun}{'s' if count != 1 else ''}" for noun, count in counts.items()]
    listed = f"{', '.join(words[:-1])} and {words[-1]}"
    return f"This deletes {listed}. Nobody can bring them back. Pause the target to keep them."


def _pause(name: str, _: Sent, __: Actor) -> str:
    try:
        registry.pause(name)
    except Conflict:
        if not _is_paused(name):
            raise
    return f"Target {name} is paused: it takes no new revisions."


def _resume(name: str, _: Sent, __: Actor) -> str:
    try:
        registry.resume(name)
    except Conflict:
        if _is_paused(name):
            raise
    return f"Target {name} takes new revisions again."


def _is_paused(name: str) -> bool:
    with reading() as session:
        return target_named(session, name).paused_at is not None


def _rename(name: str, sent: Sent, _: Actor) -> str | Done:
    new = sent["name"]
    if new == name:
        raise BadInput(f"The target is named {name} already: type another name.")
    done = Done(f"Target {name} is now {new}.", f"/targets/{quote(new, safe='')}")
    try:
        registry.rename(name, new)
    except NotFound:  # the first of two clicks renamed it
        with reading() as session:
            if find(session, new) is None:
                raise
    return done


def _backfill(name: str, sent: Sent, _: Actor) -> str:
    queued = deliveries.backfill(name, sent["base"], sent["head"])
    if not queued:
        return "Nothing new: all of these revisions are queued or measured."
    return f"{queued} run{'s' if queued != 1 else ''} of {name} queued."


def _remove(name: str, sent: Sent, _: Actor) -> Done:
    if sent[_TYPED] != name:
        raise BadInput(f"Type {name}, the name of the target, to remove it.")
    with suppress(NotFound):  # the first of two clicks removed it
        registry.remove(name)
    return Done(f"Target {name} is removed.", "/")


_NEW_NAME = Field("name", "New name", required=True, hint="Lower-case letters, digits, -, _ and .", max_length=80)
_BASE = Field("base", "After revision", required=True, hint="A commit, tag or release.", max_length=200)
_HEAD = Field("head", "Up to revision", required=True, max_length=200)
PAUSE = TargetVerb(
    "pause",
    "Pause",
    "No new revisions are taken until somebody resumes it. Queued runs are still measured.",
    apply=_pause,
    command="kernelwatch target pause {}",
)
RESUME = TargetVerb(
    "resume",
    "Resume",
    "The next poll takes the revisions that its mainline got meanwhile.",
    apply=_resume,
    command="kernelwatch target resume {}",
)
RENAME = TargetVerb(
    "rename",
    "Rename",
    "History, runs and comments stay. Addresses with the old name stop working.",
    fields=(_NEW_NAME,),
    apply=_rename,
    command="kernelwatch target rename {} NEW",
    repeated=True,
)
BACKFILL = TargetVerb(
    "backfill",
    "Measure older revisions",
    "Queues what the last revision adds to the first, at low priority.",
    fields=(_BASE, _HEAD),
    apply=_backfill,
    command="kernelwatch run backfill {} BASE..HEAD",
    scope=Scope.RUN,
)
REMOVE = TargetVerb("remove", "Remove", apply=_remove, command="kernelwatch target remove {}", repeated=True)
_VERBS = {one.name: one for one in (PAUSE, RESUME, RENAME, BACKFILL, REMOVE)}
VerbName = Annotated[str, Path(pattern=f"^({'|'.join(_VERBS)})$")]


@router.get("/targets/{name}/change/{verb}")
def target_form(name: TargetName, verb: VerbName, session: Reading) -> str:
    """Show one form of a target."""
    return forms.shown(session, _complete(session, target_named(session, name), _VERBS[verb]))


@router.post("/targets/{name}/change/{verb}", max_body_size=forms.MAX_FORM)
async def change_target(request: Request, name: TargetName, verb: VerbName) -> Response:
    """Do to a target what its form says."""
    return await forms.submitted(request, partial(_find, name, _VERBS[verb]), partial(_VERBS[verb].apply, name))
