"""The errors of the store, and the meaning of exceptions of the database."""

from __future__ import annotations

import logging

from sqlalchemy.exc import DatabaseError, InterfaceError, OperationalError, SQLAlchemyError

from client_lib.errors import ServerError, Unavailable
from client_lib.worker import disk

log = logging.getLogger(__name__)
NO_ANSWER = "the database of the server does not answer now"
_DAMAGED = ("database disk image is malformed", "file is not a database")  # of SQLite
WAY_OUT = (
    "restore it from a backup, or `client-lib serve --recover` rebuilds the jobs from their files; "
    "a damaged file is kept under another name"
)
# classes of PostgreSQL's SQLSTATE: connection, rollback, resources, not now, operator, system
_PASSING = ("08", "40", "53", "55", "57", "58")


class StoreError(ServerError):
    """The database refused a statement; the log of the server has the reason."""


class StoreUnavailable(StoreError, Unavailable):
    """The database can't be reached or written now; the same call may work later."""


class StoreDamaged(StoreUnavailable):
    """Pages of the database are damaged: nothing is written to it any more."""


class Superseded(StoreUnavailable):
    """Another server has opened the database: this one must end. A repeated call may find the other one."""


def translated(error: SQLAlchemyError) -> StoreError:
    if is_away(error):
        return StoreUnavailable(NO_ANSWER, hint="repeat the call later")
    log.error("the database refused a statement", exc_info=error)
    return StoreError("the database refused a statement", hint="the log of the server has the reason")


def is_away(error: BaseException) -> bool:
    """True if the database or the connection to it failed, and not the statement."""
    if isinstance(error, StoreUnavailable):
        return True
    if not isinstance(error, (OperationalError, InterfaceError)) or is_full(error):
        return False
    state = getattr(error.orig, "sqlstate", None)  # None: PostgreSQL did not answer, or it is SQLite
    return state is None or state[:2] in _PASSING


def damage(error: BaseException) -> str | None:
    """SQLite's sentence about damaged pages; None: the error is another one."""
    text = str(error.orig) if isinstance(error, DatabaseError) and error.orig else ""
    return text if any(sign in text for sign in _DAMAGED) else None


def is_full(error: BaseException) -> bool:
    """True if the disk, the quota or the database's own limit is full."""
    if isinstance(error, OSError):
        return disk.is_full(error)
    if not isinstance(error, OperationalError):
        return False
    disk_full = getattr(error.orig, "sqlstate", None) == "53100"  # PostgreSQL's code
    return disk_full or "database or disk is full" in str(error.orig)


def driver_message(error: SQLAlchemyError) -> str:
    return str(error.orig).strip() if isinstance(error, DatabaseError) and error.orig else str(error)
