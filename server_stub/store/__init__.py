"""The database, SQLite or PostgreSQL: `Store` runs the functions of `rows`."""

from server_stub.store.store import Store, StoreError, StoreUnavailable

__all__ = ["Store", "StoreError", "StoreUnavailable"]
