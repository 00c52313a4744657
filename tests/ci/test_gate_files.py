"""The files that CI systems read: valid, and pinned as the server is."""

import re
import subprocess
import sys
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.project.release import release
from tests.project.test_docs import blocks, lines
from tests.project.test_wheel import Environment, needed, wheel  # noqa: F401  (a fixture)

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
ACTION, TEMPLATE = ROOT / "action.yml", ROOT / "ci" / "kernelwatch.gitlab-ci.yml"
SCRIPT = ROOT / "ci" / "kernelwatch.sh"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize(
    "command",
    [
        ("check-jsonschema", "--builtin-schema", "vendor.github-actions", ACTION),
        ("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", TEMPLATE),
        ("shellcheck", SCRIPT),
    ],
    ids=["action", "template", "script"],
)
def test_files_pass_their_checkers(command: tuple[str | Path, ...]) -> None:
    passes(*command)


def test_actions_are_pinned_by_commit() -> None:
    """Whoever can move a tag of theirs would run code with the tokens of our jobs, and of the readers'."""
    files = [ACTION, ROOT / "docs" / "ci.md", *(ROOT / ".github" / "workflows").glob("*.yml")]
    used = {each for file in files for each in re.findall(r"uses: *([^\s#]+)", file.read_text())}
    assert used
    assert {each for each in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", each)} == set()


def passes(*command: str | Path) -> None:
    done = subprocess.run([BIN / command[0], *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def pins(file: str) -> dict[str, str]:
    """Each requirement with its version and hashes, without comments."""
    text = re.sub(r"^ *#.*\n", "", (ROOT / file).read_text(), flags=re.MULTILINE)
    found = re.findall(r"^([\w.-]+)==(.*(?:\n .*)*)", text, flags=re.MULTILINE)
    return {name: pinned.strip() for name, pinned in found}


def test_the_gate_installs_the_versions_of_the_server() -> None:
    gate, server = pins("ci/requirements.txt"), pins("requirements.txt")
    building = gate.pop("setuptools")
    assert "--hash=sha256:" in building
    assert gate == {name: server.get(name) for name in gate}
    assert needed(*PROJECT["dependencies"]) <= gate.keys()


def test_every_input_of_the_action_is_a_variable_of_the_script() -> None:
    action = yaml.safe_load(ACTION.read_text())
    [step] = action["runs"]["steps"]
    passed = {text.removeprefix("${{ inputs.").removesuffix(" }}") for text in step["env"].values() if "inputs" in text}
    assert passed == action["inputs"].keys()
    read = set(re.findall(r"\$\{?(KERNELWATCH_\w+)", SCRIPT.read_text()))
    set_by_the_step = set(re.findall(r"KERNELWATCH_\w+", " ".join([*step["env"], step["run"]])))
    assert read == set_by_the_step | {"KERNELWATCH_COMMAND"}
    named = set(re.findall(r"^#.*", SCRIPT.read_text(), re.MULTILINE))
    assert {name for line in named for name in re.findall(r"KERNELWATCH_\w+", line)} == read


def documented(heading: str) -> set[str]:
    """All names in backticks in the first cells of the tables under a heading of docs/ci.md."""
    cells = [line.cells[0] for line in lines("ci.md") if line.heading == heading]
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def test_the_page_has_every_input_output_and_variable() -> None:
    action = yaml.safe_load(ACTION.read_text())
    assert documented("GitHub Actions") == action["inputs"].keys() | action["outputs"].keys()
    assert documented("Other systems") == set(re.findall(r"\$\{?(KERNELWATCH_\w+)", SCRIPT.read_text()))


def test_the_configurations_of_the_page_are_valid(tmp_path: Path) -> None:
    action, template = yaml.safe_load(ACTION.read_text()), TEMPLATE.read_text()
    workflows, gitlab = 0, 0
    for number, text in enumerate(blocks(ROOT / "docs" / "ci.md", "yaml")):
        file = tmp_path / f"{number}.yml"
        file.write_text(text)
        found = yaml.safe_load(text)
        if "include" in found:
            gitlab += 1
            passes("check-jsonschema", "--builtin-schema", "vendor.gitlab-ci", "--data-transform", "gitlab-ci", file)
            assert set(re.findall(r"KERNELWATCH_\w+", text)) <= set(re.findall(r"KERNELWATCH_\w+", template))
            continue
        workflows += 1
        passes("check-jsonschema", "--builtin-schema", "vendor.github-workflows", file)
        steps = [step for job in found["jobs"].values() for step in job["steps"]]
        for step in steps:
            if step.get("uses", "").startswith(f"{release().repository}@"):
                required = {name for name, one in action["inputs"].items() if one.get("required")}
                assert required <= step["with"].keys() <= action["inputs"].keys()
    assert (workflows, gitlab) == (2, 1)


def of_extra(extra: str) -> Iterator[str]:
    """The requirements of an extra, with those of the extras that it includes."""
    for text in PROJECT["optional-dependencies"][extra]:
        included = re.fullmatch(r"kernelwatch\[(\w+)\]", text)
        yield from of_extra(included[1]) if included else (text,)


def without_a_gpu() -> tuple[str, set[str]]:
    """The workflow of docs/ci.md without a GPU, and the distributions that it installs."""
    [text] = [text for text in blocks(ROOT / "docs" / "ci.md", "yaml") if "pip install" in text]
    [extra] = re.findall(r"pip install '?\./\.kernelwatch(?:\[(\w+)\])?'?$", text, re.MULTILINE)
    return text, needed(*PROJECT["dependencies"], *(of_extra(extra) if extra else ()))


def test_the_workflow_without_a_gpu_uses_commands_that_its_installation_has() -> None:
    text, installed = without_a_gpu()
    assert set(re.findall(r"kernelwatch ((?:stack )?\w+) ", text)) == {"stack list", "stack create", "facts"}
    assert "uv" in installed, "`stack create` installs torch with it"


@pytest.mark.long
def test_the_workflow_without_a_gpu_installs_what_its_commands_need(
    wheel: Path,  # noqa: F811
    tmp_path: Path,
) -> None:
    _, installed = without_a_gpu()
    made = Environment(tmp_path / "environment")
    venv.create(made.folder, symlinks=True)
    made.install(wheel)
    made.link(installed)
    command = made.folder / "bin" / "kernelwatch"
    listed = made.run(command, "stack", "list")
    assert listed.returncode == 0, listed.stderr
    assert "is not the checkout of a git repository" in made.run(command, "facts", "./").stderr
