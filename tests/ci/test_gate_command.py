"""What a job of continuous integration gets from `run start --wait`: progress, results, files and an exit code."""

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import httpx
import pytest

from kernelwatch.client import ApiError, Client, KernelwatchError, NotAServer, Retries, Unreachable
from service import cli
from service.commands import connection
from service.commands.connection.local import InProcess
from service.commands.measure import waiting
from tests.clock import Clock
from tests.dashboards.seed import Seeded

Done = tuple[int, str, str]
Run = Callable[..., Done]


@pytest.fixture
def kernelwatch(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command as a job does."""

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


class Away(httpx.BaseTransport):
    """This machine as a server that does not answer while `away()`."""

    def __init__(self, away: Callable[[], bool]) -> None:
        self._server, self._away = InProcess(None), away

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._away():
            raise httpx.ConnectError("Connection refused", request=request)
        return self._server.handle_request(request)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock by which commands wait."""
    made = Clock()
    monkeypatch.setattr(waiting, "PATIENCE", waiting.Patience(every_s=10, now=made.now, sleep=made.sleep))
    return made


def served_by(transport: httpx.BaseTransport, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands use the server behind this transport; the client gives up at once where the command goes on."""

    def opened(url: str, key: str | None) -> Client:
        return Client(url, key, retries=Retries(attempts=1), transport=transport)

    monkeypatch.setenv("KERNELWATCH_SERVER", "http://127.0.0.1")
    monkeypatch.setattr(connection, "open_client", opened)


@pytest.mark.parametrize(
    ("run", "fail_on", "code"),
    [
        ("slow", None, 0),
        ("slow", "regression", 1),
        ("slow", "inconclusive", 3),
        ("slow", "behind-sota", 1),
        ("slow", "invalid,failed", 0),
        ("slow", "never", 0),
        ("wrong", None, 125),
        ("wrong", "regression", 0),
        ("steady", "regression,inconclusive,invalid", 0),
        ("broken", None, 125),
        ("broken", "build-failed", 125),
        ("broken", "failed,not-measured", 0),
        ("held", None, 2),
        ("held", "held", 2),
        ("held", "regression,not-measured", 0),
        ("docs", None, 0),
    ],
)
def test_fail_on_changes_the_exit_code_and_not_the_output(
    seeded: Seeded, kernelwatch: Run, run: str, fail_on: str | None, code: int
) -> None:
    number = str(seeded.runs[run])
    options = ["--fail-on", fail_on] if fail_on else []
    _, usual, _ = kernelwatch("report", number)
    assert kernelwatch("report", number, *options)[:2] == (code, usual)
    waited, shown, said = kernelwatch("run", "wait", number, *options)
    assert (waited, shown) == (code, usual)
    assert (f"Exit code {code}" in said) == (code != 0)


def test_the_console_says_what_decided_the_exit_code(seeded: Seeded, kernelwatch: Run) -> None:
    slow, wrong = str(seeded.runs["slow"]), str(seeded.runs["wrong"])
    assert kernelwatch("run", "wait", slow, "--fail-on", "regression,invalid")[2] == (
        "Exit code 1, by --fail-on: regression\n"
    )
    assert kernelwatch("report", wrong)[2] == "Exit code 125, by the policy: invalid\n"


def test_results_are_saved_for_the_steps_that_come_after(seeded: Seeded, kernelwatch: Run, tmp_path: Path) -> None:
    numbers = [str(seeded.runs[name]) for name in ("steady", "slow")]
    folder = tmp_path / "new" / "folder"
    code, _, _ = kernelwatch("run", "wait", *numbers, "--save", str(folder))
    assert [run["id"] for run in json.loads((folder / "report.json").read_text())] == [int(one) for one in numbers]
    assert (folder / "report.md").read_text().count("<!-- kernelwatch") == 1
    assert len(list(ElementTree.parse(folder / "report.xml").iter("testsuite"))) == len(numbers)
    assert len(json.loads((folder / "report.sarif").read_text())["runs"]) == len(numbers)
    values = dict(line.split("=", 1) for line in (folder / "result.env").read_text().splitlines())
    assert values.keys() == {"runs", "outcome", "exit_code", "url", "headline"}
    assert (values["runs"], values["outcome"], values["exit_code"]) == (" ".join(numbers), "warn", str(code))
    assert values["url"].endswith(f"/runs/{numbers[1]}")
    (tmp_path / "file").touch()
    assert kernelwatch("run", "wait", numbers[0], "--save", str(tmp_path / "file" / "x"))[::2] == (
        2,
        f"kernelwatch: --save cannot write to {tmp_path / 'file' / 'x'}: Not a directory.\n",
    )


def test_a_wait_that_takes_too_long_ends(seeded: Seeded, kernelwatch: Run, clock: Clock) -> None:
    number = seeded.runs["queued"]
    code, printed, said = kernelwatch("run", "wait", str(number), "--timeout", "60")
    assert (code, printed) == (2, "")
    assert f"kernelwatch: Run {number} is still queued after 60 s, and goes on: wait longer with --timeout" in said
    assert clock.now() == 70


def test_a_wait_that_takes_too_long_saves_what_is_waited_for(
    seeded: Seeded, kernelwatch: Run, clock: Clock, tmp_path: Path
) -> None:
    done, queued = (str(seeded.runs[name]) for name in ("steady", "queued"))
    assert kernelwatch("run", "wait", done, queued, "--timeout", "60", "--save", str(tmp_path))[0] == 2
    values = dict(line.split("=", 1) for line in (tmp_path / "result.env").read_text().splitlines())
    assert (values["runs"], values["outcome"], values["exit_code"]) == (f"{done} {queued}", "undecided", "2")
    assert values["url"].endswith(f"/runs/{queued}")
    assert values["headline"] == f"Run {queued} is still queued after 60 s, and goes on"


@pytest.mark.parametrize("answers_first", [True, False])
def test_a_wait_for_a_server_that_stays_away_saves_what_was_waited_for(
    seeded: Seeded, kernelwatch: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answers_first: bool
) -> None:
    number = seeded.runs["queued"]
    served_by(Away(lambda: clock.now() > 0 or not answers_first), monkeypatch)
    assert kernelwatch("run", "wait", str(number), "--save", str(tmp_path))[0] == 2
    values = dict(line.split("=", 1) for line in (tmp_path / "result.env").read_text().splitlines())
    assert (values["runs"], values["outcome"], values["exit_code"]) == (str(number), "error", "2")
    assert values["url"].endswith(f"/runs/{number}" if answers_first else "")
    assert values["headline"].startswith("No answer from http://127.0.0.1/: Connection refused.")


def test_options_of_a_wait_need_a_wait(kernelwatch: Run) -> None:
    for option in ("--fail-on=never", "--timeout=5", "--save=folder"):
        code, _, said = kernelwatch("run", "start", "norms", "HEAD", option)
        assert (code, said) == (2, "kernelwatch: --fail-on, --timeout and --save need --wait.\n")


def test_head_is_refused_because_the_server_has_another(kernelwatch: Run) -> None:
    code, _, said = kernelwatch("run", "start", "norms", "HEAD", "--wait")
    assert (code, said.count("\n")) == (2, 1)
    assert 'write "$(git rev-parse HEAD)" for the commit of your checkout' in said


@pytest.mark.parametrize("key", ["kw_secret\nkw_secret", "kw_sécret"])
def test_no_error_quotes_the_key(kernelwatch: Run, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("KERNELWATCH_SERVER", "http://127.0.0.1:9")
    monkeypatch.setenv("KERNELWATCH_KEY", key)
    code, printed, said = kernelwatch("run", "start", "norms", "main", "--wait")
    assert (code, printed) == (2, "")
    assert said.startswith("kernelwatch: The API key is empty, or has a character that keys do not have")
    assert "kw_s" not in said


def test_a_server_that_is_restarted_is_asked_again_with_the_same_idempotency_key(
    kernelwatch: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(503 if len(keys) == 2 else 403, json={"detail": "No."})

    served_by(httpx.MockTransport(answer), monkeypatch)
    code, _, said = kernelwatch("run", "start", "norms", "main", "--wait")
    assert (code, said) == (2, "the server does not answer, trying again\nkernelwatch: No.\n")
    assert (len(keys), len(set(keys))) == (3, 1)
    kernelwatch("run", "start", "norms", "main", "--idempotency-key", "job 7")
    assert keys.pop() == "job 7"

    keys.clear()
    assert kernelwatch("run", "start", "norms", "main")[0] == 2
    assert len(keys) == 1, "without --wait nobody waits"


@pytest.mark.parametrize(
    ("error", "away"),
    [
        (Unreachable("refused"), True),
        (ApiError(503, "busy", {"title": "Unavailable"}, None), True),
        (ApiError(502, "Bad Gateway", {}, None), True),
        (ApiError(502, "github.com does not answer.", {"title": "SourceFailed"}, None), False),
        (ApiError(500, "bug", {}, None), False),
        (NotAServer("a page"), False),
    ],
)
def test_only_a_server_that_is_away_is_waited_for(clock: Clock, error: KernelwatchError, away: bool) -> None:
    asked = list[int]()

    def ask() -> str:
        asked.append(1)
        if len(asked) == 1:
            raise error
        return "answered"

    if away:
        assert waiting.until_answered(ask) == "answered"
    else:
        with pytest.raises(type(error)):
            waiting.until_answered(ask)


def test_a_wait_begins_while_the_server_is_restarted(
    seeded: Seeded, kernelwatch: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    served_by(Away(lambda: clock.now() < 170), monkeypatch)
    number = seeded.runs["steady"]
    code, _, said = kernelwatch("run", "wait", str(number))
    assert code == 0
    assert said.splitlines() == [f"run {number}: the server does not answer, trying again"]
    assert clock.now() == 170


def test_a_wait_goes_on_while_the_server_is_restarted(
    seeded: Seeded, kernelwatch: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Twice for almost three minutes.  Afterwards the run was cancelled."""
    number = seeded.runs["running"]
    served_by(Away(lambda: 0 < clock.now() < 180 or 190 < clock.now() < 370), monkeypatch)

    def cancel() -> None:
        with Client("http://127.0.0.1", transport=InProcess(None)) as client:
            client.runs.cancel(number)

    clock.at(380, cancel)
    code, _, said = kernelwatch("run", "wait", str(number))
    assert code == 2
    away = f"run {number}: the server does not answer, trying again"
    lines = said.splitlines()
    assert lines[0].startswith(f"run {number}: ")
    assert lines[1:-1:2] == [away, away]
    assert lines[-1] == "Exit code 2: not-measured"
    assert clock.now() == 380


def test_a_server_that_stays_away_ends_the_wait(
    seeded: Seeded, kernelwatch: Run, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = str(seeded.runs["steady"])
    served_by(Away(lambda: True), monkeypatch)
    for words in (("run", "wait", number), ("run", "start", "norms", "main", "--wait")):
        began = clock.now()
        code, _, said = kernelwatch(*words)
        assert (code, said.splitlines()[-1]) == (
            2,
            "kernelwatch: No answer from http://127.0.0.1/: Connection refused. Check the address, and that it runs.",
        )
        assert clock.now() - began == 190
    began = clock.now()
    assert kernelwatch("run", "wait", number, "--timeout", "20")[0] == 2
    assert clock.now() - began == 30
