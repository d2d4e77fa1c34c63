"""Statements of SQLAlchemy Core, compiled once and run on the driver's own cursor.

Core takes 100 µs to execute what SQLite does in 10; for the four inserts of a submit that was the larger part of it. So
the few statements on the way of every submit and every transition go this way, and all others the ordinary one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Dialect
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.expression import UpdateBase
from sqlalchemy.sql.selectable import Select


class Prepared:
    """One statement; its parameters are given as the database stores them (see `tables.microseconds`)."""

    def __init__(self, statement: UpdateBase | Select[Any] | Mapping[str, UpdateBase], columns: tuple[str, ...] = ()):
        """`statement`: the same for all, or by name of the dialect. `columns`: those that an insert or update sets."""
        self._statement = statement
        self._columns = list(columns) or None
        self._compiled: dict[str, tuple[str, list[str] | None]] = {}

    def run(self, connection: Connection, values: Mapping[str, Any]) -> Any:
        """The driver's cursor after execution.

        Raises:
            DBAPIError: as Core would.
        """
        dialect = connection.dialect
        text, positions = self._compiled.get(dialect.name) or self._compile(dialect)
        cursor = connection.connection.cursor()
        try:
            cursor.execute(text, values if positions is None else [values[name] for name in positions])
        except dialect.loaded_dbapi.Error as error:
            raise DBAPIError.instance(text, None, error, dialect.loaded_dbapi.Error, dialect=dialect) from error
        return cursor

    def _compile(self, dialect: Dialect) -> tuple[str, list[str] | None]:
        statement = self._statement[dialect.name] if isinstance(self._statement, Mapping) else self._statement
        compiled = statement.compile(dialect=dialect, column_keys=self._columns)
        self._compiled[dialect.name] = (str(compiled), compiled.positiontup if compiled.positional else None)
        return self._compiled[dialect.name]
