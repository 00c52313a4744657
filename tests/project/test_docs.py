"""Documentation and code agree: every name that people use is documented, and every documented name exists.

The names come from the objects themselves: settings, commands, routes, Prometheus metrics, models and policy.
"""

import dataclasses
import enum
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import typer
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families
from typer.exceptions import TyperException

import service.cli
from dashboards import pages
from kernels.cases import Metric, Role
from kernels.functions import Function, Input
from service.app import create_app
from service.db.models import Base
from service.domain import states
from service.domain.attribution.causes import CauseCode
from service.domain.attribution.explanations import By
from service.domain.policy import recipes
from service.domain.policy.policy import GATES, METRICS, Bisecting, Calibrating, CasePolicy, FactsPolicy, Policy
from service.domain.states import GateAction, GateKind, Outcome, Purpose, RunState
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.reasons import ReasonCode
from service.reports.gate import GateReason, GateResult, _done, gate
from service.settings import GIB, MIB, Settings
from tests.needs import reason
from tests.project import commands_reference

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.glob("*.md"))]
LINKING = [*PAGES, *sorted(DOCS.glob("measurements/**/README.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMANDS = typer.main.get_command(service.cli.app)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prose(page: Path) -> str:
    """The text without fenced blocks."""
    return FENCE.sub("", page.read_text())


def blocks(page: Path, *languages: str) -> Iterator[str]:
    return (text for language, text in FENCE.findall(page.read_text()) if language in languages)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, made as GitHub makes them."""
    found = dict[str, int]()
    for heading in re.findall(r"^#+ +(.*)$", prose(page), re.MULTILINE):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading.replace("`", ""))
        slug = re.sub(r"[^\w\- ]", "", text.lower().replace("*", "")).strip().replace(" ", "-")
        found[slug] = found.get(slug, -1) + 1
    return {f"{slug}-{n}" if n else slug for slug, last in found.items() for n in range(last + 1)}


@dataclass(frozen=True)
class Line:
    """A line of a table, with the headings above it."""

    heading: str
    cells: list[str]

    @property
    def key(self) -> str:
        """What the first cell has in backticks first."""
        named = re.search(r"`([^`]+)`", self.cells[0])
        return named[1] if named else ""


def lines(page: str) -> list[Line]:
    """The lines of a page's tables, but for their heads."""
    found, heading, head = list[Line](), "", True
    for text in prose(DOCS / page).splitlines():
        if text.startswith("#"):
            heading = text.lstrip("# ").replace("`", "")
        if not text.startswith("|"):
            head = True
        elif re.fullmatch(r"[|:\- ]+", text):
            head = False
        elif not head:
            cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", text.strip("|"))]
            found.append(Line(heading, cells))
    return found


def keys(page: str, *headings: str) -> list[str]:
    """What the tables under these headings document, in order."""
    return [line.key for line in lines(page) if line.heading in headings]


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", LINKING, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Those of measurements to code are of the revision that was measured, and stay when the code moves."""
    measured = page.is_relative_to(DOCS / "measurements")
    broken = []
    for link in re.findall(r"\]\(([^()\s]+)\)", prose(page)):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (page.parent / path).resolve() if path else page
        if measured and not target.is_relative_to(DOCS):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_index() -> None:
    listed = {link.partition("#")[0] for link in re.findall(r"\]\(([^()\s]+)\)", (DOCS / "README.md").read_text())}
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= listed


def test_paths_of_this_repository_exist() -> None:
    """Paths in backticks that begin with a folder of ours."""
    wrong = []
    for page in PAGES:
        for path in re.findall(
            r"`((?:kernels|service|workers|dashboards|benchmarks|tests|examples|docs)/[^`\s*{]*)`", prose(page)
        ):
            file, _, function = path.partition("::")
            if not (ROOT / file).exists() or (function and f"def {function}(" not in (ROOT / file).read_text()):
                wrong.append(f"{name(page)}: {path}")
    assert wrong == []


def test_modules_that_are_run_can_be_run() -> None:
    """`python -m` of a module of ours."""
    wrong = []
    for page in PAGES:
        for module in re.findall(r"python -m ((?:kernels|service|workers|tests|benchmarks)\.[\w.]+)", page.read_text()):
            path = ROOT / Path(*module.split("."))
            source = path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
            if not source.exists() or "__main__" not in f"{source.name}{source.read_text()}":
                wrong.append(f"{name(page)}: {module}")
    assert wrong == []


def test_source_files_name_pages_that_exist() -> None:
    wrong = []
    files = [path for room in ("kernels", "service", "workers", "dashboards") for path in (ROOT / room).rglob("*.*")]
    for path in [*files, ROOT / "pyproject.toml", *ROOT.glob("docker-compose*.yml")]:
        if path.suffix in (".py", ".html", ".toml", ".yml"):
            named = re.findall(r"docs/([\w-]+\.md)(?:#([\w-]+))?", path.read_text())
            wrong += [f"{name(path)}: {page}" for page, _ in named if not (DOCS / page).exists()]
            wrong += [
                f"{name(path)}: {page}#{anchor}"
                for page, anchor in named
                if anchor and (DOCS / page).exists() and anchor not in anchors(DOCS / page)
            ]
    assert wrong == []


# -- commands ----------------------------------------------------------------------------------------------------------


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Every command that does something, by its words."""
    if isinstance(inner := getattr(command, "commands", None), Mapping):
        for word, each in inner.items():
            yield from leaves(each, (*path, word))
    elif not command.hidden:
        yield " ".join(path), command


def options(command: Any) -> set[str]:
    return {
        option
        for one in command.params
        if one.param_type_name == "option"
        for option in (*one.opts, *one.secondary_opts)
        if option.startswith("--") and option != "--help"
    }


def documented_commands() -> dict[str, set[str]]:
    """Commands of the reference with their options; that with WHAT is one for each kind of export."""
    return {
        " ".join(re.findall(r"(?<!\S)[a-z][a-z-]*(?!\S)", key)[1:]): set(
            re.findall(r"--[\w-]+", " ".join(line.cells[:2]))
        )
        for line in lines("cli.md")
        if line.key.startswith("kernelwatch ")
        for key in {line.key.replace("WHAT", kind) for kind in commands_reference.KINDS}
    }


def test_every_command_and_option_is_documented() -> None:
    page = commands_reference.PAGE.read_text()
    assert page == commands_reference.written(page), "run `make commands-reference`"
    found = documented_commands()
    assert found == {words: options(command) - {*commands_reference.COMMON} for words, command in leaves(COMMANDS)}


def command_lines() -> Iterator[tuple[str, str]]:
    """Every call of the command in blocks and in prose."""
    for page in PAGES:
        for block in blocks(page, "", "sh", "console", "yaml", "toml"):
            for text in block.replace("\\\n", " ").splitlines():
                if found := re.match(r"[\s#$-]*(?:run: +)?(?:\.venv/bin/)?(kernelwatch [a-z].*)", text):
                    yield name(page), found[1]
        for found in re.findall(r"`kernelwatch ([a-z][^`]*)`", prose(page)):
            yield name(page), f"kernelwatch {found}"


PLACEHOLDERS = {"WHAT": "runs"}  # those for which not any value will do


def mistake(text: str) -> str | None:
    """Why a command line is invalid.  Words in capitals stand for a value, and `…` for whatever else is needed.

    A file that a page makes before need not exist here.
    """
    words = shlex.split(text.replace("\\|", "|"), comments=True)[1:]
    end = next((n for n, word in enumerate(words) if word in ("|", "||", "&&", ";") or word[:1] in "<>"), None)
    words = [PLACEHOLDERS.get(word, re.sub(r"^[A-Z][A-Z_]+$", "1", word)) for word in words[:end] if word[:1] != "["]
    words = [__file__ if word.endswith(".lock") else word for word in words]
    command: Any = COMMANDS
    while words and isinstance(inner := getattr(command, "commands", None), Mapping):
        if words[0] not in inner:
            return f"there is no {words[0]!r}"
        command = inner[words.pop(0)]
    if unknown := {word for word in words if word.startswith("--")} - options(command) - {"--help"}:
        return f"there is no {', '.join(unknown)}"
    if "…" in words or not words or all(word.startswith("--") for word in words):
        return None  # the name of a command, perhaps with one of its options
    try:
        command.make_context("documented", words)
    except TyperException as error:
        return str(error)
    return None


@pytest.mark.parametrize(("page", "text"), sorted(set(command_lines())), ids=lambda one: one)
def test_command_lines_of_the_pages_parse(page: str, text: str) -> None:
    assert mistake(text) is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("kernelwatch target ad norms https://x", "there is no 'ad'"),
        ("kernelwatch target add norms https://x --bakfill 3", "there is no --bakfill"),
        ("kernelwatch target add norms", "location"),
        ("kernelwatch run approve soon", "integer"),
        ("kernelwatch run approve RUN  # a run", "None"),
    ],
)
def test_a_wrong_command_line_has_a_mistake(text: str, said: str) -> None:
    assert said in str(mistake(text))


def test_make_targets_exist_and_are_documented() -> None:
    made = set(re.findall(r"^([a-z0-9-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE)) - {"help"}
    said = {
        word
        for page in PAGES
        for text in [*blocks(page, "sh"), *re.findall(r"`(make [^`]+)`", prose(page))]
        for words in re.findall(r"(?:^|[`\s])make((?: [a-z][a-z0-9-]*)+)", text, re.MULTILINE)
        for word in words.split()
    }
    assert said == made


# -- settings ----------------------------------------------------------------------------------------------------------

COMPUTED = {  # defaults that depend on the machine, as the page writes them
    "state": "`$XDG_STATE_HOME/kernelwatch` (`~/.local/state/kernelwatch`)",
    "database_url": "SQLite in the state folder",
    "device": "detected",
    "locks": "`/run/lock` if writable, else the temporary folder",
}


def shown(value: Any) -> str:
    """A default as the tables write it."""
    match value:
        case None:
            return "none"
        case bool() | list() | tuple():
            return f"`{json.dumps(value)}`"
        case int() if value >= MIB:
            return f"{value // GIB} GiB" if value % GIB == 0 else f"{value // MIB} MiB"
        case int() | float():
            return f"`{value:g}`"
        case _:
            return f"`{value}`"


def test_every_setting_is_documented_with_its_default() -> None:
    documented = {
        line.key.removeprefix("KERNELWATCH_").lower(): line.cells[1]
        for line in lines("settings.md")
        if line.heading != "Other variables"
    }
    fields = Settings.model_fields
    assert documented == {
        setting: COMPUTED.get(setting) or shown(field.get_default(call_default_factory=True))
        for setting, field in fields.items()
    }


def test_every_variable_of_the_pages_is_documented() -> None:
    known = set(re.findall(r"`([A-Z_]+)`", (DOCS / "settings.md").read_text()))
    used = {found for page in PAGES for found in re.findall(r"KERNELWATCH_[A-Z_]+[A-Z]", page.read_text())}
    assert used - known == {"KERNELWATCH_TESTS", "KERNELWATCH_TESTS_LACK"}


# -- recipes and policy ------------------------------------------------------------------------------------------------


def test_every_policy_key_is_documented_with_its_default() -> None:
    tables = {"The policy": Policy, "[policy.bisect]": Bisecting, "[policy.calibrate]": Calibrating}
    nested = {"gate", "cases", "bisect", "calibrate", "metrics"}
    for heading, model in tables.items():
        documented = {line.key: line.cells[1] for line in lines("recipes.md") if line.heading == heading}
        assert documented == {
            key: shown(field.default) for key, field in model.model_fields.items() if key not in nested
        }
    assert keys("recipes.md", '[policy.cases."PATTERN"]') == list(CasePolicy.model_fields)


def test_every_gate_and_metric_is_documented_with_its_default() -> None:
    gate = {line.key: line.cells[1:3] for line in lines("recipes.md") if line.heading == "[policy.gate]"}
    assert gate == {kind.value: [f'`"{GATES[block][kind]}"`' for block in (False, True)] for kind in GateKind}
    metrics = {line.key: line.cells[1] for line in lines("recipes.md") if line.heading == "[policy.metrics]"}
    assert metrics == {metric.value: shown(change) for metric, change in METRICS.items()}


def test_every_recipe_key_is_documented() -> None:
    recipe = [name for name, field in recipes.Recipe.model_fields.items() if field.alias is None]
    assert sorted(keys("recipes.md", "Top level")) == sorted(recipe)
    for heading, model in {
        "[base]": recipes.StrictModel,
        "[build]": recipes.Build,
        "[paths]": recipes.Paths,
    }.items():
        assert keys("recipes.md", heading) == list(model.model_fields)
    limits = {line.key: line.cells[1].replace('"', "") for line in lines("facts.md") if line.heading == "Limits"}
    assert limits == {key: shown(field.default) for key, field in FactsPolicy.model_fields.items()}
    own = {*recipes.Provider.model_fields, "op.direction"} - {"calls", "functions"}
    assert set(keys("recipes.md", "[providers.NAME]")) == own
    assert set(keys("recipes.md", "[[function]]")) == {field.name for field in dataclasses.fields(Function)}
    assert keys("recipes.md", "inputs") == [field.name for field in dataclasses.fields(Input)]


def test_the_recipe_of_the_reference_is_one() -> None:
    recipe = recipes.parse(next(blocks(DOCS / "recipes.md", "toml")))
    backward = "rmsnorm.bwd.4096x1024.bf16-fp32"
    assert [recipe.policy_on("h200").at(case).smallest_change for case in recipe.suites["mine"]] == [0.02, 0.03]
    assert recipe.policy_on("cpu").at(backward).smallest_change == 0.15, "no case is quieter than its device's kernels"


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_toml_of_the_pages_has_known_keys(page: Path) -> None:
    whole = 'devices = ["cpu"]\n[providers.a]\nrmsnorm.fwd = "a:b"\n'
    for text in blocks(page, "toml"):
        table = tomllib.loads(text)
        rest = {key: value for key, value in tomllib.loads(whole).items() if key not in table}
        recipes.Recipe.model_validate(recipes._arranged(rest | table))


# -- the gate ----------------------------------------------------------------------------------------------------------


def gates() -> dict[str, GateResult]:
    """What the gate makes of a finding, by its first cell in the page."""
    warns, fails = GateAction.WARN, GateAction.FAIL

    def found(kind: GateKind, action: GateAction, **more: bool) -> GateResult:
        return _done((), [GateReason(kind, action, 1, **more)])

    def ended(state: RunState, **more: bool) -> GateResult:
        return gate(state, (), Policy(), purpose=Purpose.WATCH, **more)

    return {
        "first measurement, nothing to compare with": _done((), ()),
        "skipped: no file that matters changed": ended(RunState.SKIPPED),
        **{f"{kind.value} that warns": found(kind, warns) for kind in GateKind},
        "a regression that fails": found(GateKind.REGRESSION, fails),
        "a wrong or failed case that fails": found(GateKind.INVALID, fails),
        "wrong or failed already at the baseline": found(GateKind.INVALID, warns, known_before=True),
        "an inconclusive case that fails": found(GateKind.INCONCLUSIVE, fails),
        "a case slower than its wrong parent that fails": found(GateKind.SLOWER_THAN_WRONG, fails),
        "a new case far behind SOTA that fails": found(GateKind.NEW_FAR_BEHIND, fails),
        "lost repeatability that fails": found(GateKind.UNREPEATABLE, fails),
        "behind SOTA where that fails": found(GateKind.BEHIND_SOTA, fails),
        "perhaps behind SOTA where that fails": found(GateKind.BEHIND_SOTA, fails, is_open=True),
        "the build failed": ended(RunState.FAILED, build_failed=True),
        "not measured: infrastructure, or held for approval": ended(RunState.HELD),
        "cancelled or superseded": ended(RunState.SUPERSEDED),
    }


def test_the_table_of_the_gate_says_what_the_gate_does() -> None:
    documented = {line.cells[0]: line.cells[1:] for line in lines("verdicts.md") if line.heading == "The gate"}
    warning = documented.pop("any finding that warns")
    documented |= {f"{kind.value} that warns": warning for kind in GateKind}
    known = gates()
    assert {finding: documented.get(finding) for finding in known} == {
        finding: [str(found.exit_code), f"`{found.conclusion}`", f"`{found.commit_status}`"]
        for finding, found in known.items()
    }
    assert documented.keys() - known.keys() == {
        "nothing",
        "nothing measured, or all quarantined: as inconclusive",
        "only findings that pass",
        "queued or in progress",
    }


# -- API, metrics, database --------------------------------------------------------------------------------------------


def test_every_endpoint_and_prometheus_metric_is_documented(state: Path) -> None:
    app = create_app()
    routes = {f"{method.upper()} {path}" for path, found in app.openapi()["paths"].items() for method in found}
    assert {key for key in (line.key for line in lines("api.md")) if " /" in key} == routes
    parameters = {
        parameter["name"]
        for found in app.openapi()["paths"].values()
        for parameter in found.get("get", {}).get("parameters", ())
        if parameter["in"] == "query"
    }
    assert parameters - set(re.findall(r"`(\w+)(?:=[^`]*)?`", (DOCS / "api.md").read_text())) == set()

    with TestClient(app, base_url="http://localhost") as client:
        families = {family.name: family for family in text_string_to_metric_families(client.get("/metrics").text)}
    assert sorted(keys("api.md", "Prometheus metrics")) == sorted(families)


# What a page links to: its forms, its rows as files, and its parts.
OF_A_PAGE = ("/{verb}", "/stop", "/create", ".csv", ".json")
OF_A_PAGE += ("/trend/revisions", "/trend/neighbours", "/board/{part}", "/unsupported", "/regressions/cases")


def test_every_page_of_the_dashboard_is_documented() -> None:
    read = [route for page in pages.PAGES for route in page.router.routes if "GET" in getattr(route, "methods", ())]
    routes = [getattr(route, "path", "") for route in read]
    assert keys("reading.md", "The dashboard") == [path for path in routes if not path.endswith(OF_A_PAGE)]
    files = {path.rpartition(".") for path in routes if path.endswith((".csv", ".json"))}
    introduction = prose(DOCS / "reading.md").partition("## The dashboard")[2].partition("|")[0]
    assert all(path.rpartition("/")[2] in introduction and suffix in introduction for path, _, suffix in files)


STATES: dict[str, type[enum.StrEnum]] = {
    "Run": states.RunState,
    "Measurement": states.CellState,
    "Bisection": states.SearchState,
    "Change point": states.PointState,
    "Facts check": states.FactsState,
    "Outbox message": states.OutboxState,
    "Notice": states.NoticeState,
}


def test_every_table_says_what_a_row_is() -> None:
    """In the docstring of its class, to which docs/states.md leads."""
    assert [one.class_.__name__ for one in Base.registry.mappers if not one.class_.__dict__.get("__doc__")] == []


def test_every_state_is_documented() -> None:
    for heading, values in STATES.items():
        cells = [line.cells[0] for line in lines("states.md") if line.heading == heading]
        assert sorted(re.findall("`([^`]+)`", " ".join(cells))) == sorted(values)
    cells = [line.cells[0].strip("*") for line in lines("regressions.md") if line.heading == "States"]
    assert cells == list(states.RegressionState)


def test_every_code_of_a_verdict_is_documented() -> None:
    assert keys("baselines.md", "Baselines: what a revision is compared with") == list(states.BaselineKind)
    named = [re.findall("`([^`]+)`", line.cells[0]) for line in lines("baselines.md") if "explains" in line.heading]
    assert [by for cell in named for by in cell] == list(By)
    assert keys("states.md", "Reason codes") == list(ReasonCode)
    assert keys("states.md", "Cause codes") == list(CauseCode)


def test_the_glossary_has_the_words_of_the_code() -> None:
    """Values that people see in verdicts, reports and recipes."""
    words = set(re.findall(r"[*`](\w+)[*`]", prose(DOCS / "glossary.md").replace("**", "")))
    for values in (Metric, Role, Outcome, Doubt):
        assert {value.value for value in values} - words == set()


# -- examples ----------------------------------------------------------------------------------------------------------


@pytest.mark.torch
@pytest.mark.skipif(sys.platform != "linux", reason=reason("triton"))
def test_python_of_the_kernels_page_runs() -> None:
    code = "\n".join(blocks(DOCS / "kernels.md", "python"))
    interpreted = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-W", "error::DeprecationWarning", "-c", code], env=interpreted, check=True)
