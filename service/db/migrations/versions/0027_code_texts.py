"""Texts of compiled code, and which kernel of which run or facts check had them."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None

KEY = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
INDEXES = {
    "ix_kernel_texts_run": ["run_id", "case"],
    "ix_kernel_texts_check": ["check_id", "case"],
    "ix_kernel_texts_text": ["text_id"],
    "ix_kernel_texts_made_at": ["made_at"],
}


def upgrade() -> None:
    op.create_table(
        "code_texts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("target_id", KEY, sa.ForeignKey("targets.id"), nullable=False),
        sa.Column("sha256", sa.String(64), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.UniqueConstraint("target_id", "sha256"),
    )
    op.create_table(
        "kernel_texts",
        sa.Column("id", KEY, primary_key=True),
        sa.Column("run_id", KEY, sa.ForeignKey("runs.id")),
        sa.Column("check_id", KEY, sa.ForeignKey("facts_checks.id")),
        sa.Column("text_id", KEY, sa.ForeignKey("code_texts.id"), nullable=False),
        sa.Column("contender", sa.String(120), nullable=False),
        sa.Column("case", sa.String(120), nullable=False),
        sa.Column("arch", sa.String(16), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("kernel", sa.Text(), nullable=False),
        sa.Column("kind", sa.String(16), nullable=False),
        sa.Column("made_at", sa.Float(53), nullable=False),
    )
    for name, columns in INDEXES.items():
        op.create_index(name, "kernel_texts", columns)


def downgrade() -> None:
    for name in reversed(INDEXES):
        op.drop_index(name, table_name="kernel_texts")
    op.drop_table("kernel_texts")
    op.drop_table("code_texts")
