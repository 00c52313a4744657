"""Measurements made elsewhere."""

from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

from ..calls import Call, Listing, get, get_list, post_lines, remove
from ..models import BatchItem, IngestedSeriesDocument
from ..resources import Mode, Resource, endpoint, listing


class Ingested(Resource[Mode]):
    """Measurements made elsewhere, in series of their own."""

    @listing
    def list(self, target: str) -> Listing[BatchItem]:
        """The batches of a target, the newest first."""
        return get_list("/targets/{name}/ingested", BatchItem, name=target)

    @endpoint
    def send(self, target: str, batch: Mapping[str, Any], measurements: Iterable[Mapping[str, Any]]) -> Call[BatchItem]:
        """Send measurements: all are stored, or none if one has a mistake.  The same ones within a day are stored once.

        `batch` has `tool`, `machine` and `device`; a measurement has `revision`, `provider`, `case` and `samples`, in
        the unit of the case: us, bytes or count.
        """
        lines = chain([{"batch": batch}], measurements)
        return post_lines("/targets/{name}/ingested", BatchItem, lines, name=target)

    @endpoint
    def series(
        self, target: str, case: str, *, provider: str, device: str, cursor: str | None = None, limit: int | None = None
    ) -> Call[IngestedSeriesDocument]:
        """What was sent of one series, the newest first; `next` is the cursor of the following page."""
        params = {"case": case, "provider": provider, "device": device, "cursor": cursor, "limit": limit}
        return get("/targets/{name}/ingested/series", IngestedSeriesDocument, params, name=target)

    @endpoint
    def delete(self, batch_id: int) -> Call[None]:
        """Delete a batch with its measurements."""
        return remove("/ingested/{batch_id}", batch_id=batch_id)
