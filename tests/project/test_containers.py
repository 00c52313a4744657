"""The files of the fleet: valid, and as careful as they claim to be."""

import getpass
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from service.api.access import MAX_BODY
from service.api.gateway.connections import server_options
from service.app import create_app
from service.settings import settings
from tests import needs
from tests.fakes.processes import free_port, served, until
from tests.project.compose import ROOT, services

COMPOSE = ROOT / "docker-compose.yml"
SERVICES = services(COMPOSE, {})
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
BIN = Path(sys.executable).parent


def passes(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_compose_files_fit_the_specification() -> None:
    files = sorted(ROOT.glob("docker-compose*.yml"))
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.compose-spec", *files)


def test_secrets_are_readable_in_containers_whatever_the_umask(tmp_path: Path) -> None:
    """Their user is not ours; the folder keeps the other users of this machine out."""
    passes("sh", "-c", f"umask 077; make --silent --file {ROOT / 'Makefile'} --directory {tmp_path} secrets")
    made = {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "secrets").iterdir()}
    assert len(made) == 8
    assert set(made.values()) == {0o644}
    assert (tmp_path / "secrets").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / ".env").read_text().startswith("HOST=")


def test_workflows_fit_their_schema() -> None:
    files = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.github-workflows", *files)
    passes(BIN / "check-jsonschema", "--builtin-schema", "vendor.dependabot", ROOT / ".github" / "dependabot.yml")


def test_dockerfile_passes_its_linter() -> None:
    passes(BIN / "hadolint", "--failure-threshold", "info", "Dockerfile")


def test_every_secret_is_a_file_and_none_a_value() -> None:
    text = COMPOSE.read_text()
    assert not re.search(r"(PASSWORD|SECRET|TOKEN|BROKER_URL): *(?!/run/secrets)\S", text)
    declared = set(re.findall(r"^  (\w+): \{file: \./secrets/(?:\w+)\}$", text, re.M))
    used = {secret for service in OURS.values() for secret in service.get("secrets", [])}
    assert used <= declared


@pytest.mark.parametrize("device", ["cpu", "h100", "h200", "b200"])
def test_each_device_has_a_worker_behind_its_profile(device: str) -> None:
    worker = SERVICES[f"worker-{device}"]
    assert worker["profiles"] == [device]
    assert worker["command"][worker["command"].index("--queues") + 1] == device


@pytest.mark.parametrize("name", OURS)
def test_nothing_of_ours_runs_as_root_or_may_write_its_image(name: str) -> None:
    service = OURS[name]
    assert service["user"] == "10001:10001"
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "no-new-privileges:true" in service["security_opt"]
    assert not service.keys() & {"privileged", "cap_add", "devices", "pid", "ipc", "network_mode", "userns_mode"}


def test_only_the_api_is_reached_from_outside() -> None:
    assert {name: service["ports"] for name, service in SERVICES.items() if "ports" in service} == {
        "api": ["127.0.0.1:8712:8712"]
    }
    assert {name for name, service in SERVICES.items() if service["networks"] == ["backend"]} >= {"database", "broker"}
    assert re.search(r"^  backend: \{internal: true\}$", COMPOSE.read_text(), re.M)


def test_workers_have_no_secrets_of_the_forge() -> None:
    workers = [service for service in OURS.values() if service["build"]["target"] == "worker"]
    assert {secret for worker in workers for secret in worker["secrets"]} == {
        "kernelwatch_database_password",
        "kernelwatch_broker_url",
    }


def test_the_images_do_not_start_as_root() -> None:
    text = (ROOT / "Dockerfile").read_text()
    stages = {stage.splitlines()[0].split()[-1]: stage for stage in re.split(r"^FROM ", text, flags=re.M)[1:]}
    for target in {service["build"]["target"] for service in OURS.values()}:
        assert re.findall(r"^USER (.*)$", stages[target], re.M)[-1] == "10001:10001"


def test_what_the_images_copy_is_not_ignored() -> None:
    let_through = set(re.findall(r"^!(.*)$", (ROOT / ".dockerignore").read_text(), re.M))
    copied = set(re.findall(r"^COPY (?!--from)(\S+)", (ROOT / "Dockerfile").read_text(), re.M))
    assert let_through <= copied
    assert {path.split("/")[0] for path in copied} == let_through


@pytest.fixture
def proxy(state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client of nginx as the documentation configures it, in front of an API."""
    nginx = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin")
    if nginx is None:
        needs.skip("nginx")
    monkeypatch.setenv("KERNELWATCH_PUBLIC_URL", "https://watch.example.com")
    monkeypatch.setenv("KERNELWATCH_TRUSTED_PROXIES", '["127.0.0.1"]')
    settings.cache_clear()
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    subject = ["-subj", "/CN=watch.example.com", "-keyout", key, "-out", certificate]
    passes("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject)
    plain, encrypted = (free_port() for _ in range(2))
    with served(create_app(), **server_options()) as address:
        text = (ROOT / "examples" / "proxy" / "nginx.conf").read_text()
        for pattern, here in (
            (r"ssl_certificate /[^;]+", f"ssl_certificate {certificate}"),
            (r"ssl_certificate_key /[^;]+", f"ssl_certificate_key {key}"),
            (r"listen 80\b", f"listen 127.0.0.1:{plain}"),
            (r"listen 443\b", f"listen 127.0.0.1:{encrypted}"),
            (r"server 127.0.0.1:8712", f"server {address.removeprefix('http://')}"),
            (r"\nhttp {", f"\nhttp {{\n access_log off;\n client_body_temp_path {tmp_path}/bodies;"),
        ):
            text, found = re.subn(pattern, here, text)
            assert found, pattern
        configuration = tmp_path / "nginx.conf"
        head = f"user {getpass.getuser()};\ndaemon off;\npid {tmp_path}/nginx.pid;\nerror_log stderr;\n"
        configuration.write_text(head + text)
        passes(nginx, "-t", "-p", tmp_path, "-c", configuration)
        command = [nginx, "-p", tmp_path, "-c", configuration, "-e", "stderr"]
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            until(lambda: accepts(encrypted), limit_s=60, every_s=0.02)
            with httpx.Client(base_url=f"https://127.0.0.1:{encrypted}", verify=False) as client:
                yield client
        finally:
            process.terminate()
            process.wait()


def accepts(port: int) -> bool:
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", port)) == 0


def test_the_proxy_of_the_documentation_passes_the_bodies_that_the_api_takes(proxy: httpx.Client) -> None:
    def post(path: str, length: int) -> str:
        answer = proxy.post(
            path,
            content=bytes(length),
            headers={"Host": "watch.example.com"},
            extensions={"sni_hostname": "watch.example.com"},
        )
        return f"{answer.status_code} {answer.headers['content-type']}"

    of_api, of_nginx = "application/problem+json", "413 text/html"
    assert post("/api/v1/targets/norms/ingested", 26 << 20) == f"401 {of_api}"
    assert post("/webhooks/gitlab", 24 << 20) == f"403 {of_api}"
    assert post("/webhooks/github", 24 << 20) == f"403 {of_api}"
    assert post("/api/v1/runs", MAX_BODY) == f"401 {of_api}"
    assert post("/api/v1/runs", MAX_BODY + 1) == of_nginx
    assert post("/webhooks/gitlab", (25 << 20) + 1) == of_nginx
