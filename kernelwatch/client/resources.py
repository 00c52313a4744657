"""Resources of the API, described once and typed for both clients.

`@endpoint("GET /runs/{run_id}")` makes a call from the parameters of a method, and sends it.  `Runs[Sync].get(7)` is a
document, `Runs[Async].get(7)` an awaitable of one, and both have these parameters.
"""

import inspect
import re
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from dataclasses import replace
from functools import update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, get_args, overload

from kernelwatch.client.exchange import Download, Events, Saved, followed, parts
from kernelwatch.documents.base import Page

from .calls import JSON, Call, Item, Listing, Reader, reader
from .drivers import Asynchronous, AsyncPages, Blocking, Pages
from .exchange import Exchange, Flow

P = ParamSpec("P")
T = TypeVar("T")
Described = TypeVar("Described")
Done = TypeVar("Done")
Awaited = TypeVar("Awaited")


class Sync:
    """Marks the resources of a `Client`."""


class Async:
    """Marks the resources of an `AsyncClient`."""


Mode = TypeVar("Mode", Sync, Async)


class Resource(Generic[Mode]):
    """Operations on one kind of thing."""

    def __init__(self, driver: Blocking | Asynchronous) -> None:
        self._driver: Any = driver

    @property
    def _exchange(self) -> Exchange:
        exchange: Exchange = self._driver.exchange
        return exchange


class Method(Generic[P, Described, Done, Awaited]):
    """A method that describes what `do` does with the driver; `describe` is the plain function."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Described]) -> None:
        self.describe = describe
        update_wrapper(self, describe)  # type: ignore[arg-type]

    @overload
    def __get__(self, resource: None, owner: type) -> Self: ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, Done]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, Awaited]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        if resource is None:
            return self

        @wraps(self.describe)
        def call(*arguments: Any, **named: Any) -> Any:
            return self.do(resource._driver, self.describe(resource, *arguments, **named))

        return call

    def do(self, driver: Any, described: Described) -> Any:
        """Do what is described."""
        raise NotImplementedError


class Endpoint(Method[P, Call[T], T, Coroutine[Any, Any, T]], Generic[P, T]):
    """Sends one call and returns its result."""

    def do(self, driver: Any, described: Call[T]) -> Any:
        return driver.run(driver.exchange.result(described))


class Listed(Method[P, Listing[Item], Pages[Item], AsyncPages[Item]], Generic[P, Item]):
    """Returns the items of a list, to be iterated over."""

    def do(self, driver: Any, described: Listing[Item]) -> Any:
        return driver.list(described)


def endpoint(
    operation: str,
    *,
    accept: str = JSON,
    secret: bool = False,
    slashes: bool = False,
    names: Mapping[str, str] | None = None,
    **constants: str,
) -> Callable[[Callable[Concatenate[Any, P], T]], Endpoint[P, T]]:
    """Make a method that sends one call; its return annotation is the kind of the document.

    The first parameters are the variables of the path that are no `constants`, in their order.  The others are sent in
    the query, or as the fields of a POST or PATCH, by their own name or that of `names`; an optional field that is None
    is left out.
    """
    method, template = operation.split(" ")

    def decorate(function: Callable[Concatenate[Any, P], T]) -> Endpoint[P, T]:
        @wraps(function)
        def describe(*arguments: Any, **named: Any) -> Call[Any]:
            signature = inspect.signature(function)
            bound = signature.bind(*arguments, **named)
            bound.apply_defaults()
            _, *values = bound.arguments.items()
            variables = [name for name in re.findall(r"{(\w+)}", template) if name not in constants]
            path = constants | {variable: value for variable, (_, value) in zip(variables, values, strict=False)}
            rest = {(names or {}).get(name, name): value for name, value in values[len(variables) :]}
            call = Call(
                method,
                template,
                reader(signature.return_annotation),
                path,
                slashes=slashes,
                accept=accept,
                secret=secret,
                idempotency_key=rest.pop("idempotency_key", None),
            )
            if method in ("GET", "DELETE"):
                return replace(call, params=rest)
            optional = {name for name, one in signature.parameters.items() if one.default is None}
            fields = {name: value for name, value in rest.items() if value is not None or name not in optional}
            return replace(call, fields=fields if rest else None)

        return Endpoint(describe)

    return decorate


def listing(
    path: str, *, paged: bool = True
) -> Callable[[Callable[Concatenate[Any, P], Listing[Item]]], Listed[P, Item]]:
    """Make a method that returns the items of a list."""

    def decorate(function: Callable[Concatenate[Any, P], Listing[Item]]) -> Listed[P, Item]:
        described: Callable[..., Call[Any]] = endpoint(f"GET {path}")(function).describe

        @wraps(function)
        def describe(*arguments: Any, **named: Any) -> Listing[Item]:
            [kind] = get_args(inspect.signature(function).return_annotation)
            page: type[Page[Item]] = Page[kind]  # type: ignore[valid-type]
            return Listing(replace(described(*arguments, **named), read=Reader(page)), paged)

        return Listed(describe)

    return decorate


class flow(Method[P, Flow[T], T, Coroutine[Any, Any, T]], Generic[P, T]):  # noqa: N801  # a decorator, as those below
    """Makes several calls and returns their result."""

    def do(self, driver: Any, described: Flow[T]) -> Any:
        return driver.run(described)


class events(Method[P, Events[T], Iterator[T], AsyncIterator[T]], Generic[P, T]):  # noqa: N801
    """Returns server-sent events, to be iterated over as they arrive."""

    def do(self, driver: Any, described: Events[T]) -> Any:
        return driver.emit(followed(driver.exchange, described))


class download(Method[P, Download, Iterator[bytes], AsyncIterator[bytes]], Generic[P]):  # noqa: N801
    """Returns the bytes of a file, to be iterated over as they arrive."""

    def do(self, driver: Any, described: Download) -> Any:
        return driver.emit(parts(driver.exchange, described))


class saved(Method[P, Saved, int, Coroutine[Any, Any, int]], Generic[P]):  # noqa: N801
    """Writes a file and returns its bytes."""

    def do(self, driver: Any, described: Saved) -> Any:
        return driver.save(parts(driver.exchange, Download(described.call)), described.path)
