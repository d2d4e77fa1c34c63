"""What the server remembers, in SQLite or PostgreSQL. The service asks `Store` with the functions of `rows`."""

from server_stub.store.store import Store

__all__ = ["Store"]
