"""Signing in and out: the way to the provider and back, and the cookie of the session."""

from dataclasses import asdict
from typing import Annotated
from urllib.parse import parse_qs, urlencode

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from itsdangerous import BadSignature, URLSafeTimedSerializer

from dashboards.rendering import page
from service.api.access import in_writers
from service.db.engine import reading, transaction
from service.domain.access import ANONYMOUS
from service.errors import Refused
from service.forge.sign_in import Flow, provider, providers
from service.ledger import audit
from service.ledger.access import accounts, sign_ins
from service.ledger.acting import as_actor
from service.settings import settings

router = APIRouter(include_in_schema=False)
Next = Annotated[str, Query(alias="next", max_length=500)]

_FLOW_COOKIE = "kernelwatch-sign-in"
_FLOW_S = 600
_MAX_FORM = 4096  # bytes
_SEE_OTHER = 303


@router.get("/sign-in")
async def choose(then: Next = "/") -> Response:
    """Go to the only provider, or let people choose one."""
    known = providers()
    if len(known) > 1:
        return HTMLResponse(page("sign_in.html", providers=known, next=urlencode({"next": _own(then)})))
    name = known[0].name if known else ""
    provider(name)  # raises how to set one up if there is none
    return RedirectResponse(f"/sign-in/{name}?{urlencode({'next': _own(then)})}", _SEE_OTHER)


@router.get("/sign-in/local")
async def with_link(request: Request, code: Annotated[str, Query(max_length=200)] = "", then: Next = "/") -> Response:
    """Begin the session of a link that `kernelwatch person sign-in` printed.  It works once."""

    def begin() -> str:
        address = request.client.host if request.client else None
        with as_actor(ANONYMOUS, address), transaction() as session:
            return accounts.signed_in_with_code(session, code)

    return _signed_in(await in_writers(begin), then)


@router.get("/sign-in/{name}")
async def leave(name: str, then: Next = "/") -> Response:
    """Send the browser to the provider, with a cookie by which it is recognised when it comes back."""
    flow = Flow.new()
    address = await in_writers(lambda: provider(name).address(flow, _callback(name)))
    response = RedirectResponse(address, _SEE_OTHER)
    signed = _signer(name).dumps(asdict(flow) | {"next": _own(then)})
    response.set_cookie(
        _FLOW_COOKIE,
        signed,
        max_age=_FLOW_S,
        path="/sign-in",
        httponly=True,
        samesite="lax",
        secure=sign_ins.is_secure(),
    )
    return response


@router.get("/sign-in/{name}/callback")
async def come_back(
    request: Request,
    name: str,
    state: Annotated[str, Query(max_length=200)] = "",
    code: Annotated[str, Query(max_length=2000)] = "",
    error: Annotated[str, Query(max_length=200)] = "",
) -> Response:
    """Ask the provider who came back, and begin a session."""
    flow, then = _begun(name, request.cookies.get(_FLOW_COOKIE, ""), state)
    if error or not code:
        raise Refused(f"You were not signed in: {error or 'the provider sent no code'}. Sign in again.")

    def begin() -> str:
        identity = provider(name).identity(flow, _callback(name), code)
        return accounts.signed_in(identity)[1]

    response = _signed_in(await in_writers(begin), then)
    response.delete_cookie(_FLOW_COOKIE, path="/sign-in")
    return response


def _signed_in(secret: str, then: str) -> Response:
    """The page that somebody came for, with the cookie of their session."""
    response = RedirectResponse(_own(then), _SEE_OTHER)
    response.set_cookie(
        sign_ins.cookie_name(),
        secret,
        max_age=int(settings().sign_in_s),
        path="/",
        httponly=True,
        samesite="lax",
        secure=sign_ins.is_secure(),
    )
    return response


@router.post("/sign-out", max_body_size=_MAX_FORM)
async def sign_out(request: Request) -> Response:
    """End the session; its cookie is worth nothing afterwards."""
    [csrf_token] = parse_qs((await request.body()).decode(errors="replace")).get("csrf_token", [""])[:1]
    secret = request.cookies.get(sign_ins.cookie_name())

    def end(secret: str) -> None:
        sign_ins.check_own_form(secret, csrf_token, request.headers.get("origin"))
        with reading() as session:
            person = sign_ins.actor_with(session, secret)
        if person is not None:
            with as_actor(person, request.client.host if request.client else None), transaction() as session:
                sign_ins.end(session, secret)
                audit.record(session, "person.sign_out", of=f"person {person.name}")

    if secret:
        await in_writers(end, secret)
    response = RedirectResponse("/", _SEE_OTHER)
    response.delete_cookie(sign_ins.cookie_name(), path="/", secure=sign_ins.is_secure(), httponly=True)
    return response


def _begun(name: str, cookie: str, state: str) -> tuple[Flow, str]:
    """The sign-in that this browser began, and the page that it came from.  Raises Refused."""
    try:
        flow = _signer(name).loads(cookie, max_age=_FLOW_S)
    except BadSignature:  # an expired one, too
        flow = None
    if flow is None or not state or flow["state"] != state:
        raise Refused("This sign-in was not begun in this browser within the last ten minutes. Sign in again.")
    return Flow(flow["state"], flow["verifier"], flow["nonce"]), flow["next"]


def _signer(name: str) -> URLSafeTimedSerializer:
    """Signs with what only the server and the provider know; all processes of the API know it."""
    return URLSafeTimedSerializer(provider(name).client_secret, salt=f"sign-in {name}")


def _callback(name: str) -> str:
    return f"{settings().address}/sign-in/{name}/callback"


def _own(path: str) -> str:
    """A path of this server; anything else would send people to another one."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"
