"""The OpenAPI document serves other people's tools: a linter, and clients generated in Python and in TypeScript."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from service.app import create_app
from service.settings import settings
from tests import needs
from tests.dashboards.seed import Seeded
from tests.fakes.api import Api
from tests.fakes.processes import served

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]

GENERATOR = "openapi-python-client==0.29.1"
NODE_PACKAGES = (
    "@stoplight/spectral-cli@6.16.3",
    "openapi-fetch@0.15.0",
    "openapi-typescript@7.13.0",
    "typescript@5.9.3",
)
# The generator knows no JSON lines: to it, the body of a batch is a file.
GENERATOR_CONFIG = {"content_type_overrides": {"application/x-ndjson": "application/octet-stream"}}
# Not wanted: an order of tags by name, one tag for each operation, an address for mail that nobody has, and the URL of
# a license, which OpenAPI 3.1 forbids beside its identifier.
UNWANTED = ("openapi-tags-alphabetical", "operation-singular-tag", "contact-properties", "license-url")
RULES = {"extends": [["spectral:oas", "all"]], "rules": dict.fromkeys(UNWANTED, "off")}
TYPESCRIPT = {"compilerOptions": {"strict": True, "module": "nodenext", "target": "es2022", "lib": ["es2022", "dom"]}}

IN_PYTHON = """
import json, sys
from generated import Client
from generated.api.ingest import ingest
from generated.api.runs import follow_run, get_run, list_all_runs
from generated.api.targets import get_target

address, number = sys.argv[1], int(sys.argv[2])
client = Client(base_url=address)
run, refused = get_run.sync(number, client=client), get_target.sync("unknown", client=client)
listed = list_all_runs.sync(client=client, target="norms", limit=3)
events = follow_run.sync(number, client=client)
print(json.dumps({
    "state": str(run.state), "verdicts": len(run.verdicts), "listed": len(listed.items), "problem": refused.type_,
    "event": json.loads(events.split("data: ", 1)[1].splitlines()[0])["id"],
}))
"""
IN_TYPESCRIPT = """
import createClient from "openapi-fetch";
import type { paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: "ADDRESS" });
const path = { run_id: NUMBER };
const { data: run, error } = await client.GET("/api/v1/runs/{run_id}", { params: { path } });
if (!run) throw new Error(error.detail);
const refused = await client.GET("/api/v1/targets/{name}", { params: { path: { name: "unknown" } } });
const { data: listed } = await client.GET("/api/v1/runs", { params: { query: { target: "norms", limit: 3 } } });
const events = await client.GET("/api/v1/runs/{run_id}/events", { params: { path }, parseAs: "text" });
const text: string = events.data ?? "";
console.log(JSON.stringify({
  state: run.state, verdicts: run.verdicts.length, listed: listed?.items.length, problem: refused.error?.type,
  event: JSON.parse(text.split("data: ")[1].split("\\n")[0]).id,
}));
"""


@pytest.fixture
def document(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The document of a server with a public address, in a file."""
    monkeypatch.setenv("KERNELWATCH_PUBLIC_URL", "https://watch.example.org")
    settings.cache_clear()
    file = tmp_path / "openapi.json"
    file.write_text(json.dumps(create_app().openapi()))
    monkeypatch.delenv("KERNELWATCH_PUBLIC_URL")
    settings.cache_clear()
    return file


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the packages for Node.js."""
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"type": "module"}')
    command = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts", *NODE_PACKAGES]
    try:
        installed = subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        installed = False
    if not installed:
        needs.skip("npm")
    return folder


def printed(*command: str | Path, folder: Path) -> str:
    """What a command printed.  Fails unless it succeeds."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def expected(seeded: Seeded) -> dict[str, Any]:
    number = seeded.runs["slow"]
    verdicts = len(Api().get(f"/runs/{number}").json()["verdicts"])
    return {"state": "done", "verdicts": verdicts, "listed": 3, "problem": "/problems/not-found", "event": number}


def test_a_linter_finds_nothing(document: Path, node: Path) -> None:
    (node / "rules.json").write_text(json.dumps(RULES))
    printed("npx", "spectral", "lint", document, "--ruleset", "rules.json", "--fail-severity", "hint", folder=node)


def test_a_client_in_python(document: Path, seeded: Seeded) -> None:
    folder, config = document.parent, document.parent / "config.json"
    config.write_text(json.dumps(GENERATOR_CONFIG))
    uv = Path(sys.executable).with_name("uv")
    generator = [uv, "tool", "run", "--isolated", "--from", GENERATOR, "openapi-python-client"]
    if subprocess.run([*generator, "--version"], capture_output=True, check=False).returncode:
        needs.skip("index")
    options = ["--path", document, "--config", config, "--output-path", "generated", "--meta", "none"]
    said = printed(*generator, "generate", *options, "--fail-on-warning", folder=folder)
    assert "WARNING" not in said
    (folder / "program.py").write_text(IN_PYTHON)
    with served(create_app()) as address:
        told = printed(sys.executable, "program.py", address, str(seeded.runs["slow"]), folder=folder)
    assert json.loads(told) == expected(seeded)


def test_a_client_in_typescript(document: Path, node: Path, seeded: Seeded) -> None:
    printed("npx", "openapi-typescript", document, "--output", "schema.d.ts", folder=node)
    (node / "tsconfig.json").write_text(json.dumps(TYPESCRIPT | {"include": ["program.ts"]}))
    with served(create_app()) as address:
        program = IN_TYPESCRIPT.replace("ADDRESS", address).replace("NUMBER", str(seeded.runs["slow"]))
        (node / "program.ts").write_text(program)
        printed("npx", "tsc", folder=node)
        told = printed("node", "program.js", folder=node)
    assert json.loads(told) == expected(seeded)
