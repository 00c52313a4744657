"""Where the pages and files of a static export are, and how they link to each other: always relative."""

import hashlib
import posixpath
import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from urllib.parse import quote

from dashboards import assets
from dashboards.links import SERVICE, ServiceLinks
from dashboards.pages.history.boards import BoardAddress

_SAFE = re.compile(r"[a-z0-9][a-z0-9._-]*")
_UNSAFE = re.compile(r"[^a-z0-9]+")
_HASHED = re.compile(r".*-[0-9a-f]{12}")
_LONGEST = 100  # characters; systems allow 255 bytes, of which a suffix needs some
# Windows has no files of these names, whatever follows a full stop.
_RESERVED = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?")


def file_name(text: str) -> str:
    """The text itself where it is a name on every system, else what is readable of it and a hash of all.

    Capital letters are hashed too: some systems do not tell `Norms` from `norms`.  So is what looks as if it had a
    hash, and so no other text has the name of a hashed one.
    """
    plain = _SAFE.fullmatch(text) and not (text.endswith((".", "-")) or _HASHED.fullmatch(text))
    if plain and not _RESERVED.fullmatch(text) and len(text) <= _LONGEST:
        return text
    readable = _UNSAFE.sub("-", text.lower()).strip("-")[:40].strip("-")
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:12]
    return f"{readable or 'name'}-{digest}"


HOME = "index.html"


def board_path(target: str, device: str) -> str:
    """The page of a board with all dtypes, against SOTA."""
    return f"{_folder(target, device)}/index.html"


def part_path(target: str, device: str, dtype: str, against: str) -> str:
    """The page of a board with some dtypes, or against another provider."""
    part = f"dtypes/{file_name(dtype)}" if dtype else "against"
    return f"{_folder(target, device)}/{part}/{file_name(against)}.html"


def trend_path(target: str, device: str, provider: str, case: str) -> str:
    return f"{_folder(target, device)}/trends/{file_name(provider)}/{file_name(case)}.html"


def releases_path(target: str, device: str) -> str:
    """The list of releases."""
    return f"{_folder(target, device)}/releases.html"


def release_path(target: str, device: str, version: str) -> str:
    """A release against the one before."""
    return f"{_folder(target, device)}/releases/{file_name(version)}.html"


def history_path(target: str, device: str) -> str:
    """The data of the trends of a board."""
    return f"data/histories/{file_name(target)}/{file_name(device)}.json"


def docs_path(name: str) -> str:
    return f"docs/{name}.html"


def asset_path(name: str) -> str:
    """A file of the dashboard; its name has its hash, so that browsers may keep it."""
    stem, dot, suffix = name.rpartition(".")
    return f"assets/{stem}-{assets.asset(name).digest[:8]}{dot}{suffix}"


def _folder(target: str, device: str) -> str:
    return f"targets/{file_name(target)}/{file_name(device)}"


class SiteLinks(ServiceLinks):
    """The links of one page.  What has no page of its own is linked at the service, if that has an address."""

    live = False
    home_word = "Boards"

    def __init__(self, here: str, pages: Collection[str], service: str = "") -> None:
        self._here, self._pages, self._service = here, pages, service.rstrip("/")

    def to(self, path: str) -> str:
        """The address of a file of the site."""
        return quote(posixpath.relpath(path, posixpath.dirname(self._here) or "."))

    def asset(self, name: str) -> str:
        return self.to(asset_path(name))

    def home(self) -> str:
        return self.to(HOME)

    def target(self, name: str) -> str:
        return self._at_service(SERVICE.target(name))

    def run(self, run_id: int) -> str:
        return self._at_service(SERVICE.run(run_id))

    def regression(self, regression_id: int) -> str:
        return self._at_service(SERVICE.regression(regression_id))

    def pull(self, target: str, number: int) -> str:
        return self._at_service(SERVICE.pull(target, number))

    def docs(self, name: str) -> str:
        return self.page(docs_path(name)) or self._at_service(SERVICE.docs(name))

    def board(self, target: str, device: str) -> str:
        return self.page(board_path(target, device))

    def trend(self, target: str, device: str, provider: str, case: str) -> str:
        return self.page(trend_path(target, device, provider, case))

    def page(self, path: str) -> str:
        """The address of a page, if the site has it."""
        return self.to(path) if path in self._pages else ""

    def _at_service(self, address: str) -> str:
        return f"{self._service}{address}" if self._service else ""


@dataclass(frozen=True, kw_only=True)
class SiteBoardAddress(BoardAddress):
    """A board of the site: all of its addresses are pages that were written, or empty."""

    links: SiteLinks
    sota: str

    def to(self, page: str = "board", **changed: str) -> str:
        """The page with these dtypes, against this provider; another device has its first page."""
        device = changed.pop("device", self.device)
        if device != self.device:
            return self.links.board(self.target, device)
        dtype, against = changed.pop("dtype", self.dtype), changed.pop("against", self.against)
        if page != "board" or any(changed.values()):
            return ""
        return self.links.page(replace(self, dtype=dtype, against=against).path)

    @property
    def path(self) -> str:
        if not self.dtype and self.against in ("", self.sota):
            return board_path(self.target, self.device)
        return part_path(self.target, self.device, self.dtype, self.against or self.sota)
