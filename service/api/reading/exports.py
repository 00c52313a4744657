"""Everything that is stored, as files: CSV, JSON lines or Parquet, made while they are sent.

Rows are read part by part in one thread, which all exports share; all parts of an export see the same state of the
database.  A client that goes away, or reads too slowly, ends its export.
"""

import re
import time
from collections.abc import AsyncIterator, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import StreamingResponse
from sqlalchemy.exc import DBAPIError
from starlette.types import Send

from service.api.access import Credentials, ReadingRoute, permit, reader_with
from service.api.common import DeviceName, RevisionName, Since, TargetName, in_thread_of, seconds
from service.api.gateway.connections import IS_HEAD, STREAMS
from service.db.engine import reading, snapshot
from service.db.visibility import hiding
from service.domain.access import Scope
from service.domain.exports import Exportable, FileFormat
from service.errors import Busy, Late, ServiceError
from service.ledger.reading import exports
from service.ledger.reading.exports import KINDS, ExportFilter
from service.reports.encoders import encoder
from service.reports.schema.base import Instant

log = structlog.get_logger()

LIMIT = 8  # exports at once
MAX_S = 3600.0  # of an export; a slow reader must not keep others out for ever
_THREAD = ThreadPoolExecutor(1, "exports")
_FILES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The file.  It is complete if the response ends without an error.",
        "content": {
            FileFormat.JSON.media_type: {"schema": {"type": "string"}},
            FileFormat.CSV.media_type: {"schema": {"type": "string"}},
            FileFormat.PARQUET.media_type: {"schema": {"type": "string", "format": "binary"}},
        },
    }
}


class ExportsTaken(Busy):
    """As many exports are being sent as may."""

    retry_after_s = 10


class ExportResponse(StreamingResponse):
    """A file that is made while it is sent.  After an error its connection is cut, so nobody takes it for whole."""

    async def stream_response(self, send: Send) -> None:
        try:
            await super().stream_response(send)
        except (ServiceError, DBAPIError) as error:
            log.warning("an export was cut", error=str(error))


@dataclass(frozen=True)
class Export:
    """An export that somebody receives: what they asked for, and as whom."""

    what: Exportable
    which: ExportFilter
    form: FileFormat
    credentials: Credentials = field(repr=False)

    @property
    def file_name(self) -> str:
        words = ("kernelwatch", self.which.target, self.what.value)
        name = "-".join(re.sub(r"[^\w.-]", "_", one, flags=re.ASCII) for one in words if one)
        return f"{name}.{self.form.suffix}"

    def parts(self) -> Generator[bytes]:
        """The bytes of the file.  What the client may see is checked again for each part."""
        kind = KINDS[self.what]
        file = encoder(self.form, kind.document, kind.without)
        place: Any = None
        with snapshot() as session:
            while True:
                with reading() as now:
                    sender, hidden = reader_with(now, self.credentials)
                if kind.for_administrators:
                    permit(sender.actor, Scope.ADMIN)
                with hiding(hidden):
                    part = exports.read_part(session, self.what, self.which, place)
                yield file.rows(part.rows)
                if part.next is None:
                    break
                place = part.next
        yield file.end()


class ExportPlaces:
    """ExportPlaces for the exports of one app."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.taken = 0

    @contextmanager
    def one(self) -> Iterator[None]:
        """Hold a place in the block.  Raises ExportsTaken."""
        if self.taken >= self._limit:
            raise ExportsTaken(
                f"{self._limit} exports are being sent, as many as there may be; try again in "
                f"{ExportsTaken.retry_after_s} s."
            )
        self.taken += 1
        try:
            yield
        finally:
            self.taken -= 1


async def _sent(request: Request, parts: Iterator[bytes], first: bytes) -> AsyncIterator[bytes]:
    """The file; the number of parts that were sent tells the connection that its client still reads."""
    state = request.scope["state"]
    ends_at = time.monotonic() + MAX_S
    part: bytes | None = first
    while part is not None and not state.get(IS_HEAD):
        if part:
            yield part
        state[STREAMS] += 1
        if time.monotonic() > ends_at:
            raise Late(f"It took longer than {MAX_S:g} s.")
        part = await in_thread_of(_THREAD, next, parts, None)


def router() -> APIRouter:
    """The endpoint of an app, with its places."""
    routes = APIRouter(route_class=ReadingRoute, tags=["export"])
    places = ExportPlaces(LIMIT)

    async def response_of(
        request: Request,
        what: Annotated[Exportable, Path(description="What the rows are.")],
        target: TargetName = None,
        device: DeviceName = None,
        revision: RevisionName = None,
        since: Since = None,
        until: Annotated[Instant | None, Query(description="Only what began before this time.")] = None,
        form: Annotated[FileFormat, Query(alias="format", description="json has one object a line.")] = FileFormat.JSON,
    ) -> AsyncIterator[ExportResponse]:
        which = ExportFilter(target, device, revision, seconds(since), seconds(until))
        exports.check_filter(what, which)
        export = Export(what, which, form, Credentials.of(request))
        with places.one():
            parts = export.parts()
            try:
                first = await in_thread_of(_THREAD, next, parts)  # an error is the response, and not half a file
                request.scope.setdefault("state", {})[STREAMS] = 1
                headers = {"Content-Disposition": f'attachment; filename="{export.file_name}"'}
                headers["Cache-Control"] = "no-store"
                if form is FileFormat.PARQUET:
                    headers["Content-Encoding"] = "identity"  # its columns are compressed already
                yield ExportResponse(_sent(request, parts, first), media_type=form.media_type, headers=headers)
            finally:
                _THREAD.submit(parts.close)  # the snapshot of one that was not sent to its end

    @routes.get("/export/{what}", response_class=ExportResponse, responses=_FILES)
    async def export(response: Annotated[ExportResponse, Depends(response_of)]) -> ExportResponse:
        """Export everything of one kind that the key may see, the newest first, as the lists have it."""
        return response

    return routes
