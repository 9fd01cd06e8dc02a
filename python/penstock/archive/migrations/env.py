"""Environment of Alembic's steps: the connection from the catalogue."""

from alembic import context

from penstock.archive.catalogue_tables import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
