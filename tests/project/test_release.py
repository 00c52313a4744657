"""What is released has one name, in pyproject.toml, which all documents and examples have too."""

import base64
import hashlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.project.compose import services
from tests.project.release import ROOT, Release, files, release, written
from tests.project.test_docs import blocks

EXAMPLES = ROOT / "docs" / "ci.md"
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
OTHER = Release("kernelwatch", "others/kernelwatch", "7.8.9", "f" * 40)


@pytest.mark.parametrize("file", [*files()], ids=lambda file: str(file.relative_to(ROOT)))
def test_documents_have_the_names_of_the_release(file: Path) -> None:
    text = file.read_text()
    assert written(text, release()) == text, "python -m tests.project.release writes them"


def test_no_mention_escapes() -> None:
    """With the names of another release nothing of ours is left, wherever it is mentioned."""
    ours = release()
    everything = "\n".join(file.read_text() for file in files())
    assert {name for name in (ours.repository, ours.tag, ours.action) if name not in everything} == set()
    renamed = written(everything, OTHER)
    assert re.findall(rf".*{ours.repository}\b.*", renamed) == []
    assert ours.action not in renamed
    assert all(name in renamed for name in (OTHER.repository, OTHER.tag, OTHER.action))
    assert written(renamed, ours) == everything


def test_the_template_is_included_with_its_checksum() -> None:
    [included] = [one for text in blocks(EXAMPLES, "yaml") for one in yaml.safe_load(text).get("include", [])]
    path = included["remote"].partition(f"/{release().tag}/")[2]
    digest = hashlib.sha256((ROOT / path).read_bytes()).digest()
    assert included["integrity"] == f"sha256-{base64.b64encode(digest).decode()}"
    changed = written(EXAMPLES.read_text().replace(included["integrity"], "sha256-old"), release())
    assert included["integrity"] in changed


def test_the_commit_of_the_action_has_what_the_examples_use() -> None:
    """In a clone with its history; one without has no commit to look at."""
    action = release().action
    assert re.fullmatch(r"[0-9a-f]{40}", action)
    shown = subprocess.run(["git", "show", f"{action}:action.yml"], cwd=ROOT, capture_output=True, check=False)
    shallow = subprocess.run(
        ["git", "rev-parse", "--is-shallow-repository"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if shallow.stdout.strip() != "false":
        return
    assert shown.returncode == 0, shown.stderr.decode()
    inputs = yaml.safe_load(shown.stdout)["inputs"]
    workflows = [yaml.safe_load(text) for text in blocks(EXAMPLES, "yaml")]
    steps = [step for one in workflows for job in one.get("jobs", {}).values() for step in job["steps"]]
    [used] = [step["with"] for step in steps if step.get("uses") == f"{release().repository}@{action}"]
    assert used.keys() <= inputs.keys()


def test_images_have_the_name_of_the_package() -> None:
    built = services(ROOT / "docker-compose.yml", {}).values()
    local = {one["image"].partition(":")[0] for one in built if "build" in one}
    pushed = {"kernelwatch" + one["suffix"] for one in WORKFLOW["jobs"]["images"]["strategy"]["matrix"]["include"]}
    deployed = yaml.safe_load((ROOT / "deploy" / "kubernetes" / "kustomization.yaml").read_text())["images"]
    assert pushed == {release().name, f"{release().name}-worker"} == {one["name"] for one in deployed}
    assert local == pushed | {f"{release().name}-worker-cpu"}
    assert {one["newName"] for one in deployed} == {
        f"ghcr.io/{release().repository.partition('/')[0]}/{name}" for name in pushed
    }
    targets = {one["target"] for one in WORKFLOW["jobs"]["images"]["strategy"]["matrix"]["include"]}
    assert targets == {one["build"]["target"] for one in built if "build" in one}


def test_only_the_tag_of_the_version_is_released() -> None:
    def check(tag: str) -> subprocess.CompletedProcess[str]:
        command = ["python3", "-m", "tests.project.release", "--tag", tag]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert check(release().tag).returncode == 0, check(release().tag).stderr
    refused = check(replace(release(), version="7.8.9").tag)
    assert (refused.returncode, refused.stderr) == (
        1,
        f"The tag is v7.8.9, and pyproject.toml has the version {release().version}.\n",
    )
    runs = [step.get("run", "") for step in WORKFLOW["jobs"]["wheel"]["steps"]]
    assert 'python -m tests.project.release --tag "$GITHUB_REF_NAME"' in runs


def test_jobs_of_the_release_have_the_permissions_that_they_need() -> None:
    assert WORKFLOW["permissions"] == {}
    assert {
        name: {key for key, value in job["permissions"].items() if value == "write"}
        for name, job in WORKFLOW["jobs"].items()
    } == {"wheel": {"id-token", "attestations"}, "images": {"packages"}, "publish": {"contents"}}
    text = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    assert {*re.findall(r"secrets\.(\w+)", text)} == {"GITHUB_TOKEN"}
    for job in WORKFLOW["jobs"].values():
        assert not [step for step in job["steps"] if "${{" in step.get("run", "")], "values reach a script as variables"
