"""The policies that made verdicts, and another one applied to stored runs before it is saved."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Annotated, Any, get_origin
from urllib.parse import quote, urlencode

from annotated_types import Ge, Gt, Le, Lt
from fastapi import Path, Query, Request
from fastapi.responses import HTMLResponse, Response
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from sqlalchemy.orm import Session

from dashboards import forms
from dashboards.forms import ActionForm, Field, FieldKind, Sent
from dashboards.rendering import flat, page, page_router
from kernelwatch.documents.regressions import ReplayDocument
from service.api.access import Acting, Reading, needs, permit
from service.api.common import Cursor
from service.api.objects import TargetName
from service.db.engine import clock, reading
from service.db.models import Target
from service.domain.access import Actor, Scope
from service.domain.policy.policy import Policy, Written
from service.domain.policy.recipes import Recipe
from service.domain.policy.toml_errors import message_of
from service.errors import BadInput, NotFound
from service.ledger import policies
from service.ledger.policies import effective, server_policy
from service.ledger.runs import replays
from service.ledger.targets import target_named
from service.reports.report import readable
from service.reports.schema.regressions import replay_document

router = page_router()
Device = Annotated[str, Query(max_length=40)]
WITHIN_S = 8.0  # for which runs are judged, the newest first; API and command judge all of them
_DEVICE = "device"
_SHOWN = 200  # cases
_LIMITS = {Gt: "more than", Ge: "at least", Lt: "less than", Le: "at most"}
_MARKS = str.maketrans("", "", "`*")


@dataclass(frozen=True)
class Changed:
    """The keys that somebody changed, and what a recipe has to say for them."""

    values: Mapping[str, Any]
    device: str | None  # whose table of the recipe has them; None for the table of all devices

    @property
    def snippet(self) -> str:
        """TOML for the recipe."""
        table = "policy" if self.device is None else f"policy.devices.{json.dumps(self.device)}"
        return "\n".join([f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in self.values.items())])


@router.get("/targets/{name}/policy")
def form_of_policy(name: TargetName, session: Reading, device: Device = "") -> str:
    """Show the policy of a target on a device, as a form to replay another one."""
    form = _find(name, device, session)
    return _page(session, target_named(session, name), form)


@router.post("/targets/{name}/policy", max_body_size=forms.MAX_FORM)
async def replay(request: Request, name: TargetName, device: Device = "") -> Response:
    """Show what the changed policy would have reported.  Nothing is stored."""
    return await forms.submitted(request, partial(_find, name, device), partial(_replay, name, device))


def _find(name: str, device: str, session: Session) -> ActionForm:
    target = target_named(session, name)
    recipe = _recipe(target)
    device = _device(recipe, device)
    address = f"/targets/{quote(name, safe='')}/policy?{urlencode({_DEVICE: device})}"
    return ActionForm(
        address=address,
        title=f"Replay a policy of {name} on {device}",
        button="Replay",
        back=address,
        scope=Scope.RUN,
        command=f"kernelwatch policy replay {name} --policy POLICY --device {device}",
        target=target,
        fields=tuple(_field(key, Policy.model_fields[key], value) for key, value in _plain(recipe, device).items()),
        about="Change values and press Replay: stored runs are judged again from their samples. Nothing is stored.",
    )


def _recipe(target: Target) -> Recipe:
    recipe = readable(target.recipe.text) if target.recipe else None
    if recipe is None:
        raise NotFound("policy of", target.name, "It has no recipe that this version reads.")
    return recipe


def _device(recipe: Recipe, device: str) -> str:
    if device and device not in recipe.devices:
        raise NotFound("device", device, f"The recipe has {', '.join(recipe.devices)}.")
    return device or recipe.devices[0]


def _plain(recipe: Recipe, device: str) -> dict[str, Any]:
    """The keys of the policy that are no tables, with their values on a device."""
    found = effective(recipe, device).model_dump(mode="json")
    return {key: found[key] for key, info in Policy.model_fields.items() if not _is_table(info)}


def _is_table(info: FieldInfo) -> bool:
    kind = get_origin(info.annotation) or info.annotation
    return isinstance(kind, type) and issubclass(kind, BaseModel | Mapping)


def _field(key: str, info: FieldInfo, value: Any) -> Field:
    """The input of a key, with the documentation and limits of the policy itself."""
    limits = [
        f"{words} {getattr(one, kind.__name__.lower()):g}"
        for one in info.metadata
        for kind, words in _LIMITS.items()
        if isinstance(one, kind)
    ]
    default = Policy.model_fields[key].get_default(call_default_factory=True)
    hints = [(info.description or "").translate(_MARKS).rstrip("."), ", ".join(limits)]
    if default is not None:
        hints.append(f"default {_text(default)}")
    choices = _choices(info.annotation)
    kind = FieldKind.CHOICE if choices else FieldKind.LINE
    required = not choices and default is not None
    hint = "; ".join(filter(None, hints))
    return Field(key, key, kind, _text(value), required=required, hint=hint, choices=choices, max_length=80)


def _choices(annotation: Any) -> tuple[tuple[str, str], ...]:
    if annotation is bool:
        return (("false", "no"), ("true", "yes"))
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return tuple((one.value, one.value) for one in annotation)
    return ()


def _text(value: Any) -> str:
    """A value as a field has it; empty for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return ", ".join(map(str, value))
    return f"{value:.12g}" if isinstance(value, float) else str(value)


def _changed(recipe: Recipe, device: str, sent: Sent) -> Changed:
    """What differs from the policy of now.  Raises BadInput that names every wrong value."""
    plain = _plain(recipe, device)
    given = {key: sent[key] for key, value in plain.items() if sent[key] and sent[key] != _text(value)}
    table = {
        key: text.replace(",", " ").split() if get_origin(Policy.model_fields[key].annotation) is tuple else text
        for key, text in given.items()
    }
    try:
        checked = Policy.model_validate(table).model_dump(mode="json")
    except ValidationError as error:
        # A mistake of several keys has no place, and its message names them.
        said = (": ".join([*map(str, one["loc"][:1]), message_of(one, Policy)]) for one in error.errors())
        raise BadInput(f"The policy has mistakes. {'. '.join(said)}.") from None
    alone = recipe.devices == (device,) and device not in recipe.policy.written.devices
    return Changed({key: checked[key] for key in given}, None if alone else device)


def _with(written: Written, changed: Changed) -> Written:
    """A recipe's policy with what somebody changed, in the table that the snippet names."""
    if changed.device is None:
        return Written({**written.shared, **changed.values}, written.devices)
    own = {**written.devices.get(changed.device, {}), **changed.values}
    return Written(written.shared, {**written.devices, changed.device: own})


def _replay(name: str, device: str, sent: Sent, _actor: Actor) -> Response:
    with reading() as session:
        form = _find(name, device, session)
        target = target_named(session, name)
        recipe = _recipe(target)
        device = _device(recipe, device)
        changed = _changed(recipe, device, sent)
        written = _with(recipe.policy.written, changed)
        stored = replays.count(session, target, device=device)
        found = replays.replayed(session, written, server_policy(), target, device, within_s=WITHIN_S)
        answer = replay_document(found)
    with reading() as session:
        target = target_named(session, name)
        values = form.with_values(sent.values)
        return HTMLResponse(_page(session, target, values, changed, answer, stored))


def _page(
    session: Session,
    target: Target,
    form: ActionForm,
    changed: Changed | None = None,
    answer: ReplayDocument | None = None,
    stored: int = 0,
) -> str:
    recipe = _recipe(target)
    cases = sorted(answer.cases, key=lambda one: -one.run_id) if answer else []
    return page(
        "policy_replay.html",
        now=clock(session),
        target=target,
        href=f"/targets/{quote(target.name, safe='')}",
        devices=recipe.devices,
        form=form,
        changed=changed,
        answer=answer,
        cases=cases[:_SHOWN],
        more=max(0, len(cases) - _SHOWN),
        stored=stored,
        seconds=WITHIN_S,
    )


Digest = Annotated[str, Path(pattern="^[0-9a-f]{64}$")]
_LINES = 30
_RUNS = 20  # of a version


@router.get("/policies")
@needs(Scope.ADMIN)
def listed(session: Reading, actor: Acting, cursor: Cursor = None) -> str:
    """Show the versions, the newest first, each with its difference to the version before."""
    permit(actor, Scope.ADMIN)
    found = policies.listed(session, cursor, _LINES)
    lines = []
    for row in found.items:
        before = policies.before(session, row)
        lines.append((row, differences(before.values, row.values) if before else None))
    uses = policies.uses(session)
    return page("policies.html", now=clock(session), lines=lines, uses=uses, sample=policies.SAMPLE, next=found.next)


@router.get("/policies/{digest}")
@needs(Scope.ADMIN)
def policy(digest: Digest, session: Reading, actor: Acting) -> str:
    """Show a version of a policy: its values, what differs from the version before, and the last runs judged by it."""
    permit(actor, Scope.ADMIN)
    row = policies.one(session, digest)
    before = policies.before(session, row)
    runs = policies.uses(session).get(row.id, [])
    return page(
        "policy.html",
        now=clock(session),
        row=row,
        values=flat(row.values),
        before=before,
        differs=differences(before.values, row.values) if before else [],
        runs=runs[:_RUNS],
        used=len(runs),
        targets=sorted({run.target.name for run in runs}),
        sample=policies.SAMPLE,
    )


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The keys that differ, each with both values; `–` for none."""
    old, new = dict(flat(before)), dict(flat(after))
    return [(key, old.get(key, "–"), new.get(key, "–")) for key in old | new if old.get(key) != new.get(key)]
