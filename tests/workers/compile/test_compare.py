"""Facts of two revisions: real repositories, environments, processes and pipes; what a compiler says is scripted."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from service.db.engine import transaction
from service.domain.codefacts.findings import FactsReport
from service.errors import BadInput, BuildFailed, NotFound, Refused, ServiceError
from service.ledger import targets
from service.settings import settings
from service.sources import checkout
from tests.fakes.repository import Repository
from workers.compile import compare, offline
from workers.compile.compare import Wish
from workers.machine import environments
from workers.sandbox import sandbox

FAST, WIDE, BACK = "rmsnorm.fwd.512x512.bf16", "rmsnorm.fwd.64x4096.bf16", "rmsnorm.bwd.64x4096.bf16"
RECIPE = f"""
devices = ["cpu", "h200"]
[base]
stack = "compiler"
[build]
commands = ["test ! -e broken || {{ echo 'no such header' >&2; exit 1; }}"]
[paths]
ignore = ["*.md"]
[providers.norms]
rmsnorm.fwd = "norms:rmsnorm"
[suite]
h200 = "story"
[suites]
story = ["{FAST}", "{WIDE}", "{FAST}.call"]
all = ["{FAST}", "{WIDE}", "{BACK}"]
"""


class Norms(Repository):
    """A checkout whose commits say what they compile to."""

    def commit(self, subject: str = "work", files: dict[str, str] | None = None, **cases: object) -> str:
        named = {{"fast": FAST, "wide": WIDE, "back": BACK}.get(name, name): says for name, says in cases.items()}
        script = self.folder / "facts.json"
        table = {**(json.loads(script.read_text()) if script.exists() else {}), **named}
        return super().commit(subject, {"facts.json": json.dumps(table), **(files or {})})


@pytest.fixture
def norms(state, tmp_path):
    """A local checkout that is no target, and the stack `compiler`."""
    python = tmp_path / "stack" / "python"
    python.parent.mkdir()
    script = Path(__file__).parents[2] / "fakes" / "scripted_compiler.py"
    python.write_text(f"#!{sys.executable}\n{script.read_text()}")
    python.chmod(python.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
    environments.adopt_stack("compiler", python, [])
    checkout = Norms(tmp_path / "norms")
    checkout.commit("the first", {"kernelwatch.toml": RECIPE})
    return checkout


def facts(norms: Norms, revisions: str = "HEAD", **wish: object) -> FactsReport:
    subject = offline.subject(f"{norms.folder}/", without_sandbox=True)
    return compare.facts(subject, Wish(revisions, **{"archs": ("sm_90",), **wish}))


def said(report: FactsReport) -> list[str]:
    return [f"{group.said} ({len(group.places)})" for group in report.groups]


def processes(norms: Norms) -> set[int]:
    """Those that compiled what is kept."""
    kept = settings().state.glob("environments/*/facts/*.json")
    return {
        answer["process"] for file in kept for answer in json.loads(file.read_text()).values() if "process" in answer
    }


# -- which revisions ---------------------------------------------------------------------------------------------------


def test_a_head_alone_is_compared_with_its_parent_for_both_architectures(norms):
    norms.commit(fast={"registers": 50})
    report = facts(norms, archs=compare.ARCHS)
    assert said(report) == ["registers 40 → 50 (2)"]
    assert report.headline == "the same machine code at 2 of 4 cases"
    assert (report.suite, report.exit_code) == ("story", 0)


def test_any_two_revisions_that_git_understands(norms):
    first = norms.commit(fast={"registers": 50})
    norms.git("tag", "v1", first)
    norms.commit(fast={"registers": 60})
    norms.commit(fast={"registers": 70})
    assert said(facts(norms, "v1..HEAD")) == ["registers 50 → 70 (1)"]
    assert said(facts(norms, "HEAD~1")) == ["registers 50 → 60 (1)"]
    assert said(facts(norms, f"{first[:9]}..main@{{0}}")) == ["registers 50 → 70 (1)"]


def test_three_dots_compare_with_where_a_branch_parted_from_the_mainline(norms):
    norms.git("checkout", "-q", "-b", "feature")
    norms.commit(fast={"registers": 50})
    norms.git("checkout", "-q", "main")
    norms.commit(wide={"registers": 99})
    assert said(facts(norms, "main...feature")) == ["registers 40 → 50 (1)"]
    assert sorted(said(facts(norms, "main..feature"))) == ["registers 40 → 50 (1)", "registers 99 → 40 (1)"]


@pytest.mark.parametrize("revisions", ["main..", "..main", "a..b..c", "main...."])
def test_what_is_no_range_is_refused(norms, revisions):
    with pytest.raises((BadInput, NotFound)):
        facts(norms, revisions)


def test_a_shallow_checkout_works_and_says_so_when_its_history_is_missing(norms, tmp_path):
    norms.commit(fast={"registers": 50})
    norms.commit(fast={"registers": 60})
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", "--depth=2", f"file://{norms.folder}", str(copy)], check=True)
    subject = offline.subject(str(copy), without_sandbox=True)
    assert said(compare.facts(subject, Wish("HEAD~1..HEAD", archs=("sm_90",)))) == ["registers 50 → 60 (1)"]
    with pytest.raises(NotFound, match=r"The checkout is shallow: fetch more .*fetch-depth"):
        compare.facts(subject, Wish("HEAD~2..HEAD"))


def test_a_checkout_of_one_commit_out_of_many_does_not_pass_for_lack_of_a_parent(norms, tmp_path):
    norms.commit(fast={"registers": 50})
    copy = tmp_path / "copy"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{norms.folder}", str(copy)], check=True)
    with pytest.raises(BadInput, match=r"The parent of HEAD is missing in this shallow checkout.*fetch-depth: 2"):
        compare.facts(offline.subject(str(copy), without_sandbox=True), Wish())


def test_what_is_not_committed_is_not_compared_and_that_is_said(norms):
    norms.commit("docs", {"README.md": "new"})
    assert facts(norms).notes == ()
    (norms.folder / "facts.json").write_text("{ }")
    assert facts(norms).notes == ("Only commits are compared, and 1 file is changed since the head.",)


def test_the_first_commit_has_nothing_to_be_compared_with(norms):
    report = facts(norms)
    assert report.headline == "2 cases compiled, with nothing to compare with"
    assert report.notes == ("The head has no parent: there is nothing to compare with.",)


def test_a_change_of_files_that_do_not_matter_compiles_nothing(norms):
    norms.commit("docs", {"README.md": "new"})
    report = facts(norms)
    assert (report.skipped, report.exit_code) == (
        "No path of the recipe changed (1 other files did): nothing was compiled.",
        0,
    )
    assert not (settings().state / "environments").exists()


# -- what comes of it --------------------------------------------------------------------------------------------------


def test_spills_out_of_nothing_break_a_limit(norms):
    norms.commit(wide={"spills": 96, "warps": 1})
    report = facts(norms)
    [broken] = report.violations
    assert (report.exit_code, broken.rule, broken.said) == (1, "spills_allowed", "spills none → 96")
    assert "configuration: num_warps 4 → 1 (1)" in said(report)


def test_the_recipe_has_its_own_limits(norms):
    recipe = RECIPE + "[facts]\nspills_allowed = 100\nmore_kernels = 'fail'\n"
    norms.commit(files={"kernelwatch.toml": recipe}, wide={"spills": 96})
    assert facts(norms).exit_code == 0
    norms.commit(fast=[{"name": "_one"}, {"name": "_two"}])
    assert [one.rule for one in facts(norms).violations] == ["more_kernels"]


def test_cases_that_do_not_compile_are_told_with_their_reasons(norms):
    norms.commit(fast="unsupported: no kernel below 1024 columns", wide="failed: CompilationError: at 7:12")
    report = facts(norms)
    assert [(one.state.value, one.reason) for one in report.uncompiled] == [
        ("failed", "CompilationError: at 7:12"),
        ("unsupported", "no kernel below 1024 columns"),
    ]
    assert {one.rule for one in report.violations} == {"broken"}


def test_a_compiler_that_dies_costs_its_case_and_no_other(norms):
    norms.commit(fast="crash", wide={"registers": 50})
    report = facts(norms)
    assert said(report)[-1] == "registers 40 → 50 (1)"
    [lost] = report.uncompiled
    assert lost.reason.startswith("the compiling process was lost: killed by SIGABRT")


def test_a_compiler_that_dies_over_and_over_is_given_up(norms):
    rows = [f"rmsnorm.fwd.{number}x512.bf16" for number in range(1, 13)]
    suite = json.dumps(rows)
    norms.commit(files={"kernelwatch.toml": f"{RECIPE}many = {suite}\n"})
    norms.commit(**dict.fromkeys(rows[2:], "crash"))
    report = facts(norms, suite="many")
    assert report.compared == 2
    reasons = {one.reason.partition(":")[0]: len(one.places) for one in report.uncompiled}
    assert reasons == {"the compiling process was lost": 4, "not tried": 6}


def test_a_head_that_does_not_build_is_told_with_its_log(norms):
    norms.commit(files={"broken": ""})
    with pytest.raises(BuildFailed) as caught:
        facts(norms)
    assert "no such header" in caught.value.log


def test_a_head_that_cannot_be_loaded_counts_as_one_that_does_not_build(norms):
    norms.commit(start="ModuleNotFoundError: No module named 'norms'")
    with pytest.raises(BuildFailed, match=r"Nothing of the head can be compiled: .*No module named 'norms'"):
        facts(norms)


def test_a_head_of_which_every_case_fails_counts_as_one_that_does_not_build(norms):
    norms.commit(fast="failed: SyntaxError: invalid syntax (norms.py:7)", wide="failed: the same")
    with pytest.raises(BuildFailed, match=r"Nothing of the head can be compiled: SyntaxError: invalid syntax"):
        facts(norms)


def test_where_neither_side_can_be_loaded_the_machine_is_to_blame(norms):
    norms.commit(start="cannot import torch in this environment")
    norms.commit(fast={"registers": 50})
    with pytest.raises(ServiceError, match=r"neither at the base nor at the head: .*cannot import torch") as caught:
        facts(norms)
    assert not isinstance(caught.value, BuildFailed)


def test_a_stack_without_triton_says_how_to_make_one_that_has_it(norms):
    norms.commit(start="ModuleNotFoundError: No module named 'triton'")
    norms.commit(fast={"registers": 50})
    with pytest.raises(ServiceError, match=r"`kernelwatch stack create NAME triton`"):
        facts(norms)


def test_a_base_that_does_not_build_leaves_the_head_alone(norms):
    norms.commit(files={"broken": ""})
    (norms.folder / "broken").unlink()
    norms.commit(fast="over: shared memory: asks for 295184 bytes of 232448")
    report = facts(norms)
    assert report.base is not None
    assert "does not build" in report.notes[0]
    assert [one.rule for one in report.violations] == ["over_limit"], "a kernel that cannot be launched needs no base"


def test_a_built_in_provider_runs_in_the_environment_of_the_revision(norms):
    norms.commit(fast={"registers": 50})
    report = facts(norms, providers=("quack",))
    assert (report.providers, said(report)) == (("quack",), ["registers 40 → 50 (1)"])
    with pytest.raises(BadInput, match="There is no provider 'quark'; known: norms, eager"):
        facts(norms, providers=("quark",))


# -- what is kept ------------------------------------------------------------------------------------------------------


def test_what_was_compiled_once_needs_no_process(norms):
    norms.commit(fast={"registers": 50})
    first = facts(norms)
    before = processes(norms)
    second = facts(norms)
    assert processes(norms) == before
    assert second.facts == first.facts
    norms.commit(fast={"registers": 60})
    assert said(facts(norms)) == ["registers 50 → 60 (1)"]
    assert len(processes(norms) - before) == 1, "the parent is known already"


def test_more_cases_compile_only_those_that_are_new(norms):
    facts(norms)
    before = processes(norms)
    assert facts(norms, suite="all").compiled == 3
    assert len(processes(norms) - before) == 1
    assert processes(norms) > before


def test_a_failure_that_may_be_the_machines_is_tried_again_and_no_other(norms):
    norms.commit(fast="passing: MemoryError", wide="over: shared memory: asks for 295184 bytes of 232448")
    facts(norms)
    kept = [json.loads(file.read_text()) for file in settings().state.glob("environments/*/facts/*.json")]
    assert [set(one) for one in kept if WIDE in one and "over" in (one[WIDE]["facts"])] == [{WIDE}]
    norms.commit(fast="failed: CompilationError: at 7:12")
    facts(norms)
    kept = [json.loads(file.read_text()) for file in settings().state.glob("environments/*/facts/*.json")]
    assert [set(one) for one in kept if one.get(FAST, {}).get("state") == "failed"] == [{FAST, WIDE}]


def test_a_compiler_that_hangs_ends_with_the_time_of_the_command(norms, monkeypatch):
    from workers.compile import offline

    norms.commit(wide="hang")
    monkeypatch.setattr(offline, "BUDGET_S", 3.0)
    report = facts(norms)
    [late] = report.uncompiled
    assert late.places[0].case in (FAST, WIDE)
    assert "3 s" in late.reason


def test_what_is_kept_has_a_bound_and_the_oldest_go(norms, monkeypatch):
    from workers.compile import offline

    facts(norms)
    [file] = settings().state.glob("environments/*/facts/*.json")
    monkeypatch.setattr(offline, "MAX_KEPT", file.stat().st_size)
    facts(norms, suite="all")
    assert list(json.loads(file.read_text())) == [WIDE, BACK]


def test_a_broken_file_is_as_none(norms):
    report = facts(norms)
    for file in settings().state.glob("environments/*/facts/*.json"):
        file.write_text('{"rmsnorm')
    assert facts(norms).facts == report.facts


def test_what_is_kept_goes_with_its_environment(norms):
    facts(norms)
    whole = next(settings().state.glob("environments/*/whole"))
    subprocess.run(["touch", "-d", "2 days ago", whole, *settings().state.glob("caches/*")], check=True)
    environments.evict(0)
    assert list(settings().state.glob("environments/*/facts/*.json")) == []


def test_nothing_is_left_in_the_scratch_folder(norms):
    facts(norms)
    assert list((settings().state / "scratch").iterdir()) == []


def test_what_keep_going_raises_ends_a_compilation_whose_answers_are_quick(norms):
    class Stop(Exception): ...

    scratch = settings().state / "scratch"

    def keep_going() -> None:
        if any(scratch.glob("facts-*/*")):
            raise Stop

    subject = offline.subject(f"{norms.folder}/", without_sandbox=True)
    with pytest.raises(Stop):
        compare.facts(subject, Wish(archs=("sm_90",)), keep_going=keep_going)
    assert list(scratch.iterdir()) == []


# -- texts -------------------------------------------------------------------------------------------------------------


def test_the_difference_of_a_kernel_is_shown_once_and_written_whole(norms, tmp_path):
    before = {"sass": "a", "ttgir": "%0 = tt.load\n%1 = tt.store"}
    after = {"sass": "b", "ttgir": "%0 = tt.load\n%1 = tt.reduce\n%2 = tt.store"}
    norms.commit(fast=before, wide=before)
    norms.commit(fast=after, wide=after)
    report = facts(norms, show="ttgir", texts=tmp_path / "texts")
    [shown] = report.differences
    assert (shown.case, shown.places) == (FAST, 2)
    assert "+%1 = tt.reduce" in shown.lines
    folder = tmp_path / "texts" / "sm_90" / "norms" / FAST
    assert (folder / "0-_forward.after.ttgir").read_text() == after["ttgir"]
    assert report.notes == (f"4 texts of 1 changed kernels were written to {tmp_path / 'texts'}.",)


def test_where_two_kernels_took_the_place_of_one_both_are_shown(norms):
    norms.commit(fast={"name": "_fused", "ttgir": "%0 = tt.reduce"})
    norms.commit(fast=[{"name": "_reduce", "ttgir": "%0 = tt.reduce"}, {"name": "_scale", "ttgir": "%0 = tt.mul"}])
    report = facts(norms, show="ttgir")
    assert [(one.kernel, one.lines[3:]) for one in report.differences] == [
        ("_fused and _reduce", ()),
        ("_scale", ("+%0 = tt.mul",)),
    ]


def test_a_kind_of_text_that_there_is_not_is_said(norms):
    norms.commit(fast={"registers": 50})
    report = facts(norms, show="ptx")
    assert (report.differences, report.notes) == ((), (f"There is no ptx of _forward at {FAST} on sm_90.",))


# -- what may be compiled ----------------------------------------------------------------------------------------------


def test_a_watched_target_is_compiled_by_its_name_and_its_own_recipe(norms, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWATCH_ALLOWED_ROOTS", json.dumps([str(tmp_path)]))
    settings.cache_clear()
    norms.commit(fast={"registers": 50})
    settings_of = {"location": str(norms.folder), "branch": "main", "trusted": True, "allow_unsandboxed": True}
    with transaction() as session:
        targets.register(session, "norms", recipe_text=RECIPE, **settings_of)
    report = compare.facts(offline.subject("norms"), Wish("main", archs=("sm_90",)))
    assert (report.target, said(report)) == ("norms", ["registers 40 → 50 (1)"])


def test_a_checkout_without_a_recipe_says_what_to_write(norms, tmp_path):
    (norms.folder / "kernelwatch.toml").unlink()
    with pytest.raises(BadInput, match=r"There is no .*kernelwatch\.toml: write it, or name a recipe with --recipe"):
        facts(norms)
    with pytest.raises(BadInput, match="is not the checkout of a git repository"):
        offline.subject(f"{tmp_path}/")


@pytest.mark.parametrize("name", ["norms_adapter.py", "kernelwatch.toml"])
def test_a_link_in_a_checkout_reads_nothing_of_the_host(norms, tmp_path, name):
    (tmp_path / "secret").write_text(RECIPE)
    norms.commit(files={"kernelwatch.toml": f'adapters = ["norms_adapter.py"]\n{RECIPE}', "norms_adapter.py": ""})
    assert offline.subject(f"{norms.folder}/", without_sandbox=True).adapters == {"norms_adapter.py": ""}
    (norms.folder / name).unlink()
    norms.link(name, str(tmp_path / "secret"))
    with pytest.raises(BadInput, match=rf"{name} is not a plain file"):
        offline.subject(f"{norms.folder}/", without_sandbox=True)
    (norms.folder / name).unlink()
    os.mkfifo(norms.folder / name)
    with pytest.raises(BadInput, match=rf"{name} is not a plain file"):
        offline.subject(f"{norms.folder}/", without_sandbox=True)


def test_an_adapter_whose_name_leads_elsewhere_is_not_read(norms, tmp_path):
    (tmp_path / "secret.py").write_text("")
    norms.commit(files={"kernelwatch.toml": f'adapters = ["../secret.py"]\n{RECIPE}'})
    with pytest.raises(BadInput, match="must be the name of a Python file"):
        offline.subject(f"{norms.folder}/", without_sandbox=True)


def test_what_a_repository_would_have_git_execute_is_not_executed(norms, tmp_path):
    norms.commit(files={".gitattributes": "*.py filter=evil\n", "norms.py": "1"})
    norms.commit(fast={"registers": 50})
    for name in ("core.fsmonitor", "filter.evil.clean", "filter.evil.process", "gpg.program"):
        norms.git("config", name, f"touch {tmp_path}/executed-{name}; cat")
    norms.git("config", "log.showSignature", "true")
    (norms.folder / "norms.py").write_text("2")
    assert facts(norms).notes == ("Only commits are compared, and 1 file is changed since the head.",)
    (norms.folder / "norms.py").write_text("1")  # touched, and the same again
    assert facts(norms).notes == ()
    assert list(tmp_path.glob("executed*")) == []


def test_a_repository_of_somebody_else_is_refused_until_it_is_trusted(norms, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    monkeypatch.setattr(checkout, "_TRUST", (*checkout._TRUST, "GIT_TEST_ASSUME_DIFFERENT_OWNER"))
    with pytest.raises(BadInput, match=r"belongs to another user.*git config --global --add safe\.directory"):
        offline.subject(f"{norms.folder}/", without_sandbox=True)
    trusting = tmp_path / "gitconfig"
    trusting.write_text(f"[safe]\n\tdirectory = {norms.folder}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(trusting))
    assert offline.subject(f"{norms.folder}/", without_sandbox=True).name == "norms"


def test_what_was_changed_and_changed_back_compiles_nothing(norms):
    norms.git("tag", "before")
    norms.commit(fast={"registers": 50})
    norms.commit(files={"facts.json": "{}"})
    assert (
        facts(norms, "before..HEAD").skipped
        == "No path of the recipe changed (0 other files did): nothing was compiled."
    )


def test_without_a_sandbox_a_checkout_is_compiled_only_when_its_owner_says_so(norms, monkeypatch):
    monkeypatch.setattr(sandbox, "self_test", lambda: "bubblewrap is not installed")
    with pytest.raises(Refused, match=r"bubblewrap is not installed.* use --allow-unsandboxed"):
        offline.subject(f"{norms.folder}/")


@pytest.mark.parametrize(
    ("wish", "complaint"),
    [
        ({"archs": ("h200",)}, "'h200' is not an architecture; write sm_90"),
        ({"suite": "none"}, "There is no suite 'none'; known: story, all"),
    ],
)
def test_a_mistake_is_answered_with_what_there_is(norms, wish, complaint):
    with pytest.raises(BadInput, match=complaint):
        facts(norms, **wish)
