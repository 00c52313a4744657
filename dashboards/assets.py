"""Serve static files from memory under URLs that contain their hash, so that browsers cache them forever."""

import gzip
import hashlib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from fastapi import APIRouter, Request, Response
from fastapi.responses import FileResponse

from dashboards import docs
from service.errors import NotFound

router = APIRouter(include_in_schema=False)
_STATIC = Path(__file__).parent / "static"
_TYPES = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_KEPT = "public, max-age=31536000, immutable"
_KEPT_A_DAY = "public, max-age=86400"


@dataclass(frozen=True)
class Asset:
    body: bytes
    digest: str
    media_type: str

    @cached_property
    def packed(self) -> bytes:
        """Compressed when it is fetched: pages need the address of Plotly's megabyte, and few readers the file."""
        return gzip.compress(self.body, 6, mtime=0)


def _files() -> dict[str, Path]:
    found = (path for folder in (_STATIC, _STATIC / "vendor") for path in folder.iterdir())
    return {path.name: path for path in found if path.suffix in _TYPES}


@cache
def asset(name: str) -> Asset:
    """Read a file once."""
    path = _files().get(name)
    if path is None:
        raise NotFound("file", name)
    body = path.read_bytes()
    return Asset(body, hashlib.sha256(body).hexdigest()[:16], _TYPES[path.suffix])


def address(name: str) -> str:
    """Return the URL of a file."""
    return f"/assets/{asset(name).digest}/{name}"


@router.get("/assets/{digest}/{name}")
def get_asset(request: Request, digest: str, name: str) -> Response:
    """Return a file with exactly this hash."""
    found = asset(name)
    if digest != found.digest:
        raise NotFound("file", name, "It has changed; load the page again.")
    headers = {"Cache-Control": _KEPT, "Vary": "Accept-Encoding"}
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(found.packed, media_type=found.media_type, headers=headers | {"Content-Encoding": "gzip"})
    return Response(found.body, media_type=found.media_type, headers=headers)


@router.get("/docs/pictures/{name}")
def picture(name: str) -> FileResponse:
    """Return a picture of the documentation."""
    path = docs.pictures().get(name)
    if path is None:
        raise NotFound("picture", name)
    return FileResponse(path, headers={"Cache-Control": _KEPT_A_DAY})


@router.get("/favicon.ico")
def favicon() -> Response:
    """Return the icon at the address that browsers request by default."""
    found = asset("icon.svg")
    return Response(found.body, media_type=found.media_type, headers={"Cache-Control": _KEPT_A_DAY})
