"""`kernelwatch export site`: what is in the folder, what is not, and what becomes of the folder before."""

import io
import json
import os
import re
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import Any

import pytest
from pyarrow import parquet

from dashboards.site import export
from dashboards.site.folder import MARKER
from tests.dashboards.seed import CASES
from tests.dashboards.site import published
from tests.dashboards.site.published import SECRET, VERSIONS, exported, kernelwatch

ADDRESS = "https://kernels.example.org/boards"
SERVICE = "https://watch.example.org"


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with published.ledger(tmp_path_factory.mktemp("state")):
        yield


@pytest.fixture(scope="module")
def site(ledger: None, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a site without options."""
    return exported(tmp_path_factory.mktemp("out") / "site")


class Links(HTMLParser):
    """What a page links to and loads, its forms, and the policy that it has."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.found: list[str] = []
        self.ids: set[str] = set()
        self.tags: set[str] = set()
        self.policy = ""
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.add(tag)
        self.found += [str(given[name]) for name in ("href", "src", "action") if name in given]
        self.ids |= {str(given["id"])} if "id" in given else set()
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = str(given["content"])


def pages(site: dict[str, bytes]) -> dict[str, Links]:
    return {path: Links(body) for path, body in site.items() if path.endswith(".html")}


def place(page: str, link: str) -> tuple[str, str]:
    """The file and the fragment that a relative link of a page leads to."""
    parts = urllib.parse.urlsplit(link)
    path = urllib.parse.unquote(parts.path)
    return os.path.normpath(PurePosixPath(page).parent / path) if path else page, parts.fragment


def test_every_relative_link_leads_to_a_file(site: dict[str, bytes]) -> None:
    found = pages(site)
    broken = []
    for page, one in found.items():
        for link in one.found:
            if urllib.parse.urlsplit(link).scheme:
                continue
            file, fragment = place(page, link)
            if file not in site or (fragment and fragment not in found[file].ids):
                broken.append((page, link))
    assert broken == []
    reached = {place(page, link)[0] for page, one in found.items() for link in one.found}
    assert set(found) - reached == {"404.html"}, "every page is linked from another one"


def test_only_the_forge_is_linked_elsewhere(site: dict[str, bytes]) -> None:
    elsewhere = {
        urllib.parse.urlsplit(link).netloc
        for one in pages(site).values()
        for link in one.found
        if urllib.parse.urlsplit(link).scheme
    }
    assert elsewhere - {"doi.org"} == {"github.com"}
    assert not any(link.startswith("/") for one in pages(site).values() for link in one.found)


def test_pages_ask_for_nothing(site: dict[str, bytes]) -> None:
    for path, one in pages(site).items():
        assert one.policy.startswith("default-src 'none'"), path
        assert not one.tags & {"form", "iframe", "object"}, path
        assert not any("sign-" in link for link in one.found), path


def test_there_is_a_page_of_everything(site: dict[str, bytes]) -> None:
    board = "targets/norms/h200"
    assert {"index.html", "about.html", "404.html", ".nojekyll", "robots.txt", MARKER} <= set(site)
    assert {f"{board}/index.html", "targets/norms/cpu/index.html"} <= set(site)
    assert {f"{board}/trends/norms/{case}.html" for case in CASES[2:]} <= set(site), "the others are invalid now"
    assert {"targets/pkg/h200/releases.html", "targets/pkg/h200/releases/1.1.0.html"} <= set(site)
    assert "sitemap.xml" not in site
    assert re.search(rb"2 releases of pkg, each against the one before", site["targets/pkg/h200/releases.html"])


def test_names_of_strangers_are_text(site: dict[str, bytes]) -> None:
    pages_of_it = [path for path in site if path.startswith("targets/evil-img-src-x-onerror-alert-1-")]
    assert pages_of_it
    everything = b"".join(body for path, body in site.items() if path.endswith(".html"))
    assert b"onerror=alert" in everything, "its name is shown"
    assert b"<img src=x" not in everything
    assert b"<script>alert" not in everything


def test_nothing_says_that_there_is_a_private_target(site: dict[str, bytes]) -> None:
    for path, body in site.items():
        assert SECRET not in path
        assert SECRET.encode() not in body, path
        assert SECRET.encode() not in _unpacked(path, body), path


def test_a_private_target_changes_nothing(site: dict[str, bytes], tmp_path: Path) -> None:
    """Not even the time at which the site was made, though it is the one that was measured last."""
    published.rename("norms", private=True)
    try:
        without = exported(tmp_path / "site")
    finally:
        published.rename("norms", private=False)
    left = {path: body for path, body in without.items() if path.startswith("targets/")}
    assert left
    assert all(path.startswith(("targets/pkg/", "targets/evil-")) for path in left)
    assert b"norms on " not in without["index.html"] + without["about.html"]
    assert json.loads(without["data/index.json"])["made"] == "2023-11-16T22:18:20.000Z"
    assert json.loads(site["data/index.json"])["made"] > "2026"


def _unpacked(path: str, body: bytes) -> bytes:
    return repr(parquet.read_table(io.BytesIO(body)).to_pylist()).encode() if path.endswith(".parquet") else b""


def test_workers_are_not_named(site: dict[str, bytes]) -> None:
    assert not any(b"the-worker" in body for body in site.values())


@pytest.mark.usefixtures("ledger")
def test_a_private_target_is_refused(tmp_path: Path) -> None:
    code, said = kernelwatch("export", "site", tmp_path / "site", "--target", SECRET)
    assert code != 0
    assert f"{SECRET} is private" in said
    assert f"`kernelwatch target edit {SECRET} --public`" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("ledger")
def test_if_reading_needs_a_key_targets_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export.settings(), "public_read", False)
    code, said = kernelwatch("export", "site", tmp_path / "site")
    assert code != 0
    assert "name each one to publish with --target" in said
    found = exported(tmp_path / "site", "--target", "pkg")
    assert {path.split("/")[1] for path in found if path.startswith("targets/")} == {"pkg"}


@pytest.mark.usefixtures("ledger")
def test_the_same_data_are_the_same_bytes(site: dict[str, bytes], tmp_path: Path) -> None:
    assert exported(tmp_path / "again") == site


def test_the_data(site: dict[str, bytes]) -> None:
    index = json.loads(site["data/index.json"])
    assert index["schema"] == 1
    by_name = {one["name"]: one for one in index["tables"]}
    for name, kinds in (("boards", "json parquet"), ("points", "parquet"), ("releases", "json parquet")):
        assert sorted(by_name[name]["files"]) == [f"{name}.{kind}" for kind in kinds.split()]
        rows = parquet.read_table(io.BytesIO(site[f"data/{name}.parquet"])).to_pylist()
        assert len(rows) == by_name[name]["rows"] > 0
        if "json" in kinds:
            document = json.loads(site[f"data/{name}.json"])
            assert (document["schema"], document["made"]) == (1, index["made"])
            assert [_plain(row) for row in rows] == document["rows"]
    history = json.loads(site["data/histories/pkg/h200.json"])
    assert [one["revision"] for one in history["revisions"]] == list(VERSIONS)
    [first] = [one for one in history["series"] if one["case"] == CASES[0]]
    assert first["at"] == [0, 1, 2]
    assert first["median"] == pytest.approx([10, 11, 12.1])
    assert first["sota_median"] == pytest.approx([10 / 1.2, 11 / 1.2, 12.1 / 1.2])
    boards = {(one["target"], one["device"]): one for one in index["boards"]}
    assert boards["pkg", "h200"]["page"] in site
    assert boards["pkg", "h200"]["geomean"] == pytest.approx(1.2)
    assert f"data/{boards['pkg', 'h200']['history']}" in site


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """A row of Parquet as JSON has it."""
    return {
        name: value.isoformat().replace("+00:00", "Z") if hasattr(value, "isoformat") else value
        for name, value in row.items()
    }


@pytest.mark.usefixtures("ledger")
def test_without_pyarrow_tables_are_csv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    code, said = kernelwatch("export", "site", tmp_path / "site", "--target", "pkg")
    assert code == 0, said
    assert "pip install 'kernelwatch[server]'" in said
    found = published.files(tmp_path / "site")
    assert found["data/points.csv"].startswith(b"target,device,provider,case,")
    assert not any(path.endswith(".parquet") for path in found)
    assert json.loads(found["data/boards.json"])["rows"]


@pytest.mark.usefixtures("ledger")
def test_addresses_are_linked_where_they_are_given(tmp_path: Path) -> None:
    found = exported(tmp_path / "site", "--address", f"{ADDRESS}/", "--service", SERVICE)
    listed = re.findall(rb"<loc>(.*?)</loc>", found["sitemap.xml"])
    assert f"{ADDRESS}/index.html".encode() in listed
    paths = {urllib.parse.unquote(one.decode().removeprefix(f"{ADDRESS}/")) for one in listed}
    assert paths == {path for path in found if path.endswith(".html")} - {"404.html"}
    assert f"Sitemap: {ADDRESS}/sitemap.xml\n".encode() in found["robots.txt"]
    assert f'href="{ADDRESS}/index.html"'.encode() in found["404.html"]
    assert f'href="{SERVICE}/runs/'.encode() in found["targets/norms/h200/index.html"]


@pytest.mark.usefixtures("ledger")
def test_of_too_many_cases_the_worst_have_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MAX_TRENDS", 6)
    code, said = kernelwatch("export", "site", tmp_path / "site", "--target", "norms")
    assert code == 0, said
    assert "4 cases have no page of their own; their histories are in the data." in said
    found = published.files(tmp_path / "site")
    kept = {PurePosixPath(path).stem for path in found if path.startswith("targets/norms/h200/trends/")}
    assert len(kept) == 3
    worst = max(
        (row for row in json.loads(found["data/boards.json"])["rows"] if row["device"] == "h200"),
        key=lambda row: (row["behind"], row["ratio"]),
    )
    assert worst["case"] in kept
    for page, one in pages(found).items():
        assert all(place(page, link)[0] in found for link in one.found if not urllib.parse.urlsplit(link).scheme)
    history = json.loads(found["data/histories/norms/h200.json"])
    assert {one["case"] for one in history["series"]} == set(CASES)


@pytest.mark.usefixtures("ledger")
@pytest.mark.parametrize("option", ["--address", "--service"])
@pytest.mark.parametrize("given", ["javascript:alert(1)", "kernels.example.org", "https://a.b/?x", 'https://a"b c'])
def test_an_address_that_is_none(tmp_path: Path, option: str, given: str) -> None:
    code, said = kernelwatch("export", "site", tmp_path / "site", option, given)
    assert code != 0
    assert f"{option} takes an address such as" in said
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("ledger")
class TestTheFolder:
    """Named as the one to write to."""

    def test_of_somebody_else_is_left_alone(self, tmp_path: Path) -> None:
        (tmp_path / "thesis.tex").write_text("years of work")
        code, said = kernelwatch("export", "site", tmp_path, "--target", "pkg")
        assert code != 0
        assert f"{tmp_path} has files that `kernelwatch export site` did not make" in said
        assert f"Name a new folder, for example {tmp_path / 'site'}." in said
        assert [one.name for one in tmp_path.iterdir()] == ["thesis.tex"]
        assert list(tmp_path.parent.glob(f".{tmp_path.name}.*")) == []

    def test_that_is_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "site").write_text("a file")
        code, said = kernelwatch("export", "site", tmp_path / "site", "--target", "pkg")
        assert code != 0
        assert "is a file; name a folder" in said

    def test_that_was_made_before_is_replaced(self, tmp_path: Path) -> None:
        exported(tmp_path / "site", "--target", "pkg")
        (tmp_path / "site" / "left over.html").write_text("of an older version")
        found = exported(tmp_path / "site", "--target", "pkg")
        assert "left over.html" not in found
        assert [one.name for one in tmp_path.iterdir()] == ["site"]

    def test_that_is_empty_or_behind_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "site").symlink_to("real")
        exported(tmp_path / "site", "--target", "pkg")
        assert (tmp_path / "site").is_symlink()
        assert (tmp_path / "real" / "index.html").exists()

    def test_whose_disk_is_full(self, tmp_path: Path) -> None:
        """A limit on the size of files stands for a full disk: what was there before stays as it is."""
        before = exported(tmp_path / "site", "--target", "pkg")
        code = (
            "import resource, signal, sys\n"
            "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
            "from service import cli\n"
            "resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))\n"
            "sys.argv[0] = 'kernelwatch'\n"
            "cli.main()\n"
        )
        command = [sys.executable, "-c", code, "export", "site", str(tmp_path / "site"), "--target", "norms"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2, done.stderr
        assert "cannot be written: File too large." in done.stderr
        assert published.files(tmp_path / "site") == before
        assert [one.name for one in tmp_path.iterdir()] == ["site"]

    def test_where_nothing_can_be_written(self) -> None:
        code, said = kernelwatch("export", "site", "/proc/site", "--target", "pkg")
        assert code != 0
        assert "/proc/site cannot be written: No such file or directory." in said


def test_a_site_is_of_one_state_of_the_database(site: dict[str, bytes], tmp_path: Path) -> None:
    """A release that is measured while a site is written is in the next one.  The last test: it changes the ledger."""
    boards = list[str]()

    def measure(progress: str) -> None:
        boards.append(progress)
        if len(boards) == 1:
            published.measure_again()

    export.export_site(tmp_path / "site", show=measure)
    assert len(boards) > 1
    assert published.files(tmp_path / "site") == site
    found = exported(tmp_path / "site")
    assert set(found) - set(site) == {"targets/pkg/h200/releases/3.0.0.html"}
    assert found["targets/pkg/h200/releases/1.1.0.html"] == site["targets/pkg/h200/releases/1.1.0.html"]
