"""Sessions of studies are stored once, whole and in parts, and read as they were written."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import func, select

from kernels.studies.records import Note, Record, StudyWriter
from service.db.engine import reading, transaction
from service.db.models import StudyRecord
from service.domain.studies.sessions import Claims, StudyProgress
from service.errors import BadInput, NotFound
from service.ledger import audit
from service.ledger.studies import sessions
from service.ledger.studies.sessions import StoredSession
from tests.service.ledger.studies.literal import GRID, NARROW, session_file


def stored(*files: Any) -> list[StoredSession]:
    with transaction() as session:
        return [sessions.store(session, one) for one in files]


def test_a_session_is_stored_once_and_grows(either: str) -> None:
    whole = session_file()
    half = replace(whole, records=whole.records[:12], notes=whole.notes[:1])

    [first] = stored(half)
    [rest] = stored(whole)
    [again] = stored(whole)

    assert first == StoredSession(first.session_id, 12, 1)
    assert rest == StoredSession(first.session_id, 12, 1)
    assert again == StoredSession(first.session_id, 0, 0)
    with reading() as session:
        [view] = sessions.listed(session)
        found = sessions.file_of(session, view.row)
    assert found.session == whole.session
    assert found.records == whole.records
    assert found.notes == whole.notes


def test_the_same_moment_on_another_device_is_another_session(state: Path) -> None:
    first, second = stored(session_file(), session_file(device="b200"))
    assert first.session_id != second.session_id
    with reading() as session:
        assert [one.row.device for one in sessions.listed(session, "s3", "b200")] == ["b200"]
        assert sessions.listed(session, "s1") == []


def test_sessions_come_in_pages(either: str) -> None:
    days = [f"2026-11-{day}T03:02:00+00:00" for day in (22, 20, 21)]
    stored(*(session_file(began=day) for day in days), session_file(began=days[0], device="b200"))
    found, cursor = [], None
    with reading() as session:
        for _ in range(3):
            page = sessions.page(session, "s3", "h200", cursor, 1)
            found += [one.row.began for one in page.items]
            cursor = page.next
    assert found == sorted(days, reverse=True)
    assert cursor is None


def test_a_removed_session_leaves_the_others_and_an_entry_of_the_audit_log(either: str) -> None:
    first, second = stored(session_file(), session_file(device="b200"))
    with transaction() as session:
        sessions.remove(session, sessions.one(session, first.session_id).row)
    with reading() as session:
        [left] = sessions.listed(session)
        assert left.row.id == second.session_id
        assert left.progress.done == 4
        assert session.scalar(select(func.count()).select_from(StudyRecord)) == 24
        [entry] = audit.listed(session, action="study.remove").items
    assert entry.object == f"session {first.session_id} of study s3"
    [again] = stored(session_file())
    assert again.records == 24


def test_a_full_session_of_a_gpu_is_shown_first(state: Path) -> None:
    gpu, quick = session_file(), session_file(began="2026-11-22T03:02:00+00:00")
    quick = replace(quick, session=replace(quick.session, quick=True))
    cpu = session_file(began="2026-11-23T03:02:00+00:00", device="cpu")
    shown = stored(gpu, quick, cpu)[0].session_id
    with reading() as session:
        views = sessions.listed(session, "s3")
        assert [one.row.began[:10] for one in views] == ["2026-11-23", "2026-11-22", "2026-11-20"]
        found = sessions.preferred(views)
    assert found is not None
    assert found.row.id == shown


def test_a_session_says_how_far_it_is_and_which_claims_hold(state: Path) -> None:
    stored(session_file(times=GRID))
    with reading() as session:
        [view] = sessions.listed(session)
        assert view.progress == StudyProgress(12 * 2, 40 * 2)  # cases in two trials
        assert not view.progress.complete
        # Fused is faster in all cases but one, no case has more than 2,048 columns, and a choice by size is faster.
        assert sessions.claims(session, view) == Claims(hold=1, fail=1, undecided=1)


def test_half_of_a_session_can_be_evaluated(state: Path) -> None:
    whole = session_file()
    for count in (0, 1, 7):
        stored(replace(whole, records=whole.records[:count]))
        with reading() as session:
            assert sessions.claims(session, sessions.listed(session)[0]) is not None


def _of_session(**fields: Any) -> Any:
    file = session_file()
    return replace(file, session=replace(file.session, **fields))


def _changed(**fields: Any) -> Any:
    file = session_file()
    return replace(file, records=(replace(file.records[0], **fields),))


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (_of_session(study="s9"), "No study s9. Known: s1,"),
        (session_file(device="H 200"), "The device of the session is 'H 200'"),
        (_of_session(study=[]), "it must be a name such as s3"),
        (session_file(began="yesterday"), "which is no time such as"),
        (session_file(began=5), "which is no time such as"),
        (session_file(began="0001-01-01T00:00:00+23:59"), "which is no time such as"),
        (_of_session(code={"revision": 5}), "must have texts only"),
        (_changed(case=""), "must be a text of 1 to 200 printable"),
        (_changed(arm="x" * 81), "must be a text of 1 to 80 printable"),
        (_changed(unit="us\0"), "must be a text of 1 to 16 printable"),
        (_changed(reason={"error": 1}), "a reason that is not a text"),
        (_changed(trial=-1), "must be a number from 0 to 999"),
        (_changed(samples=(1.0, -2.0)), "samples that are not positive numbers"),
        (_changed(case="rmsnorm.sideways.4x4.bf16"), "cannot evaluate these results of study s3"),
    ],
)
def test_what_no_version_can_show_is_not_stored(state: Path, file: Any, message: str) -> None:
    with pytest.raises((BadInput, NotFound), match=message):
        stored(file)
    with reading() as session:
        assert sessions.listed(session) == []


@pytest.mark.parametrize("note", [Note("ceilings", 5), Note("ceilings", {"copy_gb_s": "fast"}), Note("stack", "torch")])
def test_a_note_that_no_report_can_use_does_not_spoil_a_stored_session(state: Path, note: Note) -> None:
    whole = session_file(times=GRID)
    stored(whole)
    with pytest.raises(BadInput, match=f"The (note )?'?{note.what}"):
        stored(replace(whole, records=(), notes=(note,)))
    with reading() as session:
        assert sessions.claims(session, sessions.listed(session)[0]) is not None


def test_a_file_that_is_none_of_a_study_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.jsonl"
    path.write_text('{"batch": {}}\n')
    with pytest.raises(BadInput, match=r"is not the file of a study.*kernelwatch study run"):
        sessions.read(path)


def test_a_line_that_is_nested_too_deep_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "deep.jsonl"
    path.write_text("[" * 200_000 + "\n{}\n")
    with pytest.raises(BadInput, match="nested too deep"):
        sessions.read(path)


def test_a_file_is_read_as_it_was_written(state: Path, tmp_path: Path) -> None:
    path, file = tmp_path / "s3.jsonl", session_file()
    writer = StudyWriter(path)
    writer.begin(file.session)
    writer.add(file.records, file.notes)
    [found] = stored(sessions.read(path))
    assert (found.records, found.notes) == (24, 2)


def test_texts_of_strangers_are_stored_as_they_can_be(either: str) -> None:
    hostile = Record("dweight", 0, NARROW, "last", "failed", "a NUL \0 and <b>markup</b>", facts={"x": float("nan")})
    file = replace(session_file(), records=(hostile,), notes=(Note("stack", {"torch": "\0"}),))
    stored(file)
    [again] = stored(file)
    assert (again.records, again.notes) == (0, 0)
    with reading() as session:
        [view] = sessions.listed(session)
        [found] = sessions.file_of(session, view.row).records
    assert found.reason == "a NUL \ufffd and <b>markup</b>"
    assert found.facts == {"x": None}
