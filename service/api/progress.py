"""Progress of runs as server-sent events.

The database is read once a second for all who follow a run, in one thread, and no transaction is open in between.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse
from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from kernelwatch.documents.runs import ProgressItem
from service.api.access import Credentials, ReadingRoute, do_afterwards, reader_with
from service.api.common import Key, in_thread_of
from service.api.gateway.connections import IS_HEAD, STREAMS
from service.db.engine import reading
from service.db.models import Run
from service.db.visibility import hiding
from service.domain.states import OPEN_STATES
from service.errors import Busy, NotFound, ServiceError
from service.ledger.runs import queue
from service.reports.schema.runs import progress_item
from service.settings import settings

log = structlog.get_logger()

POLL_S = 1.0
HEARTBEAT_S = 10.0  # proxies close connections on which nothing is sent for a minute
RECHECK_S = 10.0  # a key may be revoked, and a target become private, while somebody follows
MAX_S = 1800.0  # a client that is still there connects again; of one that hangs nothing stays
_THREAD = ThreadPoolExecutor(1, "progress")


@dataclass(eq=False)
class Follower:
    """Somebody who follows a run: what they may see, and the newest progress of it."""

    run_id: int
    credentials: Credentials
    hidden: tuple[int, ...] = ()
    checked_at: float = 0.0
    found: ProgressItem | ServiceError | None = None
    news: asyncio.Event = field(default_factory=asyncio.Event)

    def publish(self, found: ProgressItem | ServiceError) -> None:
        if self.found is None or _without_time(found) != _without_time(self.found):
            self.news.set()
        self.found = found

    async def next(self, within_s: float) -> ProgressItem | ServiceError | None:
        """What is known, at the latest after `within_s`, and before that as soon as it changes."""
        try:
            async with asyncio.timeout(within_s):
                await self.news.wait()
        except TimeoutError:
            pass
        self.news.clear()
        return self.found


class Followers:
    """The followers of one app, and the task that reads for them while there are any."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.followers: list[Follower] = []
        self.task: asyncio.Task[None] | None = None
        self._afterwards: asyncio.Task[None] | None = None

    @contextmanager
    def place(self, follower: Follower) -> Iterator[None]:
        """Read for this follower in the block.  Raises StreamsTaken when there is no place."""
        if len(self.followers) >= self._limit:
            raise StreamsTaken(
                f"{self._limit} streams of progress are open, as many as KERNELWATCH_STREAMS_LIMIT allows; "
                f"try again in {StreamsTaken.retry_after_s} s, or read the run itself."
            )
        self.followers.append(follower)
        if self.task is None:
            self.task = asyncio.create_task(self._read_until_alone())
        try:
            yield
        finally:
            self.followers.remove(follower)

    async def _read_until_alone(self) -> None:
        try:
            while self.followers:
                await asyncio.sleep(POLL_S)
                await self._read()
        finally:
            self.task = None

    async def _read(self) -> None:
        followers = list(self.followers)
        try:
            found = await in_thread_of(_THREAD, progress_of, followers)
        except SQLAlchemyError as error:  # the database may be back at the next time
            log.warning("the progress of runs could not be read", error=str(error))
        except Exception:
            log.exception("the progress of runs could not be read")
        else:
            for one, what in zip(followers, found, strict=True):
                one.publish(what)
            self._do_afterwards(followers)

    def _do_afterwards(self, followers: Iterable[Follower]) -> None:
        """Do now what other requests do after their response: a stream may last for half an hour."""
        if self._afterwards is None or self._afterwards.done():
            tasks = list[Callable[[], None]]()
            for one in followers:
                tasks += one.credentials.afterwards.values()
                one.credentials.afterwards.clear()
            self._afterwards = asyncio.create_task(do_afterwards(tasks)) if tasks else None


class StreamsTaken(Busy):
    """As many clients follow runs as may."""

    retry_after_s = 10


def _without_time(found: ProgressItem | ServiceError) -> ProgressItem | ServiceError:
    """The expected end comes nearer every second, which is no news."""
    return found if isinstance(found, ServiceError) else found.model_copy(update={"eta_s": None})


def progress_of(followers: Sequence[Follower]) -> list[ProgressItem | ServiceError]:
    """How far the run of each is, or why they may not know."""
    refused = dict[Follower, ServiceError]()
    found = dict[Follower, ProgressItem]()
    with reading() as session:
        by_view = defaultdict[tuple[int, ...], list[Follower]](list)
        for one in followers:
            try:
                _check_again(session, one)
                by_view[one.hidden].append(one)
            except ServiceError as error:
                refused[one] = error
        for hidden, together in by_view.items():
            with hiding(hidden):
                items = _items(session, {one.run_id for one in together})
            found |= {one: items[one.run_id] for one in together if one.run_id in items}
    return [found.get(one) or refused.get(one) or NotFound("run", one.run_id) for one in followers]


def _check_again(session: Session, follower: Follower) -> None:
    now = time.monotonic()
    if now - follower.checked_at >= RECHECK_S:
        follower.hidden = tuple(reader_with(session, follower.credentials)[1])
        follower.checked_at = now


def _items(session: Session, run_ids: Iterable[int]) -> dict[int, ProgressItem]:
    places = queue.places(session)
    runs = session.scalars(select(Run).where(Run.id.in_(list(run_ids))).execution_options(populate_existing=True))
    return {run.id: _item(run, places.get(run.id, queue.NO_PLACE)) for run in runs}


def _item(run: Run, place: queue.QueuePlace) -> ProgressItem:
    eta_s = None if place.eta_s is None else round(place.eta_s)
    return progress_item(run, place.position, eta_s)


async def _until_ended(follower: Follower) -> AsyncIterator[ProgressItem]:
    ends_at = time.monotonic() + MAX_S
    while time.monotonic() < ends_at:
        found = await follower.next(HEARTBEAT_S)
        if isinstance(found, ServiceError):  # they may not see it any more, which the next request tells them
            return
        if found is not None:
            yield found
            if found.state not in OPEN_STATES:
                return


def router() -> APIRouter:
    """The endpoint of an app, with its followers."""
    routes = APIRouter(route_class=ReadingRoute, tags=["runs"])
    followers = Followers(settings().streams_limit)

    async def follower_of(request: Request, run_id: Key) -> AsyncIterator[Follower]:
        follower = Follower(run_id, Credentials.of(request))
        with followers.place(follower):
            [first] = await in_thread_of(_THREAD, progress_of, [follower])
            if isinstance(first, ServiceError):
                raise first
            follower.publish(first)
            request.scope.setdefault("state", {})[STREAMS] = True
            yield follower

    @routes.get("/runs/{run_id}/events", response_class=EventSourceResponse)
    async def follow_run(
        request: Request, follower: Annotated[Follower, Depends(follower_of)]
    ) -> AsyncIterator[ProgressItem]:
        """Follow the progress of a run as server-sent events: at once, after each change, and every 10 s.

        The stream ends after the event in which the run has ended.  If it ends before, connect again.
        """
        if not request.scope["state"].get(IS_HEAD):
            async for found in _until_ended(follower):
                yield found

    return routes
