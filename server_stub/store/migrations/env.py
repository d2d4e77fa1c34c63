"""Alembic's entry: runs the migrations on the connection that `server_stub.store.engines` gives."""

from alembic import context

from server_stub.store.tables import metadata

context.configure(connection=context.config.attributes["connection"], target_metadata=metadata)
with context.begin_transaction():
    context.run_migrations()
