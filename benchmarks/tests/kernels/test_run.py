"""Runs of studies: files that are resumed, and complete runs on a CPU."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernels.published import markdown, run
from benchmarks.kernels.published.__main__ import main
from kernels.arena.protocol import built_in
from kernels.arena.session import Pace
from kernels.studies import records
from kernels.studies.catalogue import STUDIES
from kernels.studies.records import CONTROL, Record, Session, StudyFile, StudyWriter, UnreadableStudy
from kernels.studies.results import Results
from kernels.studies.study import Arm, Source, Study, StudyReport, StudyStep

ROOT = Path(__file__).resolve().parents[3]
CASE, OTHER = "rmsnorm.fwd.8x256.fp32", "rmsnorm.fwd.8x512.fp32"
SESSION = Session("s0", "2026-11-24T12:00:00+00:00", "cpu", quick=True)


def record(arm: str, us: float | None, trial: int = 0, case: str = CASE, step: str = "step", **more) -> Record:
    samples = () if us is None else (us, us, us)
    return Record(step, trial, case, arm, "failed" if us is None else "measured", samples=samples, **more)


EAGER = Arm("eager", "eager", built_in("eager"))
WRONG = Arm("nobody", "an arm that does not exist", built_in("nobody"))


def tiny(cases: tuple[str, ...], trials: int = 1) -> Study:
    step = StudyStep("tiny", (EAGER, WRONG), cases, trials, Pace(rounds=2))
    source = Source("a table", "https://example.org", "a machine")
    return Study("s0", "Tiny", "Does it run?", source, lambda _device, _quick: [step], lambda _: StudyReport((), ()))


@pytest.mark.torch
def test_a_run_goes_on_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    first = run.run(tiny((CASE,)), path, device="cpu")
    both = run.run(tiny((CASE, OTHER)), path, device="cpu")

    assert {(one.arm, one.state) for one in first.records} == {
        ("eager", "measured"),
        ("nobody", "failed"),
        (CONTROL, "measured"),
    }
    assert both.records[: len(first.records)] == first.records
    assert [one.case for one in both.records[len(first.records) :]] == [OTHER] * 3
    assert any(note.what == "stack" and "torch" in note.value for note in both.notes)


def test_a_record_without_the_end_of_its_line_is_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    run.run(tiny(()), path, device="cpu")
    StudyWriter(path).add([record("eager", 10.0)])
    path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    assert run.run(tiny(()), path, device="cpu").records == ()


def test_a_file_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("mine\nunfinished")
    with pytest.raises(UnreadableStudy):
        run.run(tiny(()), path, device="cpu")
    assert path.read_text() == "mine\nunfinished"


@pytest.mark.torch
def test_a_limit_leaves_cases_for_the_next_run(tmp_path: Path) -> None:
    said: list[str] = []
    found = run.run(tiny((CASE,), trials=2), tmp_path / "s.jsonl", device="cpu", limit_s=0, say=said.append)
    assert found.records == ()
    assert said[-1] == "2 cases left; the same command measures the rest"
    run.run(tiny(()), tmp_path / "t.jsonl", device="cpu", say=said.append)
    assert said[-1] == "no case is left"


def test_every_named_step_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in `kernelwatch study run`, `--only` may be repeated; the last one alone would measure less."""
    out = str(tmp_path / "s.jsonl")
    monkeypatch.setattr(sys, "argv", ["x", "run", "s4", "--out", out, "--only", "first", "--only", "second", "third"])
    with pytest.raises(SystemExit):
        main()
    assert "study s4 has no step first, second, third on cpu" in capsys.readouterr().err


@pytest.mark.torch
def test_a_run_that_was_interrupted_has_the_stack_of_each_arm(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"

    def interrupt() -> None:
        if path.exists() and records.read(path).records:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run.run(tiny((CASE, OTHER)), path, device="cpu", keep_going=interrupt)
    found = records.read(path)
    assert {one.case for one in found.records} == {CASE}
    stacks = [note.value for note in found.notes if note.what == "stack"]
    assert sorted(one["arm"] for one in stacks) == [CONTROL, "eager"]  # the third arm could not start
    assert all("torch" in one and "device" in one for one in stacks)


@pytest.mark.torch
def test_another_form_does_not_go_into_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "s.jsonl"
    run.run(tiny(()), path, device="cpu")
    with pytest.raises(run.OtherSession, match="has quick False, and this run has True"):
        run.run(tiny(()), path, device="cpu", quick=True)
    with pytest.raises(ValueError, match="has no step huge"):
        run.run(tiny(()), path, device="cpu", only=["huge"])


@pytest.mark.long
@pytest.mark.torch
def test_a_study_runs_on_a_cpu_and_prints_its_report(tmp_path: Path) -> None:
    path = tmp_path / "s3.jsonl"
    command = [sys.executable, "-m", "benchmarks.kernels.published", "run", "s3", "--out", str(path), "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    assert "| rmsnorm.bwd.64x256.fp32 |" in done.stdout
    states = {(one.arm, one.state) for one in records.read(path).records}
    assert states == {("eager", "measured"), ("inductor", "measured"), (CONTROL, "measured")}


def test_one_run_at_a_time_writes_a_file(tmp_path: Path) -> None:
    path = tmp_path / "new" / "s.jsonl"
    with records.locked(path), pytest.raises(records.StudyInUse, match=r"s\.jsonl; wait .* another file"):
        run.run(tiny(()), path, device="cpu")
    assert run.run(tiny(()), path, device="cpu").records == ()


@pytest.mark.long
def test_the_arm_of_persistent_reductions_has_them_at_every_width_whichever_thread_compiles() -> None:
    """Compiled for a GPU that need not be here, in a process of its own, as the arm changes torch for good."""
    program = """
from concurrent.futures import ThreadPoolExecutor
from kernels.cases import Case
from kernels.facts.offline import Offline
from benchmarks.kernels.published.run import placed
from kernels.studies import s1
offline = Offline(placed(s1.PERSISTENT.spec), "sm_90")
answer = offline.compile(Case.parse("rmsnorm.fwd.16384x4096.bf16-fp32"))
from torch._inductor.virtualized import V
choose = lambda: V.choices.should_use_persistent_reduction(None, False)
print(answer["reason"], [kernel["name"] for kernel in answer["facts"]["kernels"]])
print(ThreadPoolExecutor().submit(choose).result())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=200)
    assert found.stdout.startswith("None ['triton_per_fused_")
    assert found.stdout.endswith("True\n")


@pytest.mark.parametrize("name", STUDIES)
def test_a_report_of_nothing_has_its_title(name: str) -> None:
    assert STUDIES[name].title in markdown.document(STUDIES[name], Results.of([StudyFile(SESSION)]))
