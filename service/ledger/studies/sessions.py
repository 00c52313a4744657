"""Store sessions of studies and read them.

A session is the same wherever its file comes from: its study, the moment when it began, and its device.  Storing it
again adds what is new.
"""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import Any

from sqlalchemy import Select, delete, insert, select
from sqlalchemy.orm import Session, undefer

from kernels.studies import records as files
from kernels.studies.catalogue import STUDIES
from kernels.studies.records import Note, Record, StudyFile
from kernels.studies.results import Results
from kernels.studies.study import Study, StudyReport
from service.db.engine import clock
from service.db.models import StudyRecord, StudySession, pack, storable, unpack
from service.db.paging import ResultPage, paged
from service.domain.studies import sessions as domain
from service.domain.studies.sessions import Claims, StudyProgress
from service.errors import BadInput, NotFound
from service.ledger import audit
from service.ledger.locking import insert_if_absent

_IDENTITY = ("study", "began", "device")


@dataclass(frozen=True)
class StoredSession:
    """What `store` did: the id of the session, and how many records and notes were new."""

    session_id: int
    records: int
    notes: int


@dataclass(frozen=True)
class StudySessionView:
    """A session with how far it is."""

    row: StudySession
    progress: StudyProgress


@dataclass(frozen=True)
class EvaluatedSession:
    """A session with its results."""

    view: StudySessionView
    study: Study
    results: Results

    @cached_property
    def report(self) -> StudyReport:
        """Raises BadInput."""
        return domain.report(self.study, self.results)


def read(path: Any) -> StudyFile:
    """The file of a study.  Raises BadInput."""
    try:
        return files.read(path)
    except files.UnreadableStudy as error:
        raise BadInput(
            f"{error}. `kernelwatch study run` and `python -m benchmarks.kernels.published run` write such files."
        ) from None
    except RecursionError:
        raise BadInput(f"{path} has a line that is nested too deep for the file of a study.") from None


def store(session: Session, file: StudyFile) -> StoredSession:
    """Add what is not there yet of a session.  Raises NotFound for another study, and BadInput."""
    domain.check(file)
    row = _row_of(session, file.session)
    was_empty = not row.notes
    stored_keys = {tuple(key) for key in session.execute(select(*_KEY).where(StudyRecord.session_id == row.id))}
    new = {_key(record): record for record in file.records if _key(record) not in stored_keys}
    if new:
        session.execute(insert(StudyRecord), [_values(row.id, record) for record in new.values()])
    notes = _new_notes(row.notes, file.notes)
    if notes:
        row.notes = [*row.notes, *notes]
    if new or notes:
        row.updated_at = clock(session)
        if stored_keys or not was_empty:  # what is stored and what is new must make a report together, too
            session.flush()
            domain.check(file_of(session, row))
    return StoredSession(row.id, len(new), len(notes))


_KEY = (StudyRecord.step, StudyRecord.trial, StudyRecord.case, StudyRecord.arm)


def _key(record: Record) -> tuple[str, int, str, str]:
    return record.step, record.trial, record.case, record.arm


def _row_of(session: Session, about: files.Session) -> StudySession:
    """The row of a session, made if it is new, and locked until the transaction ends."""
    now = clock(session)
    values = {name: getattr(about, name) for name in (*_IDENTITY, "quick")}
    values |= {
        "machine": dict(about.machine),
        "code": dict(about.code),
        "notes": [],
        "added_at": now,
        "updated_at": now,
    }
    insert_if_absent(session, StudySession, _IDENTITY, values)
    same = [getattr(StudySession, name) == values[name] for name in _IDENTITY]
    return session.scalars(
        select(StudySession).where(*same).options(undefer(StudySession.notes)).with_for_update()
    ).one()


def _values(session_id: int, record: Record) -> dict[str, Any]:
    return {
        "session_id": session_id,
        **{name: getattr(record, name) for name in ("step", "trial", "case", "arm", "state", "reason", "unit")},
        "samples": pack((list(record.samples),), ()),
        "facts": dict(record.facts),
    }


def _new_notes(stored: Sequence[Any], sent: Iterable[Note]) -> list[Any]:
    """Notes that are not stored yet, by what they say."""
    stored_texts = {_text(note) for note in stored}
    notes = {_text(pair): pair for note in sent if _text(pair := storable([note.what, note.value])) not in stored_texts}
    return list(notes.values())


def _text(note: Any) -> str:
    return json.dumps(note, sort_keys=True, default=str)


def listed(session: Session, study: str | None = None, device: str | None = None) -> list[StudySessionView]:
    """Sessions of a study or of all, those that began last first.  Sessions of unknown studies are left out."""
    newest_first = (StudySession.began.desc(), StudySession.id.desc())
    return _with_progress(session, session.scalars(_of(study, device).order_by(*newest_first)).all())


def page(
    session: Session, study: str, device: str | None, cursor: str | None, limit: int
) -> ResultPage[StudySessionView]:
    """A page of the sessions of a study, those that began last first."""
    page = paged(session, _of(study, device), [StudySession.began, StudySession.id], cursor, limit)
    return ResultPage(tuple(_with_progress(session, page.items)), page.next)


def _of(study: str | None, device: str | None) -> Select[StudySession]:
    wanted = select(StudySession).where(StudySession.study.in_([study] if study is not None else list(STUDIES)))
    return wanted if device is None else wanted.where(StudySession.device == device)


def remove(session: Session, row: StudySession) -> None:
    """Delete a session with all its records.  A run that measures it stores it again, with what is new from then on."""
    session.execute(delete(StudyRecord).where(StudyRecord.session_id == row.id))
    session.execute(delete(StudySession).where(StudySession.id == row.id))
    details = {"study": row.study, "began": row.began, "device": row.device}
    audit.record(session, "study.remove", of=f"session {row.id} of study {row.study}", details=details)


_MOST_PROGRESS = 10_000  # sessions
_progress = OrderedDict[tuple[Any, ...], StudyProgress]()
_keeping = Lock()


def _with_progress(session: Session, rows: Sequence[StudySession]) -> list[StudySessionView]:
    """Each with how far it is, which is kept in memory: lists would read the records of all sessions again."""
    with _keeping:
        progresses = {row.id: progress for row in rows if (progress := _progress.get(_version(row))) is not None}
    progresses |= _progress_of(session, [row for row in rows if row.id not in progresses])
    with _keeping:
        _progress.update({_version(row): progresses[row.id] for row in rows})
        while len(_progress) > _MOST_PROGRESS:
            _progress.popitem(last=False)
    return [StudySessionView(row, progresses[row.id]) for row in rows]


def _version(row: StudySession) -> tuple[Any, ...]:
    """What is another once something was added to the session."""
    return (row.id, row.study, row.began, row.device, row.updated_at)


def _progress_of(session: Session, rows: Sequence[StudySession]) -> dict[int, StudyProgress]:
    done: dict[int, set[tuple[str, int, str]]] = {row.id: set() for row in rows}
    if not done:
        return {}
    keys = select(StudyRecord.session_id, StudyRecord.step, StudyRecord.trial, StudyRecord.case).distinct()
    for session_id, step, trial, case in session.execute(keys.where(StudyRecord.session_id.in_(done))):
        done[session_id].add((step, trial, case))
    return {row.id: domain.progress(STUDIES[row.study], row.device, row.quick, done[row.id]) for row in rows}


def one(session: Session, session_id: int, study: str | None = None) -> StudySessionView:
    """A session, of this study if one is named.  Raises NotFound."""
    row = session.get(StudySession, session_id)
    if row is None or row.study not in STUDIES or study not in (None, row.study):
        hint = "`kernelwatch study sessions NAME` lists those of a study."
        raise NotFound("session", f"{session_id} of study {study}" if study else session_id, hint)
    return _with_progress(session, [row])[0]


def preferred(views: Sequence[StudySessionView]) -> StudySessionView | None:
    """The session to show first: a full one before a quick one, a GPU's before a CPU's, then the newest."""
    order = sorted(views, key=lambda view: (view.row.began, view.row.id), reverse=True)
    return min(order, key=lambda view: (view.row.quick, view.row.device == "cpu"), default=None)


def file_of(session: Session, row: StudySession) -> StudyFile:
    """A stored session as its file."""
    about = files.Session(row.study, row.began, row.device, row.quick, row.machine, row.code)
    columns = (*_KEY, StudyRecord.state, StudyRecord.reason, StudyRecord.unit, StudyRecord.samples, StudyRecord.facts)
    rows = session.execute(select(*columns).where(StudyRecord.session_id == row.id).order_by(StudyRecord.id))
    stored = session.scalar(select(StudySession.notes).where(StudySession.id == row.id)) or []
    notes = tuple(Note(what, value) for what, value in stored)
    return StudyFile(about, tuple(_record(*values) for values in rows), notes)


def _record(
    step: str,
    trial: int,
    case: str,
    arm: str,
    state: str,
    reason: str | None,
    unit: str,
    samples: bytes,
    facts: Mapping[str, Any],
) -> Record:
    return Record(
        step=step,
        trial=trial,
        case=case,
        arm=arm,
        state=state,
        reason=reason,
        unit=unit,
        samples=tuple(unpack(samples)[0][0]),
        facts=facts,
    )


_KEPT = 16  # evaluated sessions: reading and evaluating a full one takes 130 ms
_kept = OrderedDict[tuple[Any, ...], EvaluatedSession]()


def evaluated(session: Session, view: StudySessionView) -> EvaluatedSession:
    """A session with its results.  It is kept in memory until something is added to it."""
    row = view.row
    key = _version(row)
    with _keeping:
        evaluated = _kept.get(key)
    if evaluated is None:
        evaluated = EvaluatedSession(view, STUDIES[row.study], Results.of([file_of(session, row)]))
        with _keeping:
            _kept[key] = evaluated
            while len(_kept) > _KEPT:
                _kept.popitem(last=False)
    return evaluated


def claims(session: Session, view: StudySessionView) -> Claims | None:
    """How many claims hold in a session; None if this version cannot evaluate it."""
    try:
        return Claims.of(evaluated(session, view).report)
    except BadInput:
        return None
