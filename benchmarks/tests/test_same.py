"""A change of what a reader sees is shown, and a change of nothing else."""

import sqlite3
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.responses import HTMLResponse
from fastapi.testclient import TestClient

from benchmarks import same

FIRST = '<p>Runs: <a href="/runs/1">the first</a></p><script>ignored()</script><form action="/go" method="post"></form>'


def recorded(folder: Path, run: str, first: str = FIRST) -> None:
    """The pages of a small server: one that links to a run, and the run."""
    app = FastAPI()
    app.get("/", response_class=HTMLResponse)(lambda: first)
    app.get("/runs/1", response_class=HTMLResponse)(lambda: run)
    documents = same.Documents(folder)
    for address, text in same.pages(TestClient(app).get):
        documents.write("pages", address, text)


def test_a_changed_text_of_a_page_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "base", "<h1>Run 1</h1><p>2 of 3 cases slower")
    recorded(tmp_path / "now", "<h1>Run 1</h1><p>2 of 3 cases are slower")
    assert same.difference(tmp_path) == 1
    shown = capfd.readouterr().out
    assert "pages/runs_1.txt" in shown
    assert "-2 of 3 cases slower\n+2 of 3 cases are slower\n" in shown
    assert "root.txt" not in shown, "the other page is as it was"


def test_other_markup_with_the_same_text_and_links_is_the_same(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    recorded(tmp_path / "base", "<p>slower")
    recorded(
        tmp_path / "now", "<div><b>slower</b></div>", FIRST.replace("ignored", "other").replace("<p>", "<p class=x>")
    )
    assert same.difference(tmp_path) == 0
    assert capfd.readouterr().out == ""


def test_a_link_that_leads_elsewhere_is_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    recorded(tmp_path / "base", "")
    recorded(tmp_path / "now", "", FIRST.replace("/runs/1", "/runs/1?all=1"))
    assert same.difference(tmp_path) == 1
    assert "+Runs: </runs/1?all=1>the first" in capfd.readouterr().out


def test_an_address_is_made_for_each_place_and_each_choice() -> None:
    state = {"name": "state", "schema": {"type": "array", "items": {"$ref": "#/components/schemas/State"}}}
    number = {"name": "run_id", "required": True, "schema": {"type": "integer"}}
    described = {
        "paths": {"/runs": {"get": {"parameters": [state]}}, "/runs/{run_id}": {"get": {"parameters": [number]}}},
        "components": {"schemas": {"State": {"enum": ["done", "failed"]}}},
    }
    found = same.addresses(described, [{"run_id": "3"}, {"name": "norms"}, {"run_id": "4", "name": "norms"}])
    assert found == ["/runs", "/runs?state=done", "/runs?state=failed", "/runs/3", "/runs/4"]


def test_a_long_document_is_the_same_only_with_the_same_end(tmp_path: Path) -> None:
    documents = same.Documents(tmp_path)
    documents.write("api", "one", "x" * same.MOST_CHARACTERS + "1")
    documents.write("api", "two", "x" * same.MOST_CHARACTERS + "2")
    one, two = [(tmp_path / "api" / f"{name}.txt").read_text().splitlines()[1:] for name in ("one", "two")]
    assert one[:-1] == two[:-1]
    assert one[-1] != two[-1]


def test_a_command_is_run_with_its_output_and_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    assert same.command(["--version"]).startswith("exit 0\nkernelwatch ")
    assert same.command(["no-such-command"]).startswith("exit 2\n")


@pytest.mark.parametrize(
    ("lines", "same_schema"), [("b INTEGER, \n\ta FLOAT", True), ("a FLOAT, \n\tb FLOAT", False), ("a FLOAT", False)]
)
def test_databases_are_shared_whatever_the_order_of_their_constraints(
    tmp_path: Path, lines: str, same_schema: bool
) -> None:
    for name, inner in (("one", "a FLOAT, \n\tb INTEGER"), ("other", lines)):
        connection = sqlite3.connect(tmp_path / name)
        connection.execute(f"CREATE TABLE runs (\n\t{inner}\n)")
        connection.execute("CREATE TABLE alembic_version (version_num)")
        connection.close()
    assert (same.schema(tmp_path / "one") == same.schema(tmp_path / "other")) is same_schema
