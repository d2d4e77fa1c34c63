"""The call that every rank makes: a function with its arguments, checked before anything travels. Pure.

Parameters named `rank`, `local_rank`, `world_size` or `size` that the arguments leave open are filled in each rank.
"""

from __future__ import annotations

import inspect
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.worker.function_runner import RANKS

_MOST_SHOWN = 12  # arguments
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 60
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True)
class ResultOf:
    """A placeholder for what rank 0 of another job returned; the function gets that value instead."""

    place: int
    """The place of the other job in `after`."""
    job: str
    """Its name."""

    def __repr__(self) -> str:
        return f"<result of {self.job}>"


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

    @property
    def shown(self) -> list[str]:
        """The arguments as people read them, each cut (`epochs=3`), without those that each rank fills."""
        by_place = [_shown(value) for place, value in enumerate(self.args) if str(place) not in self.fill]
        by_name = [f"{name}={_shown(value)}" for name, value in self.kwargs.items()]
        all_of_them = [*by_place, *by_name]
        return all_of_them if len(all_of_them) <= _MOST_SHOWN else [*all_of_them[:_MOST_SHOWN], "…"]


def _shown(value: Any) -> str:
    words = " ".join(_REPR.repr(value).split())
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "?", words)


def call_of(function: Callable[..., Any], args: Sequence[Any] | None, kwargs: Mapping[str, Any] | None) -> Call:
    """Raises InvalidRequest: the function does not take these arguments, or can't be called in a rank."""
    function = getattr(function, "__client_lib_function__", function)
    if inspect.iscoroutinefunction(function):
        raise InvalidRequest(
            f"{name_of(function)} is an async function", hint="submit a function that calls asyncio.run(...)"
        )
    if isinstance(args, str | bytes):
        raise InvalidRequest(f"args={args!r}: give the arguments of {name_of(function)} as a tuple, ({args!r},)")
    call = Call(function, tuple(args or ()), dict(kwargs or {}))
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of C have none
        return call
    if _missing(call, signature):
        call = _around_ranks(call, signature)
        missing = _missing(call, signature)
        if missing:
            raise InvalidRequest(f"{call.name}() is not given {', '.join(map(repr, missing))}")
    return _filled(call, signature)


def name_of(function: Callable[..., Any]) -> str:
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__name__", None) or type(function).__name__


def _open(call: Call, signature: inspect.Signature) -> set[str]:
    """Names of the parameters that the arguments leave open."""
    try:
        bound = signature.bind_partial(*call.args, **call.kwargs).arguments
    except TypeError as error:
        raise InvalidRequest(f"{call.name}() does not take these arguments: {error}") from None
    return {p.name for p in signature.parameters.values() if p.kind not in _VARIABLE and p.name not in bound}


def _missing(call: Call, signature: inspect.Signature) -> list[str]:
    """The open parameters that need a value, without those of RANKS."""
    names = _open(call, signature) - RANKS.keys()
    return [n for n, p in signature.parameters.items() if n in names and p.default is inspect.Parameter.empty]


def _filled(call: Call, signature: inspect.Signature) -> Call:
    """Fill the open parameters of RANKS by keyword, positional-only ones by place."""
    args, names = call.args, _open(call, signature) & RANKS.keys()
    fill = call.fill | {name: name for name in names}
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.name in names and parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            args = (*args[:place], None, *args[place:])
            fill[str(place)] = fill.pop(parameter.name)
    return replace(call, args=args, fill=fill)


def _around_ranks(call: Call, signature: inspect.Signature) -> Call:
    """The arguments put around the parameters of RANKS, which get a place of their own: `f(rank, lr)` called with
    `(0.1,)`."""
    left, placed = list(call.args), list[Any]()
    fill: dict[str, str] = {}
    for parameter in signature.parameters.values():
        if parameter.kind not in _POSITIONAL or not left:
            break
        if parameter.name in RANKS and parameter.name not in call.kwargs:
            fill[str(len(placed))] = parameter.name
            placed.append(None)
        else:
            placed.append(left.pop(0))
    return replace(call, args=(*placed, *left), fill=fill)


def taken_from(given: dict[str, Any]) -> Call | None:
    """The call, if `script` of these arguments of a Job is a function; they are then those of a spec, in place.

    Raises InvalidRequest: something is given that only a script, or only a function, has.
    """
    function, kwargs = given["script"], given.pop("kwargs")
    if not callable(function):
        if kwargs is not None:
            raise InvalidRequest(
                f"kwargs={kwargs!r} are of a function, and script={function!r} is none",
                hint="give flags={'lr': 0.1}, which become --lr=0.1",
            )
        return None
    if given["flags"]:
        raise InvalidRequest(
            f"flags={given['flags']!r} are of a script, and script is a function", hint="give kwargs={'lr': 0.1}"
        )
    call = call_of(function, given["args"], kwargs)
    given.update(script=call.script, args=call.shown)
    return call
