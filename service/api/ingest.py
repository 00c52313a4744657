"""Measurements made elsewhere: sent in bulk, listed, deleted."""

from typing import Annotated, Any

from fastapi import Query, Request, Response

from kernelwatch.documents.base import Page
from kernelwatch.documents.targets import BatchItem, IngestedSeriesDocument
from service.api.access import Acting, Reading, Upload, api_router, needs, permit
from service.api.common import Cursor, Key, Limit, problems
from service.api.objects import AnyName
from service.db.engine import reading
from service.db.models import Target
from service.domain.access import Scope
from service.domain.ingest import LINE_MODELS, MAX_LINE, MAX_SAMPLES
from service.errors import UnsupportedMedia
from service.ledger.ingest import batches
from service.ledger.targets import target_named
from service.reports.schema.targets import batch_item, ingested_series_document

MAX_UPLOAD = 128 << 20  # bytes
LINES = "application/x-ndjson"
_EXAMPLE = (
    '{"batch": {"tool": "triton.testing 3.6", "machine": "ci-runner-7", "device": "h200"}}\n'
    '{"revision": "1f3a9c2", "provider": "norms", "case": "rmsnorm.fwd.4096x1024.bf16-fp32", "samples": [7.31, 7.29]}\n'
    '{"revision": "1f3a9c2", "provider": "quack", "case": "forward", "unit": "GB/s", "better": "larger", '
    '"samples": [3912.5]}\n'
    '{"revision": "1f3a9c2", "provider": "quack", "case": "backward", "unit": "GB/s", "missing": "oom"}\n'
)
_BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "description": (
            'JSON lines, plain or as `Content-Encoding: gzip`. The first is `{"batch": …}` with the provenance; each '
            f"other one is a measurement with 1 to {MAX_SAMPLES} samples, in the unit of its case or `unit`, or with "
            f"`missing`. A line has at most {MAX_LINE} bytes."
        ),
        "content": {
            LINES: {
                "schema": {
                    "type": "string",
                    "contentMediaType": "application/json",
                    "contentSchema": {
                        "anyOf": [{"$ref": f"#/components/schemas/{one.__name__}"} for one in LINE_MODELS]
                    },
                },
                "example": _EXAMPLE,
            }
        },
    }
}

router = api_router("ingest")


@router.post(
    "/targets/{name}/ingested",
    response_model=BatchItem,
    status_code=201,
    openapi_extra=_BODY,
    responses=problems({415: "The body is not declared as JSON lines, or is encoded in another way than gzip."}),
    max_body_size=MAX_UPLOAD,
)
@needs(Scope.INGEST)
def ingest(name: AnyName, request: Request, body: Upload, actor: Acting) -> BatchItem:
    """Store measurements that were made elsewhere: all of them, or none if a line has a mistake.

    They form series of their own, which nothing that kernelwatch measures or decides takes into account.  Send an
    Idempotency-Key, so that the request can be repeated after a lost response.
    """
    target = _permitted(name, actor)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != LINES:
        raise UnsupportedMedia(f"Send JSON lines as Content-Type {LINES}, not {kind or 'nothing'}.")
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise UnsupportedMedia(f"Content-Encoding may be gzip or identity, not {encoding}.")
    return batch_item(batches.receive(target, body, compressed=encoding == "gzip"), name)


def _permitted(name: str, actor: Acting) -> Target:
    with reading() as session:
        target = target_named(session, name)
    permit(actor, Scope.INGEST, target)
    return target


@router.get("/targets/{name}/ingested", response_model=Page[BatchItem])
def list_batches(name: AnyName, session: Reading, cursor: Cursor = None, limit: Limit = 50) -> Page[BatchItem]:
    """List batches of measurements made elsewhere, the newest first."""
    page = batches.listed(session, target_named(session, name), cursor, limit)
    return Page(items=[batch_item(row, name) for row in page.items], next=page.next)


@router.get("/targets/{name}/ingested/series", response_model=IngestedSeriesDocument)
def get_ingested_series(
    name: AnyName,
    session: Reading,
    case: Annotated[str, Query(max_length=120, description="As it was sent.")],
    provider: Annotated[str, Query(max_length=80, description="As it was sent.")],
    device: Annotated[str, Query(max_length=40, description="As it was sent.")],
    cursor: Cursor = None,
    limit: Limit = 50,
) -> IngestedSeriesDocument:
    """Get what was sent of one series, the newest first."""
    key = {"device": device, "provider": provider, "case": case}
    page = batches.series(session, target_named(session, name), cursor=cursor, limit=limit, **key)
    return ingested_series_document(page.items, page.next, target=name, **key)


@router.delete("/ingested/{batch_id}", status_code=204, response_class=Response)
@needs(Scope.INGEST)
def delete_batch(batch_id: Key, actor: Acting) -> Response:
    """Delete a batch of measurements made elsewhere."""
    with reading() as session:
        target = session.get_one(Target, batches.one(session, batch_id).target_id)
    permit(actor, Scope.INGEST, target)
    batches.remove(batch_id)
    return Response(status_code=204)
