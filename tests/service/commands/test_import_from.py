"""`kernelwatch import --from`: files of other tools become series of their own, once."""

import json
from pathlib import Path

import pytest

from service.commands.files.benchmarks import Benchmark, metric_format, of_action
from service.domain.imports.formats import ImportFormat
from tests import world
from tests.fakes.api import Api
from tests.service.domain.imports.files import FILES, HISTORY, LATER, NAMES, SHA
from tests.shell import attempt, kernelwatch

pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture(autouse=True)
def norms(state: object) -> None:
    world.target(name="norms")


def send(path: Path, form: ImportFormat, *more: str, code: int = 0) -> str:
    shown = kernelwatch("import", path, "--from", form, "--target", "norms", *more, code=code)
    return " ".join(shown.stdout.split())


def series(case: str, provider: str = "norms", device: str = "unknown") -> dict[str, object]:
    params = {"case": case, "provider": provider, "device": device}
    found: dict[str, object] = Api().get("/targets/norms/ingested/series", params=params).json()
    return found


def file(folder: Path, form: ImportFormat) -> Path:
    path = folder / NAMES.get(form, "file")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(FILES[form])
    return path


@pytest.mark.parametrize("form", ImportFormat)
def test_every_format_is_stored_once(form: ImportFormat, tmp_path: Path) -> None:
    path = file(tmp_path, form)
    named = form in (ImportFormat.PYTEST_BENCHMARK, ImportFormat.GITHUB_ACTION_BENCHMARK, ImportFormat.ASV)
    more = () if named else ("--revision", "1.5.0")
    assert "as measurements made elsewhere" in send(path, form, *more)
    batches = Api().get("/targets/norms/ingested").json()["items"]
    assert {batch["tool"] for batch in batches} == {form}

    again = send(path, form, *more)
    assert f"Already there: {len(batches)} batch" in again
    assert Api().get("/targets/norms/ingested").json()["items"] == batches


def test_a_file_of_many_commits_becomes_a_batch_for_each(tmp_path: Path) -> None:
    shown = send(file(tmp_path, ImportFormat.GITHUB_ACTION_BENCHMARK), ImportFormat.GITHUB_ACTION_BENCHMARK)
    assert "2 batches with 1 sample of norms" in shown
    assert "Without a number: 1 value (1 null)." in shown
    found = series("copy/64", "GPU")
    shown_items = [(item["revision"], item["median"], item["missing"]) for item in found["items"]]  # type: ignore[union-attr]
    assert shown_items == [(LATER, None, "null"), (SHA, 250.0, None)]
    assert found["unit"] == "us"

    grown = json.loads(json.dumps(HISTORY))
    grown["entries"]["GPU"].append({**grown["entries"]["GPU"][0], "commit": {"id": "c3" * 20}})
    path = tmp_path / "grown.json"
    path.write_text(json.dumps(grown))
    shown = send(path, ImportFormat.GITHUB_ACTION_BENCHMARK)
    assert "1 batch with 1 sample of norms" in shown
    assert "Already there: 2 batches." in shown


def test_a_pattern_names_values_by_our_cases(tmp_path: Path) -> None:
    path = tmp_path / "bench.json"
    names = ["norm/4096x1024/bf16", "norm/4096x1024/bf16 throughput", "other"]
    measures = [{"latency": {"value": 7310}}, {"latency": {"value": 7310}}, {"latency": {"value": 5}}]
    path.write_text(json.dumps(dict(zip(names, measures, strict=True))))
    pattern = "norm/{rows}x{cols}/{dtype}=rmsnorm.fwd.{rows}x{cols}.{dtype}"
    send(path, ImportFormat.BENCHER, "--revision", "1.5.0", "--device", "h200", "--case", pattern)
    [item] = series("rmsnorm.fwd.4096x1024.bf16", device="h200")["items"]  # type: ignore[misc]
    assert item["median"] == pytest.approx(7.31)
    assert series("other", device="h200")["items"]
    assert not series("norm/4096x1024/bf16", device="h200")["items"]


EXPORTED = [
    Benchmark("h200", "norms", "rmsnorm.fwd.4096x1024.bf16-fp32", "us", 7.31, 7.2, 7.4, "steady"),
    Benchmark("h200", "norms", "rmsnorm.fwd.4096x1024.bf16-fp32.memory", "bytes", 16_777_216.0),
]


@pytest.mark.parametrize(
    ("form", "content", "pattern"),
    [
        (ImportFormat.GITHUB_ACTION_BENCHMARK, [of_action(one) for one in EXPORTED], "h200 norms {case}={case}"),
        (ImportFormat.BENCHER, metric_format(EXPORTED[:1]), "norms {case}={case}"),
    ],
)
def test_what_a_report_prints_for_other_tools_can_be_imported(
    form: ImportFormat, content: object, pattern: str, tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(content))
    send(path, form, "--revision", SHA, "--device", "h200", "--case", pattern)
    for benchmark in EXPORTED[: len(content)]:  # type: ignore[arg-type]
        found = series(benchmark.case, device="h200")
        [item] = found["items"]  # type: ignore[misc]
        assert (item["median"], found["unit"]) == (pytest.approx(benchmark.median), benchmark.unit)


def test_samples_that_no_case_can_have_keep_their_name(tmp_path: Path) -> None:
    """Memory of 0 bytes, and a rate."""
    path = tmp_path / "bench.json"
    path.write_text(json.dumps({"a": {"memory": {"value": 0}, "throughput": {"value": 7}}}))
    send(path, ImportFormat.BENCHER, "--revision", "1", "--case", "a {what}=rmsnorm.fwd.64x64.fp32.memory")
    assert series("a memory")["items"]
    assert series("a throughput")["items"]


def test_a_folder_of_criterion_is_read_whole(tmp_path: Path) -> None:
    for name in ("a", "b"):
        path = tmp_path / "criterion" / name / "new" / "sample.json"
        path.parent.mkdir(parents=True)
        path.write_text(FILES[ImportFormat.CRITERION])
    send(tmp_path / "criterion", ImportFormat.CRITERION, "--revision", "1.5.0")
    assert series("a")["items"]
    assert series("b")["items"]


@pytest.mark.parametrize(
    ("form", "options", "why"),
    [
        (ImportFormat.HYPERFINE, (), "file names no commit: say which with --revision."),
        (ImportFormat.HYPERFINE, ("--revision", "a b"), "'a b' is no commit or release."),
        (ImportFormat.HYPERFINE, ("--revision", "1", "--case", "x"), "A pattern is THEIRS=OURS, not 'x'."),
        (
            ImportFormat.HYPERFINE,
            ("--revision", "1", "--case", "{a}=rmsnorm.{b}"),
            "{b} must be a word that THEIRS has",
        ),
        (
            ImportFormat.HYPERFINE,
            ("--revision", "1", "--case", "./norm {a}=norm.{a}"),
            "The pattern makes 'norm.64' of",
        ),
        (ImportFormat.HYPERFINE, ("--role", "head"), "--role chooses exported samples"),
        (ImportFormat.BENCHER, ("--revision", "1", "--device", "H 200"), "Line 1 must be"),
    ],
)
def test_a_wrong_option_is_explained(form: ImportFormat, options: tuple[str, ...], why: str, tmp_path: Path) -> None:
    refused = attempt("import", file(tmp_path, form), "--from", form, "--target", "norms", *options)
    assert why in str(refused.exception)
    assert Api().get("/targets/norms/ingested").json()["items"] == []


def test_options_of_other_tools_need_one(tmp_path: Path) -> None:
    refused = attempt("import", file(tmp_path, ImportFormat.ASV), "--target", "norms", "--revision", "1")
    assert "say which with --from" in str(refused.exception)
