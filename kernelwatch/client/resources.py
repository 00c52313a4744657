"""Resources of the API, described once and typed for both clients.

A method describes a call; its decorator sends it.  `Runs[Sync].get(7)` is a document, `Runs[Async].get(7)` an awaitable
of one, and both have the parameters that the description has.
"""

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import update_wrapper, wraps
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from kernelwatch.client.exchange import Download, Events, Saved, followed, parts

from .calls import Call, Item, Listing
from .drivers import Asynchronous, AsyncPages, Blocking, Pages
from .exchange import Exchange, Flow

P = ParamSpec("P")
T = TypeVar("T")
Described = TypeVar("Described")


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


class Method(Generic[P, Described]):
    """A method that describes what a decorator does; `describe` is the plain function."""

    def __init__(self, describe: Callable[Concatenate[Any, P], Described]) -> None:
        self.describe = describe
        update_wrapper(self, describe)  # type: ignore[arg-type]

    def _on(self, resource: Resource[Any] | None, do: Callable[[Any, Any], Any]) -> Any:
        """The bound method, which passes its description and the driver to `do`; this object on the class itself."""
        if resource is None:
            return self

        @wraps(self.describe)
        def call(*arguments: Any, **named: Any) -> Any:
            return do(resource._driver, self.describe(resource, *arguments, **named))

        return call


class endpoint(Method[P, Call[T]], Generic[P, T]):  # noqa: N801  # a decorator, as those below
    """Sends one call and returns its result."""

    @overload
    def __get__(self, resource: None, owner: type) -> "endpoint[P, T]": ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        return self._on(resource, lambda driver, call: driver.run(driver.exchange.result(call)))


class listing(Method[P, Listing[Item]], Generic[P, Item]):  # noqa: N801
    """Returns the items of a list, to be iterated over."""

    @overload
    def __get__(self, resource: None, owner: type) -> "listing[P, Item]": ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, Pages[Item]]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, AsyncPages[Item]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        return self._on(resource, lambda driver, described: driver.list(described))


class flow(Method[P, Flow[T]], Generic[P, T]):  # noqa: N801
    """Makes several calls and returns their result."""

    @overload
    def __get__(self, resource: None, owner: type) -> "flow[P, T]": ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        return self._on(resource, lambda driver, steps: driver.run(steps))


class events(Method[P, Events[T]], Generic[P, T]):  # noqa: N801
    """Returns server-sent events, to be iterated over as they arrive."""

    @overload
    def __get__(self, resource: None, owner: type) -> "events[P, T]": ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        return self._on(resource, lambda driver, described: driver.emit(followed(driver.exchange, described)))


class download(Method[P, Download], Generic[P]):  # noqa: N801
    """Returns the bytes of a file, to be iterated over as they arrive."""

    @overload
    def __get__(self, resource: None, owner: type) -> "download[P]": ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, Iterator[bytes]]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, AsyncIterator[bytes]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        return self._on(resource, lambda driver, described: driver.emit(parts(driver.exchange, described)))


class saved(Method[P, Saved], Generic[P]):  # noqa: N801
    """Writes a file and returns its bytes."""

    @overload
    def __get__(self, resource: None, owner: type) -> "saved[P]": ...
    @overload
    def __get__(self, resource: Resource[Sync], owner: type) -> Callable[P, int]: ...
    @overload
    def __get__(self, resource: Resource[Async], owner: type) -> Callable[P, Coroutine[Any, Any, int]]: ...
    def __get__(self, resource: Resource[Any] | None, owner: type) -> Any:
        def save(driver: Any, described: Saved) -> Any:
            return driver.save(parts(driver.exchange, Download(described.call)), described.path)

        return self._on(resource, save)
