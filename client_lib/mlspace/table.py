"""A small table that prints well and is asked as a pandas DataFrame is, without pandas."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from client_lib.mlspace.query import Row, condition

if TYPE_CHECKING:
    import rich.table


class Table:
    """Rows with the same columns. `rich.print(table)`, a notebook and `print(table)` all show it."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.columns = list(columns)
        self._rows = [{name: row[name] for name in columns} for row in rows]

    def query(self, expr: str) -> Table:
        """The rows that `expr` is true for: `region == "SR003" and gpu >= 1`. Raises InvalidRequest."""
        holds = condition(expr)
        return Table(self.columns, [row for row in self._rows if holds(row)])

    def to_dict(self, orient: str = "records") -> list[dict[str, Any]]:
        """The rows. Of pandas' orientations only `records`."""
        if orient != "records":
            raise ValueError(f"orient={orient!r}: only 'records' is offered")
        return [dict(row) for row in self._rows]

    def __getitem__(self, column: str) -> list[Any]:
        """One column. Raises KeyError."""
        if column not in self.columns:
            raise KeyError(f"there is no column {column!r}; there are: {', '.join(self.columns)}")
        return [row[column] for row in self._rows]

    def __iter__(self) -> Iterator[str]:
        """The names of the columns, as a DataFrame does."""
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self._rows)

    def __str__(self) -> str:
        lines = [self.columns, *self._texts()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)

    __repr__ = __str__

    def __rich__(self) -> rich.table.Table:
        from rich.table import Table as RichTable  # here: text and HTML need no rich

        shown = RichTable(*self.columns)
        for texts in self._texts():
            shown.add_row(*texts)
        return shown

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.columns)
        body = "".join(
            "<tr>" + "".join(f"<td>{html.escape(text)}</td>" for text in texts) + "</tr>" for texts in self._texts()
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def _texts(self) -> list[list[str]]:
        return [[_text(name, value) for name, value in row.items()] for row in self._rows]


def _text(column: str, value: Any) -> str:
    if value is None:
        return "?"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{text}Gi" if column == "memory" else text
