"""Everything that is stored, as files."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from ..calls import Call
from ..resources import Mode, Resource, download, saved
from ..streams import Download, Saved

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
        return Download(_file(what, format, target, device, revision, since, until))

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
        return Saved(_file(what, format, target, device, revision, since, until), Path(path))


def _file(
    what: str,
    form: str,
    target: str | None,
    device: str | None,
    revision: str | None,
    since: datetime | None,
    until: datetime | None,
) -> Call[bytes]:
    params = {"format": form, "target": target, "device": device, "revision": revision, "since": since, "until": until}
    return Call("GET", "/export/{what}", bytes, {"what": what}, params, accept=MEDIA_TYPES.get(form, LINES))
