"""The call that every rank makes: a function with its arguments, checked before anything travels.
Pure.

Parameters named `rank`, `local_rank`, `world_size` or `size` that the arguments leave open are
filled in each rank.
"""

import inspect
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
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
    """A placeholder for what rank 0 of another job returned; the
    function gets that value instead.
    """

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
        """The arguments as people read them, each cut (`epochs=3`), without the arguments that each
        rank fills.
        """
        shown = [
            short_repr(value)
            for place, value in enumerate(self.args)
            if str(place) not in self.fill
        ]
        shown += [f"{name}={short_repr(value)}" for name, value in self.kwargs.items()]
        return shown if len(shown) <= _MOST_SHOWN else [*shown[:_MOST_SHOWN], "…"]


def short_repr(value: object) -> str:
    """The repr on one line; a long one is cut in its middle."""
    words = " ".join(_REPR.repr(value).split())
    return re.sub(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "?", words)


def name_of(function: Callable[..., object]) -> str:
    if isinstance(function, partial):
        return name_of(function.func)
    return getattr(function, "__name__", None) or type(function).__name__


def call_of(
    function: Callable[..., object],
    args: Sequence[object] | None,
    kwargs: Mapping[str, object] | None,
) -> Call:
    """Raises InvalidRequest: the function does not take these arguments, or
    can't be called in a rank.
    """
    function = getattr(function, "__client_lib_function__", function)
    name = name_of(function)
    if inspect.iscoroutinefunction(function):
        raise InvalidRequest(
            f"{name} is an async function", hint="submit a function that calls asyncio.run(...)"
        )
    args = () if args is None else args
    if isinstance(args, str | bytes) or not isinstance(args, Iterable):
        raise InvalidRequest(f"args={args!r}: give the arguments of {name} as a tuple, ({args!r},)")
    places = list(args)
    named = dict(kwargs or {})
    fill = dict[str, str]()
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # some of C have none
        return Call(function, tuple(places), named)
    parameters = signature.parameters.values()

    def left_open() -> tuple[list[inspect.Parameter], list[str]]:
        """The parameters without an argument, and the names of the parameters that need an
        argument."""
        try:
            bound = signature.bind_partial(*places, **named).arguments
        except TypeError as error:
            raise InvalidRequest(f"{name}() does not take these arguments: {error}") from None
        found = [p for p in parameters if p.kind not in _VARIABLE and p.name not in bound]
        return found, [p.name for p in found if p.default is p.empty and p.name not in RANKS]

    unbound, missing = left_open()
    # the arguments may stand around the parameters of RANKS: `f(rank, lr)` called with `(0.1,)`
    if missing:
        given = places
        places = []
        for parameter in parameters:
            if parameter.kind not in _POSITIONAL or not given:
                break
            if parameter.name in RANKS and parameter.name not in named:
                fill[str(len(places))] = parameter.name
                places.append(None)
            else:
                places.append(given.pop(0))
        places += given
        unbound, missing = left_open()
    if missing:
        raise InvalidRequest(f"{name}() is not given {', '.join(map(repr, missing))}")
    for place, parameter in enumerate(parameters):
        if parameter.name in RANKS and parameter in unbound:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                places.insert(place, None)
                fill[str(place)] = parameter.name
            else:
                fill[parameter.name] = parameter.name
    return Call(function, tuple(places), named, fill)


def taken_from(given: dict[str, Any]) -> Call | None:
    """The call, if `script` of these arguments of a Job is a function. The arguments are changed in
    place then, to the arguments of a spec. Raises InvalidRequest: something is given that only a
    script, or only a function, has."""
    function = given["script"]
    kwargs = given.pop("kwargs")
    if not callable(function):
        if kwargs is not None:
            raise InvalidRequest(
                f"kwargs={kwargs!r} are of a function, and script={function!r} is none",
                hint="give flags={'lr': 0.1}, which become --lr=0.1",
            )
        return None
    if given["flags"]:
        raise InvalidRequest(
            f"flags={given['flags']!r} are of a script, and script is a function",
            hint="give kwargs={'lr': 0.1}",
        )
    call = call_of(function, given["args"], kwargs)
    given.update(script=call.script, args=call.shown)
    return call
