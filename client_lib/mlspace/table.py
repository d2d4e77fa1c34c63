"""A small table that prints well and has the queries of a pandas DataFrame, without pandas. Pure.

A condition on rows is written as for `DataFrame.query` and is parsed, never evaluated: columns, text, numbers,
comparisons (also chained, and `in` with a list), `and or not` and their signs `& | ~`.
"""

from __future__ import annotations

import ast
import html
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from client_lib.errors import InvalidRequest
from client_lib.reports.table import aligned

if TYPE_CHECKING:
    import rich.table


class Table:
    """Rows with the same columns. `rich.print(table)`, a notebook and `print(table)` all show it."""

    def __init__(self, columns: Sequence[str], rows: Sequence[Row]) -> None:
        self.columns = list(columns)
        self._rows = [{name: row[name] for name in columns} for row in rows]

    def query(self, expr: str) -> Table:
        """The rows for which `expr` is true: `region == "SR003" and gpu >= 1`. Raises InvalidRequest."""
        holds = condition(expr)
        return Table(self.columns, [row for row in self._rows if holds(row)])

    def to_dict(self, orient: str = "records") -> list[dict[str, Any]]:
        """The rows as dicts. pandas' other orientations are not offered."""
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
        return aligned([self.columns, *self._texts()])

    __repr__ = __str__

    def __rich__(self) -> rich.table.Table:
        from rich.table import Table as RichTable  # text and HTML need no rich

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


# --- conditions

Row = Mapping[str, Any]
_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda value, among: value in among,
    ast.NotIn: lambda value, among: value not in among,
}
_JOINS: dict[type[ast.boolop], Callable[..., bool]] = {ast.And: all, ast.Or: any}
_SIGNS: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.Not: operator.not_, ast.USub: operator.neg}


def condition(text: str) -> Callable[[Row], bool]:
    """A predicate for rows that match the condition `text`.

    Raises InvalidRequest: `text` is no such condition; when called, an unknown column or values that can't be compared.
    """
    try:
        tree = ast.parse(_grouped(text), mode="eval").body
    except SyntaxError as error:
        raise InvalidRequest(f"query {text!r} is no condition", hint="write one such as 'gpu >= 1'") from error

    def holds(row: Row) -> bool:
        try:
            return bool(_value(tree, row))
        except (TypeError, LookupError) as error:
            raise InvalidRequest(f"query {text!r}: {error}", hint=f"columns: {', '.join(row)}") from error

    return holds


def _grouped(text: str) -> str:
    """Replace `& | ~` outside of quotes by `and or not`: in Python they bind more tightly than a comparison."""
    parts = []
    quote = ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "&|~":
            character = {"&": " and ", "|": " or ", "~": " not "}[character]
        parts.append(character)
    return "".join(parts).strip()


def _value(node: ast.AST, row: Row) -> Any:
    if isinstance(node, ast.Name):
        if node.id not in row:
            raise LookupError(f"there is no column {node.id}")
        return row[node.id]
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, row) for item in node.elts]
    if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
        return _SIGNS[type(node.op)](_value(node.operand, row))
    if isinstance(node, ast.BoolOp):
        return _JOINS[type(node.op)](_value(part, row) for part in node.values)
    if isinstance(node, ast.Compare):
        return _compared(node, row)
    raise TypeError(f"{ast.unparse(node)!r} can't stand in a condition")


def _compared(node: ast.Compare, row: Row) -> bool:
    left = _value(node.left, row)
    for kind, right_node in zip(node.ops, node.comparators, strict=True):
        right = _value(right_node, row)
        if isinstance(right, list) and isinstance(kind, ast.Eq):
            kind = ast.In()  # pandas' meaning of `region == ["SR003", "SR005"]`
        if type(kind) not in _COMPARISONS:
            raise TypeError(f"{ast.unparse(node)!r} can't stand in a condition")
        if not _COMPARISONS[type(kind)](left, right):
            return False
        left = right
    return True
