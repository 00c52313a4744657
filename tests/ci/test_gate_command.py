"""What a job of continuous integration gets from `run start --wait`: progress, results, files and an exit code."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest

from kernelwatch.client import ApiError, Client, Invalid, KernelwatchError, NotAServer, Retries, Unreachable
from service import cli
from service.commands import connection
from service.commands.measure import waiting
from tests.dashboards.conftest import reachable
from tests.dashboards.seed import Seeded, watched
from tests.fakes.api import new_key
from tests.fakes.processes import free_port, until
from tests.stories.test_story import Story, story  # noqa: F401  (a fixture)
from tests.stories.test_story_client import worker

Done = tuple[int, str, str]
Run = Callable[..., Done]


@pytest.fixture(scope="module")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Seeded]:
    with watched(tmp_path_factory.mktemp("state")) as found:
        yield found


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


@pytest.mark.parametrize(
    ("run", "fail_on", "code"),
    [
        ("slow", None, 1),
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
    assert kernelwatch("run", "wait", number, *options)[:2] == (code, usual)


def test_results_are_saved_for_the_steps_that_come_after(seeded: Seeded, kernelwatch: Run, tmp_path: Path) -> None:
    numbers = [str(seeded.runs[name]) for name in ("steady", "slow")]
    folder = tmp_path / "new" / "folder"
    code, _, _ = kernelwatch("run", "wait", *numbers, "--save", str(folder))
    assert [run["id"] for run in json.loads((folder / "report.json").read_text())] == [int(one) for one in numbers]
    assert (folder / "report.md").read_text().count("<!-- kernelwatch") == 1
    values = dict(line.split("=", 1) for line in (folder / "result.env").read_text().splitlines())
    assert values.keys() == {"runs", "outcome", "exit_code", "url", "headline"}
    assert (values["runs"], values["outcome"], values["exit_code"]) == (" ".join(numbers), "warn", str(code))
    assert values["url"].endswith(f"/runs/{numbers[1]}")
    (tmp_path / "file").touch()
    assert kernelwatch("run", "wait", numbers[0], "--save", str(tmp_path / "file" / "x"))[::2] == (
        2,
        f"kernelwatch: --save cannot write to {tmp_path / 'file' / 'x'}: Not a directory.\n",
    )


def test_a_wait_that_takes_too_long_ends(seeded: Seeded, kernelwatch: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "EVERY_S", 0.3)
    number = seeded.runs["queued"]
    code, printed, said = kernelwatch("run", "wait", str(number), "--timeout", "1")
    assert (code, printed) == (2, "")
    assert f"kernelwatch: Run {number} is still queued after 1 s, and goes on: wait longer with --timeout" in said


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


@pytest.mark.parametrize(
    ("server", "options", "sentence"),
    [
        ("http://host:abc", [], "'http://host:abc' is no address of a server"),
        ("http://127.0.0.1:9", ["--idempotency-key", "jöb"], "'jöb' is no idempotency key"),
    ],
)
def test_what_no_server_could_take_is_one_sentence(
    kernelwatch: Run, monkeypatch: pytest.MonkeyPatch, server: str, options: list[str], sentence: str
) -> None:
    monkeypatch.setenv("KERNELWATCH_SERVER", server)
    monkeypatch.setenv("KERNELWATCH_KEY", "kw_secret")
    code, _, said = kernelwatch("run", "start", "norms", "main", *options)
    assert (code, said.count("\n")) == (2, 1)
    assert sentence in said


def test_a_server_that_is_restarted_is_asked_again_with_the_same_idempotency_key(
    kernelwatch: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = list[str]()

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        if len(keys) == 1:
            raise httpx.ConnectError("refused")
        return httpx.Response(503 if len(keys) == 2 else 403, json={"detail": "No."})

    def opened(url: str, key: str | None) -> Client:
        return Client(url, key, retries=Retries(attempts=1), transport=httpx.MockTransport(answer))

    monkeypatch.setenv("KERNELWATCH_SERVER", "http://watch.example")
    monkeypatch.setattr(connection, "open_client", opened)
    monkeypatch.setattr(waiting, "EVERY_S", 0.01)
    code, _, said = kernelwatch("run", "start", "norms", "main", "--wait")
    assert (code, said) == (2, "the server does not answer, trying again\nkernelwatch: No.\n")
    assert (len(keys), len(set(keys))) == (3, 1)

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
def test_only_a_server_that_is_away_is_waited_for(error: KernelwatchError, away: bool) -> None:
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


def test_a_job_that_is_started_again_queues_nothing_twice(
    story: Story,  # noqa: F811
    kernelwatch: Run,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KERNELWATCH_SERVER", story.address)
    monkeypatch.setenv("KERNELWATCH_KEY", new_key("run:norms"))
    slow = story.push("two passes", wide=260.0)
    before = len(story.runs())
    again = ("run", "start", "norms", slow, "--again", "--format", "json")
    with worker():
        for _ in range(2):
            assert kernelwatch(*again, "--idempotency-key", "job 7", "--wait")[0] == 1
    assert len(story.runs()) == before + 1
    kernelwatch(*again, "--idempotency-key", "job 8")
    assert len(story.runs()) == before + 2
    with Client(story.address, new_key("run:norms")) as client:
        client.runs.start("norms", slow, idempotency_key="job 9")
        with pytest.raises(Invalid, match="was used for another request"):
            client.runs.start("norms", slow, again=True, idempotency_key="job 9")


def test_a_wait_begins_while_the_server_is_restarted(
    seeded: Seeded, kernelwatch: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("KERNELWATCH_SERVER", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("KERNELWATCH_KEY", new_key("run:norms"))
    ended = threading.Event()

    def start() -> None:
        time.sleep(6)  # longer than the client repeats a request
        with reachable(port):
            until(ended.is_set, 60)

    server = threading.Thread(target=start, daemon=True)
    server.start()
    number = seeded.runs["steady"]
    try:
        code, _, said = kernelwatch("run", "wait", str(number))
    finally:
        ended.set()
        server.join(90)
    assert code == 0
    assert said.splitlines() == [f"run {number}: the server does not answer, trying again"]


def test_a_wait_goes_on_while_the_server_is_restarted(
    seeded: Seeded, kernelwatch: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second server answers at the address of the first, and knows that the run was cancelled meanwhile."""
    port = free_port()
    monkeypatch.setenv("KERNELWATCH_SERVER", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("KERNELWATCH_KEY", key := new_key("run:norms"))
    number = seeded.runs["running"]
    gone = threading.Event()

    def restart() -> None:
        with reachable(port):
            time.sleep(2)
        gone.set()
        time.sleep(5)
        with reachable(port), Client(f"http://127.0.0.1:{port}", key) as client:
            client.runs.cancel(number)
            until(ended.is_set, 60)

    ended = threading.Event()
    server = threading.Thread(target=restart, daemon=True)
    server.start()
    time.sleep(1)
    try:
        code, _, said = kernelwatch("run", "wait", str(number))
    finally:
        ended.set()
        server.join(90)
    assert gone.is_set()
    assert code == 2
    assert f"run {number}: the server does not answer, trying again" in said.splitlines()
