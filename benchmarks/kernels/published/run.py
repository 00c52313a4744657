"""Run a study: its steps in order, trial by trial, appended to a file.  Torch-free.

A run with the file of an earlier one measures what is missing there.
"""

import subprocess
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.kernels.published.model_trials import run_model_trial
from benchmarks.kernels.trials import contender
from kernels.arena import protocol, telemetry
from kernels.arena.session import Cell, OutOfTime, Trial, run_trial
from kernels.cases import Case, Role
from kernels.studies import records
from kernels.studies.measuring import kernels_digest
from kernels.studies.records import CONTROL, Note, Record, Session, StudyFile, StudyWriter
from kernels.studies.study import Arm, Study, StudyStep, missing

_ARMS = f"{__package__}.arms"


class OtherSession(Exception):
    """The file was made by another study, device or code.  The message says what differs."""


def run(
    study: Study,
    path: Path,
    *,
    device: str,
    quick: bool = False,
    only: Sequence[str] = (),
    limit_s: float = float("inf"),
    say: Callable[[str], None] = lambda _: None,
    keep_going: Callable[[], None] = lambda: None,
) -> StudyFile:
    """Measure what `path` does not have yet, and return all that it has then.

    `device` is a kind of device ("cpu", "h200"); `only` names steps.  After `limit_s` seconds the run ends
    without the case in progress, which the next run measures.

    Raises OtherSession, records.UnreadableStudy, records.StudyInUse, ValueError for an unknown step.
    """
    steps = [step for step in study.steps(device, quick) if not only or step.name in only]
    if unknown := set(only) - {step.name for step in steps}:
        known = ", ".join(step.name for step in study.steps(device, quick))
        raise ValueError(f"study {study.name} has no step {', '.join(sorted(unknown))} on {device}; it has {known}")
    deadline = time.monotonic() + limit_s

    def go_on() -> None:
        keep_going()
        if time.monotonic() > deadline:
            raise OutOfTime

    # A compiler's process may write into its caches for a moment after it was ended.
    with (
        records.locked(path),
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch,
        suppress(OutOfTime),
    ):
        before = _opened(study, path, device, quick)
        writer = StudyWriter(path)
        todo = missing(steps, {one.key for one in before.records})
        if todo and device != "cpu" and (driver := telemetry.driver()):
            writer.add([], [Note("driver", driver)])
        for number, (step, trial, cases) in enumerate(todo, 1):
            go_on()
            say(f"{number}/{len(todo)} {step.name}, trial {trial + 1} of {step.trials}, {len(cases)} cases")
            seed = zlib.crc32(f"{before.session.began}/{step.name}/{trial}".encode())
            took = time.monotonic()
            measure = run_model_trial if step.models else run_norm_trial
            measure(
                step,
                trial,
                cases,
                device="cpu" if device == "cpu" else "cuda",
                seed=seed,
                scratch=Path(scratch),
                keep=writer.add,
                keep_going=go_on,
            )
            say(f"  {time.monotonic() - took:.1f} s")
    found = records.read(path)
    left = sum(len(cases) for _, _, cases in missing(steps, {one.key for one in found.records}))
    some = "1 case" if left == 1 else f"{left} cases"
    say(f"{some} left; the same command measures the rest" if left else "no case is left")
    return found


def _opened(study: Study, path: Path, device: str, quick: bool) -> StudyFile:
    """What is in the file, which begins with the session if it is empty."""
    if not path.stat().st_size:
        began = datetime.now(UTC).isoformat(timespec="microseconds")
        StudyWriter(path).begin(Session(study.name, began, device, quick, _machine(), code()))
    found = records.read(path)
    wanted = {"study": study.name, "device": device, "quick": quick, "kernels": kernels_digest()}
    was = {**vars(found.session), "kernels": found.session.code.get("kernels")}
    for what, wants in wanted.items():
        if was[what] != wants:
            raise OtherSession(f"{path} has {what} {was[what]}, and this run has {wants}; name another file")
    StudyWriter(path).repair()
    return records.read(path)  # without the line that was removed, even if it could be read


def _machine() -> dict[str, Any]:
    with suppress(OSError, StopIteration), open("/proc/cpuinfo") as file:
        return {"processor": next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))}
    return {}


def code() -> dict[str, str]:
    """A hash of the code that measures, and the git revision where there is a repository."""
    found = {"kernels": kernels_digest()}
    with suppress(OSError, subprocess.SubprocessError):
        command = ["git", "describe", "--always", "--dirty"]
        described = subprocess.run(
            command, cwd=protocol.KERNELS, capture_output=True, text=True, check=True, timeout=20
        )
        found["revision"] = described.stdout.strip()
    return found


def placed(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The spec of an arm of norms with the whole name of its module, as a contender imports it."""
    return {**spec, "study": f"{_ARMS}.{spec['study']}"} if "study" in spec else dict(spec)


def run_norm_trial(
    step: StudyStep,
    trial: int,
    cases: Sequence[str],
    *,
    device: str,
    seed: int,
    scratch: Path,
    keep: Callable[[Sequence[Record], Sequence[Note]], None],
    keep_going: Callable[[], None],
) -> None:
    """Measure cases of norms with every arm of a step in the arena; as `run_model_trial` does for models."""
    roles = {CONTROL: Role.CONTROL, step.arms[0].name: Role.SOTA}
    # What one arm tuned or compiled must not become the choice of another: each has its own caches.
    arms = {
        arm.name: contender(
            roles.get(arm.name, Role.RIVAL), placed(arm.spec), scratch, arm.name, scratch / f"caches-{arm.name}"
        )
        for arm in step.contestants
    }
    names = {one.label: name for name, one in arms.items()}

    def opened(so_far: Trial) -> None:
        stacks = [Note("stack", {"arm": names[label], **stack}) for label, stack in so_far.stacks.items()]
        keep([], [*stacks, *([Note("ceilings", so_far.ceilings)] if so_far.ceilings else [])])

    def measured(case: Case, cells: Mapping[str, Cell]) -> None:
        by_name = {names[label]: cell for label, cell in cells.items()}
        keep([_record(step, trial, str(case), arm, by_name[arm.name]) for arm in step.contestants], [])

    found = run_trial(
        list(arms.values()),
        [Case.parse(case) for case in cases],
        step.pace,
        device=device,
        seed=seed,
        thorough=trial == 0,
        keep_going=keep_going,
        once_open=opened,
        measured=measured,
    )
    dropped = sum(one.get("when") == "dropped a round" for one in found.telemetry)
    keep([], [Note("trial", {"seconds": found.seconds, "dropped_rounds": dropped})])


def _record(step: StudyStep, trial: int, case: str, arm: Arm, cell: Cell) -> Record:
    samples = tuple(us and round(us, 4) for us in cell.samples)
    facts = {**cell.facts, **({"tuned": cell.tuned} if cell.tuned else {})}
    unit = Case.parse(case).metric.unit
    return Record(step.name, trial, case, arm.name, cell.state, cell.reason, unit, samples, facts)
