"""Runs as experiments: owner, visibility, end, tags; and tokens with their rights."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns, and the tables of tags and tokens."""
    with op.batch_alter_table("runs") as runs:
        runs.add_column(sa.Column("name", sa.Text, nullable=False, server_default=""))
        runs.add_column(sa.Column("owner", sa.Text, nullable=False, server_default=""))
        runs.add_column(sa.Column("shared", sa.Boolean, nullable=False, server_default=sa.false()))
        runs.add_column(sa.Column("end_realtime_ns", sa.BigInteger))
        runs.add_column(sa.Column("until_realtime_ns", sa.BigInteger))
    op.create_index("runs_by_name", "runs", ["name"])
    op.create_table(
        "tags",
        sa.Column("out", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("tag", sa.Text, primary_key=True),
    )
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.Text, primary_key=True),
        sa.Column("owner", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("digest", sa.Text, nullable=False, unique=True),
        sa.Column("made_realtime_ns", sa.BigInteger, nullable=False),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("tokens")
    op.drop_table("tags")
    op.drop_index("runs_by_name", "runs")
    with op.batch_alter_table("runs") as runs:
        for name in ("until_realtime_ns", "end_realtime_ns", "shared", "owner", "name"):
            runs.drop_column(name)
