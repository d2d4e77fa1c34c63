"""The spec of a Job made from its arguments: today's, and those of earlier years of the ML Space
platform, which give a DeprecationWarning that names today's argument; a few are refused."""

import inspect
import math
import os
import reprlib
import shlex
import warnings
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from numbers import Rational, Real
from typing import Annotated, Any, TypedDict, TypeVar, get_type_hints

from client_lib.errors import InvalidRequest, NotSupported
from client_lib.spec import metric_expression
from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec, defaults
from client_lib.spec.refusals import validated

C = TypeVar("C")


def words(args: object) -> object:
    """Return the arguments of a script with numbers and paths as text; what is no list, or holds
    other values, is left to the check of the spec. Raises InvalidRequest: a value whose text would
    be a guess."""
    if not isinstance(args, list | tuple):
        return args
    return [_word(number, value) for number, value in enumerate(args)]


def _word(number: int, value: object) -> object:
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    elif isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError, ValueError):  # a number of too many digits
            if isinstance(value, Rational) or math.isfinite(value):
                return str(value)
    if isinstance(value, str):
        return value
    kind = type(value).__name__
    shown = "..."
    with suppress(ValueError):  # likewise
        shown = reprlib.repr(value)
    raise InvalidRequest(
        f"args.{number}={shown}: a value of type {kind} is no word of a command line",
        hint="give texts, numbers or paths: the script gets their text as a word",
    )


def checked_spec(values: Mapping[str, object]) -> JobSpec:
    """Return the spec of the values that differ from the defaults, so that an
    older server understands it.
    """
    given: dict[str, Any] = {}
    for name, value in values.items():
        if (value is None and name != "log_file") or value == defaults()[name]:
            continue
        given[name] = os.fspath(value) if isinstance(value, os.PathLike) else value
        if isinstance(value, Enum):
            given[name] = value.value
    if isinstance(given.get("requirements"), str):  # a file, or a single requirement
        given["requirements"] = [given["requirements"]]
    script = given.get("script")
    if isinstance(values["script"], os.PathLike):  # one word
        given["script"] = shlex.quote(str(script))
    elif isinstance(script, str) and script.rstrip().endswith(".py"):
        try:
            split_script(script)
        except ValueError:  # a text that can't be split may still name a file; the submit checks it
            given["script"] = shlex.quote(script.strip())
    if "args" in given:
        given["args"] = words(given["args"])
    spec = validated(JobSpec, given)
    if spec.metrics is not None:
        try:
            metric_expression.check(spec.metrics)
        except ValueError as error:
            raise InvalidRequest(f"metrics={spec.metrics!r} {error}") from None
    return spec


# --- arguments of earlier years


class OldArguments(TypedDict, total=False):
    """The arguments with their types and their replacements today. None counts as not given."""

    cpu_limit: Annotated[
        Any, "the instance_type sets the cores of a worker, for example 'cpu.8C.32G'"
    ]
    cuda11: Annotated[bool | None, "the image brings its CUDA"]
    detached: Annotated[bool | None, "submit() returns at once, and logs() follows"]
    forbid_internet: Annotated[bool | None, "write internet=False"]
    forbid_s3: Annotated[bool | None, "internet=False forbids all outbound access"]
    in_communal_cluster: Annotated[
        bool | None, "priority_class and allocation_name say whose capacity it is"
    ]
    memory_limit: Annotated[
        Any, "the instance_type sets the memory of a worker, for example 'cpu.8C.32G'"
    ]
    n_gpus: Annotated[int | None, "write instance_type='gpu.4gpu' for 4 of any card"]
    spark_executor_memory: Annotated[float | None, "there is no Spark here"]
    warm_cache: Annotated[bool | None, "images are cached by the nodes that have run them"]


TODAY: dict[str, str] = {
    name: hint.__metadata__[0]
    for name, hint in get_type_hints(OldArguments, include_extras=True).items()
}
"""Arguments of earlier years -> what replaces each today."""

STAYS = "it stays, for scripts of the ML Space platform"
"""The end of a warning about a name that is never removed; other warnings end with a version and a
date. See docs/compatibility.md.
"""


def with_earlier_arguments(kind: type[C]) -> type[C]:
    """Complete the signature of a class of jobs by the arguments of earlier years: tools for the
    platform drop arguments that a signature lacks."""
    init: Any = kind.__init__
    signature = inspect.signature(init)
    kept = [
        one
        for one in signature.parameters.values()
        if one.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    old = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in TODAY]
    init.__signature__ = signature.replace(parameters=[*kept, *old])
    return kind


def translate(given: Mapping[str, object], earlier: Mapping[str, object]) -> dict[str, Any]:
    """Return the fields of the spec that old arguments become, and warn of each old argument.
    `given`: today's arguments of a Job, by name; `earlier`: all others. Raises TypeError: Job never
    had it; NotSupported, InvalidRequest: it asks for something that does not exist here."""
    unknown = sorted(earlier.keys() - TODAY.keys())
    if unknown:
        raise TypeError(f"Job() got an unexpected keyword argument {unknown[0]!r}")
    old = {name: value for name, value in sorted(earlier.items()) if value is not None}
    if old.get("warm_cache"):
        raise NotSupported(
            "warm_cache=True is not supported: nodes cache the images that they ran", hint="omit it"
        )
    fields: dict[str, Any] = {}
    for name, value in old.items():
        today = {"n_gpus": "instance_type", "forbid_internet": "internet"}.get(name)
        if name == "n_gpus" and (
            isinstance(value, bool) or not isinstance(value, int) or value < 0
        ):
            raise InvalidRequest(
                f"n_gpus={value!r} is no number of GPUs", hint="write instance_type='gpu.4gpu'"
            )
        becomes = f"gpu.{value}gpu" if name == "n_gpus" else not value
        if name == "detached" and not value:
            text = (
                "detached=False is deprecated: call submit(), then logs(), which follows until "
                "the job ends"
            )
        elif today is None:
            text = f"{name} is deprecated and has no effect: {TODAY[name]}"
        elif given[today] is not None:
            text = f"{name} is deprecated and ignored, because {today}={given[today]!r} is given"
        else:
            text = f"{name} is deprecated: write {today}={becomes!r}"
            fields[today] = becomes
        warnings.warn(f"{text} ({STAYS})", DeprecationWarning, stacklevel=3)
    return fields
