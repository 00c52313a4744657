"""The documentation."""

from functools import cache

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from dashboards import docs
from dashboards.links import SERVICE
from dashboards.rendering import page

# Readers need no key: the pages are the same at every service.
router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)


@router.get("/docs")
async def index() -> str:
    """Show the list of the pages."""
    return await file("README")


@router.get("/docs/{name}")
async def file(name: str) -> str:
    """Show a page of docs/."""
    return page("docs.html", name=name, shown=_shown(name))


@cache
def _shown(name: str) -> docs.DocsPage:
    return docs.docs_page(name, SERVICE)
