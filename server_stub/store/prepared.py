"""Statements of SQLAlchemy Core, compiled once and run on the driver's own cursor.

Core takes 100 µs to execute what SQLite does in 10; for the inserts of a submit that was the larger part of it. So
the few statements on the way of every submit and every transition go this way, and all others the ordinary one. Values
are given as the database stores them (see `tables.microseconds`), and errors come as Core would raise them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from sqlalchemy import Connection, Dialect, Table
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import UpdateBase
from sqlalchemy.sql.selectable import Select


class Prepared:
    """One statement."""

    def __init__(self, statement: UpdateBase | Select[Any], columns: tuple[str, ...] = ()):
        """`columns`: those that an update sets."""
        self._statement = statement
        self._columns = list(columns) or None
        self._compiled: dict[str, tuple[str, list[str] | None]] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """The driver's cursor after execution."""
        text, positions = self._compiled.get(connection.dialect.name) or self._compile(connection.dialect)
        return _execute(connection, text, values if positions is None else [values[name] for name in positions])

    def _compile(self, dialect: Dialect) -> tuple[str, list[str] | None]:
        compiled = self._statement.compile(dialect=dialect, column_keys=self._columns)
        self._compiled[dialect.name] = (str(compiled), compiled.positiontup if compiled.positional else None)
        return self._compiled[dialect.name]


class Insert:
    """Many rows by one statement: a row costs a few microseconds more, where a statement of its own costs the writer's
    thread several waits for the interpreter's lock (as does each row that a statement returns)."""

    ROWS_MAX = 64
    """Of one statement. Each number of rows is a statement of its own, which the driver keeps compiled: see engines."""

    def __init__(self, table: Table, columns: Sequence[str], *, or_leave_out: bool = False) -> None:
        """`or_leave_out`: rows that break a UNIQUE are left out instead of refused."""
        self._table, self._columns, self._or_leave_out = table, columns, or_leave_out
        self._texts: dict[tuple[str, int], str] = {}

    def run(self, connection: Connection, rows: Sequence[Sequence[Any]]) -> int:
        """How many rows were stored. Each has its values in the order of the columns."""
        stored = 0
        for begin in range(0, len(rows), self.ROWS_MAX):
            part = rows[begin : begin + self.ROWS_MAX]
            values = list(chain.from_iterable(part))
            stored += _execute(connection, self._text(connection.dialect, len(part)), values).rowcount
        return stored

    def _text(self, dialect: Dialect, rows: int) -> str:
        known = self._texts.get((dialect.name, rows))
        return known or self._texts.setdefault((dialect.name, rows), self._write(dialect, rows))

    def _write(self, dialect: Dialect, rows: int) -> str:
        quote = dialect.identifier_preparer.quote
        place = "?" if dialect.paramstyle == "qmark" else "%s"
        one = f"({', '.join(place for _ in self._columns)})"
        columns = ", ".join(quote(column) for column in self._columns)
        text = f"INSERT INTO {quote(self._table.name)} ({columns}) VALUES {', '.join([one] * rows)}"
        return f"{text} ON CONFLICT DO NOTHING" if self._or_leave_out else text


def _execute(connection: Connection, text: str, values: Any) -> Any:
    cursor = connection.connection.cursor()
    error_class = connection.dialect.loaded_dbapi.Error
    try:
        cursor.execute(text, values)
    except error_class as error:
        raise DBAPIError.instance(text, None, error, error_class, dialect=connection.dialect) from error
    return cursor
