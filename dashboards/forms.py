"""Forms of pages: what they ask for, who sends them, and the page that follows.

A form changes something by the same functions of the ledger as API and command line do, as the person who is signed in.
It works without script.  `ActionForm` says what is asked, the macro `form` of `forms.html` draws it, and `submitted`
handles it: a request of another site is refused, a sender who may not know of the thing gets 404, and a sender who may
not change it reads which role that needs.  After an error, the sender sees the form again with what they typed.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from typing import Annotated, Any, TypeVar
from urllib.parse import parse_qs, urlencode, urlsplit, urlunsplit

from fastapi import APIRouter, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy.orm import Session

from dashboards.rendering import page
from service.api.access import DONE, Credentials, Reading, in_writers, needs, permit, reader_with, writer_with
from service.api.common import Key
from service.db.engine import clock, reading
from service.db.models import Target
from service.db.visibility import hiding
from service.domain.access import Actor, Scope
from service.domain.states import ActorKind
from service.errors import BadInput, NotFound, ServiceError, Stale
from service.ledger.access import sign_ins
from service.ledger.acting import acting, as_actor

MAX_FORM = 64 << 10  # bytes of a body
MAX_CODE_FORM = 512 << 10  # of a form with a field of code
MAX_TEXT = 2000  # characters, as in the API
MAX_CODE = 100_000
_MAX_FIELDS = 40
_LINE_ENDS = re.compile(r"\r\n?")
_CONTROLS = re.compile(r"[\s\x00-\x1f\x7f]+")
_SEE_OTHER = 303
_CONFIRMED = "confirmed"


class FieldKind(StrEnum):
    """How a field is drawn."""

    LINE = "line"
    TEXT = "text"  # several lines on the page; stored as one, as the API takes it
    CODE = "code"  # lines that stay as they are, with their numbers
    DAY = "day"
    CHOICE = "choice"
    HIDDEN = "hidden"


@dataclass(frozen=True)
class Field:
    """A value that a form asks for."""

    name: str
    label: str
    kind: FieldKind = FieldKind.LINE
    value: str = ""
    required: bool = False
    hint: str = ""
    choices: tuple[tuple[str, str], ...] = ()  # values with their words
    suggestions: tuple[str, ...] = ()
    max_length: int = MAX_TEXT
    mistakes: tuple[tuple[int, str], ...] = ()  # lines of code, from 1, with what is wrong there


@dataclass(frozen=True)
class ActionForm:
    """What somebody may do to a thing: the address, the fields, and what it needs."""

    address: str  # where it is sent; GET shows the form alone
    title: str
    button: str
    back: str  # the page of the thing
    scope: Scope
    command: str  # that does the same
    target: Target | None = None  # of which the scope is needed; None for all of them
    anywhere: bool = False  # the scope on any target is enough; `find` and `apply` check the rest
    fields: tuple[Field, ...] = ()
    about: str = ""  # what it does
    question: str = ""  # asked before it is done; empty for what can be undone
    seen: int = 0  # the version of the thing that the page shows

    @property
    def key(self) -> str:
        """Unique on its page, for the ids of its fields."""
        return self.address.strip("/").replace("/", "-")

    @property
    def allowed(self) -> bool:
        """Whether the viewer may send it."""
        viewer = acting()
        if viewer.csrf_token is None:
            return False
        if self.anywhere:
            return viewer.actor.may_somewhere(self.scope)
        return viewer.actor.may(self.scope, self.target.id if self.target else None)

    @property
    def needs(self) -> str:
        """The scope with its target, as keys name it: `triage:norms`."""
        return f"{self.scope}:{self.target.name}" if self.target and self.scope is not Scope.ADMIN else self.scope.value

    def with_values(self, values: Mapping[str, str]) -> "ActionForm":
        """The same form with other values."""
        fields = tuple(replace(one, value=values.get(one.name, one.value)) for one in self.fields)
        return replace(self, fields=fields)

    def with_sent(self, sent: "Sent") -> "ActionForm":
        """The same form with what somebody typed."""
        return self.with_values({one.name: sent.of(one) for one in self.fields if one.name in sent.values})

    def with_mistakes(self, name: str, mistakes: Sequence[tuple[int, str]]) -> "ActionForm":
        """The same form with what is wrong in the lines of a field."""
        fields = tuple(replace(one, mistakes=tuple(mistakes)) if one.name == name else one for one in self.fields)
        return replace(self, fields=fields)


@dataclass(frozen=True)
class Verb:
    """What a person may do to the things of a noun."""

    name: str  # the last part of its address and of its command
    title: str
    about: str = ""
    question: str = ""  # with {} for words of its form
    fields: tuple[Field, ...] = ()

    def form(
        self, page: str, scope: Scope, command: str, *words: object, back: str = "", target: Target | None = None
    ) -> ActionForm:
        """Its form for the thing that has this page."""
        return ActionForm(
            address=f"{page}/{self.name}",
            title=self.title,
            button=self.title,
            back=back or page,
            scope=scope,
            command=command,
            target=target,
            fields=self.fields,
            about=self.about,
            question=self.question.format(*words),
        )


@dataclass(frozen=True)
class Sent:
    """The fields of a form as they were sent.

    White space and control characters of `values` are single spaces; `texts` has the lines that were typed.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, body: bytes) -> "Sent":
        """Read a body.  Raises BadInput."""
        try:
            found = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
        except ValueError:
            raise BadInput("The body is no form.") from None
        values = {name: _CONTROLS.sub(" ", typed[0]).strip() for name, typed in found.items()}
        texts = {name: one_ending(typed[0]) for name, typed in found.items()}
        return cls(values, texts)

    def __getitem__(self, name: str) -> str:
        return self.values.get(name, "")

    def of(self, one: Field) -> str:
        """The value of a field, as its kind keeps it."""
        return self.texts.get(one.name, "") if one.kind is FieldKind.CODE else self[one.name]

    @property
    def seen(self) -> int:
        """The version that the sender saw; 0 for none."""
        return int(self["seen"]) if re.fullmatch("[0-9]{1,18}", self["seen"]) else 0

    @property
    def confirmed(self) -> bool:
        """Whether the sender answered the question of the form."""
        return self[_CONFIRMED] == "yes"

    def check(self, form: ActionForm) -> None:
        """Raise BadInput for a field that is missing, too long or none of its choices."""
        for one in form.fields:
            value = self.of(one)
            if one.required and not value.strip():
                raise BadInput(f"“{one.label}” is missing.")
            if len(value) > one.max_length:
                raise BadInput(f"“{one.label}” has {len(value)} characters; it may have {one.max_length}.")
            if one.choices and value and value not in dict(one.choices):
                raise BadInput(f"“{one.label}” has no choice {value[:40]}.")
            if one.kind is FieldKind.DAY and value and not re.fullmatch(r"\d{4}-\d{2}-\d{2}", value):
                raise BadInput(f"“{one.label}” is a day, such as 2026-12-31.")


def one_ending(text: str) -> str:
    """The text with the line ends that TOML and we write; browsers send others."""
    return _LINE_ENDS.sub("\n", text).replace("\0", "")


AnyVerb = TypeVar("AnyVerb", bound=Verb)
Find = Callable[[Session], ActionForm]


@dataclass(frozen=True)
class Done:
    """What was done, in a sentence, and the page that follows."""

    sentence: str
    to: str


@dataclass(frozen=True)
class DryRun:
    """What a form would do, for its page; nothing was done."""

    found: Any


# In transactions of its own.  A sentence is what was done, and the page of the thing follows; a response is a page for
# what no address may hold.
Outcome = str | Done | DryRun | Response
Apply = Callable[[Sent, Actor], Outcome]
Draw = Callable[[Session, ActionForm, ServiceError | None, DryRun | None], str]


def add_forms(
    router: APIRouter,
    path: str,
    verbs: Iterable[AnyVerb],
    find: Callable[[int, AnyVerb, Session], ActionForm],
    apply: Callable[[int, AnyVerb, Sent, Actor], Outcome],
    *,
    reader: Scope | None = None,
) -> None:
    """Serve the form of each verb alone, and what it is sent to, for the thing whose number is in the path.

    `reader` is the scope that those need who look at the form.
    """
    by_name = {one.name: one for one in verbs}
    pattern = f"^({'|'.join(by_name)})$"

    def show(number: Key, verb: Annotated[str, Path(pattern=pattern)], session: Reading) -> str:
        return shown(session, find(number, by_name[verb], session))

    async def change(request: Request, number: Key, verb: Annotated[str, Path(pattern=pattern)]) -> Response:
        return await submitted(request, partial(find, number, by_name[verb]), partial(apply, number, by_name[verb]))

    router.get(f"{path}/{{number}}/{{verb}}")(needs(reader)(show) if reader else show)
    router.post(f"{path}/{{number}}/{{verb}}", max_body_size=MAX_FORM)(change)


def shown(session: Session, form: ActionForm) -> str:
    """The page of a form alone."""
    return _drawn(session, form, None, None)


async def submitted(request: Request, find: Find, apply: Apply, draw: Draw | None = None) -> Response:
    """Handle a form that was sent: `find` makes it anew for its sender, `apply` does what it says, or only tries.

    `draw` makes the page with what was typed, where the form has a page of its own.

    Raises NotFound where the sender may not know of the thing, and Refused for a request from another site.
    """
    sent = Sent.read(await request.body())
    credentials = Credentials.of(request)
    sign_ins.check_origin(credentials.origin)
    known = credentials.local or credentials.key or credentials.cookie
    run = in_writers if known else run_in_threadpool  # strangers take no thread of those who change something
    return await run(_handle, credentials, sent, find, apply, draw or _drawn)


def _handle(credentials: Credentials, sent: Sent, find: Find, apply: Apply, draw: Draw) -> Response:
    as_reader = replace(credentials, unsafe=False)  # the token is checked below, where the sender is known
    with reading() as session:
        sender, hidden = reader_with(session, as_reader)
    if sender.actor.kind is not ActorKind.ANONYMOUS:
        sender, hidden = writer_with(as_reader)
    with hiding(hidden), as_actor(sender.actor, credentials.address, sender.csrf_token):
        with reading() as session:
            form = find(session)
        try:
            if sender.csrf_token is not None:
                sign_ins.check_own_form(credentials.cookie or "", sent["csrf_token"], credentials.origin)
            if not (form.anywhere and sender.actor.may_somewhere(form.scope)):
                permit(sender.actor, form.scope, form.target)
            sent.check(form)
            if form.question and not sent.confirmed:
                return _asked(form, sent)
            done = apply(sent, sender.actor)
        except NotFound:
            raise
        except ServiceError as problem:
            with reading() as session:
                form = find(session)
            # Only what a page of ours sent is shown: another site could make our page show its words.
            return _again(form, sent if credentials.origin else Sent(), draw, problem)
        match done:
            case DryRun():
                return _again(replace(form, seen=sent.seen), sent, draw, dry_run=done)
            case Done():
                return see(done.to, done.sentence)
            case Response():
                return done
            case _:
                return see(form.back, done)


def see(path: str, done: str) -> Response:
    """Send the browser to a page of ours, which says what was done."""
    parts = urlsplit(path)
    token = acting().csrf_token
    message = urlencode({DONE: sign_ins.seal(token, done)}) if token else ""
    query = "&".join(filter(None, (parts.query, message)))
    return RedirectResponse(urlunsplit(("", "", parts.path, query, parts.fragment)), _SEE_OTHER)


def _asked(form: ActionForm, sent: Sent) -> Response:
    """The question of a form, with what was typed."""
    typed = replace(form.with_sent(sent), seen=sent.seen)  # what changes while somebody thinks is found as well
    with reading() as session:
        now = clock(session)
    return HTMLResponse(page("acting.html", now=now, form=typed, problem=None, changes=(), asks=True))


def _again(
    form: ActionForm, sent: Sent, draw: Draw, problem: ServiceError | None = None, dry_run: DryRun | None = None
) -> Response:
    """The form with what was typed, and why it was not done or what it would do."""
    with reading() as session:
        text = draw(session, form.with_sent(sent), problem, dry_run)
    return HTMLResponse(text, problem.status if problem else 200)


def _drawn(session: Session, form: ActionForm, problem: ServiceError | None, _: DryRun | None) -> str:
    changes = problem.changes if isinstance(problem, Stale) else ()
    return page("acting.html", now=clock(session), form=form, problem=problem, changes=changes, asks=False)
