"""The command line as a script in CI uses it: what goes to which stream, and the exit code."""

import errno
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from kernels.cases import QUACK
from service import cli
from service.db import migrate
from service.db.engine import clock, transaction
from service.db.models import Revision, Run, Target, Worker
from service.domain.states import Purpose, RunState
from service.ledger import targets
from service.ledger.intake import deliveries
from service.ledger.reading import queries
from service.ops import supervisor, torch_install
from tests.dashboards import seed_deciding
from tests.dashboards.seed import CASES, Seeded, watched
from tests.fakes.repository import Repository
from tests.shell import attempt
from workers import control
from workers.machine import device, environments
from workers.machine.device import DeviceHere


def requested(monkeypatch: pytest.MonkeyPatch, ids: list[int]) -> None:
    """Let the ledger answer with these runs, which exist already, to whoever asks for a revision."""
    answer = deliveries.RequestedRuns(tuple(ids), ())
    monkeypatch.setattr(deliveries, "request_runs", lambda *_, **__: answer)


def test_asking_for_what_is_there_says_what_it_is(seeded: Seeded, monkeypatch: pytest.MonkeyPatch) -> None:
    def said(name: str) -> str:
        requested(monkeypatch, [seeded.runs[name]])
        done = attempt("run", "start", "norms", "main")
        assert done.exit_code == 0
        return done.stdout

    number = seeded.runs["steady"]
    assert said("steady").startswith(f"Already measured: run {number} on h200, steady; use --again to measure it again")
    assert said("slow").startswith(f"Already measured: run {seeded.runs['slow']} on h200, regression;")
    assert said("broken").startswith(f"Already failed: run {seeded.runs['broken']} on h200, `sh -c")
    assert said("running").startswith(f"Already being measured: run {seeded.runs['running']} on h200  (http")
    assert said("queued").startswith(f"Queued: run {seeded.runs['queued']} on cpu  (http")
    assert f"`kernelwatch run approve {seeded.runs['held']}`" in said("held")


def test_a_calibration_is_queued_by_hand(seeded: Seeded) -> None:
    refused = attempt("calibration", "start", "norms", "--device", "mi300")
    assert "no device mi300" in str(refused.exception)
    said = attempt("calibration", "start", "norms", "--device", "h200").stdout
    number = int(said.split("run ")[1].split(":")[0])
    with transaction() as session:
        run = session.get_one(Run, number)
        assert (run.purpose, run.baseline) == (Purpose.CALIBRATION, session.get_one(Revision, run.revision_id).sha)
        session.delete(run)


def test_the_status_says_what_stands_and_what_a_run_is_for(seeded: Seeded) -> None:
    with transaction() as session:
        [waiting] = session.query(Run).filter_by(state=RunState.QUEUED).limit(1)
        waiting.purpose, waiting.only_worker = Purpose.CALIBRATION, "h200-box"
    said = attempt("status").stdout
    assert "target norms: 1 open regression, 1 case behind SOTA" in said
    assert "calibration" in said


def test_the_status_says_until_when_nothing_is_sent_and_why(seeded: Seeded) -> None:
    with transaction() as session:
        target = session.query(Target).filter_by(name="norms").one()
        target.forge_paused_until, target.forge_error = clock(session) + 600, "GitHub answered 403: rate limit"
    said = attempt("status").stdout
    assert "comments and checks are sent in " in said
    assert "min: GitHub answered 403: rate limit" in said


def test_where_there_is_nothing_it_says_so(state: Path) -> None:
    assert "The queue is empty." in attempt("status").stdout
    assert "No bisections." in attempt("bisection", "list").stdout
    assert "No open regressions." in attempt("regression", "list").stdout
    assert "No calibrations yet." in attempt("calibration", "show").stdout


def test_words_of_a_remote_are_no_markup(seeded: Seeded) -> None:
    with transaction() as session:
        target = session.query(Target).filter_by(name="liger").one()
        target.poll_error = "fatal: [/x] [red]not\x1b[2J here"
        session.get_one(Run, seeded.runs["queued"]).stage = "[/x]"
    assert "fatal: [/x] [red]not here" in attempt("target", "list").stdout
    assert "[/x]" in attempt("status").stdout


def test_stacks_are_listed_plainly_for_scripts(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    environments.adopt_stack("host", Path("/usr/bin/python3"), [])
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "10")
    assert attempt("stack", "list", "--format", "csv").stdout == "name,python,paths\nhost,/usr/bin/python3,[]\n"


def test_without_a_recipe_the_one_in_the_repository_is_taken(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository = Repository(state / "demo")
    recipe = 'devices = ["cpu"]\n[providers.norms]\nrmsnorm.fwd = "norms:forward"\n'
    repository.commit("norms", {"kernelwatch.toml": recipe})
    added = attempt("target", "add", "norms", repository.folder)
    alone = "No worker has ever run on cpu: runs for it wait until one is started there.\n"
    assert added.stdout == f"Added target norms; queued 1 run.\n{alone}"
    again = attempt("target", "add", "norms", repository.folder)
    assert again.stdout == f"Target norms exists already, and is now as described; queued 0 runs.\n{alone}"
    for number in range(4):
        repository.commit("change", {"norms.py": f"{number}\n"})
    sampled = attempt("run", "backfill", "norms", "main~4..main", "--sample", "2")
    assert sampled.stdout == "Queued 2 runs.\n", "nothing was measured yet, so how long it takes is unknown"
    with transaction() as session:
        assert targets.target_named(session, "norms").recipe_from_branch


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """The processes that a supervisor was asked to start."""
    commands: dict[str, list[str]] = {}
    monkeypatch.setattr(supervisor, "supervise", lambda asked, *_: commands.update(asked) or 0)
    return commands


def test_the_demo_has_a_worker_for_the_processor_beside_that_of_the_gpu(
    state: Path, started: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "ask", lambda: (DeviceHere("h200", "NVIDIA H200", "GPU-5ca1ab1e", 0, 0),))
    assert attempt("up", "--demo").exit_code == 0
    assert set(started) == {"api", "control", "worker", "worker-cpu"}
    assert "KERNELWATCH_DEVICE=cpu" in started["worker-cpu"]


def test_where_there_is_no_gpu_one_worker_is_enough(
    state: Path, started: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device, "ask", lambda: (DeviceHere("cpu", "a processor"),))
    assert attempt("up", "--demo").exit_code == 0
    assert set(started) == {"api", "control", "worker"}


@pytest.mark.parametrize(
    ("gpus", "said"), [("0-1", "KERNELWATCH_GPUS names GPU 0, which is not here"), ("x", "Write numbers of GPUs")]
)
def test_a_worker_of_gpus_that_are_not_here_says_so(
    state: Path, monkeypatch: pytest.MonkeyPatch, gpus: str, said: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    control.devices.cache_clear()  # another test of this process may have asked
    assert said in str(attempt("worker", "start", "--gpus", gpus).exception)


def test_a_second_start_leaves_the_database_alone(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touched: list[str] = []
    monkeypatch.setattr(migrate, "upgrade", lambda: touched.append("migrated"))
    monkeypatch.setattr(supervisor, "_take", lambda _: False)
    assert attempt("up").exit_code == 0
    assert touched == []


@pytest.mark.parametrize(("driver", "installed"), [(True, [[QUACK]]), (False, [])])
def test_a_stack_on_a_gpu_machine_has_quack(
    state: Path, monkeypatch: pytest.MonkeyPatch, driver: bool, installed: list[list[str]]
) -> None:
    made = environments.adopt_stack("host", Path("/usr/bin/python3"), [])
    asked: list[list[str]] = []
    monkeypatch.setattr(environments, "create_stack", lambda *_: made)
    monkeypatch.setattr(torch_install, "has_driver", lambda: driver)

    def install(_: Path, requirements: list[str]) -> None:
        asked.append(requirements)
        raise RuntimeError("no such package [/x]")

    monkeypatch.setattr(torch_install, "install", install)
    done = attempt("stack", "create", "host")
    assert (done.exit_code, asked) == (0, installed)
    assert ("Quack was not installed: no such package [/x]" in done.stderr) is driver


LISTS = (
    "status",
    "target list",
    "stack list",
    "report {slow}",
    "regression list",
    "regression show 1",
    "incident list",
    "incident show 1",
    "bisection list",
    "bisection show 1",
    "calibration show",
    "policy replay norms --policy {policy}",
)
_SAY_ALL = """
import json, sys
from service.cli import app
for command in json.loads(sys.argv[1]):
    print("##", command, flush=True)
    try:
        app(command.split(), standalone_mode=False)
    except SystemExit:
        pass
"""


def test_without_a_terminal_every_list_prints_whole_words(tmp_path: Path) -> None:
    def printed(commands: list[str], **environment: str) -> str:
        plain = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "FORCE_COLOR", "TERM")}
        program = [sys.executable, "-c", _SAY_ALL, json.dumps(commands)]
        done = subprocess.run(program, env=plain | environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return re.sub(r"\d+ (s|min) ago +", "lately ", done.stdout)

    with watched(tmp_path / "state", seed_deciding.seed) as story:
        environments.adopt_stack("host", Path(sys.executable), [])
        policy = tmp_path / "policy.toml"
        policy.write_text("[policy]\nsmallest_change = 0.5\n")
        commands = [one.format(slow=story.runs["slow"], policy=policy) for one in LISTS]
        whole = printed(commands)
        assert whole == printed(commands, COLUMNS="5000"), "nothing was shortened or broken for want of room"
    for command in commands:
        assert whole.split(f"## {command}\n")[1].split("##")[0].strip(), f"{command} printed something"
    shown = whole.split(f"## report {story.runs['slow']}\n")[1].split("##")[0]
    assert any(case in line and " regression " in line for case in CASES for line in shown.splitlines())


def test_an_adopted_stack_gets_byte_code(tmp_path: Path) -> None:
    """uv installs packages without it, and a contender cannot write it."""
    venv.create(tmp_path / "stack", symlinks=True)
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "quack.py").write_text("x = 1\n")
    with watched(tmp_path / "state", seed_deciding.seed):
        arguments = ["--python", str(tmp_path / "stack/bin/python"), "--path", str(tmp_path / "bundle")]
        assert attempt("stack", "adopt", "bundled", *arguments).exit_code == 0
    assert len(list((tmp_path / "bundle").glob("__pycache__/quack.*.pyc"))) == 1


def test_a_worker_is_paused_by_its_name_in_the_list(seeded: Seeded) -> None:
    name = "box/h200-0"
    with transaction() as session:
        now = clock(session)
        session.add(Worker(name=name, device="h200", description="NVIDIA H200", started_at=now, seen_at=now))
    assert name in attempt("worker", "list").stdout
    for verb, paused in (("pause", True), ("drain", True), ("resume", False)):
        done = attempt("worker", verb, name, "--format", "json")
        assert (done.exit_code, json.loads(done.stdout)["paused_at"] is not None) == (0, paused)


@pytest.mark.parametrize("form", ["table", "md"])
def test_a_terminal_that_lacks_a_character_changes_no_verdict(seeded: Seeded, form: str) -> None:
    report = f"kernelwatch report {seeded.runs['steady']} --all --format {form}"
    whole, ascii_only = piped(report), piped(f"PYTHONIOENCODING=ascii {report}")
    assert not whole.stdout.isascii()
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    assert ascii_only.stdout == whole.stdout.encode("ascii", "replace").decode()


# -- a closed pipe is no verdict


def piped(command: str) -> subprocess.CompletedProcess[str]:
    """A pipeline of a shell; its exit code is that of the first command that failed."""
    kernelwatch = f"{sys.executable} -m service.cli"
    script = f"set -o pipefail; {command.replace('kernelwatch', kernelwatch)}"
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    "command",
    [
        "status",  # a table of Rich
        "report {slow}",
        "report {slow} --format json",  # which is printed as it is
        "report {slow} --format md",
        "regression list",
        "--help",
    ],
)
def test_a_closed_pipe_is_no_regression(seeded: Seeded, command: str) -> None:
    """The reader is gone before the first line, as with `| head -0`."""
    done = piped(f"(sleep 0.2; exec kernelwatch {command.format(slow=seeded.runs['slow'])}) | true")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_reader_that_takes_everything_leaves_the_verdict(seeded: Seeded) -> None:
    assert piped(f"kernelwatch report {seeded.runs['slow']} --format json | cat").returncode == 1
    assert piped("kernelwatch status | cat").returncode == 0


def test_another_pipe_that_closes_is_trouble_and_no_regression(
    seeded: Seeded, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A contender that died, say: Typer would exit with 1."""

    def breaks(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    monkeypatch.setattr(cli, "_prepare", lambda: None)  # it would outlive the captured stderr
    monkeypatch.setattr(queries, "workers_by_name", breaks)
    monkeypatch.setattr(sys, "argv", ["kernelwatch", "status"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "PipeClosed" in capfd.readouterr().err
