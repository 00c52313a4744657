"""Releases of a package as revisions: from a folder of wheels, and from an index over HTTP."""

import hashlib
import json
import threading
import zipfile
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from service.domain.states import TargetKind
from service.errors import BadInput, NotFound, Refused, SourceFailed
from service.settings import settings
from service.sources import open_source


@dataclass
class Target:
    location: str
    package: str | None = "norm-kernels"
    name: str = "norm-kernels"
    kind: TargetKind = TargetKind.PACKAGE


def wheel(
    folder: Path,
    version: str,
    *,
    tag: str = "py3-none-any",
    requires: str = ">=3.9",
    more: dict[str, str] | None = None,
) -> Path:
    """A real wheel, as small as it can be."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"norm_kernels-{version}-{tag}.whl"
    about = f"norm_kernels-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("norm_kernels/__init__.py", f"version = {version!r}\n")
        archive.writestr(f"norm_kernels-{version}.data/purelib/extra.py", "1\n")
        archive.writestr(f"norm_kernels-{version}.data/scripts/tool", "#!/bin/sh\n")
        archive.writestr(f"{about}/METADATA", f"Name: norm-kernels\nVersion: {version}\nRequires-Python: {requires}\n")
        for name, text in (more or {}).items():
            archive.writestr(name, text)
    return path


@pytest.fixture
def folder(state, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", f'["{tmp_path}"]')
    settings.cache_clear()
    yield tmp_path / "wheels"
    settings.cache_clear()


def test_releases_are_ordered_by_version_and_each_has_the_one_before_as_parent(folder):
    for version in ("0.9.0", "0.10.0", "0.8.5", "0.11.0rc1"):
        wheel(folder, version)
    wheel(folder / "elsewhere", "9.9")
    (folder / "norm_kernels-0.12.0.tar.gz").write_text("no wheel")
    (folder / "other-1.0-py3-none-any.whl").write_text("another package")

    source = open_source(Target(str(folder), package="Norm.Kernels"))
    found = source.mainline(None, limit=10)

    assert [(release.sha, release.parent) for release in found] == [
        ("0.8.5", None),
        ("0.9.0", "0.8.5"),
        ("0.10.0", "0.9.0"),
    ]
    assert found[0].paths == ("norm-kernels",)
    assert found[0].subject == "norm-kernels 0.8.5"
    assert [release.sha for release in source.between("0.8.5", "0.10.0")] == ["0.9.0", "0.10.0"]
    assert [release.sha for release in source.mainline("prereleases", limit=1)] == ["0.11.0rc1"]
    assert source.describe("0.11.0rc1").parent == "0.10.0"
    assert source.resolve("latest") == "0.10.0"
    assert source.resolve("0.10") == "0.10.0"
    assert source.merge_base("0.10.0", "0.9.0") == "0.9.0"
    assert [source.last_release(version) for version in ("0.8.5", "0.9.0", "0.11.0rc1")] == [None, "0.8.5", "0.10.0"]


def test_a_release_is_exported_as_its_unpacked_wheel(folder, tmp_path):
    wheel(folder, "0.9.0")
    source = open_source(Target(str(folder)))

    exported = source.export("0.9.0", tmp_path / "tree")

    assert (tmp_path / "tree/norm_kernels/__init__.py").read_text() == "version = '0.9.0'\n"
    assert (tmp_path / "tree/extra.py").exists()
    assert not list((tmp_path / "tree").rglob("tool"))
    assert exported.files == 3
    assert source.read("0.9.0", "norm_kernels/__init__.py") == b"version = '0.9.0'\n"
    assert source.read("0.9.0", "missing.py") is None


def test_the_wheel_for_the_stacks_python_is_chosen(folder, tmp_path):
    wheel(folder, "1.0", tag="py3-none-any")
    wheel(folder, "1.0", tag="cp312-cp312-linux_x86_64", more={"norm_kernels/fast.so": "312"})
    source = open_source(Target(str(folder)))
    source.export("1.0", tmp_path / "a", python=(3, 12))
    source.export("1.0", tmp_path / "b", python=(3, 11))
    assert (tmp_path / "a/norm_kernels/fast.so").exists()
    assert not (tmp_path / "b/norm_kernels/fast.so").exists()


@pytest.mark.parametrize(
    ("tag", "requires"), [("cp37-cp37m-win_amd64", ">=3.7"), ("py3-none-any", ">=3.99"), ("py3-none-any", "<3")]
)
def test_a_release_without_a_wheel_for_this_platform_says_what_it_has(folder, tmp_path, tag, requires):
    wheel(folder, "1.0", tag=tag, requires=requires)
    with pytest.raises(BadInput, match=f"has no wheel for Python 3.11 .*it has norm_kernels-1.0-{tag}.whl"):
        open_source(Target(str(folder))).export("1.0", tmp_path / "tree", python=(3, 11))


@pytest.mark.parametrize(
    ("rev", "error", "reason"),
    [
        ("7.7", NotFound, "No release 7.7 of norm-kernels. Newest with a wheel: 1.0"),
        ("main", BadInput, "is not a version"),
        ("--help", BadInput, "is not a version"),
    ],
)
def test_a_release_that_is_not_there(folder, rev, error, reason):
    wheel(folder, "1.0")
    with pytest.raises(error, match=reason):
        open_source(Target(str(folder))).resolve(rev)


def test_a_folder_without_such_a_wheel_says_so(folder):
    folder.mkdir()
    with pytest.raises(NotFound, match="No wheel of norm-kernels"):
        open_source(Target(str(folder))).refresh()


def test_hostile_wheels_stay_in_their_folder(folder, tmp_path):
    path = wheel(folder, "1.0")
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("norm_kernels/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    exported = open_source(Target(str(folder))).export("1.0", tmp_path / "tree")
    assert not (tmp_path / "tree/norm_kernels/link").exists()
    assert "norm_kernels/link in the wheel is no plain file" in exported.notes[0]

    wheel(folder, "1.1", more={"../outside.py": "1"})
    with pytest.raises(BadInput, match="invalid path"):
        open_source(Target(str(folder))).export("1.1", tmp_path / "tree2")
    assert not (tmp_path / "outside.py").exists()

    (folder / "norm_kernels-1.2-py3-none-any.whl").write_bytes(b"not a zip file")
    with pytest.raises(SourceFailed, match="cannot be unpacked"):
        open_source(Target(str(folder))).export("1.2", tmp_path / "tree3")


def test_a_wheel_that_unpacks_to_more_than_the_limit_is_refused(folder, tmp_path, monkeypatch):
    wheel(folder, "1.0", more={"zeros": "0" * 5_000_000})
    monkeypatch.setenv("KERNELWATCH_TREE_LIMIT", "1000000")
    settings.cache_clear()
    with pytest.raises(BadInput, match="exceeds 1 MB"):
        open_source(Target(str(folder))).export("1.0", tmp_path / "tree")


class Index(ThreadingHTTPServer):
    """A package index with state: what it serves can be changed while a test runs."""

    def __init__(self, wheels: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.wheels, self.json, self.yanked, self.redirect, self.lie = wheels, True, {}, "", False
        self.more: list[dict[str, str]] = []  # files that it lists beside them
        threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_address[1]}"

    def files(self) -> list[Path]:
        return sorted(self.wheels.glob("*.whl"))


class _Handler(BaseHTTPRequestHandler):
    server: Index

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        index = self.server
        if index.redirect:
            return self._say(302, "text/plain", b"", {"Location": index.redirect})
        if self.path == "/simple/norm-kernels/":
            return self._say(200, *self._page())
        name = self.path.rpartition("/")[2]
        if (index.wheels / name).is_file():
            return self._say(200, "application/zip", (index.wheels / name).read_bytes())
        return self._say(404, "text/plain", b"no")

    def _page(self) -> tuple[str, bytes]:
        index = self.server
        hashes = {
            path.name: hashlib.sha256(b"lie" if index.lie else path.read_bytes()).hexdigest() for path in index.files()
        }
        if index.json:
            files = [
                {"filename": name, "url": f"../../files/{name}", "hashes": {"sha256": digest},
                 "yanked": index.yanked.get(name, False), "upload-time": "2026-01-02T03:04:05Z"}
                for name, digest in hashes.items()
            ]  # fmt: skip
            return "application/vnd.pypi.simple.v1+json", json.dumps({"files": files + index.more}).encode()
        links = [
            f'<a href="../../files/{name}#sha256={digest}" data-requires-python="&gt;=3.9"'
            for name, digest in hashes.items()
        ]
        yanked = [f' data-yanked="{index.yanked[name]}"' if name in index.yanked else "" for name in hashes]
        page = "".join(f"{link}{why}>file</a>" for link, why in zip(links, yanked, strict=True))
        return "text/html", f"<html>{page}<a>no link</a></html>".encode()

    def _say(self, status: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": kind, "Content-Length": str(len(body)), **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)


@pytest.fixture
def index(folder, monkeypatch):
    wheel(folder, "0.9.0")
    wheel(folder, "0.10.0")
    server = Index(folder)
    monkeypatch.setenv("KERNELWATCH_PRIVATE_HOSTS", json.dumps([server.host]))
    settings.cache_clear()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("as_json", [True, False])
def test_an_index_is_read_and_its_wheels_are_checked(index, tmp_path, as_json):
    index.json = as_json
    source = open_source(Target(f"http://{index.host}/simple"))

    assert [release.sha for release in source.mainline(None, 10)] == ["0.9.0", "0.10.0"]
    assert source.describe("0.9.0").committed_at > 1_700_000_000
    source.export("0.10.0", tmp_path / "tree")
    assert (tmp_path / "tree/norm_kernels/__init__.py").read_text() == "version = '0.10.0'\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_a_yanked_release_is_not_measured(index, as_json):
    index.json = as_json
    index.yanked = {"norm_kernels-0.10.0-py3-none-any.whl": "wrong gradients"}
    source = open_source(Target(f"http://{index.host}/simple"))
    assert [release.sha for release in source.mainline(None, 10)] == ["0.9.0"]
    with pytest.raises(BadInput, match=r"was yanked \(wrong gradients\)"):
        source.resolve("0.10.0")


def test_a_release_that_appears_is_seen_after_a_refresh(index):
    source = open_source(Target(f"http://{index.host}/simple"))
    assert source.resolve("latest") == "0.10.0"
    wheel(index.wheels, "0.11.0")
    assert source.resolve("latest") == "0.10.0"
    source.refresh()
    assert source.resolve("latest") == "0.11.0"


def test_a_wheel_that_is_not_what_the_index_promised_is_refused(index, tmp_path):
    index.lie = True
    with pytest.raises(SourceFailed, match="does not match its hash"):
        open_source(Target(f"http://{index.host}/simple")).export("0.9.0", tmp_path / "tree")


def test_an_index_that_is_away_lacks_the_package_or_sends_elsewhere(index, monkeypatch):
    with pytest.raises(NotFound, match="No package missing"):
        open_source(Target(f"http://{index.host}/simple", package="missing")).refresh()
    index.redirect = "https://evil.example/simple/norm-kernels/"
    with pytest.raises(Refused, match=r"evil\.example is not an allowed host"):
        open_source(Target(f"http://{index.host}/simple")).refresh()
    index.redirect = f"http://{index.host}/again"
    with pytest.raises(SourceFailed, match="redirects too often"):
        open_source(Target(f"http://{index.host}/simple")).refresh()
    monkeypatch.setenv("KERNELWATCH_PRIVATE_HOSTS", '["127.0.0.1:9"]')
    settings.cache_clear()
    with pytest.raises(SourceFailed, match="cannot be reached") as failed:
        open_source(Target("http://127.0.0.1:9/simple")).refresh()
    assert failed.value.passing


def test_a_wheel_whose_name_leads_elsewhere_is_not_seen(index):
    index.more = [
        {"filename": f"norm_kernels-1.0-{build}-py3-none-any.whl", "url": "../../files/norm_kernels-0.9.0.whl"}
        for build in ("1/../../escaped/x", "1\0x", "1\ud800")
    ]
    source = open_source(Target(f"http://{index.host}/simple"))
    assert [release.sha for release in source.mainline(None, 10)] == ["0.9.0", "0.10.0"]


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA])
def test_a_wheel_that_is_damaged_inside_says_so(folder, tmp_path, method):
    path = wheel(folder, "1.0")
    with zipfile.ZipFile(path, "a", method) as archive:
        archive.writestr("norm_kernels/large.py", "".join(f"x{n} = {n * n}\n" for n in range(5000)))
        begins = archive.getinfo("norm_kernels/large.py").header_offset
    damaged = bytearray(path.read_bytes())
    damaged[begins + 60 : begins + 400] = b"\xff" * 340
    path.write_bytes(damaged)
    with pytest.raises(SourceFailed, match=r"1\.0-py3-none-any\.whl cannot be unpacked: ") as failed:
        open_source(Target(str(folder))).export("1.0", tmp_path / "tree")
    assert not failed.value.passing
