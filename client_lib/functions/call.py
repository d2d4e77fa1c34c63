"""The call that every rank makes: a function with its arguments, checked before anything travels. Pure.

Parameters named `rank`, `local_rank`, `world_size` or `size` that the arguments leave open are filled in each rank.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.worker.function_runner import RANKS

_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class Call:
    """A function and what it is called with."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    fill: dict[str, str] = field(default_factory=dict)
    """Place in `args` or key of `kwargs` -> the name in RANKS whose value goes there."""

    @property
    def name(self) -> str:
        return name_of(self.function)

    @property
    def script(self) -> str:
        """Name that stands for the function in the field `script`."""
        return f"{re.sub(r'[^A-Za-z0-9_]+', '_', self.name).strip('_') or 'function'}()"


def call_of(function: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Call:
    """Raises InvalidRequest: the function does not take these arguments, or can't be called in a rank."""
    function = getattr(function, "__client_lib_function__", function)
    if inspect.iscoroutinefunction(function):
        raise InvalidRequest(
            f"{name_of(function)} is an async function", hint="submit a function that calls asyncio.run(...)"
        )
    if isinstance(args, str | bytes):
        raise InvalidRequest(f"args={args!r}: give the arguments of {name_of(function)} as a tuple, ({args!r},)")
    given, named = tuple(args or ()), dict(kwargs or {})
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of C have none
        return Call(function, given, named)
    return _bound(function, signature, given, named)


def name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__name__", None) or type(function).__name__


def _bound(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Call:
    open_names = _open(function, signature, args, kwargs)
    if not _required(signature, open_names - RANKS.keys()):
        return _filled(function, signature, args, kwargs, open_names & RANKS.keys())
    shifted, fill = _around_ranks(signature, args, kwargs)
    missing = _required(signature, _open(function, signature, shifted, kwargs) - RANKS.keys())
    if missing:
        raise InvalidRequest(f"{name_of(function)}() is not given {', '.join(map(repr, missing))}")
    done = _filled(function, signature, shifted, kwargs, _open(function, signature, shifted, kwargs) & RANKS.keys())
    return Call(function, done.args, done.kwargs, {**fill, **done.fill})


def _open(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> set[str]:
    """Names of the parameters that these arguments leave open."""
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        raise InvalidRequest(f"{name_of(function)}() does not take these arguments: {error}") from error
    return {p.name for p in signature.parameters.values() if p.kind not in _VARIABLE and p.name not in bound}


def _required(signature: inspect.Signature, names: set[str]) -> list[str]:
    return [n for n, p in signature.parameters.items() if n in names and p.default is inspect.Parameter.empty]


def _filled(
    function: Callable[..., Any],
    signature: inspect.Signature,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    names: set[str],
) -> Call:
    """Fill the parameters by keyword, positional-only ones by place."""
    fill = {name: name for name in names}
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.name in names and parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            args = (*args[:place], None, *args[place:])
            fill[str(place)] = fill.pop(parameter.name)
    return Call(function, args, kwargs, fill)


def _around_ranks(
    signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, str]]:
    """The arguments put around the parameters of RANKS, which get a place of their own: `f(rank, lr)` called with
    `(0.1,)`."""
    left, placed = list(args), list[Any]()
    fill: dict[str, str] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in _POSITIONAL or not left:
            break
        if parameter.name in RANKS and parameter.name not in kwargs:
            fill[str(len(placed))] = parameter.name
            placed.append(None)
        else:
            placed.append(left.pop(0))
    return (*placed, *left), fill


def taken_from(given: dict[str, Any]) -> Call | None:
    """The call, if `script` of these arguments of a Job is a function; they are then those of a spec, in place.

    Raises InvalidRequest: something is given that only a script, or only a function, has.
    """
    function, kwargs = given["script"], given.pop("kwargs")
    if not callable(function):
        if kwargs is not None:
            raise InvalidRequest(f"kwargs={kwargs!r} are of a function, and script={function!r} is none", hint=_FLAGS)
        return None
    if given["flags"]:
        raise InvalidRequest(f"flags={given['flags']!r} are of a script, and script is a function", hint=_KWARGS)
    call = call_of(function, given["args"], kwargs)
    given.update(script=call.script, args=None)
    return call


_FLAGS = "give flags={'lr': 0.1}, which become --lr=0.1"
_KWARGS = "give kwargs={'lr': 0.1}"
