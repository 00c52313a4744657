"""The command line against a server, over HTTP: what a person or a CI job elsewhere can do."""

import csv
import io
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service import cli
from service.app import create_app
from service.commands.connection import logins
from tests.dashboards.seed import Seeded
from tests.fakes.api import new_key
from tests.stories.test_story import served

Done = tuple[int, str, str]
Run = Callable[..., Done]


@pytest.fixture(scope="module")
def server(seeded: Seeded) -> Iterator[str]:
    """The address of the app, served over HTTP."""
    with served(create_app()) as address:
        yield address


@pytest.fixture
def kernelwatch(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as a shell of another user does, without a login and without a database of its own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(cli.connection, "_answer_here", None)

    def run(*words: str) -> Done:
        monkeypatch.setattr("sys.argv", ["kernelwatch", *words])
        code = 0
        try:
            cli.main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_a_login_is_checked_stored_privately_and_used_by_every_noun(
    seeded: Seeded, server: str, kernelwatch: Run
) -> None:
    code, said, _ = kernelwatch("login", server, "--key", new_key("admin", name="my laptop"))
    assert (code, said.startswith(f"Logged in to {server} as ")) == (0, True)
    assert stat.S_IMODE(logins.path().stat().st_mode) == 0o600
    for words in ("status", "queue", "target list", "target show norms", "run list norms", "run show 4", "worker list"):
        assert kernelwatch(*words.split())[0] == 0, words
    for words in ("regression list", "incident list", "bisection list", "calibration show", "key list", "audit"):
        assert kernelwatch(*words.split())[0] == 0, words
    assert kernelwatch("report", str(seeded.runs["wrong"]))[0] == 125, "the exit code is that of the gate"
    assert "norms" in kernelwatch("target", "list")[1]
    assert kernelwatch("logout")[0] == 0
    code, _, why = kernelwatch("target", "list")
    assert (code, "name a server with --server, or `login` to one" in why) == (2, True)


def test_a_ci_job_names_the_server_and_the_key_in_its_environment(
    seeded: Seeded, server: str, kernelwatch: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KERNELWATCH_SERVER", server)
    monkeypatch.setenv("KERNELWATCH_KEY", new_key("read"))
    number = str(seeded.runs["slow"])
    code, printed, _ = kernelwatch("report", number, "--format", "json")
    assert (code, json.loads(printed)["id"]) == (0, seeded.runs["slow"])
    rows = list(csv.DictReader(io.StringIO(kernelwatch("report", number, "--format", "csv")[1], newline="")))
    assert {row["run_id"] for row in rows} == {number}
    assert kernelwatch("report", number, "--format", "md")[1].count("<!-- kernelwatch") == 1
    assert kernelwatch("run", "wait", number, "--format", "json", "--fail-on", "regression")[0] == 1
    assert not logins.path().exists(), "nothing is stored"


def test_a_person_elsewhere_changes_what_a_person_on_the_server_could(
    seeded: Seeded, server: str, kernelwatch: Run
) -> None:
    assert kernelwatch("login", server, "--key", new_key("admin", name="ada"))[0] == 0

    def done(*words: str) -> str:
        code, said, why = kernelwatch(*words)
        assert code == 0, why
        return said

    number = str(json.loads(done("regression", "list", "--format", "json"))["items"][0]["id"])
    assert done("regression", "note", number, "it is the wide path").endswith(" is open.\n")
    done("regression", "assign", number, "bob")
    assert "note by ada: it is the wide path" in done("regression", "show", number)
    until = ("--reason", "exact sums", "--until", "2999-12-24")
    assert done("regression", "acknowledge", number, *until).endswith(" is acknowledged.\n")
    assert done("regression", "reopen", number).endswith(" is open.\n")
    assert done("target", "pause", "norms").startswith("Target norms is paused;")
    assert done("target", "resume", "norms") == "Resumed target norms.\n"
    assert done("run", "cancel", str(seeded.runs["queued"])) == f"Cancelled run {seeded.runs['queued']}.\n"
    assert done("run", "retry", str(seeded.runs["queued"])).startswith(f"Queued run {seeded.runs['queued']} ")
    assert done("run", "approve", str(seeded.runs["held"])).startswith(f"Queued run {seeded.runs['held']} ")
    assert "takes no further run" in done("worker", "drain", "cpu-box")
    assert done("worker", "resume", "cpu-box") == "Worker cpu-box takes runs again.\n"
    assert f"{server}/runs/" in done("calibration", "start", "norms", "--device", "h200")
    assert json.loads(done("target", "edit", "norms", "--private", "--format", "json"))["private"] is True
    assert "private" in done("target", "list")
    done("target", "edit", "norms", "--public")
    made = done("key", "create", "CI", "--scope", "read").strip()
    assert done("key", "revoke", made[:13]).startswith("Revoked the key ")
    by = {entry["actor"] for entry in json.loads(done("audit", "--format", "json"))["items"]}
    assert "ada" in by, "the server records the name of the key"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("login {server} --key kw_0000000000", "key"),
        ("login http://127.0.0.1:1 --key kw_0", "No answer from http://127.0.0.1:1"),
        ("status --server norms", "'norms' is no address of a server"),
        ("report 9999 --server {server}", "No run 9999."),
        ("db check --server {server}", "works on this machine, not on {server}: leave out --server"),
        ("doctor --server {server}", "works on this machine, not on {server}"),
        ("regression note 1 hello --as ada --server {server}", "--as works on this machine only"),
    ],
)
def test_a_mistake_is_one_sentence(server: str, kernelwatch: Run, words: str, why: str) -> None:
    code, printed, said = kernelwatch(*words.format(server=server).split())
    assert (code, printed) == (2, "")
    assert said.startswith("kernelwatch: ")
    assert why.format(server=server) in said
    assert said.count("\n") == 1
