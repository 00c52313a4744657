"""Texts of runs that are stored apart, and forgotten after a while: build logs, and compiled code.

Build logs are whole and compressed.  Compiled code of runs and facts checks is stored once for each target.
"""

import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Select, delete, exists, or_, select
from sqlalchemy.orm import Session, contains_eager

from service.db.engine import clock, transaction
from service.db.models import BuildLog, CodeText, FactsCheck, KernelTextRow, Run
from service.db.paging import ResultPage, paged
from service.domain.codefacts.measured import ARCH_OF
from service.domain.codefacts.texts import (
    MAX_NAME,
    MAX_PACKED,
    MAX_TEXTS,
    NAMES,
    TRACE,
    KernelText,
    packed,
    plain_case,
    unpacked,
)
from service.domain.text import DAY_S, one_line
from service.errors import NotFound
from service.ledger.locking import insert_if_absent
from service.settings import settings

_MANY = 500  # texts that one transaction deletes
_IS_UNUSED = ~exists().where(KernelTextRow.text_id == CodeText.id)


def keep_code(
    session: Session,
    target_id: int,
    texts: Iterable[KernelText],
    *,
    run_id: int | None = None,
    check_id: int | None = None,
) -> int:
    """Store the texts of a run or of a facts check, in place of those of an earlier attempt.  Returns how many.

    Texts beyond the limits are left out.
    """
    session.execute(
        delete(KernelTextRow).where(
            KernelTextRow.run_id == run_id if run_id is not None else KernelTextRow.check_id == check_id
        )
    )
    now, ids, left, rows = clock(session), dict[str, int](), MAX_PACKED, list[KernelTextRow]()
    for text in texts:
        small = packed(text.text) if text.kind in (*NAMES, TRACE) else None
        if small is None or len(rows) >= MAX_TEXTS or len(small.packed) > left:
            continue
        if small.sha256 not in ids:
            left -= len(small.packed)
            values = {"target_id": target_id, "sha256": small.sha256, "packed": small.packed, "bytes": small.bytes}
            ids[small.sha256] = _id_of(session, values)
        row = KernelTextRow(run_id=run_id, check_id=check_id, text_id=ids[small.sha256], made_at=now)
        row.contender, row.case, row.arch = text.contender[:120], text.case[:120], text.arch[:16]
        row.number, row.kernel, row.kind = text.number, one_line(text.kernel, MAX_NAME), text.kind
        rows.append(row)
    session.bulk_save_objects(rows)
    return len(rows)


def of_run(session: Session, run: Run, case: str | None = None) -> Select[KernelTextRow]:
    """The texts of a run and those of the facts check of its revision; at one case, or at all."""
    check = select(FactsCheck.id).where(
        FactsCheck.revision_id == run.revision_id,
        FactsCheck.recipe_id == run.recipe_id,
        FactsCheck.base == (run.baseline or ""),
    )
    own = KernelTextRow.run_id == run.id
    whose = or_(own, KernelTextRow.check_id.in_(list(session.scalars(check))))
    statement = select(KernelTextRow).join(KernelTextRow.text).options(contains_eager(KernelTextRow.text)).where(whose)
    return statement if case is None else statement.where(KernelTextRow.case == case)


def at_case(session: Session, run: Run, case: str) -> Sequence[KernelTextRow]:
    """The texts at one case: those of the run itself, or else of the facts check for the device of the run."""
    texts = session.scalars(of_run(session, run, plain_case(case)).order_by(KernelTextRow.id).limit(MAX_TEXTS)).all()
    own = [text for text in texts if text.run_id is not None]
    return own or [text for text in texts if text.arch == ARCH_OF.get(run.device)]


def listed(
    session: Session, run_id: int, case: str | None, cursor: str | None = None, limit: int = 50
) -> ResultPage[KernelTextRow]:
    """The texts of a run and of the facts check of its revision, the oldest first.  Raises NotFound."""
    every = of_run(session, _run(session, run_id), case)
    return paged(session, every, (KernelTextRow.id,), cursor, limit, ascending=True)


def text_of_run(session: Session, run_id: int, sha256: str) -> str:
    """One of the texts of a run or of the facts check of its revision.  Raises NotFound."""
    text = session.scalars(of_run(session, _run(session, run_id)).where(CodeText.sha256 == sha256).limit(1)).first()
    if text is None:
        kept = f"{settings().code_texts_days:g} days"
        raise NotFound("text", sha256[:12], f"It is none of run {run_id}, or it is older than {kept}.")
    return texts(session, [text.text_id])[text.text_id]


def texts(session: Session, ids: Iterable[int]) -> dict[int, str]:
    """The texts with these ids."""
    statement = select(CodeText.id, CodeText.packed).where(CodeText.id.in_(sorted(set(ids))))
    return {text_id: unpacked(stored) for text_id, stored in session.execute(statement)}


def forget_code() -> int:
    """Delete what has expired, and texts that no kernel has any more.  Returns how many texts there were."""
    with transaction() as session:
        oldest = clock(session) - settings().code_texts_days * DAY_S
        session.execute(delete(KernelTextRow).where(KernelTextRow.made_at < oldest))
    forgotten, after, count = 0, 0, _MANY
    while count == _MANY:
        with transaction() as session:
            some = select(CodeText.id).where(CodeText.id > after, _IS_UNUSED).order_by(CodeText.id).limit(_MANY)
            # Passes over a text that `keep_code` holds now; those found it cannot get until they are deleted.
            ids = session.scalars(some.with_for_update(skip_locked=True)).all()
            # Asked again: a kernel may have been committed after that statement began and before it locked the text.
            gone = delete(CodeText).where(CodeText.id.in_(ids), _IS_UNUSED).returning(CodeText.id)
            forgotten += len(session.scalars(gone).all())
            count, after = len(ids), max(ids, default=after)
    return forgotten


def _id_of(session: Session, values: Mapping[str, Any]) -> int:
    """The id of a text, which is stored if it is new.  One that was there is kept until this transaction ends."""
    same = (CodeText.target_id == values["target_id"], CodeText.sha256 == values["sha256"])
    there = select(CodeText.id).where(*same).with_for_update(read=True, key_share=True)
    while (text_id := insert_if_absent(session, CodeText, ("target_id", "sha256"), values)) is None:
        if (text_id := session.scalar(there)) is not None:  # else it was forgotten at this moment
            break
    return text_id


def _run(session: Session, run_id: int) -> Run:
    if (run := session.get(Run, run_id)) is None:
        raise NotFound("run", run_id)
    return run


def keep_log(session: Session, run_id: int, text: str) -> None:
    """Store the log of a run's build, replacing that of an earlier attempt.  An empty one is not stored."""
    session.execute(delete(BuildLog).where(BuildLog.run_id == run_id))
    if text:
        packed = zlib.compress(text.encode(errors="replace"), 6)
        session.add(BuildLog(run_id=run_id, packed=packed, characters=len(text), made_at=clock(session)))
        session.flush()


def log_of(session: Session, run_id: int) -> str:
    """The log of a run's build.  Raises NotFound, with the reason."""
    # The run first: a reader who may not read its target finds no run, but a log belongs to no target by itself.
    if session.get(Run, run_id) is None:
        raise NotFound("run", run_id)
    row = session.get(BuildLog, run_id)
    if row is not None:
        return zlib.decompress(row.packed).decode()
    kept = f"{settings().build_logs_days:g} days"
    raise NotFound(
        "build log of run", run_id, f"It is not built yet, its build printed nothing, or the log is older than {kept}."
    )


def log_characters(session: Session, run_id: int) -> int:
    """The length of the log of a run's build; 0 where there is none."""
    return session.scalar(select(BuildLog.characters).where(BuildLog.run_id == run_id)) or 0


def forget_logs() -> int:
    """Delete the logs that have expired.  Returns how many there were."""
    with transaction() as session:
        oldest = clock(session) - settings().build_logs_days * DAY_S
        return int(session.execute(delete(BuildLog).where(BuildLog.made_at < oldest)).rowcount)  # type: ignore[attr-defined]
