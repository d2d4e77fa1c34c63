"""The database, SQLite or PostgreSQL: `Store` runs the functions of `rows`."""

from server_stub.store.errors import StoreDamaged, StoreError, StoreUnavailable, Superseded
from server_stub.store.store import Store

__all__ = ["Store", "StoreDamaged", "StoreError", "StoreUnavailable", "Superseded"]
