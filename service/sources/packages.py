"""The releases of a package as a source: a folder of wheels, or an index in the simple format (HTML or JSON)."""

import hashlib
import json
import lzma
import os
import re
import shutil
import stat
import sys
import time
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit, urlunsplit

import httpx
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidName, InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from service.errors import BadInput, NotFound, ServiceError, SourceFailed
from service.settings import GIB, MIB
from service.sources.source import ANY, Exported, Found, TreeWriter, check_url, folder_of, place, site_of, some

RELEASES = "releases"
PRERELEASES = "prereleases"  # ask for this branch to see those as well
LARGEST_PAGE = 64 * MIB
LARGEST_WHEEL = 4 * GIB
LARGEST_READ = 4 * MIB
FETCH_LIMIT_S = 900
_ACCEPT = "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.6, text/html;q=0.5"
_PLAIN = re.compile(r"[\w.+!-]+", re.ASCII)  # a build tag might hold slashes
_UNREADABLE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Wheel:
    """One file of a release, as the folder or the index lists it."""

    filename: str
    version: str
    location: str  # its path or URL
    sha256: str | None
    requires_python: str | None
    yanked: str | None  # the reason; None when it is not
    uploaded: float

    @cached_property
    def tags(self) -> frozenset[Tag]:
        return parse_wheel_filename(self.filename)[3]


def releases_of(name: str, location: str, package: str) -> Path:
    """The path of the cached releases of a target's package."""
    return place(name, f"{location} {canonicalize_name(package)}")


class PackageSource:
    """The releases of one package, in the order of their versions.  A revision's sha is its version."""

    def __init__(self, name: str, location: str, package: str, keep_going: Callable[[], object] = lambda: None) -> None:
        self.name, self.location, self._keep_going = name, location, keep_going
        try:
            self.package = canonicalize_name(package, validate=True)
        except InvalidName:
            raise BadInput(f"{package!r} is not the name of a package.") from None
        self._folder = folder_of(location)
        if self._folder is None:
            check_url(location)
        self._kept = releases_of(name, location, self.package)
        self._wheels: dict[Version, list[Wheel]] | None = None

    def refresh(self) -> None:
        """Read the folder, or the index's page of the package."""
        wheels = _in_folder(self._folder, self.package) if self._folder else self._on_index()
        if not wheels:
            raise NotFound("wheel", f"of {self.package} in {self.location}")
        self._wheels = _by_version(wheels)
        self._kept.mkdir(parents=True, exist_ok=True)
        fresh = self._kept / f"index-{os.getpid()}.tmp"
        fresh.write_text(json.dumps([asdict(wheel) for wheel in wheels]))
        fresh.rename(self._kept / "index.json")

    def is_kept(self) -> bool:
        return self._kept.exists()

    def default_branch(self) -> str:
        return RELEASES

    def resolve(self, rev: str) -> str:
        """A release by its version; `latest` (or a branch's name) is the newest one."""
        rev = rev.strip()
        if rev in ("latest", "HEAD", RELEASES, PRERELEASES):
            return str(self._line(pre=rev == PRERELEASES)[-1])
        version = _version(rev)
        if version not in self._known():
            self.refresh()
        wheels = self._known().get(version)
        if wheels is None:
            newest = [str(known) for known in reversed(self._line(pre=True))]
            raise NotFound("release", f"{rev} of {self.package}", f"Newest with a wheel: {some(newest)}.")
        if all(wheel.yanked is not None for wheel in wheels):
            reason = wheels[0].yanked or "no reason given"
            raise BadInput(f"Release {version} of {self.package} was yanked ({reason}); it is not measured.")
        return wheels[0].version  # as it is written there: 0.10 and 0.10.0 are the same release

    def fetch_pulls(self, numbers: Collection[int], limit_s: float) -> Mapping[int, str | ServiceError]:  # noqa: ARG002
        return {number: BadInput(f"{self.package} is a package, which has no pull requests.") for number in numbers}

    def has(self, sha: str) -> bool:
        return _version(sha) in self._known()

    def is_on_branch(self, sha: str) -> bool:  # noqa: ARG002
        """Always: whoever may publish a release is not a stranger."""
        return True

    def describe(self, sha: str) -> Found:
        version = _version(sha)
        if version not in self._known():
            self.resolve(sha)
        before = [other for other in self._line(pre=version.is_prerelease) if other < version]
        uploaded = min(wheel.uploaded for wheel in self._known()[version])
        subject = f"{self.package} {version}"
        return Found(str(version), str(before[-1]) if before else None, subject, "", uploaded, (self.package,))

    def mainline(self, branch: str | None, limit: int) -> list[Found]:
        if branch not in (None, RELEASES, PRERELEASES):
            raise NotFound("branch", f"{branch} of {self.package}", f"A package has {RELEASES} and {PRERELEASES}.")
        return [self.describe(str(version)) for version in self._line(pre=branch == PRERELEASES)[-limit:]]

    def between(self, base: str, head: str) -> list[Found]:
        low, high = _version(self.resolve(base)), _version(self.resolve(head))
        line = self._line(pre=high.is_prerelease)
        return [self.describe(str(version)) for version in line if low < version <= high]

    def merge_base(self, a: str, b: str) -> str:
        return str(min(_version(self.resolve(a)), _version(self.resolve(b))))

    def last_release(self, sha: str, pattern: str = ANY) -> str | None:  # noqa: ARG002  packages have versions
        before = [version for version in self._line(pre=False) if version < _version(sha)]
        return str(before[-1]) if before else None

    def read(self, sha: str, path: str) -> bytes | None:
        with self._opened(self._fitting(_version(self.resolve(sha)), None)) as wheel:
            try:
                entry = wheel.getinfo(path)
            except KeyError:
                return None
            if entry.file_size > LARGEST_READ:
                raise BadInput(f"{path} in {sha} is {entry.file_size / 1e6:.0f} MB; that is too much to read.")
            return wheel.read(entry)

    def changed_lines(self, base: str, head: str, path: str) -> Sequence[tuple[int, int]]:  # noqa: ARG002
        return ()  # releases are not compared line by line

    def identity(self, sha: str) -> str:
        wheels = sorted(self._known()[_version(self.resolve(sha))], key=lambda wheel: wheel.filename)
        return hashlib.sha256(json.dumps([(w.filename, w.sha256, w.uploaded) for w in wheels]).encode()).hexdigest()

    def export(self, sha: str, folder: Path, python: tuple[int, int] | None = None) -> Exported:
        """Unpack the release's wheel for `python` (by default this interpreter's version) on this platform."""
        chosen = self._fitting(_version(self.resolve(sha)), python)
        writer = TreeWriter(folder, chosen.filename)
        with self._opened(chosen) as wheel:
            for entry in wheel.infolist():
                _unpack(wheel, entry, writer)
        return writer.finish()

    def _known(self) -> dict[Version, list[Wheel]]:
        index = self._kept / "index.json"
        if self._wheels is None and self._folder is None and index.exists():
            self._wheels = _by_version([Wheel(**entry) for entry in json.loads(index.read_text())])
        if self._wheels is None:
            self.refresh()
        return self._wheels or {}

    def _line(self, *, pre: bool) -> list[Version]:
        """The versions that count, oldest first.  Where every release is a pre-release they all do."""
        there = [version for version, wheels in self._known().items() if any(w.yanked is None for w in wheels)]
        final = [version for version in there if not version.is_prerelease]
        line = sorted(there if pre or not final else final)
        if not line:
            raise NotFound("release", f"of {self.package} in {self.location}", "Every one was yanked.")
        return line

    def _fitting(self, version: Version, python: tuple[int, int] | None) -> Wheel:
        """The wheel that pip would take.  Raises BadInput that says what the release has instead."""
        python = python or sys.version_info[:2]
        order = {tag: place for place, tag in enumerate([*cpython_tags(python), *compatible_tags(python)])}
        wheels = [wheel for wheel in self._known()[version] if wheel.yanked is None]
        full = ".".join(map(str, (*python, 0)))
        able = [wheel for wheel in wheels if _allows(wheel.requires_python, full)]
        best = min(able, key=lambda wheel: min(order.get(tag, len(order)) for tag in wheel.tags), default=None)
        if best is None or not any(tag in order for tag in best.tags):
            has = some([wheel.filename for wheel in wheels])
            platform = f"Python {python[0]}.{python[1]} on {sys.platform} {os.uname().machine}"
            raise BadInput(f"Release {version} of {self.package} has no wheel for {platform}; it has {has}.")
        return best

    @contextmanager
    def _opened(self, wheel: Wheel) -> Iterator[zipfile.ZipFile]:
        try:
            with zipfile.ZipFile(self._at_hand(wheel)) as opened:
                yield opened
        except (*_UNREADABLE, OSError) as error:
            why = str(error) or "it is truncated"
            raise SourceFailed(f"{wheel.filename} cannot be unpacked: {why}.", passing=False) from None

    def _at_hand(self, wheel: Wheel) -> Path:
        """The file itself, downloaded once and checked against the index's hash."""
        if self._folder:
            return Path(wheel.location)
        kept = self._kept / "wheels" / f"{(wheel.sha256 or 'unchecked')[:16]}-{wheel.filename}"
        if kept.exists():
            return kept
        kept.parent.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(kept.parent).free < GIB // 4:
            raise SourceFailed(f"The disk under {kept.parent} is full; {wheel.filename} was not downloaded.")
        fresh = kept.with_suffix(f".{os.getpid()}.tmp")
        try:
            _download(wheel, fresh, self._keep_going)
            fresh.rename(kept)
        finally:
            fresh.unlink(missing_ok=True)
        return kept

    def _on_index(self) -> list[Wheel]:
        page = urljoin(self.location.rstrip("/") + "/", f"{self.package}/")
        with _get(page) as answer:
            if answer.status_code == 404:
                raise NotFound("package", f"{self.package} in {self.location}")
            final, kind = str(answer.extensions["asked"]), answer.headers.get("content-type", "")
            text = b"".join(_bounded(answer, LARGEST_PAGE, page)).decode(errors="replace")
        try:
            files = _from_json(text) if "json" in kind else _from_html(text)
            listed = [_wheel(final, entry, self.package) for entry in files]
        except (ValueError, TypeError, KeyError, AttributeError):
            raise SourceFailed(f"{page} does not answer like a package index.", passing=False) from None
        seen = self._seen()
        now = time.time()
        wheels = (wheel for wheel in listed if wheel)
        return [wheel if wheel.uploaded else _dated(wheel, seen.get(wheel.filename, now)) for wheel in wheels]

    def _seen(self) -> dict[str, float]:
        """When each file was first seen, for indexes without upload times."""
        with suppress(OSError, ValueError):
            kept = json.loads((self._kept / "index.json").read_text())
            return {entry["filename"]: entry["uploaded"] for entry in kept}
        return {}


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        raise BadInput(f"{text[:80]!r} is not a version; write one such as 0.6.2, or latest.") from None


def _by_version(wheels: list[Wheel]) -> dict[Version, list[Wheel]]:
    versions: dict[Version, list[Wheel]] = {}
    for wheel in wheels:
        versions.setdefault(Version(wheel.version), []).append(wheel)
    return versions


def _allows(requires: str | None, python: str) -> bool:
    try:
        return not requires or SpecifierSet(requires).contains(python, prereleases=True)
    except InvalidSpecifier:
        return True


def _in_folder(folder: Path, package: str) -> list[Wheel]:
    wheels = []
    for path in sorted(folder.glob("*.whl")):
        if not path.is_file() or path.is_symlink() or (version := _is_of(path.name, package)) is None:
            continue
        about = path.stat()
        digest = f"{about.st_size}-{about.st_mtime_ns}"
        wheels.append(Wheel(path.name, version, str(path), digest, _required(path), None, about.st_mtime))
    return wheels


def _required(path: Path) -> str | None:
    """The `Requires-Python` of a wheel's metadata."""
    with suppress(*_UNREADABLE, OSError, KeyError, StopIteration), zipfile.ZipFile(path) as wheel:
        name = next(name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        with wheel.open(name) as metadata:
            head = metadata.read(MIB).decode(errors="replace")
        if match := re.search(r"^Requires-Python:\s*(.+)$", head.partition("\n\n")[0], re.MULTILINE):
            return match[1].strip()
    return None


def _is_of(filename: str, package: str) -> str | None:
    """The version of a wheel of this package; None for every other file, and for a name that leads elsewhere."""
    if not _PLAIN.fullmatch(filename):
        return None
    try:
        name, version, _, _ = parse_wheel_filename(filename)
    except (InvalidWheelFilename, InvalidVersion):
        return None
    return str(version) if name == package else None


def _from_json(text: str) -> list[dict[str, object]]:
    files = json.loads(text)["files"]
    return [
        {
            "filename": entry["filename"],
            "url": entry["url"],
            "sha256": entry.get("hashes", {}).get("sha256"),
            "requires": entry.get("requires-python"),
            "yanked": entry.get("yanked", False),
            "uploaded": entry.get("upload-time"),
        }
        for entry in files
    ]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[dict[str, object]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        table = dict(attributes)
        if tag != "a" or not (href := table.get("href")):
            return
        parts = urlsplit(href)
        digest = re.search(r"sha256=([0-9a-f]{64})", parts.fragment)
        self.found.append(
            {
                "filename": unquote(parts.path.rpartition("/")[2]),
                "url": urlunsplit(parts._replace(fragment="")),
                "sha256": digest[1] if digest else None,
                "requires": table.get("data-requires-python"),
                "yanked": (table["data-yanked"] or True) if "data-yanked" in table else False,
                "uploaded": None,
            }
        )


def _from_html(text: str) -> list[dict[str, object]]:
    links = _Links()
    links.feed(text)
    return links.found


def _wheel(page: str, entry: dict[str, object], package: str) -> Wheel | None:
    filename = str(entry["filename"])
    version = _is_of(filename, package)
    if version is None:
        return None
    yanked, uploaded = entry["yanked"], entry["uploaded"]
    return Wheel(
        filename,
        version,
        urljoin(page, str(entry["url"])),
        str(entry["sha256"]) if entry["sha256"] else None,
        str(entry["requires"]) if entry["requires"] else None,
        None if yanked is False else ("" if yanked is True else str(yanked)),
        datetime.fromisoformat(uploaded).timestamp() if isinstance(uploaded, str) else 0.0,
    )


def _dated(wheel: Wheel, seen: float) -> Wheel:
    return Wheel(**{**asdict(wheel), "uploaded": seen})


def _unpack(wheel: zipfile.ZipFile, entry: zipfile.ZipInfo, writer: TreeWriter) -> None:
    """Write one member: the root and the importable part of `.data`; never a link or a device."""
    path, kind = entry.filename, stat.S_IFMT(entry.external_attr >> 16)
    if entry.is_dir():
        return
    if kind not in (0, stat.S_IFREG):
        writer.leave_out(f"{path} in the wheel is no plain file and was left out.")
        return
    data = re.fullmatch(r"[^/]+\.data/(\w+)/(.+)", path)
    if data and data[1] not in ("purelib", "platlib"):
        return
    writer.announce(entry.file_size)
    with wheel.open(entry) as content:
        executable = bool(entry.external_attr >> 16 & 0o111)
        writer.file(data[2] if data else path, iter(lambda: content.read(MIB), b""), executable=executable)


@contextmanager
def _get(url: str) -> Iterator[httpx.Response]:
    """An answer from an allowed host.  Redirects are followed by hand, so that each address is checked."""
    deadline = time.monotonic() + FETCH_LIMIT_S
    with httpx.Client(timeout=httpx.Timeout(30, connect=10), trust_env=True) as client:
        for _ in range(5):
            site = site_of(url)
            host = site.host if site.port in (80, 443) else f"{site.host}:{site.port}"
            # Connect to the address that was checked; the certificate is still the host's.
            pinned = httpx.URL(url).copy_with(host=site.address) if site.address else httpx.URL(url)
            extensions = {"sni_hostname": site.host} if site.scheme == "https" else {}
            headers = {"Accept": _ACCEPT, "Host": host}
            try:
                with client.stream("GET", pinned, headers=headers, extensions=extensions) as answer:
                    if answer.is_redirect:
                        url = urljoin(url, answer.headers["location"])
                        continue
                    if answer.status_code >= 400 and answer.status_code != 404:
                        raise SourceFailed(f"{url} answered {answer.status_code}.", passing=answer.status_code >= 429)
                    answer.extensions.update(asked=url, deadline=deadline)
                    yield answer
                    return
            except httpx.HTTPError as error:
                raise SourceFailed(f"{url} cannot be reached: {error or type(error).__name__}.") from None
    raise SourceFailed(f"{url} redirects too often.", passing=False)


def _bounded(answer: httpx.Response, most: int, what: str) -> Iterator[bytes]:
    """The body in pieces.  Raises SourceFailed when it is too long or takes too long."""
    size = 0
    for chunk in answer.iter_bytes(MIB):
        size += len(chunk)
        if size > most:
            raise SourceFailed(f"{what} is larger than {most / 1e6:.0f} MB.", passing=False)
        if time.monotonic() > answer.extensions["deadline"]:
            raise SourceFailed(f"{what} took longer than {FETCH_LIMIT_S} s.")
        yield chunk


def _download(wheel: Wheel, to: Path, keep_going: Callable[[], object]) -> None:
    digest = hashlib.sha256()
    try:
        with _get(wheel.location) as answer, open(to, "wb") as out:
            if answer.status_code == 404:
                raise SourceFailed(f"The index lists {wheel.filename}, but does not serve it.")
            for chunk in _bounded(answer, LARGEST_WHEEL, wheel.filename):
                keep_going()
                digest.update(chunk)
                out.write(chunk)
    except ServiceError:
        raise
    except OSError as error:
        raise SourceFailed(f"{wheel.filename} was not downloaded: {error.strerror}.") from None
    if wheel.sha256 and digest.hexdigest() != wheel.sha256:
        raise SourceFailed(f"{wheel.filename} does not match its hash in the index.")
