"""The examples: recipes that can be read, and a demo repository that is the same everywhere."""

import ast
import importlib.util
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from kernels.cases import BUILT_IN_PROVIDERS, Case, Metric
from service.domain.policy import recipes
from service.domain.states import Outcome
from tests.fakes import demo as expectations

EXAMPLES = Path(__file__).parents[2] / "examples"
RECIPES = sorted(
    str(path.relative_to(EXAMPLES))
    for path in EXAMPLES.glob("*/*.toml")
    if path.name in ("recipe.toml", "history.toml")
)


def recipe(name: str) -> recipes.Recipe:
    return recipes.parse((EXAMPLES / name).read_text())


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_builder", EXAMPLES / "norms" / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def demo(builder: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = builder.build(tmp_path_factory.mktemp("demo") / "repository")
    return folder


def git(folder: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", folder, *arguments], capture_output=True, text=True, check=True).stdout.strip()


def test_every_example_is_named_here() -> None:
    folders = {"flaggems", "liger", "norms", "own", "quack", "torch", "triton"}
    assert set(RECIPES) == {f"{folder}/recipe.toml" for folder in folders} | {"liger/history.toml"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_can_be_read_and_offers_something_for_each_of_its_cases(name: str) -> None:
    read = recipe(name)
    for device in read.devices:
        offered = read.providers_on(device).values()
        assert all(any(one.offers(case) for one in offered) for case in read.cases(read.suite_on(device)))


@pytest.mark.parametrize("name", ["liger/recipe.toml", "own/recipe.toml"])
def test_gpu_examples_chase_quack_at_six_shapes_or_more(name: str) -> None:
    read = recipe(name)
    for device in ("h100", "h200", "b200"):
        forward = {case for case in read.cases(read.suite_on(device)) if case.key == "rmsnorm.fwd"}
        assert read.sota_on(device) == "quack"
        assert len(forward) >= 6


@pytest.mark.parametrize("name", ["quack/recipe.toml", "torch/recipe.toml", "triton/recipe.toml"])
def test_releases_of_a_stack_are_measured_by_built_in_providers_at_kernels_calls_and_compilations(name: str) -> None:
    read = recipe(name)
    assert {one.builtin for one in read.providers.values()} <= set(BUILT_IN_PROVIDERS)
    for device in read.devices:
        metrics = {case.metric for case in read.cases(read.suite_on(device))}
        assert {Metric.KERNEL, Metric.CALL, Metric.COMPILE} <= metrics


def test_named_functions_and_adapters_are_there() -> None:
    for name in RECIPES:
        read = recipe(name)
        for adapter in read.adapters:
            functions = {
                node.name
                for node in ast.parse(((EXAMPLES / name).parent / adapter).read_text()).body
                if hasattr(node, "name")
            }
            called = {
                call.partition(":")[2]
                for provider in read.providers.values()
                for call in provider.calls.values()
                if call.partition(":")[0] == Path(adapter).stem
            }
            assert called
            assert called <= functions


def test_the_demo_repository_has_the_same_ids_everywhere(demo: Path) -> None:
    """Links to runs, and caches by tree, stay good over machines."""
    assert git(demo, "rev-parse", "main") == "1b9da744a7a9214b3ed3097322f8543273d683d0"
    assert git(demo, "rev-parse", "refs/pull/7/head") == "36ff08cc2e85180f04ca9005410924f9f6ed60c0"
    assert git(demo, "status", "--porcelain") == ""
    assert git(demo, "fsck", "--strict") == ""


def test_the_demo_has_a_mainline_of_eight_and_a_pull_request(demo: Path, builder: ModuleType) -> None:
    assert len(git(demo, "log", "--format=%H", "main").splitlines()) == 8
    assert git(demo, "merge-base", "main", f"refs/pull/{builder.PULL}/head") == git(demo, "rev-parse", "main")


def test_building_it_again_changes_nothing(demo: Path, builder: ModuleType) -> None:
    before = git(demo, "rev-parse", "main"), (demo / ".git").stat().st_ino
    assert builder.build(demo) == demo
    assert (git(demo, "rev-parse", "main"), (demo / ".git").stat().st_ino) == before


def test_what_is_expected_names_commits_providers_cases_and_outcomes_that_exist(builder: ModuleType) -> None:
    read = recipe("norms/recipe.toml")
    cases = {str(case) for case in read.cases(read.suite_on("cpu"))}
    expected = tomllib.loads((EXAMPLES / "norms" / "expected.toml").read_text())
    assert list(expected) == [commit["name"] for commit in builder.commits()]
    for commit in expected.values():
        assert commit.get("otherwise", "new") in list(Outcome)
        for provider, outcomes in commit.items():
            if isinstance(outcomes, dict):
                calls = read.providers_on("cpu")[provider].calls
                assert outcomes.keys() <= {case for case in cases if Case.parse(case).key in calls}
                assert set(outcomes.values()) <= set(Outcome)


def test_only_the_documentation_is_skipped(demo: Path, builder: ModuleType) -> None:
    skipped = {
        name
        for name, sha in builder.shas(demo).items()
        if not recipe("norms/recipe.toml").matters(git(demo, "show", "--format=", "--name-only", sha).splitlines())
    }
    assert skipped == {"docs"}


def test_only_the_broken_commit_does_not_compile(demo: Path, builder: ModuleType) -> None:
    broken = set()
    for name, sha in builder.shas(demo).items():
        for path in git(demo, "ls-tree", "-r", "--name-only", sha, "norms").splitlines():
            try:
                ast.parse(git(demo, "show", f"{sha}:{path}"))
            except SyntaxError:
                broken.add(name)
    assert broken == {"broken"}


def test_back_is_the_tree_from_before(demo: Path, builder: ModuleType) -> None:
    shas = builder.shas(demo)
    assert git(demo, "rev-parse", f"{shas['back']}^{{tree}}") == git(demo, "rev-parse", f"{shas['layernorm']}^{{tree}}")


def test_what_is_expected_of_the_demo_notices_what_is_missing() -> None:
    """The check itself: runs that ended, and of which nothing was judged, are not what is expected."""
    ended = {
        name: {"state": wanted["state"], "reason": None, "device": "cpu", "log": wanted.get("log"), "verdicts": []}
        for name, wanted in expectations.expected().items()
    }
    missing = [one for one in expectations.differences(ended) if "no verdict on norms" in one]
    done = [name for name, wanted in expectations.expected().items() if wanted["state"] == "done"]
    assert len(missing) == len(done) * len(recipe("norms/recipe.toml").cases("demo"))
