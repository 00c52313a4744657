"""The wheel: one top-level package, a client that needs little, and a service that finds its own modules."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import ModuleType

import httpx
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.dashboards.conftest import reachable
from tests.dashboards.seed import watched
from tests.fakes.api import new_key
from tests.fakes.processes import free_port, running, until

ROOT = Path(__file__).parents[2]
ROOMS = [ROOT / name for name in ("kernels", "service", "workers", "dashboards")]
SOURCES = ("kernelwatch", "kernels", "service", "workers", "dashboards", "examples", "docs")
FILES = ("setup.py", "pyproject.toml", "README.md", "LICENSE")
# What another project installs as `kernels`.
STAND_IN = {
    "pyproject.toml": '[project]\nname = "kernels"\nversion = "0.9"\n[tool.setuptools]\npackages = ["kernels"]\n',
    "kernels/__init__.py": """
def get_kernel(name):
    return f"kernel {name} of another project"


def rmsnorm(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight
""",
}


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    """setup.py as a module."""
    spec = importlib.util.spec_from_file_location("kernelwatch_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def built(source: Path) -> Path:
    """The wheel of a source tree, which is written to."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-deps", "--no-index"]
    subprocess.run([*command, "--wheel-dir", source / "dist", source], check=True)
    [wheel] = (source / "dist").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        (source / name).symlink_to(ROOT / name)
    for name in FILES:
        (source / name).write_bytes((ROOT / name).read_bytes())
    return built(source)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> Path:
    source = tmp_path_factory.mktemp("kernels")
    for name, text in STAND_IN.items():
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_text(text)
    return built(source)


@dataclass(frozen=True)
class Environment:
    """A virtual environment; nothing of this checkout can be imported there."""

    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def packages(self) -> Path:
        return self.folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"

    def install(self, *wheels: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "--python",
            self.python,
            "install",
            "--quiet",
            "--no-deps",
            "--no-index",
        ]
        subprocess.run([*command, *wheels], check=True)

    def link(self, distributions: set[str]) -> None:
        """Put what is installed for the tests there, distribution by distribution."""
        for name in distributions:
            found = metadata.distribution(name)
            for part in {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}:
                (self.packages / part).symlink_to(Path(str(found.locate_file(part))))

    def run(self, *command: str | Path, given: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
        clean = {"PATH": os.environ["PATH"], "HOME": str(self.folder), **variables}
        return subprocess.run(
            command, cwd=self.folder, env=clean, input=given, capture_output=True, text=True, check=False
        )

    def python_prints(self, code: str, **variables: str) -> str:
        done = self.run(self.python, "-W", "error", "-c", code, **variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()


def needed(*requirements: str) -> set[str]:
    """The distributions that these need, with those that they need in turn."""
    found, waiting = set[str](), [Requirement(one) for one in requirements]
    while waiting:
        one = waiting.pop()
        name = canonicalize_name(one.name)
        if name not in found and (one.marker is None or one.marker.evaluate()):
            found.add(name)
            waiting += [Requirement(text) for text in metadata.requires(name) or () if "extra ==" not in text]
    return found


def requires(wheel: Path) -> list[str]:
    """What the wheel says that it needs."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [one for one in archive.namelist() if one.endswith(".dist-info/METADATA")]
        return metadata.PathDistribution(zipfile.Path(wheel, name.removesuffix("METADATA"))).requires or []


@pytest.fixture(scope="module")
def small(wheel: Path, stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the wheel, what it needs without extras, and another project's `kernels`."""
    made = Environment(tmp_path_factory.mktemp("small"))
    venv.create(made.folder, symlinks=True)
    made.install(wheel, stand_in)
    made.link(needed(*(one for one in requires(wheel) if "extra ==" not in one)))
    return made


@pytest.fixture(scope="module")
def full(wheel: Path, stand_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """The same, with everything that is installed for the tests: what the extras need is among it."""
    made = Environment(tmp_path_factory.mktemp("full"))
    venv.create(made.folder, symlinks=True)
    made.install(wheel, stand_in)
    there = Path(str(metadata.distribution("httpx").locate_file("")))
    (made.packages / "others.pth").write_text(f"{there}\n")  # its .pth files, such as the checkout's, do not count
    return made


def test_the_wheel_has_one_top_level_package(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        tops = {name.partition("/")[0] for name in archive.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"kernelwatch"}


def test_the_wheel_has_what_calls_in_c_are_built_from(wheel: Path) -> None:
    source = "kernels/norms/calls/native.cpp"
    with zipfile.ZipFile(wheel) as archive:
        assert archive.read(f"kernelwatch/{source}") == (ROOT / source).read_bytes()


def test_the_client_needs_little(wheel: Path) -> None:
    base = {Requirement(one).name for one in requires(wheel) if "extra ==" not in one}
    assert base == {"httpx", "pydantic", "rich", "typer"}


USE_BOTH = """
import sys
import kernels
import kernelwatch.client
from kernelwatch.client import Client, NotFound

with Client(sys.argv[1]) as client:
    print([target.name for target in client.targets.list()], kernels.get_kernel("norm"), kernels.__file__)
    try:
        client.targets.get("nothing")
    except NotFound as error:
        print(error)
loaded = {name.partition(".")[0] for name in sys.modules}
print(loaded & {"sqlalchemy", "celery", "torch", "fastapi", "service", "workers", "dashboards"})
"""


@pytest.mark.long
def test_client_and_another_kernels_work_in_one_process(
    small: Environment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with watched(tmp_path_factory.mktemp("state")), reachable() as address:
        done = small.run(small.python, "-W", "error", "-c", USE_BOTH, address)
    assert done.returncode == 0, done.stderr
    names, error, loaded = done.stdout.splitlines()
    theirs = small.packages / "kernels" / "__init__.py"
    assert names == f"['liger', 'norms'] kernel norm of another project {theirs}"
    assert error.startswith("No target nothing.")
    assert loaded == "set()"


def test_the_client_is_typed_where_it_is_installed(small: Environment) -> None:
    """mypy reads the installed package, and knows the types that its decorators make."""
    code = "from kernelwatch.client import Client\nreveal_type(Client('https://a').runs.wait(1))\n"
    (small.folder / "typed.py").write_text(code)
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", small.python, "typed.py"]
    done = subprocess.run(command, cwd=small.folder, capture_output=True, text=True, check=False)
    assert 'Revealed type is "kernelwatch.documents.runs.RunDocument"' in done.stdout, done.stdout


def test_without_its_extra_the_command_names_it(small: Environment) -> None:
    helped = small.run(small.folder / "bin" / "kernelwatch", "--help")
    assert helped.stdout.startswith("Usage: kernelwatch "), helped.stderr
    done = small.run(small.folder / "bin" / "kernelwatch", "status")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("kernelwatch: This needs the extra `server` (the module ")
    how = "pip install 'kernelwatch[server]', or name a server with --server or KERNELWATCH_SERVER"
    assert done.stderr.endswith(f" is missing): {how}\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.long
def test_without_extras_the_command_works_against_a_server(
    small: Environment, tmp_path_factory: pytest.TempPathFactory
) -> None:
    command = small.folder / "bin" / "kernelwatch"
    with watched(tmp_path_factory.mktemp("state")) as seeded, reachable() as address:
        variables = {"KERNELWATCH_SERVER": address, "KERNELWATCH_KEY": new_key("admin")}
        slow = seeded.runs["slow"]
        for words in (
            *("status", "queue", "target list", "target show norms", "run list norms", "worker list", "audit"),
            *(f"run show {slow}", f"report {slow} --fail-on never", f"run wait {slow} --fail-on never --format csv"),
            *("regression list", "regression show 1", "incident list", "bisection list", "calibration show norms"),
            *("policy list", "key list", "person list", "target pause norms", "calibration start norms --device h200"),
        ):
            done = small.run(command, *words.split(), **variables)
            assert (done.returncode, done.stderr) == (0, ""), f"{words}: {done.stderr}"


def test_without_torch_the_norms_name_their_extra(small: Environment) -> None:
    done = small.run(small.python, "-c", "import kernelwatch.norms")
    assert "ModuleNotFoundError: This needs the extra `kernels` (the module torch is missing)" in done.stderr


IMPORT_ALL = """
import importlib, json, pkgutil, sys
import kernelwatch

names = []
for room in ("client", "service", "workers", "dashboards"):
    package = importlib.import_module(f"kernelwatch.{room}")
    names += [one.name for one in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
for name in names:
    importlib.import_module(name)
print(json.dumps([len(names), sorted({"kernels", "service", "workers", "dashboards"} & sys.modules.keys())]))
"""


@pytest.mark.long
def test_every_module_imports_its_siblings_by_the_names_of_the_wheel(full: Environment) -> None:
    imported, of_others = json.loads(full.python_prints(IMPORT_ALL, KERNELWATCH_STATE=str(full.folder / "state")))
    assert imported > 200
    assert of_others == []


def test_no_module_is_named_in_a_string() -> None:
    """Strings are not rewritten: what starts or loads a module by name derives it from `__name__`."""
    modules = {".".join(path.relative_to(ROOT).with_suffix("").parts) for room in ROOMS for path in room.rglob("*.py")}
    packages = {".".join(path.relative_to(ROOT).parts) for room in ROOMS for path in room.rglob("*") if path.is_dir()}
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.value}"
        for room in ROOMS
        for path in sorted(room.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value
        if node.value.rstrip(".") in modules | packages
    ]
    assert wrong == []


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def test_a_study_is_measured_from_a_clone_alone(full: Environment, state: Path) -> None:
    state.mkdir()
    migrated = full.run(full.folder / "bin" / "kernelwatch", "db", "upgrade", KERNELWATCH_STATE=str(state))
    assert migrated.returncode == 0, migrated.stderr
    command = [full.folder / "bin" / "kernelwatch", "study"]
    listed = full.run(*command, "list", KERNELWATCH_STATE=str(state))
    assert "s4" in listed.stdout, listed.stderr
    refused = full.run(*command, "run", "s1", "--device", "cpu", KERNELWATCH_STATE=str(state))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "their programs are in benchmarks/ of a clone" in " ".join(refused.stderr.split())


def test_the_installed_service_starts_its_processes(full: Environment, state: Path) -> None:
    port = free_port()
    variables = {"KERNELWATCH_STATE": str(state), "KERNELWATCH_PORT": str(port), "KERNELWATCH_DEVICE": "cpu"}
    command = full.folder / "bin" / "kernelwatch"
    with running({"up": [str(command), "up"]}, variables, state / "test-logs", python=str(full.python)):
        address = f"http://127.0.0.1:{port}"
        until(lambda: ready(address), 240)
        style, *_ = re.findall(r'href="(/assets/[^"]+\.css[^"]*)"', httpx.get(address, timeout=60).text)
        assert httpx.get(address + style, timeout=60).status_code == 200
        pictures = re.findall(r'src="(/docs/pictures/[^"]+)"', httpx.get(f"{address}/docs/github", timeout=60).text)
        assert [httpx.get(address + one, timeout=60).status_code for one in pictures] == [200] * 4
        until(lambda: [one["name"] for one in httpx.get(f"{address}/api/v1/workers", timeout=60).json()["items"]], 240)
        added = full.run(command, "demo", **variables)
        assert added.returncode == 0, added.stderr
        assert httpx.get(f"{address}/api/v1/targets/demo", timeout=60).json()["kind"] == "git"


def ready(address: str) -> bool:
    try:
        return httpx.get(f"{address}/readyz", timeout=5).status_code == 200
    except httpx.HTTPError:
        return False


USE_NORMS = """
import torch
from kernelwatch.norms import RMSNorm, layer_norm
import kernels

x = torch.randn(4, 64)
y, *_ = torch.ops.kernelwatch.norm(x, torch.ones(64), None, None, 1e-6, False, 0.0)
print(torch.equal(RMSNorm(64, eps=1e-6)(x), y))
print(torch.allclose(layer_norm(x, eps=1e-5), torch.nn.functional.layer_norm(x, (64,)), atol=1e-5))
print(RMSNorm.__module__, kernels.__file__)
"""


@pytest.mark.long
@pytest.mark.torch
def test_the_norms_work_beside_another_kernels(full: Environment) -> None:
    same, close, where = full.python_prints(USE_NORMS).splitlines()
    assert (same, close) == ("True", "True")
    assert where == f"kernelwatch.kernels.norms.modules {full.packages / 'kernels' / '__init__.py'}"


MEASURED = """
{"do": "start", "provider": {"name": "theirs", "calls": {"rmsnorm.fwd": "kernels:rmsnorm"}, "compile": null, \
"builtin": null}, "device": "cpu", "threads": 1, "core": null}
{"do": "prepare", "case": "rmsnorm.fwd.8x64.fp32", "seed": 1}
{"do": "turn", "warm": 1, "timed": 3}
""".lstrip()


@pytest.mark.torch
def test_a_contender_of_the_wheel_measures_another_kernels(full: Environment) -> None:
    contender = full.packages / "kernelwatch" / "kernels" / "contender" / "__main__.py"
    done = full.run(full.python, "-P", contender, given=MEASURED)
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == 3, done.stderr
    assert len(answers[2]["samples"]) == 3, answers


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("from service.app import create_app", "from kernelwatch.service.app import create_app"),
        ("from kernels import cases", "from kernelwatch.kernels import cases"),
        ("def f():\n    from workers import device\n", "def f():\n    from kernelwatch.workers import device\n"),
        ("import service.log as log", "import kernelwatch.service.log as log"),
        (
            "import dashboards.assets  # pages\n",
            "import kernelwatch.dashboards.assets; from kernelwatch import dashboards  # pages\n",
        ),
        ('x = "é"; from kernels.cases import Case', 'x = "é"; from kernelwatch.kernels.cases import Case'),
        ("from .service import x", "from .service import x"),
        ("from kernels_of_others import y", "from kernels_of_others import y"),
        ('"from service.app import x"', '"from service.app import x"'),
        ("from kernelwatch.service.app import x", "from kernelwatch.service.app import x"),
    ],
)
def test_import_statements_are_rewritten_and_nothing_else(builder: ModuleType, source: str, expected: str) -> None:
    assert builder.rewritten(source) == expected
    assert builder.rewritten(expected) == expected
