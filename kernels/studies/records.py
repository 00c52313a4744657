"""The file of a study: one JSON object a line, first the session, then a record for each arm, case and trial.

Lines are only appended, so that a run that was cut off goes on where it stopped.  Torch-free.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import MEASURED

FORMAT = 1
CONTROL = "control"  # the arm that is a second copy of a step's first arm


class UnreadableStudy(Exception):
    """The file is not that of a study, or of another one.  The message says what is wrong."""


class StudyInUse(Exception):
    """Another run writes the file.  The message says what to do."""


@dataclass(frozen=True)
class Session:
    """Where and with what a study was measured.

    `device` is the kind ("h200", "cpu"), `machine` describes it.  The versions of each arm are notes.
    """

    study: str
    began: str  # ISO 8601, UTC
    device: str
    quick: bool
    machine: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)  # revision, hash of the package


@dataclass(frozen=True)
class Record:
    """One arm at one case in one trial.  `samples` has one value for each round, None for a dropped one."""

    step: str
    trial: int
    case: str
    arm: str
    state: str
    reason: str | None = None
    unit: str = "us"
    samples: tuple[float | None, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, int, str]:
        """Arms that took turns have the same."""
        return self.step, self.trial, self.case

    @property
    def measured(self) -> bool:
        return self.state == MEASURED and any(self.samples)

    @property
    def replayed(self) -> bool:
        """Was a CUDA graph of the step replayed, so that launches are no part of its times?"""
        return self.facts.get("graph") is True


@dataclass(frozen=True)
class Note:
    """Something about the whole session: ceilings, versions of an arm, telemetry."""

    what: str
    value: Any


@dataclass(frozen=True)
class StudyFile:
    session: Session
    records: tuple[Record, ...] = ()
    notes: tuple[Note, ...] = ()


def read(path: Path) -> StudyFile:
    """Raises UnreadableStudy.  A last line that was cut off is left out."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableStudy(f"{path} cannot be read: {error}") from None
    return parse(text.splitlines(), str(path))


def parse(lines: Sequence[str], name: str = "the file") -> StudyFile:
    """Raises UnreadableStudy that names the line."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(dict(json.loads(line)))
        except (ValueError, TypeError):
            if number < len(lines):
                raise UnreadableStudy(f"line {number} of {name} is not a JSON object") from None
    if not found or found[0].get("format") != FORMAT:
        raise UnreadableStudy(f'{name} is not the file of a study: its first line has no "format": {FORMAT}')
    try:
        session = Session(**found[0]["session"])
        records = [
            Record(**{**one["record"], "samples": tuple(one["record"]["samples"])}) for one in _of(found, "record")
        ]
        notes = [Note(**one["note"]) for one in _of(found, "note")]
    except (TypeError, KeyError) as error:
        raise UnreadableStudy(f"{name} has a line with unknown or missing fields: {error}") from None
    return StudyFile(session, tuple(records), tuple(notes))


def _of(lines: Iterable[Mapping[str, Any]], kind: str) -> list[Mapping[str, Any]]:
    return [line for line in lines if kind in line]


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other runs away from a file, which is made empty if it does not exist.  The end of the process releases it.

    Raises StudyInUse.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StudyInUse(
                f"another run is writing {path}; wait until it ends, stop it, or name another file"
            ) from None
        yield


class StudyWriter:
    """Appends to the file of a study; every line is on the disk when the call returns."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self, session: Session) -> None:
        """Write the first line.  Raises FileExistsError if the file has any."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            if file.tell():
                raise FileExistsError(f"{self._path} is not empty")
            file.write(_line({"format": FORMAT, "session": asdict(session)}))

    def repair(self) -> None:
        """Remove a last line that was cut off, so that the next one begins on its own."""
        data = self._path.read_bytes()
        if data and not data.endswith(b"\n"):
            with self._path.open("r+b") as file:
                file.truncate(data.rfind(b"\n") + 1)

    def add(self, records: Iterable[Record], notes: Iterable[Note] = ()) -> None:
        """Append all lines, or none if that fails: a case with a part of its arms would not be measured again."""
        text = "".join(_line({"record": asdict(one)}) for one in records)
        text += "".join(_line({"note": asdict(one)}) for one in notes)
        size = self._path.stat().st_size
        try:
            with self._path.open("a") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            os.truncate(self._path, size)
            raise


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), default=str) + "\n"
