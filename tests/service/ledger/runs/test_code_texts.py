"""Texts of compiled code are forgotten as fast as they expire, and those that a kernel has stay."""

from concurrent.futures import ThreadPoolExecutor, wait

import pytest
from sqlalchemy import insert, select

from service.db.engine import clock, reading, transaction
from service.db.models import CodeText, KernelTextRow, Run, Target
from service.domain.codefacts.texts import KernelText
from service.ledger import stored_texts
from service.settings import settings
from tests import world

MANY = 1100  # more than one transaction deletes


@pytest.fixture
def target(either: str) -> Target:
    return world.target()


@pytest.fixture
def run(target: Target) -> Run:
    with transaction() as session:
        return world.run(session, world.commit(session, target.id, 0))


def stored(target: Target, count: int) -> list[int]:
    """Add texts of no kernel.  Returns their ids."""
    rows = [{"target_id": target.id, "sha256": f"{n:064}", "packed": b"", "bytes": 0} for n in range(count)]
    with transaction() as session:
        session.execute(insert(CodeText), rows)
        return list(session.scalars(select(CodeText.id).order_by(CodeText.id)))


def with_kernels(run: Run, ids: list[int], age_days: float) -> None:
    with transaction() as session:
        made_at = clock(session) - age_days * stored_texts.DAY_S
        usual = {"run_id": run.id, "contender": "head:norms", "case": "c", "arch": "", "number": 0, "kernel": "k"}
        rows = [usual | {"text_id": text_id, "kind": "ptx", "made_at": made_at} for text_id in ids]
        session.execute(insert(KernelTextRow), rows)


def left() -> list[int]:
    with reading() as session:
        return list(session.scalars(select(CodeText.id).order_by(CodeText.id)))


def test_all_that_expired_is_forgotten_at_once(target: Target, run: Run) -> None:
    ids = stored(target, MANY)
    oldest, expired, newest = ids[:2], ids[2:-2], ids[-2:]
    with_kernels(run, expired, age_days=settings().code_texts_days + 1)
    with_kernels(run, oldest + newest, age_days=settings().code_texts_days - 1)

    assert stored_texts.forget_code() == MANY - 4

    assert left() == oldest + newest
    assert stored_texts.forget_code() == 0


def test_a_text_that_a_kernel_gets_at_this_moment_stays_and_the_others_go(target: Target, run: Run) -> None:
    again = KernelText("head:norms", "c", 0, "k", "ptx", "ret;")
    with transaction() as session:
        stored_texts.keep_code(session, target.id, [again], run_id=run.id)
    [kept] = left()
    with transaction() as session:
        stored_texts.keep_code(session, target.id, [], run_id=run.id)
    stored(target, 3)

    with ThreadPoolExecutor(1) as pool:
        with transaction() as session:
            stored_texts.keep_code(session, target.id, [again], run_id=run.id)
            forgotten = pool.submit(stored_texts.forget_code)
            wait([forgotten], 0.5)  # SQLite has one writer: there it waits for the commit
        assert forgotten.result() == 3

    assert left() == [kept]
