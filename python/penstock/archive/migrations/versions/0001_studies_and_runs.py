"""Studies and their runs: the catalogue before it had experiments."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create both tables."""
    op.create_table(
        "studies",
        sa.Column("out", sa.Text, primary_key=True),
        sa.Column("study_id", sa.Text, nullable=False),
        sa.Column("question", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("planned_runs", sa.Integer),
    )
    op.create_table(
        "runs",
        sa.Column("out", sa.Text, primary_key=True),
        sa.Column("run_id", sa.Text, primary_key=True),
        sa.Column("attempt", sa.Integer, primary_key=True),
        sa.Column("study_id", sa.Text, nullable=False),
        sa.Column("treatment_id", sa.Text),
        sa.Column("levels", sa.Text),
        sa.Column("state", sa.Text, nullable=False),
        sa.Column("valid", sa.Boolean, nullable=False),
        sa.Column("reason", sa.Text),
        sa.Column("start_realtime_ns", sa.BigInteger),
        sa.Column("wall_s", sa.Float),
        sa.Column("size_bytes", sa.BigInteger),
        sa.Column("path", sa.Text, nullable=False),
    )


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("runs")
    op.drop_table("studies")
