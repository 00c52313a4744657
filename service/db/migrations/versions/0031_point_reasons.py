"""The reason of a change point is a code with arguments; the sentences of old rows become such.

A sentence that no code has is kept as the argument `text`, which is shown as it is.
"""

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

# The reasons that had no code before, with their sentences.
SENTENCES = (
    ("regression", "regression {regression}, by bisection {bisection}"),
    ("regression", "regression {regression}"),
    ("dismissed", "regression {regression}, which was dismissed: {why}"),
    ("dismissed", "regression {regression}, which was dismissed"),
    ("improvement", "improvement of run {run}"),
    ("held", "faster, and held for more than {revisions} measured revisions"),
    ("machine", "the machine: {targets} changed within the same hours"),
    ("rewritten", "the mainline was rewritten without its revision"),
    ("bisection", "bisection {bisection}"),
    ("inconclusive", "bisection {bisection} was inconclusive: {said}"),
    ("not_bisectable", "cannot be bisected: {said}"),
)
TEXTS = {"why", "said", "targets"}  # the other arguments are numbers
POINTS = sa.table(
    "change_points",
    sa.column("id", sa.BigInteger),
    sa.column("reason", sa.Text),
    sa.column("reason_code", sa.String),
    sa.column("reason_args", sa.JSON(none_as_null=True)),
)


def upgrade() -> None:
    columns = POINTS.c
    rows = sa.select(columns.id, columns.reason, columns.reason_code)
    for key, sentence, code in op.get_bind().execute(rows.where(columns.reason.is_not(None))).all():
        found = (code, {"text": sentence}) if code else coded(sentence)
        _set(key, reason_code=found[0], reason_args=found[1])
    with op.batch_alter_table("change_points") as table:
        table.drop_column("reason")


def downgrade() -> None:
    with op.batch_alter_table("change_points") as table:
        table.add_column(sa.Column("reason", sa.Text(), nullable=True))
    columns = POINTS.c
    rows = sa.select(columns.id, columns.reason_code, columns.reason_args)
    for key, code, args in op.get_bind().execute(rows.where(columns.reason_args.is_not(None))).all():
        if "text" in args:
            _set(key, reason=args["text"], reason_code=None if code == "text" else code, reason_args=None)
        elif sentence := sentence_of(code, args):
            _set(key, reason=sentence, reason_code=None, reason_args=None)


def _set(key: int, **values: Any) -> None:
    op.get_bind().execute(POINTS.update().where(POINTS.c.id == key).values(**values))


def coded(sentence: str) -> tuple[str, dict[str, Any]]:
    """The code of a sentence, with its arguments."""
    for code, form in SENTENCES:
        if found := re.fullmatch(_pattern(form), sentence, re.DOTALL):
            return code, {name: _value(name, text) for name, text in found.groupdict().items()}
    return "text", {"text": sentence}


def sentence_of(code: str, args: Mapping[str, Any]) -> str | None:
    """The sentence of a code that had none before; None for any other."""
    for one, form in SENTENCES:
        if one == code and set(re.findall(r"{(\w+)}", form)) == set(args):
            return form.format(**{name: _listed(value) for name, value in args.items()})
    return None


def _pattern(form: str) -> str:
    return re.sub(
        r"\\{(\w+)\\}",
        lambda name: f"(?P<{name[1]}>{'.+' if name[1] in TEXTS else '[0-9]+'})",
        re.escape(form),
    )


def _value(name: str, text: str) -> Any:
    if name == "targets":
        return re.split(", | and ", text)
    return text if name in TEXTS else int(text)


def _listed(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    *first, last = value
    return f"{', '.join(first)} and {last}" if first else last
