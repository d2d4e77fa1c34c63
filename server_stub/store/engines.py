"""Opens SQLite or PostgreSQL (one connection that writes, a few that read), brings it to the newest
schema, and translates the errors of both.

To change the schema: change `tables`, add a file to `migrations/versions` for older databases, set
HEAD.
"""

import logging
import os
import sqlite3
import time
from collections.abc import Generator, Sequence
from contextlib import closing, suppress
from itertools import count
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
)
from sqlalchemy.pool import ConnectionPoolEntry

from client_lib import durable
from client_lib.errors import InvalidRequest, ServerError, Unavailable
from server_stub.store import tables

log = logging.getLogger(__name__)
NO_ANSWER = "the database of the server does not answer now"
_DAMAGED = ("database disk image is malformed", "file is not a database")  # of SQLite
WAY_OUT = (
    "restore it from a backup, or `client-lib serve --recover` rebuilds the jobs from their files; "
    "a damaged file is kept under another name"
)
_KNOWN = ("sqlite", "postgresql")
_FORMS = "write sqlite:///PATH or postgresql+psycopg://USER@HOST/DATABASE"
# classes of PostgreSQL's SQLSTATE: connection, rollback, resources, not now, operator, system
_PASSING = ("08", "40", "53", "55", "57", "58")
HEAD = "0008"
MIGRATIONS = Path(__file__).parent / "migrations"
READERS = 4
# without a byte from PostgreSQL after a statement; with connect_timeout it bounds a call
SILENCE_S = 6.0
_WAL = 4000  # pages between two checkpoints; SQLite's default of 1000 is reached every 60 submits
_LOCK_S = 1.0
"""Longest wait for the lock: PostgreSQL releases it a moment after a server has ended."""
_LOCK_PAUSE_S = 0.05
_LOCK_KEY = 0x636C6C69  # "clli": PostgreSQL's advisory lock of the one server of a database
# seconds, the last one milliseconds; they detect a server whose connection was not closed
_CLIENT_KEEPALIVE = {
    "connect_timeout": 3,
    "keepalives_idle": 5,
    "keepalives_interval": 5,
    "keepalives_count": 2,
    "tcp_user_timeout": 10_000,
}
# Options of the same kind for PostgreSQL's side: it keeps the lock of a vanished server until it
# notices that the connection is dead.
_SERVER_KEEPALIVE = (
    "-c tcp_keepalives_idle=5 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
)


class StoreError(ServerError):
    """The database refused a statement; the log of the server has the reason."""


class StoreUnavailable(StoreError, Unavailable):
    """The database can't be reached or written now; the same call may work later."""


class StoreDamaged(StoreUnavailable):
    """Pages of the database are damaged: nothing is written to it any more."""


class Superseded(StoreUnavailable):
    """Another server has opened the database: this one must end. A repeated
    call may find the other one.
    """


class Locked(StoreUnavailable):
    """Another session has the lock: of another server, or a lost one of ours
    that PostgreSQL still keeps.
    """


def writing_engine(url: str) -> sa.Engine:
    """One connection. PostgreSQL: its session holds the lock of the one server, and no write goes
    through another one. SQLite: WAL, durable at each commit, and BEGIN IMMEDIATE: a transaction
    that has read something can't wait for the write lock, SQLite refuses it at once."""
    if is_sqlite(url):
        pragmas = (
            "journal_mode = WAL",
            "synchronous = FULL",
            "foreign_keys = ON",
            f"wal_autocheckpoint = {_WAL}",
        )
        return _sqlite_engine(url, "BEGIN IMMEDIATE", pragmas, pool_size=1, max_overflow=0)
    options = _connect_options(url, _SERVER_KEEPALIVE, target_session_attrs="read-write")
    engine = sa.create_engine(
        url, pool_size=1, max_overflow=0, pool_pre_ping=True, connect_args=options
    )
    sa.event.listen(engine, "connect", _take_lock)
    return engine


def reading_engine(url: str) -> sa.Engine:
    """A few connections that can't write. Reads must be short: an open read
    delays SQLite's checkpoints.
    """
    if is_sqlite(url):
        return _sqlite_engine(
            url, "BEGIN", ("query_only = ON", "cache_size = -16384"), pool_size=READERS
        )
    options = _connect_options(url, "-c default_transaction_read_only=on")
    return sa.create_engine(url, pool_size=READERS, pool_pre_ping=True, connect_args=options)


def _sqlite_engine(url: str, begin: str, pragmas: Sequence[str], **pool: int) -> sa.Engine:
    engine = sa.create_engine(url, connect_args={"timeout": 30, "check_same_thread": False}, **pool)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
        connection.isolation_level = None  # turns off the driver's own BEGIN, which is deferred
        # else such a row fails its query
        connection.text_factory = lambda damaged: damaged.decode(errors="replace")
        cursor = connection.cursor()
        for pragma in pragmas:
            cursor.execute(f"PRAGMA {pragma}")
        cursor.close()

    @sa.event.listens_for(engine, "begin")
    def run_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql(begin)

    return engine


def check_url(url: str) -> None:
    """Raises InvalidRequest: it names no database that the server knows, or the driver of the
    database is not installed."""
    try:
        parsed = sa.make_url(url)
        if parsed.get_backend_name() not in _KNOWN:
            raise InvalidRequest(
                f"database_url: the server keeps no data in {parsed.drivername!r}", hint=_FORMS
            )
        parsed.get_dialect().import_dbapi()
    except ArgumentError as error:
        # without the text, which may hold a password
        raise InvalidRequest("database_url: it is no SQLAlchemy URL", hint=_FORMS) from error
    except ImportError as error:
        raise InvalidRequest(
            f"database_url: the driver of {parsed.drivername} is not installed: {error}",
            hint="`python -m pip install 'client-lib[postgres]'` installs psycopg, for "
            "postgresql+psycopg://...",
        ) from error


def is_sqlite(url: str) -> bool:
    return sa.make_url(url).get_backend_name() == "sqlite"


def sqlite_file(url: str) -> Path | None:
    """The file of an SQLite URL; None for another database."""
    parsed = sa.make_url(url)
    return Path(parsed.database) if is_sqlite(url) and parsed.database else None


def _connect_options(url: str, options: str, **parameters: Any) -> dict[str, Any]:
    """Parameters of libpq. Those in the URL win."""
    given = sa.make_url(url).query
    ours = {
        name: value
        for name, value in {**_CLIENT_KEEPALIVE, **parameters}.items()
        if name not in given
    }
    return {**ours, "options": f"{options} {given.get('options', '')}"}


def _take_lock(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    """Lock a PostgreSQL database for this session. Raises Locked."""
    deadline = time.monotonic() + _LOCK_S
    while not (taken := _try_lock(connection)) and time.monotonic() < deadline:
        time.sleep(_LOCK_PAUSE_S)
    if not taken:
        connection.close()
        raise Locked("another server uses the database", hint="repeat the call later")


def _try_lock(connection: DBAPIConnection) -> bool:
    cursor = connection.cursor()
    cursor.execute(f"SELECT pg_try_advisory_lock({_LOCK_KEY})")
    (taken,) = cursor.fetchone() or (False,)
    cursor.close()
    connection.commit()
    return bool(taken)


def limit_silence(engine: sa.Engine) -> None:
    """Close a connection of PostgreSQL if no byte arrives for SILENCE_S after a statement.

    The process that serves it is then frozen, which no keepalive detects. Engines for migrations
    have no such limit, as their statements may take long.
    """

    def limit(connection: Any, record: ConnectionPoolEntry, _proxy: object) -> None:
        if not record.info.setdefault("limited", False):
            record.info["limited"] = True
            wait = connection.wait
            connection.wait = lambda steps, *more, **named: wait(
                _heard(steps, connection), *more, **named
            )

    if not is_sqlite(str(engine.url)):
        sa.event.listen(engine, "checkout", limit)


def _heard(steps: Generator[Any, int, Any], connection: Any) -> Generator[Any, int, Any]:
    """Pass on the steps of the driver, which receive 0 for each tenth of a second without a byte.
    Raises the driver's error for a lost connection."""
    heard_at = time.monotonic()
    try:
        wanted = next(steps)
        while True:
            ready = yield wanted
            if ready:
                heard_at = time.monotonic()
            elif time.monotonic() > heard_at + SILENCE_S:
                import psycopg  # here: SQLite does not need it

                connection.close()
                raise psycopg.OperationalError(f"the database has sent nothing for {SILENCE_S:g} s")
            wanted = steps.send(ready)
    except StopIteration as end:
        return end.value


def damage_of(file: Path) -> str | None:
    """The first fault that SQLite finds in the pages of the file; None:
    there is none, or no file.
    """
    if not file.exists():
        return None
    try:
        with closing(sqlite3.connect(file, timeout=30)) as connection:
            found: str = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    except sqlite3.OperationalError:  # locked or unreadable: the later opening reports it
        return None
    except sqlite3.DatabaseError as error:
        return str(error)
    return None if found == "ok" else found.splitlines()[-1]


def keep_private(file: Path) -> None:
    """Make the database file with mode 0600. SQLite gives this mode to the files that it puts
    beside the database; files that are there already get the mode here. A file that can't be made,
    or that belongs to another user, is left as it is, and opening it reports the error."""
    with suppress(OSError):
        os.close(os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for part in _parts(file):
            part.chmod(0o600)


def set_aside(file: Path) -> Path:
    """Rename the file and what belongs to it; returns the new name."""
    names = (file.with_name(f"{file.name}.damaged-{number}") for number in count(1))
    new = next(name for name in names if not name.exists())
    for part in _parts(file):
        part.rename(new.with_name(new.name + part.name.removeprefix(file.name)))
    return new


def _parts(file: Path) -> list[Path]:
    """The database file and the files that SQLite puts beside it, as far as they exist."""
    return [
        part
        for suffix in ("-wal", "-shm", "")
        if (part := file.with_name(file.name + suffix)).exists()
    ]


def migrate(connection: sa.Connection) -> bool:
    """Make the tables of a new database, or run the missing migrations by Alembic, inside the
    connection's transaction. Returns True if it is new. Raises ServerError: it was written by a
    newer version; SQLAlchemyError: another program has a table with the name of one of ours."""
    version = tables.alembic_version
    current = None
    if sa.inspect(connection).has_table(version.name):
        current = connection.execute(sa.select(version.c.version_num)).scalar()
    if current is None:
        tables.metadata.create_all(connection, checkfirst=False)
        connection.execute(sa.insert(version), {"version_num": HEAD})
        connection.execute(sa.insert(tables.server), {"generation": 0})
    elif current > HEAD:
        raise ServerError(
            f"the database is at schema {current}, which is newer than this version knows ({HEAD})",
            hint="install the newer version of client-lib again, or start a server beside it: "
            "`client-lib serve --state-dir FOLDER`",
        )
    elif current < HEAD:
        from alembic import command  # here: 150 ms that only an older database pays
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(MIGRATIONS))
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    return current is None


# --- the meaning of errors


def translated(error: SQLAlchemyError) -> StoreError:
    """Our error for one of the database."""
    if found := damage(error):
        hint = f"its operator must stop it; {WAY_OUT}"
        return StoreDamaged(f"the database of the server is damaged: {found}", hint=hint)
    if is_away(error):
        return StoreUnavailable(NO_ANSWER, hint="repeat the call later")
    log.error("the database refused a statement", exc_info=error)
    return StoreError(
        "the database refused a statement", hint="the log of the server has the reason"
    )


def is_away(error: BaseException) -> bool:
    """True if the database or the connection to it failed, and not the statement."""
    if isinstance(error, StoreUnavailable):
        return True
    if not isinstance(error, (OperationalError, InterfaceError)) or is_full(error):
        return False
    # None: PostgreSQL did not answer, or it is SQLite
    state = getattr(error.orig, "sqlstate", None)
    return state is None or state[:2] in _PASSING


def damage(error: SQLAlchemyError) -> str | None:
    """SQLite's sentence about damaged pages; None: the error is another one."""
    # not `str(error)`, which has the statement's parameters: a job may have printed such a sentence
    text = str(error.orig) if isinstance(error, DatabaseError) else ""
    return text if any(sign in text for sign in _DAMAGED) else None


def is_full(error: BaseException) -> bool:
    """True if the disk, the quota or the database's own limit is full."""
    if isinstance(error, OSError):
        return durable.is_full(error)
    if not isinstance(error, OperationalError):
        return False
    disk_full = getattr(error.orig, "sqlstate", None) == "53100"  # PostgreSQL's code
    return disk_full or "database or disk is full" in str(error.orig)
