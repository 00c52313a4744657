"""Reasons and causes are codes with arguments; what was decided from the text of old rows gets columns of its own.

Old rows keep their text, which is shown where there is no code.
"""

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

# How these texts began when decisions were made from them.
KNOWN_BEFORE = "already so before this revision: "
QUARANTINED = "quarantined: "
WAITS = "waits for tomorrow's budget"
RECIPE = "recipe"
# A cause began with a direction, to which a report gave the size.
SLOWER, FASTER = ("slower", "more memory"), ("faster", "less memory")
OPEN_SEARCHES = ("verifying", "searching", "proving")

VERDICTS = sa.table(
    "verdicts",
    sa.column("id", sa.BigInteger),
    sa.column("run_id", sa.BigInteger),
    sa.column("provider", sa.String),
    sa.column("case", sa.String),
    sa.column("outcome", sa.String),
    sa.column("reason", sa.Text),
    sa.column("reason_code", sa.String),
    sa.column("reason_args", sa.JSON(none_as_null=True)),
    sa.column("known_before", sa.Boolean),
    sa.column("quarantined_by", sa.String),
    sa.column("cause_kind", sa.String),
    sa.column("cause_text", sa.Text),
    sa.column("cause_code", sa.String),
    sa.column("cause_args", sa.JSON(none_as_null=True)),
)
BISECTIONS = sa.table(
    "bisections",
    sa.column("state", sa.String),
    sa.column("reason", sa.Text),
    sa.column("waits_for_budget", sa.Boolean),
)
RUNS = sa.table(
    "runs", sa.column("id", sa.BigInteger), sa.column("target_id", sa.BigInteger), sa.column("device", sa.String)
)
QUARANTINES = sa.table(
    "quarantines",
    sa.column("target_id", sa.BigInteger),
    sa.column("device", sa.String),
    sa.column("provider", sa.String),
    sa.column("case", sa.String),
    sa.column("by", sa.String),
    sa.column("reason", sa.Text),
)


def upgrade() -> None:
    with op.batch_alter_table("verdicts") as table:
        table.alter_column("reason", existing_type=sa.Text(), nullable=True)
        table.add_column(sa.Column("reason_code", sa.String(32)))
        table.add_column(sa.Column("reason_args", sa.JSON()))
        table.add_column(sa.Column("known_before", sa.Boolean(), nullable=False, server_default=sa.false()))
        table.add_column(sa.Column("quarantined_by", sa.String(80)))
        table.add_column(sa.Column("cause_code", sa.String(32)))
        table.add_column(sa.Column("cause_args", sa.JSON()))
    op.add_column("bisections", sa.Column("waits_for_budget", sa.Boolean(), nullable=False, server_default=sa.false()))
    bind = op.get_bind()
    for key, outcome, said in _after(KNOWN_BEFORE, ("invalid", "failed")):
        _set(key, known_before=True, reason_code=outcome, reason_args={"said": said})
    by = _quarantined_by()
    for key, _, why in _after(QUARANTINED, ("inconclusive",)):
        _set(key, quarantined_by=by.get(key, RECIPE), reason_code="quarantined", reason_args={"why": why})
    for direction in (*SLOWER, *FASTER):
        _direction(direction, slower=direction in SLOWER)
    waits = _begins(BISECTIONS.c.reason, WAITS), BISECTIONS.c.state.in_(OPEN_SEARCHES)
    bind.execute(BISECTIONS.update().where(*waits).values(waits_for_budget=True))


def downgrade() -> None:
    """Rows without a text get one: what was decided from it, or the name of the code."""
    bind, columns = op.get_bind(), VERDICTS.c
    rows = sa.select(columns.id, columns.reason_code, columns.reason_args, columns.known_before)
    for key, code, args, known_before in bind.execute(rows.where(columns.reason.is_(None))).all():
        said = (args or {}).get("said") or (args or {}).get("why") or (code or "").replace("_", " ")
        before = KNOWN_BEFORE if known_before else QUARANTINED if code == "quarantined" else ""
        _set(key, reason=before + said)
    without = columns.cause_text.is_(None), columns.cause_kind.is_not(None)
    bind.execute(VERDICTS.update().where(*without).values(cause_text=columns.cause_kind))
    with op.batch_alter_table("bisections") as table:
        table.drop_column("waits_for_budget")
    with op.batch_alter_table("verdicts") as table:
        for name in ("cause_args", "cause_code", "quarantined_by", "known_before", "reason_args", "reason_code"):
            table.drop_column(name)
        table.alter_column("reason", existing_type=sa.Text(), nullable=False)


def _begins(column: Any, text: str) -> Any:
    return sa.func.substr(column, 1, len(text)) == text


def _after(prefix: str, outcomes: tuple[str, ...]) -> Iterator[tuple[int, str, str]]:
    """Id, outcome and the rest of the text of the verdicts whose text begins so."""
    columns = VERDICTS.c
    rows = sa.select(columns.id, columns.outcome, columns.reason)
    found = op.get_bind().execute(rows.where(_begins(columns.reason, prefix), columns.outcome.in_(outcomes))).all()
    return ((key, outcome, reason[len(prefix) :]) for key, outcome, reason in found)


def _direction(direction: str, *, slower: bool) -> None:
    columns = VERDICTS.c
    rows = sa.select(columns.id, columns.cause_text).where(_begins(columns.cause_text, direction))
    for key, text in op.get_bind().execute(rows).all():
        _set(key, cause_code="text", cause_args={"slower": slower, "after": text[len(direction) :]})


def _quarantined_by() -> dict[int, str]:
    """Who quarantined a verdict's case, where a row of the quarantines has its reason; else it was the recipe."""
    verdicts, runs, rows = VERDICTS.c, RUNS.c, QUARANTINES.c
    of_verdicts = (
        sa.select(verdicts.id, rows.by)
        .select_from(VERDICTS)
        .join(RUNS, runs.id == verdicts.run_id)
        .join(
            QUARANTINES,
            sa.and_(
                rows.target_id == runs.target_id,
                rows.device == runs.device,
                rows.provider == verdicts.provider,
                rows.case == verdicts.case,
                verdicts.reason == sa.literal(QUARANTINED) + rows.reason,
            ),
        )
    )
    return {row.id: row.by for row in op.get_bind().execute(of_verdicts)}


def _set(key: int, **values: Any) -> None:
    op.get_bind().execute(VERDICTS.update().where(VERDICTS.c.id == key).values(**values))
