"""Who makes a request, and what the two kinds of routes allow: reading routes and writing routes."""

import hashlib
import inspect
import re
from collections.abc import Callable, Collection, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial, wraps
from http import HTTPStatus
from tempfile import TemporaryFile
from typing import IO, Annotated, Any, ParamSpec, TypeVar, get_args, get_origin
from urllib.parse import quote, urlencode

import structlog
from fastapi import APIRouter, Request, Response, params
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.utils import get_flat_params
from fastapi.routing import APIRoute
from pydantic import BaseModel
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from service.api.common import WRITING_ERRORS, in_thread_of
from service.api.gateway.connections import KEY_IS_VALID
from service.db.engine import clock, reading, transaction
from service.db.models import ApiKey, Target
from service.db.visibility import hiding
from service.domain.access import ANONYMOUS, Actor, Scope
from service.domain.states import ActorKind
from service.errors import BadInput, Busy, Refused, ServiceError, Unsigned
from service.ledger.access import accounts, keys, repeats, sign_ins
from service.ledger.acting import as_actor
from service.settings import settings

log = structlog.get_logger()
Given = ParamSpec("Given")
Result = TypeVar("Result")

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

# What is done once the response is sent, by what it is: a request that is checked twice stores its key's use once.
Afterwards = dict[str, Callable[[], None]]
AFTERWARDS = "kernelwatch.afterwards"  # where it is in the scope of a request

Reading = Annotated[Session, "a reading transaction, opened by ReadingRoute"]
Acting = Annotated[Actor, "who makes the request"]
Upload = Annotated[IO[bytes], "the body of the request, in a file that is deleted afterwards"]

_MAX_WAITING = 12  # changes that wait for a thread; with those in progress, half of the requests that are served


class _Writers:
    """Threads for changes: sources and clones may take minutes, and neither pages nor other requests may wait for them.

    When too many changes wait already, another one is refused.
    """

    def __init__(self, threads: int) -> None:
        self._threads = ThreadPoolExecutor(threads, "writers")
        self._limit = threads + _MAX_WAITING
        self._taken = 0

    async def run(self, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
        """Run it in one of the threads.  Raises Busy."""
        if self._taken >= self._limit:
            raise Busy("Too many changes are in progress; try again in a moment.")
        self._taken += 1
        try:
            return await in_thread_of(self._threads, function, *args, **kwargs)
        finally:
            self._taken -= 1


_WRITERS = _Writers(4)
_AFTERWARDS = ThreadPoolExecutor(1, "afterwards")
_SCOPE, _SECRET, _WRAPPED = "kernelwatch_scope", "kernelwatch_secret", "kernelwatch_wrapped"
_UNSAFE = {"POST", "PUT", "PATCH", "DELETE"}
DONE = "done"  # parameter of the page that a form leads to: what was done, sealed
LOCAL = "kernelwatch.actor"  # key of an ASGI scope: the actor, if the request comes from this process
MAX_BODY = 2 << 20  # bytes of a document that somebody sends; measurements have a limit of their own

BY_KEY: dict[str, Any] = {"security": [{"key": []}]}
BY_ANYBODY: dict[str, Any] = {"security": [{}, {"key": []}]}
_REPEAT_KEY = re.compile("[!-~](?:[ -~]*[!-~])?")  # spaces at the ends of a header are not part of it
_REPEATABLE: dict[str, Any] = {
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "description": "Any unique text: a repeat of the request within a day gets the same response.",
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": repeats.MAX_KEY,
                "pattern": f"^{_REPEAT_KEY.pattern}$",
            },
        }
    ]
}
SECURITY_SCHEMES = {
    "key": {
        "type": "http",
        "scheme": "bearer",
        "description": "An API key: `Authorization: Bearer kw_…`; `kernelwatch key create` makes one.",
    }
}


@dataclass(frozen=True)
class Credentials:
    """What a request shows of its sender."""

    key: str | None
    cookie: str | None
    csrf_token: str | None
    origin: str | None
    address: str | None
    unsafe: bool
    afterwards: Afterwards = field(repr=False)
    local: Actor | None = None
    note_valid_key: Callable[[], None] | None = field(default=None, repr=False)

    @classmethod
    def of(cls, request: Request) -> "Credentials":
        """Read them from the headers.  Raises Unsigned for an Authorization header that is no key."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        if scheme and (scheme.lower() != "bearer" or not key.strip()):
            raise Unsigned("The Authorization header must be `Bearer KEY`, with an API key.")
        return cls(
            key=key.strip() or None,
            cookie=request.cookies.get(sign_ins.cookie_name()),
            csrf_token=request.headers.get("x-csrf-token"),
            origin=request.headers.get("origin"),
            address=request.client.host if request.client else None,
            unsafe=request.method in _UNSAFE,
            afterwards=request.scope.get(AFTERWARDS, {}),
            local=request.scope.get(LOCAL),
            note_valid_key=request.scope.get(KEY_IS_VALID),
        )


@dataclass(frozen=True)
class Sender:
    """Who sent a request, and the account of the person behind it, if there is one."""

    actor: Actor
    account_id: int | None = None
    csrf_token: str | None = None


def sender_of(session: Session, credentials: Credentials) -> Sender:
    """Who sent them.  Raises Unsigned for a key that is not valid, and Refused for a forged form."""
    if credentials.local is not None:
        return Sender(credentials.local)
    if credentials.key is not None:
        actor, key = keys.actor_with(session, credentials.key)
        _note_use(session, key, credentials.afterwards)
        if credentials.note_valid_key is not None:
            credentials.note_valid_key()
        return Sender(actor, key.account_id)
    if credentials.cookie is not None:
        person = sign_ins.actor_with(session, credentials.cookie)
        if person is not None:
            if credentials.unsafe:
                sign_ins.check_own_form(credentials.cookie, credentials.csrf_token, credentials.origin)
            return Sender(person, person.id, sign_ins.csrf_token(credentials.cookie))
    return Sender(ANONYMOUS)


def _note_use(session: Session, key: ApiKey, afterwards: Afterwards) -> None:
    """Store the time of use without holding up the request."""
    if key.used_at is None or clock(session) - key.used_at >= keys.USED_EVERY_S:
        afterwards["use of the key"] = partial(_store_use, key.id)


def _store_use(key_id: int) -> None:
    with transaction() as session:
        keys.note_use(session, key_id)


def permit(actor: Actor, scope: Scope, target: Target | None = None) -> None:
    """Raise Refused unless the actor has the scope: on the target, or on all of them if there is none."""
    if not actor.may(scope, target.id if target else None):
        wanted = f"{scope}:{target.name}" if target is not None and scope is not Scope.ADMIN else scope.value
        raise _without(actor, wanted)


def _without(actor: Actor, scope: str) -> Refused | Unsigned:
    if actor.kind is ActorKind.ANONYMOUS:
        return Unsigned(f"This needs a key with the scope {scope}: send it as `Authorization: Bearer KEY`, or sign in.")
    return Refused(f"{actor.name} does not have the scope {scope}. An administrator can grant it to a key.")


def needs(scope: Scope, *, secret: bool = False) -> Callable[[Callable[Given, Result]], Callable[Given, Result]]:
    """Mark an endpoint that changes something with the scope that it needs on some target, at least.

    The endpoint itself calls `permit` for the target in question.  A `secret` response is not stored for repeats.
    """

    def mark(endpoint: Callable[Given, Result]) -> Callable[Given, Result]:
        setattr(endpoint, _SCOPE, scope)
        setattr(endpoint, _SECRET, secret)
        return endpoint

    return mark


class _StrictRoute(APIRoute):
    """A route of the API that refuses query parameters which its endpoint does not have, or has once only.

    A filter with a typing mistake, or the first of two, would otherwise be ignored, and its reader would take too much
    or too little for what was selected.
    """

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        fields = [one for one in get_flat_params(self.dependant) if isinstance(one.field_info, params.Query)]
        known = {one.alias for one in fields}
        single = {one.alias for one in fields if not _is_list(one.field_info.annotation)}

        async def checked(request: Request) -> Response:
            if b"%00" in request.scope["query_string"] or "\0" in request.scope["path"]:
                raise BadInput("The address holds a NUL character, which no name has.")
            unknown = request.query_params.keys() - known
            if unknown and self.include_in_schema:  # other sites add parameters to links to pages
                raise BadInput(_unknown(min(unknown), known))
            for name in sorted(single & request.query_params.keys()):
                if len(request.query_params.getlist(name)) > 1 and self.include_in_schema:
                    raise BadInput(f"The parameter {name} is given more than once; give one value.")
            return await handle(request)

        return checked


def _is_list(annotation: Any) -> bool:
    """Whether a parameter of this type may be given several times: `list[…]`, or that and None."""
    return any(get_origin(one) is list for one in (annotation, *get_args(annotation)))


def _unknown(name: str, known: Collection[str]) -> str:
    takes = f"the parameter{'s' * (len(known) != 1)} {', '.join(sorted(known))}" if known else "no parameters"
    return f"There is no parameter {name[:40]!r} here: this address takes {takes}."


class ReadingRoute(_StrictRoute):
    """A route that passes a reading transaction to its endpoint, as the parameter annotated `Reading`.

    What the sender may not know of is hidden from the transaction.  It opens and closes in the thread that runs the
    endpoint.  A dependency with `yield` would open it in one thread and close it in another: requests that wait for a
    thread to close their transaction keep their connections from the requests that have a thread, and twenty readers
    stop the service.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        options["openapi_extra"] = {**BY_ANYBODY, **(options.get("openapi_extra") or {})}
        super().__init__(path, _as_reader(endpoint), **options)


def api_router(*tags: str) -> APIRouter:
    """A router of endpoints that only read, or change something, by their method."""
    return APIRouter(route_class=_route, tags=[*tags])  # type: ignore[arg-type]  # makes a route, as its class would


def _route(path: str, endpoint: Callable[..., Any], *, methods: Collection[str], **options: Any) -> APIRoute:
    kind = WritingRoute if _UNSAFE.intersection(methods) else ReadingRoute
    return kind(path, endpoint, methods=methods, **options)


def _as_reader(endpoint: Callable[..., Any]) -> Callable[..., Any]:
    session_name = _parameter(endpoint, Reading)
    if session_name is None or hasattr(endpoint, _WRAPPED):
        return endpoint
    names = _names(endpoint)

    @wraps(endpoint)
    def run(**given: Any) -> Any:
        request: Request = given[names.request]
        credentials = Credentials.of(request)
        with reading() as session:
            sender, hidden = reader_with(session, credentials)
            actor = sender.actor
            scope = getattr(endpoint, _SCOPE, None)
            if scope is not None and not actor.may_somewhere(scope):
                raise _without(actor, scope)
            done = sign_ins.unseal(sender.csrf_token, request.query_params.get(DONE))
            with hiding(hidden), as_actor(actor, credentials.address, sender.csrf_token, done):
                found = endpoint(**names.passed(given, actor), **{session_name: session})
        if not isinstance(found, BaseModel):
            return found
        # A document was checked when it was made; FastAPI would check all of it again.
        response = _response(found, HTTPStatus.OK)
        if cursor := getattr(found, "next", None):
            response.headers["Link"] = f'<{_with_cursor(request, cursor)}>; rel="next"'
        return response

    return names.finish(run, without=(session_name,))


def _with_cursor(request: Request, cursor: str) -> str:
    """The address of the request with another cursor, relative to the server: a proxy may have another name."""
    query = [(name, value) for name, value in request.query_params.multi_items() if name != "cursor"]
    return f"{quote(request.url.path)}?{urlencode([*query, ('cursor', cursor)])}"


def as_reader(request: Request, read: Callable[[], Result]) -> Result:
    """Read something as the sender, with what the sender may not know of hidden from it."""
    credentials = Credentials.of(request)
    with reading() as session:
        sender, hidden = reader_with(session, credentials)
    with hiding(hidden), as_actor(sender.actor, credentials.address, sender.csrf_token):
        return read()


def reader_with(session: Session, credentials: Credentials) -> tuple[Sender, Sequence[int]]:
    """Who reads, and the targets that are hidden from them.  Raises Unsigned where reading needs a key."""
    sender = sender_of(session, credentials)
    if sender.actor.kind is ActorKind.ANONYMOUS and not settings().public_read:
        raise Unsigned("Readers need a key: send it as `Authorization: Bearer KEY`, or sign in.")
    if sender.account_id is not None and accounts.has_old_roles(session, sender.account_id):
        refresh = partial(accounts.refresh_roles, sender.account_id, older_than_s=accounts.FRESH_TO_READ_S)
        credentials.afterwards["roles"] = refresh
    return sender, sign_ins.hidden_from(session, sender.actor)


class WritingRoute(_StrictRoute):
    """A route that changes something: its endpoint runs in threads of writers, as the sender, marked with `needs`.

    A repeat of a POST with the same Idempotency-Key gets the response of the first.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], **options: Any) -> None:
        if getattr(endpoint, _SCOPE, None) is None:
            raise TypeError(f"{endpoint.__name__} changes something and needs `@needs(scope)`")
        repeatable = "POST" in (options.get("methods") or ()) and not getattr(endpoint, _SECRET)
        described = {**BY_KEY, **(_REPEATABLE if repeatable else {})}
        options["openapi_extra"] = {**described, **(options.get("openapi_extra") or {})}
        if options.get("max_body_size") is None:
            options["max_body_size"] = MAX_BODY
        options["responses"] = WRITING_ERRORS | (options.get("responses") or {})
        super().__init__(path, _as_writer(endpoint, options.get("status_code") or 200), **options)

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()
        scope: Scope = getattr(self.endpoint, _SCOPE)

        async def check_and_handle(request: Request) -> Response:
            """Refuse a sender without the scope before anything of the body is read."""
            await run_in_threadpool(check_sender, request, scope)
            return await handle(request)

        return check_and_handle


def check_sender(request: Request, scope: Scope) -> None:
    """Raise Unsigned or Refused unless the sender may have the scope on some target.

    What a person or their key may do is known after the forge was asked.
    """
    with reading() as session:
        sender = sender_of(session, Credentials.of(request))
    if sender.account_id is None and not sender.actor.may_somewhere(scope):
        raise _without(sender.actor, scope)


def _as_writer(endpoint: Callable[..., Any], status: int) -> Callable[..., Any]:
    if hasattr(endpoint, _WRAPPED):
        return endpoint
    names = _names(endpoint)
    scope: Scope = getattr(endpoint, _SCOPE)
    upload = _parameter(endpoint, Upload)

    def handle(request: Request, digest: str, given: dict[str, Any]) -> Response:
        credentials = Credentials.of(request)
        sender, hidden = writer_with(credentials)
        actor = sender.actor
        if not actor.may_somewhere(scope):
            raise _without(actor, scope)
        with as_actor(actor, credentials.address), hiding(hidden):
            repeat_key = request.headers.get("idempotency-key") if request.method == "POST" else None
            if repeat_key is None or getattr(endpoint, _SECRET):
                return _response(endpoint(**names.passed(given, actor)), status)
            return _once(actor, repeat_key, digest, lambda: _response(endpoint(**names.passed(given, actor)), status))

    @wraps(endpoint)
    async def run(**given: Any) -> Response:
        request: Request = given[names.request]
        digest = hashlib.sha256(f"{request.method} {request.url.path}?{request.url.query}\n".encode())
        if upload is not None:
            with TemporaryFile() as file:
                async for chunk in request.stream():
                    digest.update(chunk)
                    file.write(chunk)
                file.seek(0)
                return await in_writers(handle, request, digest.hexdigest(), given | {upload: file})
        digest.update(await request.body())
        return await in_writers(handle, request, digest.hexdigest(), given)

    return names.finish(run, without=(upload,) if upload is not None else ())


def writer_with(credentials: Credentials) -> tuple[Sender, Sequence[int]]:
    """Who changes something, with roles that the forge has confirmed a moment ago, and what is hidden from them."""
    with reading() as session:
        sender = sender_of(session, credentials)
        if sender.account_id is None:
            return sender, sign_ins.hidden_from(session, sender.actor)
    accounts.refresh_roles(sender.account_id, older_than_s=accounts.FRESH_S)
    with reading() as session:
        sender = sender_of(session, credentials)
        return sender, sign_ins.hidden_from(session, sender.actor)


async def do_afterwards(tasks: Iterable[Callable[[], None]]) -> None:
    """Do what a response did not have to wait for; what fails is logged."""
    for task in tasks:
        try:
            await in_thread_of(_AFTERWARDS, task)
        except (ServiceError, DBAPIError) as error:
            log.warning("after a response", error=str(error))


async def in_writers(function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs) -> Result:
    """Run something that takes long in the threads of changes."""
    return await _WRITERS.run(function, *args, **kwargs)


def _once(actor: Actor, key: str, digest: str, handle: Callable[[], Response]) -> Response:
    """Handle a request once; a repeat gets the stored response."""
    if len(key) > repeats.MAX_KEY or not _REPEAT_KEY.fullmatch(key):
        raise BadInput(f"An Idempotency-Key has 1 to {repeats.MAX_KEY} printable characters of ASCII.")
    owner = f"{actor.kind} {actor.id}"
    begun = repeats.begin(owner, key, digest)
    if isinstance(begun, repeats.Stored):
        return _json(begun.body, begun.status, {"Idempotency-Replayed": "true"})
    try:
        response = handle()
    except BaseException:
        repeats.abandon(begun)
        raise
    repeats.finish(begun, response.status_code, bytes(response.body).decode())
    return response


def _response(result: Any, status: int) -> Response:
    if isinstance(result, Response):
        return result
    return _json(result.model_dump_json() if isinstance(result, BaseModel) else "", status)


def _json(body: str, status: int, headers: dict[str, str] | None = None) -> Response:
    if status == HTTPStatus.NO_CONTENT:
        return Response(status_code=status, headers=headers)
    return Response(body, status, headers=headers, media_type="application/json")


@dataclass(frozen=True)
class _Names:
    """Names of the parameters that a route fills in itself."""

    endpoint: Callable[..., Any]
    request: str  # "_request" where the endpoint does not want it
    actor: str | None

    def passed(self, given: dict[str, Any], actor: Actor) -> dict[str, Any]:
        """The arguments for the endpoint."""
        kept = {name: value for name, value in given.items() if name != "_request"}
        return kept | ({self.actor: actor} if self.actor else {})

    def finish(self, run: Callable[..., Any], without: tuple[str, ...] = ()) -> Callable[..., Any]:
        """Give `run` the signature that FastAPI reads."""
        signature = inspect.signature(self.endpoint)
        kept = [one for one in signature.parameters.values() if one.name not in (*without, self.actor)]
        if self.request == "_request":
            kept.append(inspect.Parameter("_request", inspect.Parameter.KEYWORD_ONLY, annotation=Request))
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
        setattr(run, _WRAPPED, True)
        return run


def _names(endpoint: Callable[..., Any]) -> _Names:
    return _Names(endpoint, _parameter(endpoint, Request) or "_request", _parameter(endpoint, Acting))


def _parameter(endpoint: Callable[..., Any], annotation: Any) -> str | None:
    parameters = inspect.signature(endpoint).parameters
    return next((name for name, one in parameters.items() if one.annotation == annotation), None)
