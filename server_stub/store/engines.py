"""How the two databases are opened: one connection that writes, a few that read. Private to `server_stub.store`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, make_url
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

READERS = 4
_STATEMENTS = 512  # kept compiled: an insert has one for each number of rows (prepared.Insert)
_WAL = 4000  # pages before a checkpoint; with SQLite's 1000 one follows upon every sixtieth submit
_LOCK_KEY = 0x636C6C69  # "clli": PostgreSQL's advisory lock of the one server of a database


def writing_engine(url: str) -> Engine:
    """One connection. SQLite: WAL, durable at each commit, and BEGIN IMMEDIATE: a transaction that reads first and then
    finds the database locked can't be repeated by waiting."""
    if not is_sqlite(url):
        return create_engine(url, pool_size=1, max_overflow=0, pool_pre_ping=True)
    connect: dict[str, Any] = {"timeout": 30, "check_same_thread": False, "cached_statements": _STATEMENTS}
    engine = create_engine(url, pool_size=1, max_overflow=0, connect_args=connect)
    _on_connect(engine, "journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON", f"wal_autocheckpoint = {_WAL}")
    _begin_by(engine, "BEGIN IMMEDIATE")
    return engine


def reading_engine(url: str) -> Engine:
    """A few connections that can't write. Keep reads short: an open one holds back SQLite's checkpoints."""
    if not is_sqlite(url):
        return create_engine(
            url, pool_size=READERS, pool_pre_ping=True, connect_args={"options": "-c default_transaction_read_only=on"}
        )
    connect: dict[str, Any] = {"timeout": 30, "check_same_thread": False}
    engine = create_engine(url, pool_size=READERS, connect_args=connect)
    _on_connect(engine, "query_only = ON", "cache_size = -16384")
    _begin_by(engine, "BEGIN")
    return engine


def is_sqlite(url: str) -> bool:
    return make_url(url).get_backend_name() == "sqlite"


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for another database."""
    parsed = make_url(url)
    return Path(parsed.database) if is_sqlite(url) and parsed.database else None


def try_lock(connection: Connection) -> bool:
    """Become the one server of a PostgreSQL database for as long as this connection lives."""
    return bool(connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({_LOCK_KEY})").scalar())


def _on_connect(engine: Engine, *pragmas: str) -> None:
    @event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # the driver's own BEGIN is a deferred one; ours is explicit
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()


def _begin_by(engine: Engine, statement: str) -> None:
    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.connection.cursor().execute(statement)  # at a tenth of what Core takes, at each group of submits
