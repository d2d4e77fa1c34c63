"""How the text of an option becomes a value: click types for what click has none.

Only form is checked (`K=V` has an equals sign); what is allowed is checked by the spec and the server.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    ParamType = click.ParamType[Any]  # generic for checkers in any click, when it runs only in the newest
else:
    ParamType = click.ParamType


def _whole(text: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
    return int(click.INT(text, param, ctx))


class KeyValue(ParamType):
    """`team=vision` -> ("team", "vision")."""

    name = "KEY=VALUE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        if isinstance(value, tuple):
            return value
        key, equals, text = str(value).partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form KEY=VALUE", param, ctx)
        return key, text


class Variable(KeyValue):
    """As KeyValue; `HOME` alone has the value that it has here."""

    name = "NAME[=VALUE]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        if isinstance(value, str) and value and "=" not in value:
            if value not in os.environ:
                self.fail(f"{value} is not set here; give it a value: {value}=VALUE", param, ctx)
            return value, os.environ[value]
        return super().convert(value, param, ctx)


class Flag(KeyValue):
    """As KeyValue; `verbose` alone is a flag without a value."""

    name = "KEY[=VALUE]"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str | None]:
        if isinstance(value, str) and value and "=" not in value:
            return value, None
        return super().convert(value, param, ctx)


class NumberOrDefault(ParamType):
    """A whole number or the word `default`."""

    name = "NUMBER|default"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | str:
        return "default" if value == "default" else _whole(value, param, ctx)


class Numbers(ParamType):
    """`0,1` -> (0, 1)."""

    name = "NUMBERS"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, ...]:
        if isinstance(value, tuple):
            return value
        return tuple(_whole(part, param, ctx) for part in str(value).split(","))


class Watchdog(ParamType):
    """`log_period=30,action=restart` -> the fields of HealthParams."""

    name = "KEY=VALUE,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        given: dict[str, Any] = dict(KeyValue().convert(part, param, ctx) for part in str(value).split(","))
        if "log_period" in given:
            given["log_period"] = _whole(given["log_period"], param, ctx)
        if "sub_actions" in given:
            given["sub_actions"] = given["sub_actions"].split("+")
        return given
