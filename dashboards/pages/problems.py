"""The kinds of errors of the API: each has a page at the address that `type` of an error names."""

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards.rendering import page
from service.api.gateway.problems import PROBLEMS
from service.errors import NotFound

# Readers need no key: the page explains why they have none.
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/problems/{name}")
async def kind(name: str) -> str:
    """Explain a kind of error."""
    if name not in PROBLEMS:
        raise NotFound("kind of error", name)
    return page("problem.html", kind=PROBLEMS[name])
