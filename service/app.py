"""The web application: `create_app()` combines API, webhooks and pages; `create_api()` is the API alone."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import cache
from http import HTTPStatus
from types import ModuleType
from typing import Any

import anyio.to_thread
import structlog
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic.json_schema import models_json_schema
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import ClientDisconnect
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kernelwatch.documents.base import Problem
from service.api import health, ingest, keys, progress, regressions, runs, studies, subscriptions, targets, webhooks
from service.api.access import AFTERWARDS, SECURITY_SCHEMES, Afterwards, do_afterwards
from service.api.common import ERRORS, PRIVATE
from service.api.gateway.connections import CheckedHeads, RateLimited
from service.api.gateway.problems import PROBLEMS, problem
from service.api.reading import exports, figures, weekly
from service.db.engine import describe
from service.domain.ingest import LINE_MODELS
from service.errors import Busy, ServiceError, StillHandled, Unsigned
from service.settings import settings
from service.version import product_version

log = structlog.get_logger()

# Endpoints run in threads.  They mostly run Python, one at a time, so more threads only compete with each other and
# with the event loop, which webhooks and health checks need.  With the threads of those they stay below the 15
# connections of the engine's pool, so no thread waits for a connection.
_THREADS = {"sqlite": 2}
_MAX_THREADS = 4
_API = "/api/v1"
_UNCAPPED = ("/webhooks/", "/healthz", "/readyz", "/metrics")
_MAX_WAIT_S = 1.0  # for a place among the requests in progress
_RETRY_AFTER_S = 1
_FOR_PROGRAMS = ("/api/", "/webhooks/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/assets/")

_DESCRIPTION = """\
Reading needs no key, unless the server or a target is private; changes need one: `Authorization: Bearer kw_…`.  Lists
have pages: pass `next` as `cursor`.  Errors are problem details (RFC 9457): `detail` says how to fix
them, and `type` is the page about errors of the kind, with a name that never changes.
"""
_TAGS = {
    "targets": "Watched repositories and packages, their revisions, cases and histories.",
    "runs": "Measurements of a revision on a device, their verdicts, and the queue.",
    "regressions": "Confirmed regressions and incidents, and what people decide about them.",
    "bisections": "Searches for the commit that made a case slower.",
    "calibration": "How often equal code differs on a machine, and quarantined cases.",
    "policies": "Versions of what counts as a change.",
    "facts": "What the compiler says about the code of a revision.",
    "weekly": "The weekly report.",
    "studies": "Published results, measured again.",
    "workers": "Machines that measure.",
    "figures": "Charts of the pages, to explore with Plotly.",
    "export": "Everything of one kind, as a file.",
    "ingest": "Measurements made elsewhere.",
    "subscriptions": "Who is notified of what.",
    "keys": "Keys of programs.",
    "people": "People who have signed in, and the audit log.",
    "audit": "What was changed, when and by whom.",
    "webhooks": "Deliveries of forges.",
    "health": "Whether the service works.",
}

# Response headers that scripts of other sites may read.
_EXPOSED = ("ETag", "Link", "RateLimit", "RateLimit-Policy", "Retry-After")

# Files come from this host only, and no script is inline.  The tables of comments have style attributes.
_HEADERS = {
    "Content-Security-Policy": "; ".join((
        "default-src 'none'",
        "script-src 'self'",
        "style-src-elem 'self'",
        "style-src-attr 'unsafe-inline'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}  # fmt: skip


def create_app() -> FastAPI:
    """Make an app; several may live in one process, each with its own metrics."""
    import dashboards.assets
    import dashboards.pages

    return _created(dashboards.assets, *dashboards.pages.MODULES)


def create_api() -> FastAPI:
    """Make an app without pages, for a command: it need not wait until they are imported."""
    return _created()


def _created(*pages: ModuleType) -> FastAPI:
    metrics = health.Metrics()
    # No interactive documentation: its pages load scripts from other hosts.  /openapi.json is served.
    app = FastAPI(
        title="kernelwatch",
        version=product_version(),
        summary="Kernel performance regressions: a commit goes in, a verdict comes out.",
        description=_DESCRIPTION,
        contact={"name": "The operator of this server", "url": settings().address} if settings().public_url else None,
        license_info={"name": "Apache-2.0", "identifier": "Apache-2.0"},
        servers=[{"url": "/", "description": "This server."}],
        openapi_tags=[{"name": name, "description": words} for name, words in _TAGS.items()],
        docs_url=None,
        redoc_url=None,
        lifespan=_lifespan,
        responses=ERRORS,
        generate_unique_id_function=_operation_id,
    )
    # The highest level at which zlib does not look for a better match: the next makes pages 10 % smaller in 75 % more
    # time, which for a long document is as long as everything else.
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=3)
    app.add_middleware(_Capped, limit=settings().requests_limit)
    app.add_middleware(RateLimited, rate=settings().rate_limit, below=f"{_API}/", refuse=_refusal)
    if settings().cors_origins:
        app.add_middleware(CORSMiddleware, allow_origins=settings().cors_origins, expose_headers=_EXPOSED)
    app.add_middleware(CheckedHeads, refuse=_refusal)
    app.add_middleware(_Watched, metrics=metrics)
    app.add_exception_handler(ServiceError, _service_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(DBAPIError, _database_error)
    app.add_exception_handler(ClientDisconnect, _late)
    routes = app.router.routes
    routes += _stateless(_API, targets, figures, regressions, weekly, studies, runs)
    app.include_router(progress.router(), prefix=_API)
    app.include_router(exports.router(), prefix=_API)
    routes += _stateless(_API, keys, ingest, subscriptions)
    routes += _stateless("", health)
    for router in (health.Readiness().router(), metrics.router(), webhooks.router()):
        app.include_router(router)
    routes += _stateless("", *pages)
    _complete_description(app)
    return app


@cache
def _stateless(prefix: str, *modules: ModuleType) -> list[BaseRoute]:
    """The routes of routers that keep nothing for an app: all apps of a process have them in common.

    To read the parameters of every route takes 0.4 s of CPU, at the first request to an app.
    """
    parent = APIRouter(responses=ERRORS, generate_unique_id_function=_operation_id)
    for module in modules:
        parent.include_router(module.router, prefix=prefix)
    return parent.routes


def _operation_id(route: APIRoute) -> str:
    """The name of the endpoint: generated clients call their functions so."""
    return route.name


def _complete_description(app: FastAPI) -> None:
    """Add the schema of errors and the security scheme to the OpenAPI; the routes check keys themselves."""
    describe_routes = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is not None:
            return app.openapi_schema
        document = describe_routes()
        for found in document["paths"].values():
            for operation in found.values():
                for one in operation.get("parameters", ()):
                    _without_null(one["schema"])
        # FastAPI describes each event with `itemSchema`, which OpenAPI has from 3.2 on; it declares 3.1, where the
        # stream is a text.
        events = document["paths"][f"{_API}/runs/{{run_id}}/events"]["get"]["responses"]["200"]["content"]
        for content in events.values():
            event = content.pop("itemSchema")
            content["schema"] = {"type": "string", "contentMediaType": "text/event-stream", "contentSchema": event}
        components = document.setdefault("components", {})
        components["securitySchemes"] = SECURITY_SCHEMES
        _, lines = models_json_schema(
            [(one, "validation") for one in LINE_MODELS], ref_template="#/components/schemas/{model}"
        )
        components.setdefault("schemas", {}).update(lines["$defs"] | {"Problem": Problem.model_json_schema()})
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # as FastAPI's documentation asks


def _without_null(schema: dict[str, Any]) -> None:
    """Say of a parameter that is any text that it holds no NUL character: routes refuse addresses with one."""
    for one in (schema, *schema.get("anyOf", ()), schema.get("items", {})):
        if one.get("type") == "string" and not one.keys() & {"pattern", "enum", "const", "format"}:
            one["pattern"] = r"^[^\x00]*$"


@asynccontextmanager
async def _lifespan(_: FastAPI) -> AsyncIterator[None]:
    backend = make_url(settings().database).get_backend_name()
    anyio.to_thread.current_default_thread_limiter().total_tokens = _THREADS.get(backend, _MAX_THREADS)
    yield


class _Watched:
    """Add the common headers to every response, record its duration, and answer for an app that fails."""

    def __init__(self, app: ASGIApp, metrics: health.Metrics) -> None:
        self.app = app
        self.duration = metrics.duration

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, began_to_answer = time.perf_counter(), 500, False
        afterwards: Afterwards = {}
        scope[AFTERWARDS] = afterwards

        async def send_with_headers(message: Message) -> None:
            nonlocal status, began_to_answer
            if message["type"] == "http.response.start":
                status, began_to_answer = message["status"], True
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers.setdefault(name, value)
                if headers.setdefault("Cache-Control", PRIVATE) == PRIVATE:
                    headers.add_vary_header("Authorization, Cookie")
            await send(message)

        try:
            await self.app(scope, receive, send_with_headers)
        except Exception:  # the server logs it
            if not began_to_answer:
                kind = PROBLEMS["internal"]
                answer = _refusal(scope["path"], kind.status, f"{kind.meaning} {kind.remedy}")
                await answer(scope, receive, send_with_headers)
            raise
        finally:
            # The pattern of the route, not the path: the number of labels must be bounded.
            route = getattr(scope.get("route"), "path", "none")
            if scope["path"].startswith(f"{_API}/") and not route.startswith(_API):
                route = _API + route  # the innermost router does not know where it hangs
            self.duration.labels(scope["method"], route, str(status)).observe(time.perf_counter() - began)
        await do_afterwards(afterwards.values())


class _Place:
    """A place among the requests in progress."""

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places = places
        self._held = self._ended = False

    async def take(self) -> None:
        """Wait for it for a moment.  Raises TimeoutError."""
        # Randomised, or requests that arrive together are refused together and return together.
        async with asyncio.timeout(_MAX_WAIT_S * random.uniform(0.5, 1.5)):  # noqa: S311
            await self._places.acquire()
        self._held = True
        if self._ended:
            self.leave()

    def leave(self) -> None:
        if self._held:
            self._places.release()
        self._held = False

    def end(self) -> None:
        """Leave it for good, even if it is being waited for."""
        self._ended = True
        self.leave()


class _Capped:
    """Serve at most `limit` requests for pages and API at once; further ones wait for a moment and then get 503.

    A request is in progress until its response begins, except while its body arrives, so that clients on slow
    connections do not count.  As many long bodies may arrive at once; the next replaces the oldest, which gets 503.  A
    waiting request holds neither a thread nor a connection.  Refusing without waiting would cost more than serving,
    because clients that ignore Retry-After repeat the request at once.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self.app = app
        self.places = asyncio.Semaphore(limit)
        self.bodies = webhooks.Places(limit)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"].startswith(_UNCAPPED):
            await self.app(scope, receive, send)
            return
        for_program = scope["path"].startswith(_FOR_PROGRAMS)
        place = _Place(self.places)
        try:
            await place.take()
        except TimeoutError:
            await _busy(for_program)(scope, receive, send)
            return
        headers = Headers(scope=scope)
        length, arrives = 0, "transfer-encoding" in headers or headers.get("content-length", "0") != "0"

        async def receive_without_place() -> Message:
            nonlocal length, arrives
            if not arrives:
                return await receive()
            place.leave()
            message = await receive()
            before, length = length, length + len(message.get("body", b""))
            if not arrives:  # the response has begun meanwhile
                return message
            if message.get("more_body", False):
                if before <= webhooks.IN_MEMORY < length:
                    long_body.enter_context(self.bodies.one(deadline))
            else:
                arrives = False
                long_body.close()
                try:
                    await place.take()
                except TimeoutError:  # FastAPI lets no other error of a body through
                    raise HTTPException(503, _BUSY, {"Retry-After": str(_RETRY_AFTER_S)}) from None
            return message

        async def leave_and_send(message: Message) -> None:
            nonlocal arrives
            arrives = False
            long_body.close()
            place.end()
            await send(message)

        try:
            async with asyncio.timeout(None) as deadline:
                with ExitStack() as long_body:
                    await self.app(scope, receive_without_place, leave_and_send)
        except TimeoutError:
            if not deadline.expired():
                raise
            detail = f"Too many long bodies arrive at once; send this one again in {_RETRY_AFTER_S} s."
            answer = _error(scope["path"], 503, detail, {"Retry-After": str(_RETRY_AFTER_S)}, for_program=for_program)
            await answer(scope, receive, send)
        finally:
            place.end()


_BUSY = (
    f"Too many requests are in progress; try again in {_RETRY_AFTER_S} s. "
    "KERNELWATCH_REQUESTS_LIMIT sets how many are served at once."
)


@cache
def _busy(for_program: bool) -> Response:
    """Make the 503 response once: under load it is the most frequent one."""
    return _error(None, 503, _BUSY, {"Retry-After": str(_RETRY_AFTER_S)}, for_program=for_program)


def _answer(
    request: Request, status: int, detail: str, headers: dict[str, str] | None = None, kind: str = ""
) -> Response:
    path = request.url.path
    return _error(path, status, detail, headers, for_program=path.startswith(_FOR_PROGRAMS), kind=kind)


def _refusal(path: str, status: int, detail: str) -> Response:
    return _error(path, status, detail, None, for_program=path.startswith(_FOR_PROGRAMS))


def _error(
    path: str | None, status: int, detail: str, headers: dict[str, str] | None, *, for_program: bool, kind: str = ""
) -> Response:
    """Respond with JSON to programs and with a page to people."""
    if for_program:
        document = problem(status, detail, path, kind)
        return Response(document.model_dump_json(), status, headers, media_type="application/problem+json")
    from dashboards.pages import error_page

    return error_page(status, detail, headers)


async def _service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)  # noqa: S101  # what it is registered for
    headers = dict[str, str]()
    if isinstance(error, Unsigned):
        # RFC 9110 asks for it; a browser shows no dialog for a scheme that it does not know.
        headers["WWW-Authenticate"] = 'Bearer realm="kernelwatch"'
    if isinstance(error, Busy | StillHandled):
        headers["Retry-After"] = str(error.retry_after_s)
    return _answer(request, error.status, str(error), headers, error.kind)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    detail = f"No page {request.url.path}." if error.status_code == 404 else str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods_at(request))
        detail = f"{request.method} is not possible at {request.url.path}; use {headers['Allow']}."
    return _answer(request, error.status_code, detail, headers)


def _methods_at(request: Request) -> list[str]:
    """The methods of an address: each may be another route, of which the one that was refused knows only its own."""
    every = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
    # HEAD is served as GET before a route is looked for.
    known = {one for one in every if any(_fits(route, request, one) for route in request.app.routes)}
    return [one for one in every if one in known or (one == "HEAD" and "GET" in known)]


def _fits(route: BaseRoute, request: Request, method: str) -> bool:
    return route.matches({**request.scope, "method": method})[0] is Match.FULL


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    problems = "; ".join(f"{'.'.join(str(part) for part in one['loc'][1:])}: {_mistake(one)}" for one in error.errors())
    return _answer(request, 422, problems)


_FORMS = {
    "string_pattern_mismatch": "this has another form than expected; leave it out, or see /openapi.json",
    "int_parsing": "write a whole number",
    "bool_parsing": "write true or false",
    "date_from_datetime_parsing": "write a date as 2026-11-29",
    "date_from_datetime_inexact": "write a date as 2026-11-29",
    "missing": "this is missing",
}


def _mistake(one: Mapping[str, Any]) -> str:
    """What to write instead of a value; in words of the validator where it says that itself."""
    if one["type"] in ("enum", "literal_error"):
        return f"write one of {one['ctx']['expected']}"
    validator: str = one["msg"]
    return _FORMS.get(one["type"], validator)


async def _late(request: Request, _: Exception) -> Response:
    """The connection was closed while the body arrived, mostly since that took too long."""
    return _answer(request, HTTPStatus.REQUEST_TIMEOUT, "The body did not arrive in time.")


async def _database_error(request: Request, error: Exception) -> Response:
    words = describe(error) if isinstance(error, DBAPIError) else str(error)
    log.error("database", error=words, path=request.url.path)
    return _answer(request, 503, "The database reports an error; see /readyz.", kind="database")
