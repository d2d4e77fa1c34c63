"""Conditions on the rows of a table, written as pandas' `DataFrame.query` reads them. Pure; nothing is ever evaluated.

Columns, text, numbers, comparisons (also chained, and with a list by `in`), `and or not` and their signs `& | ~`.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from typing import Any

from client_lib.errors import InvalidRequest

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
    """Whether a row is meant by `text`.

    Raises InvalidRequest: it is no condition of this kind; at the call, an unknown column or values that can't be
    compared.
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
    """With `and or not` for `& | ~` outside of quotes: for Python these bind more tightly than a comparison."""
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
            kind = ast.In()  # pandas reads `region == ["SR003", "SR005"]` so
        if type(kind) not in _COMPARISONS:
            raise TypeError(f"{ast.unparse(node)!r} can't stand in a condition")
        if not _COMPARISONS[type(kind)](left, right):
            return False
        left = right
    return True
