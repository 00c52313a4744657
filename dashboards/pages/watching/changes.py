"""Forms that pause, resume, rename, backfill and remove a target."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from functools import partial
from urllib.parse import quote

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Done, Field, Sent
from service.api.access import Reading, ReadingRoute
from service.api.writes.objects import TargetName
from service.db.engine import reading
from service.db.models import Target
from service.domain.access import Actor, Scope
from service.errors import BadInput, Conflict, NotFound
from service.ledger.access import audit
from service.ledger.access.acting import acting
from service.ledger.intake import deliveries, registry, samples
from service.ledger.intake.registry import Holdings
from service.ledger.intake.targets import find, target_named

router = APIRouter(route_class=ReadingRoute, include_in_schema=False, default_response_class=HTMLResponse)

_TYPED = "typed"  # the field that confirms a removal


class TargetVerb(StrEnum):
    """What a person may do to a target, as the last part of an address."""

    PAUSE = "pause"
    RESUME = "resume"
    RENAME = "rename"
    BACKFILL = "backfill"
    REMOVE = "remove"


_TITLES: Mapping[TargetVerb, str] = {
    TargetVerb.PAUSE: "Pause",
    TargetVerb.RESUME: "Resume",
    TargetVerb.RENAME: "Rename",
    TargetVerb.BACKFILL: "Measure older revisions",
    TargetVerb.REMOVE: "Remove",
}
_ABOUT: Mapping[TargetVerb, str] = {
    TargetVerb.PAUSE: "No new revisions are taken until somebody resumes it. Queued runs are still measured.",
    TargetVerb.RESUME: "The next poll takes the revisions that its mainline got meanwhile.",
    TargetVerb.RENAME: "History, runs and comments stay. Addresses with the old name stop working.",
    TargetVerb.BACKFILL: "Queues what the last revision adds to the first, at low priority.",
}
_COMMANDS: Mapping[TargetVerb, str] = {
    TargetVerb.PAUSE: "kernelwatch target pause {0}",
    TargetVerb.RESUME: "kernelwatch target resume {0}",
    TargetVerb.RENAME: "kernelwatch target rename {0} NEW",
    TargetVerb.BACKFILL: "kernelwatch run backfill {0} BASE..HEAD",
    TargetVerb.REMOVE: "kernelwatch target remove {0}",
}
_REPEATED = (TargetVerb.RENAME, TargetVerb.REMOVE)  # after them there is no target of this name


def forms_of_target(target: Target) -> Sequence[ActionForm]:
    """The forms that the state of a target allows; that of its removal is for links alone."""
    sample = target.location in samples.ORIGINS
    first = TargetVerb.PAUSE if target.paused_at is None else TargetVerb.RESUME
    verbs = (first, TargetVerb.RENAME, TargetVerb.BACKFILL, TargetVerb.REMOVE)
    return [_form(target.name, target, verb) for verb in verbs if not sample or verb is TargetVerb.REMOVE]


@router.get("/targets/{name}/change/{verb}")
def target_form(name: TargetName, verb: TargetVerb, session: Reading) -> str:
    """Show one form of a target."""
    return forms.shown(session, _complete(session, target_named(session, name), verb))


@router.post("/targets/{name}/change/{verb}", max_body_size=forms.MAX_FORM)
async def change_target(request: Request, name: TargetName, verb: TargetVerb) -> Response:
    """Do to a target what its form says."""
    return await forms.submitted(request, partial(_find, name, verb), partial(_APPLY[verb], name))


def _find(name: str, verb: TargetVerb, session: Session) -> ActionForm:
    """The form; also of a target that the sender renamed or removed, as a double click sends the form twice."""
    target = find(session, name)
    if target is not None:
        return _complete(session, target, verb)
    if verb in _REPEATED and audit.is_recorded(session, acting().actor, f"target.{verb}", f"target {name}"):
        return _form(name, None, verb)
    raise NotFound("target", name)


def _complete(session: Session, target: Target, verb: TargetVerb) -> ActionForm:
    form = _form(target.name, target, verb)
    held = registry.holdings(session, target) if verb is TargetVerb.REMOVE and form.allowed else None
    return _form(target.name, target, verb, held)


def _form(name: str, target: Target | None, verb: TargetVerb, held: Holdings | None = None) -> ActionForm:
    address = f"/targets/{quote(name, safe='')}"
    return ActionForm(
        address=f"{address}/change/{verb}",
        title=f"Remove {name}" if held is not None else _TITLES[verb],
        button=f"Remove {name}" if verb is TargetVerb.REMOVE else _TITLES[verb],
        back=address,
        scope=Scope.RUN if verb is TargetVerb.BACKFILL else Scope.ADMIN,
        command=_COMMANDS[verb].format(name),
        target=target,
        fields=_fields(name, verb),
        about=_holdings(held) if held is not None else _ABOUT.get(verb, ""),
    )


def _fields(name: str, verb: TargetVerb) -> tuple[Field, ...]:
    match verb:
        case TargetVerb.RENAME:
            hint = "Lower-case letters, digits, -, _ and ."
            return (Field("name", "New name", value=name, required=True, hint=hint, max_length=80),)
        case TargetVerb.BACKFILL:
            base = Field("base", "After revision", required=True, hint="A commit, tag or release.", max_length=200)
            return (base, Field("head", "Up to revision", required=True, max_length=200))
        case TargetVerb.REMOVE:
            return (Field(_TYPED, f"Type {name} to confirm", required=True, max_length=80),)
        case _:
            return ()


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


_APPLY = {
    TargetVerb.PAUSE: _pause,
    TargetVerb.RESUME: _resume,
    TargetVerb.RENAME: _rename,
    TargetVerb.BACKFILL: _backfill,
    TargetVerb.REMOVE: _remove,
}
