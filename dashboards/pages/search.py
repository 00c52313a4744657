"""The search: what fits the text of the header's field, or at once the only thing that does."""

from itertools import groupby
from typing import Annotated
from urllib.parse import urlencode

from fastapi import Query
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from dashboards.links import SERVICE
from dashboards.rendering import page, page_router
from service.api.access import Reading
from service.db.engine import clock
from service.domain.forges import pull_name
from service.ledger.lookup import MAX_HITS, MAX_QUERY, Hit, HitKind, lookup, parse
from service.ledger.regressions.grouped import MAX_TEXT

router = page_router()

_SEE_OTHER = 303
_HEADINGS = {kind: f"{kind.value[:1].upper()}{kind.value[1:]}s" for kind in HitKind}


@router.get("/search")
def search(session: Reading, q: Annotated[str, Query(max_length=MAX_QUERY)] = "") -> Response:
    """Go to the only thing that fits, or list what does."""
    query = parse(q)
    hits = lookup(session, query)
    if hits.only is not None:
        return RedirectResponse(_address(hits.only), _SEE_OTHER)
    lists = [(kind, list(found)) for kind, found in groupby(hits.found, key=lambda hit: hit.kind)]
    text = page(
        "search.html",
        now=clock(session),
        query=query,
        count=len(hits.found),
        lists=[
            (_HEADINGS[kind], [(hit, _name(hit), _address(hit)) for hit in found], kind in hits.cut)
            for kind, found in lists
        ],
        most=MAX_HITS,
        regressions=f"/regressions?{urlencode({'q': query.text[:MAX_TEXT]})}",
    )
    return HTMLResponse(text)


def _name(hit: Hit) -> str:
    match hit:
        case Hit(kind=HitKind.TARGET, target=target) if target:
            return target.name
        case Hit(kind=HitKind.COMMIT, revision=revision) if revision:
            return revision.short
        case Hit(kind=HitKind.PULL, target=target) if target:
            return f"{target.name}: {pull_name(target.forge_kind, hit.id)}"
        case Hit(kind=HitKind.CASE, series=series) if series:
            return series.printed
        case Hit(kind=HitKind.WORKER, worker=worker) if worker:
            return worker.name
        case _:
            return f"{hit.kind} {hit.id}"


def _address(hit: Hit) -> str:
    match hit:
        case Hit(kind=HitKind.TARGET, target=target) if target:
            return SERVICE.target(target.name)
        case Hit(kind=HitKind.COMMIT, target=target, revision=revision) if target and revision:
            return SERVICE.revision(target.name, revision.ordinal, hit.run_id)
        case Hit(kind=HitKind.PULL, target=target) if target:
            return SERVICE.pull(target.name, hit.id)
        case Hit(kind=HitKind.RUN):
            return SERVICE.run(hit.id)
        case Hit(kind=HitKind.REGRESSION):
            return SERVICE.regression(hit.id)
        case Hit(kind=HitKind.INCIDENT):
            return SERVICE.incident(hit.id)
        case Hit(kind=HitKind.CASE, target=target, series=series) if target and series:
            return SERVICE.trend(target.name, series.device, series.provider, series.printed)
        case Hit(kind=HitKind.WORKER, worker=worker) if worker:
            return SERVICE.worker(worker.name)
        case _:
            return SERVICE.bisection(hit.id)
