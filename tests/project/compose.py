"""Build and run the services of docker-compose.yml without Docker: buildah builds, podman runs.

The user, the command, the mounts and the limits of a container come from the file.  A key that is not understood here
is an error, so that tests run what an operator gets.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
HOST = "10.0.2.2"  # how a container calls 127.0.0.1 of this machine
Service = Mapping[str, Any]
_USED_ELSEWHERE = {"image", "build", "command", "healthcheck", "environment", "secrets", "volumes"}
# The tests start services one by one, without Docker's networks, and publish ports at free ones.
_WITHOUT_EFFECT = {"depends_on", "networks", "ports", "logging", "profiles"}
_PODMAN_OPTION = {"systempaths=unconfined": "unmask=ALL"}
_PIP = ("index-url", "extra-index-url", "find-links", "no-index", "trusted-host", "timeout")


def services(file: Path, variables: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The services of a compose file, with `${NAME:-default}` replaced."""

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1]) or found[2] or ""

    text = re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", value, file.read_text())
    described: dict[str, dict[str, Any]] = yaml.safe_load(text)["services"]
    return described


def run(*command: str | Path, cwd: Path | None = None) -> str:
    """The output of a command.

    Raises:
        RuntimeError: With the end of the output, where the command fails.
    """
    done = subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} failed with {done.returncode}:\n{done.stdout[-4000:]}")
    return done.stdout.strip()


class Engine:
    """buildah and podman, with images, containers and volumes of their own in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._storage = ("--root", str(folder / "root"), "--runroot", str(folder / "run"))
        self._runtime: tuple[str, ...] = ()

    def buildah(self, *arguments: str | Path) -> str:
        return run("buildah", *self._storage, *arguments)

    def podman(self, *arguments: str | Path) -> str:
        options = ("--tmpdir", str(self.folder / "tmp"), "--cgroup-manager", "cgroupfs")
        return run("podman", *self._storage, *options, *self._runtime, *arguments)

    def choose_runtime(self, service: Service) -> None:
        """Take the first runtime that starts a container here: `crun` refuses machines with both versions of cgroups.

        Raises:
            RuntimeError: Where none does, with what each says.
        """
        failures = []
        for runtime in ("crun", "runc"):
            self._runtime = ("--runtime", runtime)
            try:
                self.podman("run", "--rm", *_limits(), _image(service), "true")
            except RuntimeError as failure:
                failures.append(str(failure))
            else:
                return
        raise RuntimeError("\n".join(failures))

    def make_base(self, name: str) -> None:
        """Make an image of Debian 12 with what the Dockerfile wants of its BASE."""
        tree = self.folder / "base"
        packages = "python3,python3-venv,python3-dev,ca-certificates"
        run("debootstrap", "--variant=minbase", f"--include={packages}", "bookworm", tree)
        run("chroot", tree, "apt-get", "clean")
        run("rm", "-rf", tree / "var/lib/apt/lists")
        container = self.buildah("from", "scratch")
        self.buildah("add", "--quiet", container, tree, "/")
        self.buildah("commit", "--quiet", "--rm", container, name)
        run("rm", "-rf", tree)

    def build(self, service: Service, base: str) -> None:
        """Build the image of a service.  This machine's settings of pip are mounted and do not enter the image."""
        build = service["build"]
        arguments = {**build.get("args", {}), "BASE": base}
        self.buildah(
            *("build", "--isolation", "chroot", "--layers", *self._pip_settings()),
            *(f"--build-arg={name}={value}" for name, value in arguments.items()),
            *("--target", build["target"], "--tag", _image(service), ROOT / build["context"]),
        )

    def size(self, service: Service) -> int:
        """Bytes of an image, with the layers that it shares with others."""
        [image] = json.loads(self.podman("image", "inspect", _image(service)))
        return int(image["Size"])

    def remove(self) -> None:
        """Remove everything, also after a failed build."""
        self.buildah("rm", "--all")
        self.podman("rm", "--all", "--force", "--time", "0")
        self.podman("rmi", "--all", "--force")
        run("rm", "-rf", self.folder)

    def _pip_settings(self) -> list[str]:
        """Options that mount a pip.conf for the build, and the folders that it names."""
        listed = run(sys.executable, "-m", "pip", "config", "list")
        found = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed, re.M))
        lines = [f"{name} = {found[name]}" for name in _PIP if name in found]
        folders = {Path(place) for place in found.get("find-links", "").split() if place.startswith("/")}
        # The pages of an index link to files next to its folder.
        folders |= {Path(url).parent for url in re.findall(r"file://(\S+)", found.get("extra-index-url", ""))}
        options = [f"--volume={folder}:{folder}:ro" for folder in sorted(folders)]
        if "cert" in found:
            options.append(f"--volume={found['cert']}:/mnt/certificates.pem:ro")
            lines.append("cert = /mnt/certificates.pem")
        file = self.folder / "pip.conf"
        file.write_text("\n".join(["[global]", *lines, ""]))
        return [*options, f"--volume={file}:/etc/pip.conf:ro"]


class Container:
    """One service of the compose file, started."""

    def __init__(
        self,
        engine: Engine,
        name: str,
        service: Service,
        secrets: Path,
        environment: Mapping[str, str],
        *options: str,
    ) -> None:
        self.service, self._engine = service, engine
        self._name = f"kernelwatch-{uuid.uuid4().hex[:8]}-{name}"
        engine.podman(
            *("run", "--detach", "--name", self._name, *_limits(), *_options(service), *options),
            *("--network", "slirp4netns:allow_host_loopback=true"),
            *(f"--env={key}={value}" for key, value in {**service["environment"], **environment}.items()),
            *(f"--volume={secrets / secret}:/run/secrets/{secret}:ro" for secret in service["secrets"]),
            *(f"--volume={volume}" for volume in service.get("volumes", [])),
            *(_image(service), *service["command"]),
        )

    def inside(self, *command: str) -> str:
        """The output of a command in the container, as its user.  Raises RuntimeError where it fails."""
        return self._engine.podman("exec", self._name, *command)

    def log(self) -> str:
        return self._engine.podman("logs", self._name)

    def started_at(self) -> str:
        return str(self._state()["StartedAt"])

    def wait(self) -> int:
        """The exit code, once it has ended."""
        return int(self._engine.podman("wait", self._name))

    def healthy(self) -> bool:
        """Whether it runs and the health check of the file passes, where that has one."""
        if self._state()["Status"] != "running":
            return False
        check = self.service["healthcheck"]
        if check.get("disable"):
            return True
        kind, *command = check["test"]
        try:
            self.inside(*(("sh", "-c", *command) if kind == "CMD-SHELL" else command))
        except RuntimeError:
            return False
        return True

    def kill(self) -> None:
        """Kill its first process from outside.  The restart policy of the file starts it again."""
        os.kill(int(self._state()["Pid"]), signal.SIGKILL)

    def stop(self) -> int:
        """Stop it as `docker compose stop` does, and return the exit code."""
        self._engine.podman("stop", self._name)
        return int(self._state()["ExitCode"])

    def remove(self) -> None:
        self._engine.podman("rm", "--force", "--time", "0", "--volumes", self._name)

    def _state(self) -> dict[str, Any]:
        [found] = json.loads(self._engine.podman("container", "inspect", self._name))
        return dict(found["State"])


def _image(service: Service) -> str:
    return f"localhost/{service['image']}"


def _limits() -> list[str]:
    """Podman sets higher limits by default, which only a privileged process may; it lowers its own to 32,768."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return [f"--ulimit=nofile={files}:{files}", "--ulimit=nproc=32768:32768"]


def _options(service: Service) -> list[str]:
    """The options of `podman run` for the keys of a service.  Raises KeyError for a key that is not understood."""
    options = ["--read-only-tmpfs=false"]  # Docker adds no writable folders to a read-only root
    for key, value in service.items():
        option = f"--{key.replace('_', '-')}"
        match key:
            case _ if key in _USED_ELSEWHERE | _WITHOUT_EFFECT:
                pass
            case "init" | "read_only":
                options.append(f"{option}={str(value).lower()}")
            case "user" | "hostname" | "restart" | "pids_limit":
                options.append(f"{option}={value}")
            case "cap_drop":
                options += [f"{option}={capability}" for capability in value]
            case "security_opt":
                options += [f"{option}={_PODMAN_OPTION.get(one, one)}" for one in value]
            case "tmpfs":  # Docker adds noexec unless the file says exec
                options += [one if ",exec" in one else f"{one},noexec" for one in (f"{option}={one}" for one in value)]
            case "stop_grace_period":
                options.append(f"--stop-timeout={value.removesuffix('s')}")
            case _:
                raise KeyError(f"tests/project/compose.py does not know the key {key} of docker-compose.yml")
    return options
