"""The manifests for Kubernetes: valid, as closed as docker-compose.yml, and with commands that exist."""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from service.settings import Settings
from tests.project.test_docs import mistake

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
KNOWN = json.loads((Path(__file__).parent / "kubernetes-1.33.json").read_text())
FILES = sorted(file for file in FOLDER.glob("*.yaml") if file.name != "kustomization.yaml")
OBJECTS = [found for file in FILES for found in yaml.safe_load_all(file.read_text())]
NAMES = [f"{found['kind']} {found['metadata']['name']}" for found in OBJECTS]
PODS = {
    found["metadata"]["name"]: found["spec"]["template"]["spec"]
    for found in OBJECTS
    if "template" in found.get("spec", {})
}
WORKER = PODS["kernelwatch-worker"]


def problems(found: dict[str, Any]) -> list[str]:
    """What the API server of Kubernetes 1.33 would not understand."""
    kind = KNOWN["kinds"][f"{found['apiVersion']} {found['kind']}"]
    schema = {"$ref": f"#/$defs/{kind}", "$defs": KNOWN["$defs"]}
    errors = jsonschema.Draft202012Validator(schema).iter_errors(found)
    return [f"{error.json_path}: {error.message}" for error in errors]


def containers(pod: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (*pod.get("initContainers", ()), *pod["containers"])


@pytest.mark.parametrize("found", OBJECTS, ids=NAMES)
def test_an_object_fits_the_schema(found: dict[str, Any]) -> None:
    assert problems(found) == []


def test_a_mistake_does_not_fit() -> None:
    found = copy.deepcopy(next(found for found in OBJECTS if found["kind"] == "StatefulSet"))
    found["spec"]["template"]["spec"]["containers"][0]["livenessprobe"] = {}
    found["spec"]["replicas"] = "one"
    assert len(problems(found)) == 2


def test_the_kustomization_has_every_file() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    assert sorted(kustomization["resources"]) == [file.name for file in FILES]
    images = {container["image"] for pod in PODS.values() for container in containers(pod)}
    assert {image["name"] for image in kustomization["images"]} == images


@pytest.mark.parametrize("pod", PODS.values(), ids=PODS)
def test_nothing_runs_as_root_or_writes_its_image(pod: dict[str, Any]) -> None:
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert pod["automountServiceAccountToken"] is False
    volumes = {volume["name"] for volume in pod["volumes"]} | {"state"}
    for container in containers(pod):
        own = container["securityContext"]
        assert (own["allowPrivilegeEscalation"], own["readOnlyRootFilesystem"]) == (False, True)
        assert own["capabilities"] == {"drop": ["ALL"]}
        assert container["resources"]["limits"]["memory"]
        assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        assert mistake(" ".join(container["args"])) is None


def test_only_what_uses_the_sandbox_is_unconfined() -> None:
    profiles = {name: pod["securityContext"]["seccompProfile"]["type"] for name, pod in PODS.items()}
    assert {name for name, profile in profiles.items() if profile != "RuntimeDefault"} == {"kernelwatch-worker"}
    [worker] = WORKER["containers"]
    assert worker["securityContext"]["procMount"] == "Unmasked"
    assert WORKER["hostUsers"] is False, "the API server refuses `Unmasked` without it"


def test_a_worker_has_one_gpu_and_no_secrets_of_the_forge() -> None:
    [worker] = WORKER["containers"]
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert worker["resources"]["limits"] == worker["resources"]["requests"]
    [secrets] = [volume["secret"] for volume in WORKER["volumes"] if "secret" in volume]
    assert [item["key"] for item in secrets["items"]] == ["kernelwatch_database_password"]


def test_probes_ask_the_health_endpoints() -> None:
    [api] = PODS["kernelwatch-api"]["containers"]
    assert api["livenessProbe"]["httpGet"]["path"] == api["startupProbe"]["httpGet"]["path"] == "/healthz"
    assert api["readinessProbe"]["httpGet"]["path"] == "/readyz"
    [worker] = WORKER["containers"]
    assert worker["livenessProbe"]["exec"]["command"] == ["python", "-m", "workers.healthcheck"]


def test_the_configuration_names_settings() -> None:
    [config] = [found["data"] for found in OBJECTS if found["kind"] == "ConfigMap"]
    named = {name.removeprefix("KERNELWATCH_").lower() for name in config}
    named |= {
        variable["name"].removeprefix("KERNELWATCH_").lower()
        for pod in PODS.values()
        for container in containers(pod)
        for variable in container.get("env", ())
        if variable["name"] != "NVIDIA_DRIVER_CAPABILITIES"
    }
    assert named - {"secrets_dir"} <= Settings.model_fields.keys()
    assert json.loads(config["KERNELWATCH_TRUSTED_HOSTS"])[0] == "kernelwatch-api"
