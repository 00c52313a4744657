"""The action and the GitLab template, run as their CI systems run them, against a real server that measures."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kernelwatch.client import Client
from service.ledger.intake import registry
from tests import needs
from tests.fakes.api import new_key
from tests.fakes.contracts import webhooks
from tests.fakes.contracts.contract import contract
from tests.fakes.runners import Ended, GitLabJob, evaluated, started, use_action
from tests.stories.test_story import FAST, WIDE, Story, story  # noqa: F401  (a fixture)
from tests.stories.test_story_client import worker

ROOT = Path(__file__).parents[2]
REPOSITORY = "acme/norms"
STRANGERS = "::error::text of a stranger"
HEAD = "cd" * 20
MERGED = {
    "CI_COMMIT_SHA": "ab" * 20,
    "CI_MERGE_REQUEST_PROJECT_ID": "1",
    "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "1",
}
KEY = "kw_0000000000_secret"
MERGE = "ab" * 20  # the merge commit of a pull request, which only GitHub has


def pull_event(sha: str, *, fork: bool) -> dict[str, Any]:
    """The event of a pull request in a repository that is itself a fork."""
    body = webhooks.pull_request(7, "synchronize", sha, "b" * 40, whose="stranger/norms" if fork else REPOSITORY)
    body["pull_request"]["head"]["repo"]["fork"] = True
    whole: dict[str, Any] = contract("github_webhooks").webhook("pull_request", body)
    return whole


@dataclass
class Jobs:
    """Starts jobs of the CI of `norms`, with the command of the light environment."""

    story: Story
    checkout: Path
    folder: Path
    command: Path | None  # None: the action installs it
    key: str
    attempt: int = 0

    def github(self, sha: str, event: str = "push", *, fork: bool = False, **given: str) -> Ended:
        """A job of GitHub with a step that uses the action, in a repository that is itself a fork."""
        self.attempt += 1
        github = {
            "sha": sha if event == "push" else MERGE,
            "event": pull_event(sha, fork=fork) if event == "pull_request" else {},
            "run_id": "712",
            "run_attempt": str(self.attempt),
        }
        usual = {"server": self.story.address, "target": "norms", "key": self.key}
        environment = {"GITHUB_REPOSITORY": REPOSITORY}
        if self.command:
            environment["KERNELWATCH_COMMAND"] = str(self.command)
        given = {name.replace("_", "-"): value for name, value in given.items()}
        folder = self.folder / f"github-{self.attempt}"
        return use_action(self.checkout, folder, usual | given, github=github, environment=environment)

    def gitlab(self, predefined: Mapping[str, str], **project: str) -> tuple[Ended, list[str], str]:
        """A job of a GitLab pipeline whose configuration includes the template."""
        self.attempt += 1
        including = {
            "KERNELWATCH_SERVER": self.story.address,
            "KERNELWATCH_TARGET": "norms",
            "KERNELWATCH_SOURCE": f"file://{self.checkout}",
        }
        job = GitLabJob(self.checkout / "ci" / "kernelwatch.gitlab-ci.yml", including)
        secrets = {"KERNELWATCH_COMMAND": str(self.command), **project}
        known = {"CI": "true", "GITLAB_CI": "true", "CI_JOB_ID": str(self.attempt), **predefined}
        ended, artifacts = job.run(self.folder / f"gitlab-{self.attempt}", known, secrets)
        return ended, artifacts, job.status(ended.code)

    def report(self, name: str = "report.json") -> str:
        """A file of the newest job."""
        [folder] = self.folder.glob(f"*-{self.attempt}/")
        return (folder / "kernelwatch-report" / name).read_text()


@pytest.fixture
def jobs(story: Story, checkout: Path, tmp_path: Path) -> Jobs:  # noqa: F811
    """With the command of this checkout, and a policy by which what is found fails the job."""
    gate = '[policy.gate]\nregression = "fail"\ninconclusive = "fail"\n'
    registry.edit("norms", recipe=(f"{story.recipe}\n{gate}", {}))
    starts = f"PYTHONPATH={ROOT} exec {sys.executable} -c 'from kernelwatch.command import main; main()' \"$@\""
    command = program(tmp_path / "kernelwatch", starts)
    return Jobs(story, checkout, tmp_path, command, new_key("run:norms"))


def program(file: Path, text: str) -> Path:
    """A script for the shell."""
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return file


@dataclass
class Scripted:
    """Starts jobs on GitHub with a command that is scripted: these tests are about what surrounds it."""

    checkout: Path
    folder: Path
    attempt: int = 0

    def github(
        self, text: str, event: str = "push", *, fork: bool = False, attempt: str = "1", job: str = "", **given: str
    ) -> Ended:
        """A job whose command is this script for the shell; its arguments are in `arguments`."""
        self.attempt += 1
        folder = self.folder / f"job-{self.attempt}"
        folder.mkdir()
        command = program(folder / "kernelwatch", f"printf '%s\\n' \"$@\" > {self.arguments}\n{text}")
        event_of_pull = pull_event(HEAD, fork=fork) if event == "pull_request" else {}
        github = {"sha": MERGE, "event": event_of_pull, "run_id": "712", "run_attempt": attempt}
        usual = {"server": "https://watch.example", "target": "norms", "key": KEY}
        environment = {"GITHUB_REPOSITORY": REPOSITORY, "KERNELWATCH_COMMAND": str(command)}
        given = {name.replace("_", "-"): value for name, value in given.items()}
        self.arguments.unlink(missing_ok=True)
        return use_action(self.checkout, folder, usual | given, github=github, environment=environment)

    @property
    def arguments(self) -> Path:
        return self.folder / "arguments"

    @property
    def option(self) -> dict[str, str]:
        """The options of the newest job with their values."""
        words = self.arguments.read_text().splitlines()
        return {word: value for word, value in pairwise(words) if word.startswith("--")}


@pytest.fixture
def scripted(checkout: Path, tmp_path: Path) -> Scripted:
    return Scripted(checkout, tmp_path)


def refuses(sentence: str) -> str:
    """A command that ends with this sentence."""
    return f"printf '%s\\n' {shlex.quote(f'kernelwatch: {sentence}')} >&2; exit 2"


def finds(code: int, outcome: str, said: str = "") -> str:
    """A command that saves a result, after it has printed something."""
    values = f"runs=7\noutcome={outcome}\nexit_code={code}\nurl=https://watch.example/runs/7\nheadline=Its headline\n"
    return f"{said}\nprintf '{values}' > kernelwatch-report/result.env; exit {code}"


def test_a_pull_request_on_github_gets_its_verdict(jobs: Jobs) -> None:
    steady = jobs.story.commit("as fast as before")
    slow = jobs.story.commit("two passes", wide=260.0)
    with worker():
        passed = jobs.github(steady)
        assert (passed.code, passed.annotations) == (0, []), passed.log
        assert passed.outputs["outcome"] == "pass"

        failed = jobs.github(slow, "pull_request")
    assert failed.code == 1, failed.log
    [(level, message)] = failed.annotations
    run = jobs.story.run_of(slow)
    assert (level, message) == ("error", f"{failed.outputs['headline']}: {failed.outputs['url']}")
    assert failed.outputs["headline"].startswith("1 of ")
    assert failed.outputs["url"].endswith(f"/runs/{run.id}")
    assert (failed.outputs["runs"], failed.outputs["outcome"], failed.outputs["exit-code"]) == (
        str(run.id),
        "fail",
        "1",
    )
    assert re.search(rf"{re.escape(WIDE)} .*regression", failed.log)
    assert "run " in failed.log.splitlines()[0], "progress comes first"
    assert WIDE in failed.summary
    assert failed.summary == jobs.report("report.md")
    [document] = json.loads(jobs.report())
    assert document["revision"] == slow, "the head of the pull request, and not the merge commit"

    allowed = jobs.github(slow, "pull_request", fail_on="invalid,failed")
    assert (allowed.code, allowed.outputs["exit-code"]) == (0, "0")
    assert allowed.annotations == [("warning", message)]
    assert len(jobs.story.runs(slow)) == 1, "what was measured is not measured again"


@pytest.mark.long
def test_a_result_that_is_no_verdict_is_named(jobs: Jobs) -> None:
    wrong = jobs.story.commit("bf16 sums", wide="invalid: y is wrong")
    jobs.story.commit("right again", wide=200.0)
    (jobs.story.repository / "broken").touch()
    broken = jobs.story.commit("does not build")
    (jobs.story.repository / "broken").unlink()
    with worker():
        assert jobs.github(wrong, device="cpu").code == 125
        built = jobs.github(broken, suite="quick")
        assert (built.code, built.outputs["headline"][:12]) == (125, "Build failed"), built.log
        assert "error: no such header" in built.log
        assert jobs.github(broken, suite="quick", fail_on="regression").code == 0

        with Client(jobs.story.address, new_key("admin")) as client:
            for case in (FAST, WIDE):
                client.calibration.quarantine("norms", case, device="cpu", reason="a noisy machine")
        undecided = jobs.github(jobs.story.commit("nobody can tell", fast=150.0, wide=300.0))
    assert (undecided.code, undecided.outputs["outcome"]) == (3, "undecided"), undecided.log
    assert undecided.annotations[0][0] == "error"


@pytest.mark.long
def test_a_strangers_commit_is_held_and_a_job_that_waits_too_long_ends(jobs: Jobs) -> None:
    jobs.story.git("checkout", "--quiet", "--detach")
    stranger = jobs.story.commit("a stranger's change", wide=260.0)
    jobs.story.git("update-ref", "refs/pull/7/head", stranger)
    jobs.story.git("checkout", "--quiet", "main")
    held = jobs.github(stranger, "pull_request", timeout="20")
    assert (held.code, held.outputs["outcome"]) == (2, "undecided"), held.log
    assert "Held for approval" in held.annotations[0][1]

    slow = jobs.story.commit("nobody measures it")
    late = jobs.github(slow, timeout="1")
    [run] = jobs.story.runs(slow)
    assert late.code == 2
    assert late.outputs["url"].endswith(f"/runs/{run.id}")
    assert late.outputs | {"report": "", "url": ""} == {
        "runs": str(run.id),
        "outcome": "undecided",
        "exit-code": "2",
        "headline": f"Run {run.id} is still queued after 1 s, and goes on",
        "url": "",
        "report": "",
    }
    assert late.annotations[0][1] == f"{late.outputs['headline']}: {late.outputs['url']}"
    assert late.annotations[0][1] in late.summary


def test_a_job_of_a_fork_has_no_key_and_says_so(scripted: Scripted) -> None:
    skipped = scripted.github("", "pull_request", fork=True, key="")
    assert (skipped.code, skipped.outputs["outcome"]) == (0, "no-key")
    assert skipped.annotations == [("notice", "Not measured: jobs of a fork get no secrets, so there is no key.")]
    failed = scripted.github("", "pull_request", fork=True, key="", no_key="fail")
    assert (failed.code, failed.outputs["outcome"], failed.annotations[0][0]) == (2, "no-key", "error")
    for event in ("push", "pull_request"):
        missing = scripted.github("", event, key=" ")
        assert (missing.code, missing.outputs["outcome"]) == (2, "error")
        sentence = "No key: add one with the scope run:norms to the secrets of this job."
        assert missing.annotations == [("error", sentence)]
    assert not scripted.arguments.exists(), "nothing was started"


@pytest.mark.parametrize(
    ("command", "code", "outcome", "annotations"),
    [
        (finds(0, "pass"), 0, "pass", []),
        (finds(0, "warn"), 0, "warn", ["warning"]),
        (finds(1, "warn"), 1, "warn", ["error"]),
        (finds(3, "undecided"), 3, "undecided", ["error"]),
        (finds(125, "fail"), 125, "fail", ["error"]),
    ],
)
def test_the_result_of_the_command_is_that_of_the_step(
    scripted: Scripted, command: str, code: int, outcome: str, annotations: list[str]
) -> None:
    ended = scripted.github(command)
    assert (ended.code, ended.outputs["outcome"], ended.outputs["exit-code"]) == (code, outcome, str(code)), ended.log
    said = "Its headline: https://watch.example/runs/7"
    assert ended.annotations == [(level, said) for level in annotations]


def test_a_command_without_a_result_is_one_sentence(scripted: Scripted) -> None:
    refused = scripted.github(f"echo waiting; {refuses('No target norm.')}")
    assert (refused.code, refused.outputs["outcome"]) == (2, "error")
    assert refused.annotations == [("error", "No target norm.")]
    assert "No target norm." in refused.summary
    assert refused.log.splitlines() == ["waiting", "kernelwatch: No target norm."]
    killed = scripted.github("kill -9 $$")
    assert killed.annotations == [("error", "The command ended with 137: see the log.")]


def test_inputs_are_values_and_the_key_is_masked(scripted: Scripted) -> None:
    for given in ({"target": '$(touch pwned)"; touch pwned; "'}, {"revision": "--help"}, {"device": "`touch pwned`"}):
        assert scripted.github(refuses("No."), **given).code == 2
        assert set(given.values()) <= set(scripted.arguments.read_text().splitlines())
        assert scripted.arguments.read_text().splitlines()[-3] == "--", "what follows is no option"
    assert not list(scripted.folder.rglob("pwned"))
    ended = scripted.github(refuses(f"No target {KEY}."))
    assert ended.masks == [KEY]
    assert KEY not in ended.log
    assert "***" in ended.log


def test_a_key_is_in_no_log_whatever_its_ends_are(scripted: Scripted) -> None:
    late = scripted.github(refuses("Run 7 is still queued."), key=f"{KEY}\r\n")
    assert late.annotations == [("error", "Run 7 is still queued.")]
    assert late.masks == [KEY]
    scripted.github(finds(0, "pass"), key=f"{KEY}\n{KEY}")
    written = [file for file in scripted.folder.rglob("*") if file.is_file()]
    assert [file.name for file in written if KEY in file.read_text(errors="replace")] == []


def test_backslashes_of_a_repository_are_no_line_breaks(scripted: Scripted) -> None:
    """The echo of dash would make lines of them, of which the second is a command, after commands are obeyed again."""
    said = r"boom\n::warning file=norms.py::approved"
    ended = scripted.github(refuses(said))
    assert ended.annotations == [("error", said)]
    assert ended.outputs["headline"] == said


def test_a_build_log_gives_no_commands_to_the_runner(scripted: Scripted) -> None:
    ended = scripted.github(finds(125, "fail", f"echo '{STRANGERS}'"))
    assert ended.code == 125
    assert STRANGERS in ended.log.splitlines(), "printed, and not obeyed"
    assert [level for level, _ in ended.annotations] == ["error"]
    assert STRANGERS not in ended.annotations[0][1]


def test_a_job_that_is_started_again_by_the_system_has_the_same_idempotency_key(scripted: Scripted) -> None:
    """One that a person starts again, another commit and another device have another."""
    keys = []
    for given in ({}, {}, {"attempt": "2"}, {"revision": "ef" * 20}, {"device": "h200"}):
        scripted.github(finds(0, "pass"), **given)
        keys.append(scripted.option["--idempotency-key"])
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4
    assert keys[0].startswith("github-712-1-gate-")


def test_the_head_of_a_pull_request_is_measured_and_not_its_merge(scripted: Scripted) -> None:
    for event, revision in (("push", MERGE), ("pull_request", HEAD)):
        scripted.github(finds(0, "pass"), event, timeout="60", fail_on="failed", suite="quick", again="true")
        words = scripted.arguments.read_text().splitlines()
        assert words[-3:] == ["--", "norms", revision]
        assert "--again" in words
        given = {name: scripted.option[name] for name in ("--timeout", "--fail-on", "--suite")}
        assert given == {"--timeout": "60", "--fail-on": "failed", "--suite": "quick"}


@pytest.mark.long
def test_a_job_that_loses_its_connection_is_started_again_without_a_second_run(jobs: Jobs) -> None:
    sha = jobs.story.commit("measured already")
    with worker():
        assert jobs.github(sha).code == 0
    for attempt, runs in ((7, 2), (7, 2), (8, 3)):
        jobs.attempt = attempt - 1
        late = jobs.github(sha, again="true", timeout="1")
        assert "is still queued" in late.annotations[0][1]
        assert len(jobs.story.runs(sha)) == runs


@pytest.mark.long
def test_the_next_job_repeats_a_cancelled_run_and_not_a_failed_one(jobs: Jobs) -> None:
    (jobs.story.repository / "broken").touch()
    sha = jobs.story.commit("does not build")
    assert jobs.github(sha, timeout="1").outputs["outcome"] == "undecided"
    [run] = jobs.story.runs(sha)
    with Client(jobs.story.address, jobs.key) as client:
        client.runs.cancel(run.id)
    with worker():
        assert jobs.github(sha).code == 125
        assert jobs.github(sha).code == 125
        assert [one.attempt for one in jobs.story.runs(sha)] == [1]
        assert jobs.github(sha, again="true").code == 125
    assert len(jobs.story.runs(sha)) == 2


def test_another_ci_system_runs_the_script_in_its_checkout(jobs: Jobs) -> None:
    jobs.story.commit("two passes", wide=260.0)
    arguments = {
        "KERNELWATCH_SERVER": jobs.story.address,
        "KERNELWATCH_KEY": jobs.key,
        "KERNELWATCH_TARGET": "norms",
        "KERNELWATCH_COMMAND": str(jobs.command),
        "BUILD_TAG": "jenkins-norms-712",
    }
    script = jobs.checkout / "ci" / "kernelwatch.sh"
    with worker():
        code, log = started(["sh", script], jobs.story.repository, arguments)
    assert code == 1, log
    assert "::" not in log, "no commands for a runner of GitHub"
    assert log.splitlines()[-1].startswith("kernelwatch: 1 of 2 cases ")
    assert WIDE in (jobs.story.repository / "kernelwatch-report" / "report.md").read_text()
    for name in ("SERVER", "TARGET", "KEY"):
        missing = arguments | {f"KERNELWATCH_{name}": ""}
        code, log = started(["sh", script], jobs.story.repository, missing)
        assert (code, log.count("\n"), f"No {name.lower()}: " in log) == (2, 1, True)


@pytest.fixture
def index(tmp_path: Path) -> None:
    """The index of pip."""
    probe = ["download", "--quiet", "--no-deps", "--dest", tmp_path / "probe", "mdurl"]
    if subprocess.run(["python3", "-m", "pip", *probe], capture_output=True, check=False).returncode:
        needs.skip("index")


@pytest.mark.usefixtures("index")
@pytest.mark.long
def test_the_action_installs_its_own_checkout(jobs: Jobs) -> None:
    """With the versions and hashes of ci/requirements.txt, and nothing of the server."""
    sha = jobs.story.commit("as fast as before")
    jobs.command = None
    with worker():
        ended = jobs.github(sha, report="results")
    assert ended.code == 0, ended.log
    assert ended.groups == ["Install kernelwatch"]


def test_gitlab_runs_the_template(jobs: Jobs) -> None:
    slow = jobs.story.commit("two passes", wide=260.0)
    key = jobs.key
    with worker():
        ended, artifacts, status = jobs.gitlab({"CI_COMMIT_SHA": slow}, KERNELWATCH_KEY=key)
    assert (ended.code, status) == (1, "failed"), ended.log
    assert artifacts == ["log.txt", "report.json", "report.md", "report.sarif", "report.xml", "result.env"]
    last = ended.log.splitlines()[-1]
    assert last.startswith("kernelwatch: 1 of 2 cases ")
    assert WIDE in ended.log
    assert key not in ended.log

    stranger = MERGED | {"CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": slow, "CI_MERGE_REQUEST_SOURCE_PROJECT_ID": "2"}
    ended, _, status = jobs.gitlab(stranger)
    assert ended.log == "kernelwatch: Not measured: jobs of a fork get no secrets, so there is no key.\n"
    assert status == "passed"


@pytest.mark.long
def test_gitlab_measures_merge_requests_and_passes_what_is_undecided_with_warnings(jobs: Jobs) -> None:
    slow = jobs.story.commit("two passes", wide=260.0)
    key = jobs.key
    with worker():
        merged = MERGED | {"CI_MERGE_REQUEST_SOURCE_BRANCH_SHA": slow}
        assert jobs.gitlab(merged, KERNELWATCH_KEY=key)[0].code == 1
        assert jobs.gitlab(merged, KERNELWATCH_KEY=key, KERNELWATCH_FAIL_ON="failed")[2] == "passed"

        with Client(jobs.story.address, new_key("admin")) as client:
            for case in (FAST, WIDE):
                client.calibration.quarantine("norms", case, device="cpu", reason="a noisy machine")
        undecided = {"CI_COMMIT_SHA": jobs.story.commit("nobody can tell", fast=150.0, wide=300.0)}
        ended, _, status = jobs.gitlab(undecided, KERNELWATCH_KEY=key)
        assert (ended.code, status) == (3, "passed with warnings"), ended.log

    ended, _, status = jobs.gitlab(merged)
    assert (ended.code, status) == (2, "failed")


@pytest.mark.parametrize(
    ("predefined", "added"),
    [
        ({"CI_PIPELINE_SOURCE": "merge_request_event", "CI_DEFAULT_BRANCH": "main"}, True),
        ({"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": "main", "CI_DEFAULT_BRANCH": "main"}, True),
        ({"CI_PIPELINE_SOURCE": "push", "CI_COMMIT_BRANCH": "wip", "CI_DEFAULT_BRANCH": "main"}, False),
    ],
)
def test_gitlab_adds_the_job_to_merge_requests_and_the_default_branch(
    checkout: Path, predefined: dict[str, str], added: bool
) -> None:
    assert GitLabJob(checkout / "ci" / "kernelwatch.gitlab-ci.yml", {}).is_added(predefined) is added


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${{ github.event.pull_request.head.sha || github.sha }}", "abc"),
        ("${{ github.event.pull_request.head.repo.fork }}", ""),
        ("no-${{ inputs.fork }}", "no-true"),
    ],
)
def test_expressions(text: str, value: str) -> None:
    contexts: dict[str, Any] = {"github": {"sha": "abc", "event": {}}, "inputs": {"fork": True}}
    assert evaluated(text, contexts) == value
