"""Measure a study on this machine, in a process of a stack with torch, and store its records as they come.

The process writes a file, as it would on a machine without the service.  The database has what it wrote within a
second, so that nothing is lost if either of them ends.
"""

import os
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from kernels.arena import protocol
from kernels.studies import measuring, records
from kernels.studies.records import StudyFile, StudyWriter
from kernels.studies.study import StudyStep
from service.db.engine import reading, transaction
from service.domain.studies.sessions import study_named
from service.domain.text import listed
from service.errors import BadInput, ServiceError, Unavailable
from service.ledger.studies import sessions
from service.ops.supervisor import die_with_parent
from service.settings import settings
from workers import control
from workers.checkouts import stoppable
from workers.machine.device import exclusive
from workers.machine.environments import BaseStack
from workers.run.heartbeat import stopping

_EVERY_S = 0.5
_END_S = 60.0  # in which a study that is interrupted ends its arms
_LAST_LINES = 12  # of the output of a process that failed


@dataclass(frozen=True)
class StudyWanted:
    """Which study to measure, where and with what.

    `resume` is the id of a session; by default the newest one that fits goes on, or else a new one begins.
    """

    study: str
    device: str
    stack: BaseStack
    quick: bool = False
    only: tuple[str, ...] = ()
    limit_s: float | None = None
    resume: int | None = None

    @property
    def steps(self) -> list[StudyStep]:
        """Raises BadInput for a step that the study does not have."""
        every = study_named(self.study).steps(self.device, self.quick)
        names = [step.name for step in every]
        if unknown := [one for one in self.only if one not in names]:
            raise BadInput(
                f"Study {self.study} has no step {listed(unknown)} on {self.device}; its steps are {listed(names)}."
            )
        return [step for step in every if not self.only or step.name in self.only]


@dataclass
class _Counter:
    """The cases of the wanted steps that are measured, and how many there are."""

    steps: Sequence[StudyStep]
    done: set[tuple[str, int, str]] = field(default_factory=set)

    def add(self, file: StudyFile) -> None:
        trials = {step.name: step.trials for step in self.steps}
        self.done |= {one.key for one in file.records if one.trial < trials.get(one.step, 0)}

    @property
    def total(self) -> int:
        return sum(step.trials * len(step.cases) for step in self.steps)

    @property
    def left(self) -> int:
        return self.total - len(self.done)

    def __str__(self) -> str:
        return f"{len(self.done):,} of {self.total:,} cases"


@dataclass(frozen=True)
class StudyMeasured:
    """The session that was measured, and how many of the wanted cases it does not have yet."""

    session_id: int
    left: int


def measured(wanted: StudyWanted, say: Callable[[str], None]) -> StudyMeasured:
    """Measure what the session does not have yet, until Ctrl-C.

    `say` gets what happens, again and again.

    Raises:
        Conflict: Another process uses the device.
        BadInput: Unknown step, or a session that does not fit.
        Unavailable: The process ended with an error; its last lines are in the message.
    """
    counter = _Counter(wanted.steps)
    key = "cpu" if wanted.device == "cpu" else control.here().key
    folder = settings().state / "studies" / key
    folder.mkdir(parents=True, exist_ok=True)
    with exclusive(key):
        _store_left(folder, say)
        earlier = _earlier(wanted)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=f"{wanted.study}-", suffix=".jsonl", delete=False) as made:
            path = Path(made.name)
        path.unlink()  # the process makes it, unless it goes on
        if earlier is not None:
            counter.add(earlier)
            _write(path, earlier)
        reader = _Reader(path)
        with stoppable(), _process(wanted, path) as process:
            output = _Output(process)
            while process.poll() is None and not stopping.wait(_EVERY_S):
                reader.store(counter)
                say(f"{counter}: {output.last}" if output.last else f"{counter}")
            stopped = stopping.is_set()
            stopping.clear()
            code = _ended(process) if stopped else process.wait()
        reader.store(counter)
        path.unlink(missing_ok=True)
    if code and not stopped:
        raise Unavailable(f"Study {wanted.study} ended with {code}:\n{output.whole() or 'it printed nothing'}")
    if reader.session_id is None:
        raise Unavailable(f"Study {wanted.study} was stopped before it began.")
    return StudyMeasured(reader.session_id, counter.left)


def check_clone() -> None:
    """Raises BadInput for an installation that has no programs of studies: a wheel, or an image."""
    if not measuring.BENCHMARKS.is_dir():
        raise BadInput(
            "This installation cannot measure studies: their programs are in benchmarks/ of a clone of kernelwatch. "
            f"Measure there, with `kernelwatch study run` or `python -m {measuring.MODULE} run`; "
            "`kernelwatch study add` stores the file of the second here."
        )


def default_device() -> str:
    """The kind of device of this process."""
    return control.here().name


def check_device(device: str) -> None:
    """Raises BadInput if this machine does not have it."""
    here = control.here().name
    if device not in (here, "cpu"):
        raise BadInput(
            f"This machine has {here}, not {device}. Measure it where {device} is, and `study add` the file."
        )


def _earlier(wanted: StudyWanted) -> StudyFile | None:
    """The session to go on with.  Raises NotFound and BadInput for one that is named and does not fit."""
    here = measuring.kernels_digest()
    with reading() as session:
        if wanted.resume is not None:
            view = sessions.one(session, wanted.resume, wanted.study)
            file = sessions.file_of(session, view.row)
            _check_fits(wanted, file, here)
            return file
        views = sessions.listed(session, wanted.study, wanted.device)
        fitting = (
            one
            for one in views
            if one.row.quick == wanted.quick and one.row.code.get("kernels") == here and not one.progress.complete
        )
        found = next(fitting, None)
        return sessions.file_of(session, found.row) if found else None


def _check_fits(wanted: StudyWanted, file: StudyFile, kernels: str) -> None:
    was = file.session
    pairs = (
        ("device", was.device, wanted.device),
        ("form", _form(was.quick), _form(wanted.quick)),
        ("code of the kernels", was.code.get("kernels"), kernels),
    )
    for what, before, now in pairs:
        if before != now:
            raise BadInput(
                f"Session {wanted.resume} cannot go on: its {what} is {before}, here it is {now}. "
                "Leave out --resume to begin a new session."
            )


def _form(quick: bool) -> str:
    return "quick" if quick else "full"


def _write(path: Path, file: StudyFile) -> None:
    writer = StudyWriter(path)
    writer.begin(file.session)
    writer.add(file.records, file.notes)


def _store_left(folder: Path, say: Callable[[str], None]) -> None:
    """Store what a run wrote that was killed."""
    for path in sorted(folder.glob("*.jsonl")):
        try:
            file = sessions.read(path)
            with transaction() as session:
                sessions.store(session, file)
        except ServiceError as trouble:
            say(f"Left out what an earlier run wrote: {trouble}")
            path.rename(path.with_suffix(".unreadable"))
        else:
            path.unlink()


class _Reader:
    """Stores the lines that are new in the file of a study."""

    def __init__(self, path: Path) -> None:
        self.session_id: int | None = None
        self._path = path
        self._first = ""
        self._offset = 0

    def store(self, counter: _Counter) -> None:
        """Store all whole lines that were written since the last call."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            whole, end, _ = file.read().rpartition(b"\n")
        if not end:
            return
        self._offset += len(whole) + 1
        lines = whole.decode().splitlines()
        self._first = self._first or lines[0]
        new = records.parse(lines if lines[0] == self._first else [self._first, *lines], str(self._path))
        counter.add(new)
        with transaction() as session:
            self.session_id = sessions.store(session, new).session_id


@contextmanager
def _process(wanted: StudyWanted, path: Path) -> "Iterator[subprocess.Popen[str]]":
    """The process that measures; it is ended when the block ends."""
    options = ["--quick"] if wanted.quick else []
    options += ["--only", *wanted.only] if wanted.only else []
    options += ["--limit-s", str(wanted.limit_s)] if wanted.limit_s is not None else []
    command = [str(wanted.stack.python), "-P", "-m", measuring.MODULE, "run", wanted.study, "--out", str(path)]
    process = subprocess.Popen(
        [*command, "--device", wanted.device, *options],
        env=_environment(wanted.stack, wanted.device),
        cwd=path.parent,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,  # Ctrl-C reaches this process alone, which lets the other one end its arms
        preexec_fn=die_with_parent,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def _environment(stack: BaseStack, device: str) -> dict[str, str]:
    """Without the settings of the service.  Arms import from QUACK_PATH (`benchmarks.kernels.trials`).

    They see one GPU, the one that is locked: a worker may measure on another.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KERNELWATCH_", "PYTHON"))}
    folders = [str(path) for path in stack.paths] + [os.environ.get("QUACK_PATH", "")]
    uuid = None if device == "cpu" else control.here().uuid
    visible = {"CUDA_VISIBLE_DEVICES": uuid} if uuid else {}
    return kept | visible | {"PYTHONPATH": str(_imports()), "QUACK_PATH": ":".join(filter(None, folders))}


def _imports() -> Path:
    """A folder with links to `kernels` and `benchmarks` alone.

    The folder that they are in may hold packages of another Python, which must not be imported.
    """
    folder = settings().state / "studies" / "imports"
    folder.mkdir(parents=True, exist_ok=True)
    for package in (protocol.KERNELS, measuring.BENCHMARKS):
        link, made = folder / package.name, folder / f"{package.name}.{os.getpid()}"
        made.unlink(missing_ok=True)
        made.symlink_to(package)
        made.replace(link)
    return folder


class _Output:
    """The last lines that a process prints to stderr, as they come."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self._lines = deque[str](maxlen=_LAST_LINES)
        follow = threading.Thread(target=self._follow, args=(process,), daemon=True)
        follow.start()
        self._wait = follow.join

    def _follow(self, process: "subprocess.Popen[str]") -> None:
        assert process.stderr is not None  # noqa: S101  # it is a pipe
        with process.stderr as lines:
            self._lines.extend(lines)

    @property
    def last(self) -> str:
        """The newest line; empty before the first."""
        return self._lines[-1].strip() if self._lines else ""

    def whole(self) -> str:
        """All that is kept, once the process has ended."""
        self._wait(5.0)
        return "".join(self._lines).strip()


def _ended(process: "subprocess.Popen[str]") -> int:
    """Interrupt the process and wait for its end; what does not end is killed with the block."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(_END_S)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
