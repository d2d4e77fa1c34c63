"""The options of a job: one for each field of JobSpec, made from the field itself, so that none is missing and each
says what the spec says. Used by the commands that submit or render; loads pydantic.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

import click
from pydantic.fields import FieldInfo

from client_lib.cli.value_types import Flag, KeyValue, NumberOrDefault, Numbers, ParamType, Variable, Watchdog
from client_lib.spec.job import HealthParams, JobSpec

F = TypeVar("F", bound=Callable[..., Any])

POSITIONAL = frozenset({"script", "args"})

NAMES: dict[str, tuple[str, ...]] = {
    # field: its options where they are not simply --the-field
    "base_image": ("--image", "--base-image"),
    "n_workers": ("-N", "--n-workers"),
    "instance_type": ("-i", "--instance-type"),
    "type": ("-t", "--type"),
    "env_variables": ("-e", "--env"),
    "secrets": ("--secret",),
    "labels": ("-l", "--label"),
    "flags": ("--flag",),
    "volumes": ("--volume",),
    "outputs": ("--outputs-glob",),  # --output is the form of what is printed
    "requirements": ("--requirement",),
    "include_nodes": ("--include-node",),
    "exclude_nodes": ("--exclude-node",),
}

MORE_HELP = {
    "env_variables": "NAME alone passes on the value that it has here.",
    "log_file": "'' turns it off.",
    "gpus": "As in 0,1.",
    "health_params": "As in log_period=30,action=restart.",
}

_LEAVES: dict[Any, ParamType] = {
    str: click.STRING,
    int: click.INT,
    float: click.FLOAT,
    bool: click.BOOL,
    HealthParams: Watchdog(),
}
_BY_NAME: dict[str, ParamType] = {"env_variables": Variable(), "flags": Flag()}


def option_names(field: str) -> tuple[str, ...]:
    return NAMES.get(field, ("--" + field.replace("_", "-"),))


def options(command: F) -> F:
    """Give `command` an option for each field of the spec. What isn't given arrives as None or ()."""
    for name, field in reversed(JobSpec.model_fields.items()):
        if name not in POSITIONAL:
            command = _option(name, field)(command)
    return command


def _option(name: str, field: FieldInfo) -> Callable[[F], F]:
    kind, names = value_type(name, field), option_names(name)
    if kind is click.BOOL:
        names = (f"{names[0]}/--no-{names[0].removeprefix('--')}",)
    many = _container(field) is not None
    text = _help(name, field)
    return click.option(*names, name, type=kind, multiple=many, default=None, help=text)


def value_type(name: str, field: FieldInfo) -> ParamType:
    """How the option of a field reads its text.

    Raises TypeError for a type that no option can read yet: a new kind of field has to be thought of here.
    """
    container = _container(field)
    leaves = _leaves(get_args(container)[0] if get_origin(container) is list else field.annotation)
    if name in _BY_NAME:
        return _BY_NAME[name]
    if get_origin(container) is dict:
        return KeyValue()
    if container is not None and leaves == [int]:
        return Numbers()
    if leaves == [int, Literal["default"]]:
        return NumberOrDefault()
    if len(leaves) == 1:
        return _leaf_type(leaves[0], name)
    raise TypeError(f"no option can read {name}: {field.annotation}")


def _leaf_type(leaf: Any, name: str) -> ParamType:
    if leaf in _LEAVES:
        return _LEAVES[leaf]
    if isinstance(leaf, type) and issubclass(leaf, Enum):
        return click.Choice([str(member.value) for member in leaf])
    if get_origin(leaf) is Literal:
        return click.Choice(get_args(leaf))
    raise TypeError(f"no option can read {name}: {leaf}")


def _container(field: FieldInfo) -> Any:
    """The list or dict that the field holds, or None."""
    return next((leaf for leaf in _leaves(field.annotation) if get_origin(leaf) in (list, dict)), None)


def _leaves(annotation: Any) -> list[Any]:
    """The types in a union, without None and without what pydantic wrote beside them."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [leaf for part in get_args(annotation) for leaf in _leaves(part)]
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    return [] if annotation is types.NoneType else [annotation]


def _help(name: str, field: FieldInfo) -> str:
    """What the spec says of the field, and its default."""
    said = " ".join(f"{field.description or ''} {MORE_HELP.get(name, '')}".split()).replace("None:", "Without it:")
    default = field.get_default()
    shown = default.value if isinstance(default, Enum) else default
    return said if default in (None, [], {}) else f"{said} Default: {shown}."


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were set on the command line, in the spec's types."""
    found = {name: value for name, value in values.items() if name in JobSpec.model_fields and value not in (None, ())}
    for name, value in found.items():
        if isinstance(value, tuple):
            found[name] = _collected(name, value)
    if found.get("log_file") == "":
        found["log_file"] = None
    return found


def _collected(name: str, values: tuple[Any, ...]) -> list[Any] | dict[Any, Any]:
    """The values of a repeated option as the list or mapping that the field holds."""
    kind = None if name in POSITIONAL else value_type(name, JobSpec.model_fields[name])
    if isinstance(kind, KeyValue):
        return dict(values)
    return list(chain.from_iterable(values)) if isinstance(kind, Numbers) else list(values)


def changes(texts: Sequence[str], spec: JobSpec) -> dict[str, Any]:
    """What `--set FIELD=VALUE` means: the value is read as the field's own option reads it. A list is replaced by all
    that are given, a mapping gets one key. An empty value: the default.

    Raises UsageError.
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in JobSpec.model_fields:
            near = get_close_matches(name, JobSpec.model_fields, n=1)
            raise click.UsageError(
                f"--set {text}: which field? " + (f"Perhaps {near[0]}=..." if near else "FIELD=VALUE")
            )
        found[name] = _set(name, value, found.get(name), getattr(spec, name))
    return found


def _set(name: str, text: str, so_far: Any, stored: Any) -> Any:
    field = JobSpec.model_fields[name]
    if not text:
        return None
    try:
        value = value_type(name, field).convert(text, None, None)
    except click.BadParameter as wrong:
        raise click.UsageError(f"--set {name}: {wrong.message}") from wrong
    kind = get_origin(_container(field))
    if kind is dict:
        return {**(stored if so_far is None else so_far), **dict([value])}
    if kind is list:
        return [*(so_far or []), *(value if isinstance(value, tuple) else [value])]
    return value


def merged(file: Mapping[str, Any], line: Mapping[str, Any]) -> dict[str, Any]:
    """The command line over the file: a field wins whole; of a mapping each key by itself (`-e` sets one variable)."""
    both = dict(file)
    for name, value in line.items():
        below = file.get(name)
        both[name] = {**below, **value} if isinstance(below, dict) and isinstance(value, dict) else value
    return both
