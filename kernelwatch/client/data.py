"""Measurements made elsewhere, sessions of studies, and everything that is stored, as files."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from kernelwatch.client.calls import Call, Listing, Value, post_lines
from kernelwatch.client.exchange import Download, Saved
from kernelwatch.client.models import (
    BatchItem,
    IngestedSeriesDocument,
    StudyItem,
    StudySessionDocument,
    StudySessionItem,
)
from kernelwatch.client.resources import Endpoint, Mode, Resource, download, endpoint, listing, saved


class Ingested(Resource[Mode]):
    """Measurements made elsewhere, in series of their own."""

    @listing("/targets/{name}/ingested")
    def list(self, target: str) -> Listing[BatchItem]:
        """The batches of a target, the newest first."""

    @Endpoint
    def send(self, target: str, batch: Mapping[str, Any], measurements: Iterable[Mapping[str, Any]]) -> Call[BatchItem]:
        """Send measurements: all are stored, or none if one has a mistake.  The same ones within a day are stored once.

        `batch` has `tool`, `machine` and `device`; a measurement has `revision`, `provider`, `case` and `samples`, in
        the unit of the case: us, bytes or count.  With `unit`, the case is any name, and `better` says which samples
        are: `smaller` or `larger`.  With `missing`, there are no samples.
        """
        lines = chain([{"batch": batch}], measurements)
        return post_lines("/targets/{name}/ingested", BatchItem, lines, name=target)

    @endpoint("GET /targets/{name}/ingested/series")
    def series(
        self, target: str, case: str, *, provider: str, device: str, cursor: str | None = None, limit: int | None = None
    ) -> IngestedSeriesDocument:
        """What was sent of one series, the newest first; `next` is the cursor of the following page."""

    @endpoint("DELETE /ingested/{batch_id}")
    def delete(self, batch_id: int) -> None:
        """Delete a batch with its measurements."""


FileFormat: TypeAlias = Literal["csv", "json", "parquet"]
MEDIA_TYPES: Mapping[str, str] = {"csv": "text/csv", "parquet": "application/vnd.apache.parquet"}
LINES = "application/x-ndjson"


class Exports(Resource[Mode]):
    """Everything of one kind that the key may see: `targets`, `revisions`, `runs`, `measurements`, `samples`, …

    `format` is `csv`, `json` for a JSON object in each line, or `parquet`.  `since` and `until` are times at which the
    thing, or its run, began.
    """

    @download
    def read(
        self,
        what: str,
        *,
        format: FileFormat = "json",
        target: str | None = None,
        device: str | None = None,
        revision: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Download:
        """The bytes of the file, as they arrive."""
        call = _file(what, format, target=target, device=device, revision=revision, since=since, until=until)
        return Download(call)

    @saved
    def save(
        self,
        what: str,
        path: str | Path,
        *,
        format: FileFormat = "json",
        target: str | None = None,
        device: str | None = None,
        revision: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> Saved:
        """Write the file to `path`, which is replaced only once all of it has arrived.  Returns its bytes."""
        call = _file(what, format, target=target, device=device, revision=revision, since=since, until=until)
        return Saved(call, Path(path))


def _file(what: str, form: str, **params: Value) -> Call[bytes]:
    accept = MEDIA_TYPES.get(form, LINES)
    return Call("GET", "/export/{what}", bytes, {"what": what}, {"format": form, **params}, accept=accept)


class Studies(Resource[Mode]):
    """Published results that are measured again."""

    @listing("/studies", paged=False)
    def list(self, *, device: str | None = None) -> Listing[StudyItem]:
        """Studies, how many sessions of each are stored, and how many claims of each source hold."""

    @endpoint("GET /studies/{name}")
    def get(self, name: str, *, device: str | None = None) -> StudyItem:
        """One study, how many sessions of it are stored, and how many claims of its source hold."""

    @listing("/studies/{name}/sessions")
    def sessions(self, name: str, *, device: str | None = None) -> Listing[StudySessionItem]:
        """The stored sessions of a study, those that began last first."""

    @endpoint("GET /studies/sessions/{session_id}")
    def find_session(self, session_id: int) -> StudySessionItem:
        """A session by its number, of whichever study, without its results."""

    @endpoint("GET /studies/{name}/sessions/{session_id}")
    def session(self, name: str, session_id: int) -> StudySessionDocument:
        """One session: what follows for each claim, tables, figures and every record."""

    @endpoint("DELETE /studies/{name}/sessions/{session_id}")
    def remove(self, name: str, session_id: int) -> StudySessionItem:
        """Delete a session with all its records, and return what it was."""
