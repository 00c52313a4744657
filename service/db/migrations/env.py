"""How Alembic reaches our database: on the connection, and in the transaction, of `service.db.migrate`."""

from alembic import context

from service.db.models import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
    transactional_ddl=True,  # true of SQLite as well, where `service.db.engine` owns BEGIN
)
with context.begin_transaction():
    context.run_migrations()
