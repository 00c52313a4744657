"""The runners of GitHub and GitLab, as far as our action and our template need them; anything else raises.

They read the real files and start the real scripts.  What they do is in GitHub's references of the metadata syntax, of
workflow commands and of contexts, and in GitLab's of the YAML syntax.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

MAX_S = 240  # of a job
SHELLS = {"sh": ("sh", "-e")}
EXPRESSION = re.compile(r"\$\{\{(.*?)\}\}")
CONTEXT = re.compile(r"(github|inputs|steps)(\.[\w-]+)+")
COMMAND = re.compile(r"::([\w-]+)(?: ([^:]*))?::(.*)")
LEVELS = ("error", "warning", "notice")


@dataclass
class Ended:
    """What a job leaves."""

    code: int
    log: str = ""  # as people see it: without commands, with masked secrets
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    annotations: list[tuple[str, str]] = field(default_factory=list)  # level and message
    groups: list[str] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)


def started(command: Sequence[str | Path], folder: Path, environment: Mapping[str, str]) -> tuple[int, str]:
    """The exit code and the output of a script; a log has both streams."""
    clean = {"PATH": os.environ["PATH"], "HOME": str(folder)} | dict(environment)
    both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL}
    with subprocess.Popen(command, cwd=folder, env=clean, text=True, start_new_session=True, **both) as process:
        try:
            printed, _ = process.communicate(timeout=MAX_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            raise
    return process.returncode, printed


# -- GitHub ------------------------------------------------------------------------------------------------------------


def evaluated(text: object, contexts: Mapping[str, Any]) -> str:
    """A text with its expressions replaced by their values."""
    return EXPRESSION.sub(lambda found: _value(found[1], contexts), str(text))


def _value(expression: str, contexts: Mapping[str, Any]) -> str:
    """`a.b || c.d`: the first that is neither empty nor false."""
    value: Any = None
    for term in expression.split("||"):
        if not CONTEXT.fullmatch(term.strip()):
            raise NotImplementedError(f"The expression {term!r} is not one that this runner knows.")
        value = contexts
        for name in term.strip().split("."):
            value = value.get(name) if isinstance(value, Mapping) else None
        if value:
            break
    return {None: "", True: "true", False: "false"}.get(value, str(value)) if not isinstance(value, str) else value


def use_action(
    checkout: Path,
    folder: Path,
    given: Mapping[str, str],
    *,
    github: Mapping[str, Any],
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run the composite action of a checkout as a step: `given` is its `with`, `environment` the job's `env`."""
    action = yaml.safe_load((checkout / "action.yml").read_text())
    assert action["runs"]["using"] == "composite"
    assert given.keys() <= action["inputs"].keys()
    contexts: dict[str, Any] = {"github": github, "steps": {}, "inputs": {}}
    contexts["inputs"] = {
        name: given.get(name, evaluated(one.get("default", ""), contexts)) for name, one in action["inputs"].items()
    }
    folder.mkdir(exist_ok=True)
    files = {name: folder / f"_{name.lower()}" for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    event = folder / "_event.json"
    event.write_text(json.dumps(github.get("event", {})))
    ended = Ended(0)
    for step in action["runs"]["steps"]:
        assert step.keys() <= {"id", "name", "run", "shell", "env"}
        assert not EXPRESSION.search(step["run"]), "an input in a script can run anything"
        for file in files.values():
            file.write_text("")
        script = folder / "_step.sh"
        script.write_text(step["run"])
        variables = {
            **(environment or {}),
            **{name: str(file) for name, file in files.items()},
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(checkout),
            "GITHUB_EVENT_PATH": str(event),
            "GITHUB_JOB": "gate",
            "GITHUB_RUN_ID": github["run_id"],
            "GITHUB_RUN_ATTEMPT": github["run_attempt"],
            "GITHUB_SHA": github["sha"],
            **{name: evaluated(value, contexts) for name, value in step.get("env", {}).items()},
        }
        ended.code, printed = started([*SHELLS[step["shell"]], script], folder, variables)
        _obey(printed, ended)
        ended.summary += files["GITHUB_STEP_SUMMARY"].read_text()
        contexts["steps"][step["id"]] = {"outputs": _assignments(files["GITHUB_OUTPUT"].read_text())}
        if ended.code:
            break
    ended.outputs = {name: evaluated(one["value"], contexts) for name, one in action["outputs"].items()}
    return ended


def _assignments(text: str) -> dict[str, str]:
    """The lines `name=value` of a file of outputs; the last of a name counts."""
    lines = text.splitlines()
    assert all(re.match(r"[\w-]+=", line) for line in lines), text
    return dict(line.split("=", 1) for line in lines)


def _obey(printed: str, ended: Ended) -> None:
    """Carry out the workflow commands of an output; the rest is the log."""
    shown, resumes = [], None
    for line in printed.splitlines():
        found = COMMAND.fullmatch(line)
        if resumes is not None or found is None:
            if line == f"::{resumes}::":
                resumes = None
            else:
                shown.append(line)
            continue
        name, value = found[1], found[3].replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")
        match name:
            case "stop-commands":
                resumes = value
            case "add-mask":
                ended.masks.append(value)
            case "group":
                ended.groups.append(value)
            case "endgroup":
                pass
            case _ if name in LEVELS:
                ended.annotations.append((name, value))
            case _:
                raise NotImplementedError(f"The workflow command {name} is not one that this runner knows.")
    assert resumes is None, "workflow commands are still stopped"
    log = "\n".join(shown)
    for mask in ended.masks:
        log = log.replace(mask, "***")
    ended.log = log


# -- GitLab ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GitLabJob:
    """The job of a template that another file includes; `variables` are those of the including file."""

    template: Path
    variables: Mapping[str, str]

    @property
    def document(self) -> dict[str, Any]:
        found: dict[str, Any] = yaml.safe_load(self.template.read_text())
        assert found.keys() == {"variables", "kernelwatch"}
        return found

    def is_added(self, predefined: Mapping[str, str]) -> bool:
        """Whether a pipeline with these predefined variables has the job."""
        return any(self._holds(rule["if"], predefined) for rule in self.document["kernelwatch"]["rules"])

    def _holds(self, condition: str, variables: Mapping[str, str]) -> bool:
        found = re.fullmatch(r"\$(\w+) == (?:\$(\w+)|\"([^\"]*)\")", condition)
        assert found is not None, condition
        return variables.get(found[1]) == (variables.get(found[2]) if found[2] else found[3])

    def run(self, folder: Path, predefined: Mapping[str, str], project: Mapping[str, str]) -> tuple[Ended, list[str]]:
        """Run it: what it leaves, and the files of its artifacts.  Variables of the project win over those of files."""
        job = self.document["kernelwatch"]
        assert job["variables"]["GIT_STRATEGY"] == "none", "nothing is checked out here"
        folder.mkdir(exist_ok=True)
        variables = {**self.document["variables"], **self.variables, **job["variables"], **project, **predefined}
        script = folder.with_suffix(".sh")
        script.write_text("set -e\n" + "\n".join(job["script"]))
        code, log = started(["sh", script], folder, {name: str(value) for name, value in variables.items()})
        kept = [file for path in job["artifacts"]["paths"] for file in sorted((folder / path).iterdir())]
        return Ended(code, log), [file.name for file in kept]

    def status(self, code: int) -> str:
        """The state of the job in the pipeline."""
        allowed = self.document["kernelwatch"]["allow_failure"]["exit_codes"]
        return "passed" if code == 0 else "passed with warnings" if code in allowed else "failed"
