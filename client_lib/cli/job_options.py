"""The options of a job: one for each field of JobSpec, made from the field itself, so that none is
missing and each has the text of the spec. Loads pydantic.
"""

import inspect
import os
import shlex
import types
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from enum import Enum
from functools import cache, partial
from itertools import chain
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer
from typer import Argument, Option

from client_lib.cli.parameters import Command, CommandApp, F, key_value
from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import option_names
from client_lib.spec.job import CheckpointParams, HealthParams, JobSpec, defaults
from client_lib.spec.validation import descriptions
from client_lib.transport.config import BOOLEANS

POSITIONAL = frozenset({"script", "args"})

HEADINGS: dict[str, tuple[str, ...]] = {
    "Common options of a job": (
        "n_workers",
        "processes_per_worker",
        "instance_type",
        "type",
        "base_image",
        "env_variables",
        "secrets",
        "name",
        "labels",
        "requirements",
    ),
    "Code": (
        "code",
        "working_dir",
        "flags",
        "setup",
        "outputs",
        "log_file",
        "checkpoint_dir",
        "checkpoint_from",
        "checkpoint_params",
        "conda_env",
        "warm",
        "pytorch_use_env",
        "observe",
        "metrics",
        "preflight_check",
        "smoke",
    ),
    "Resources, queue and end": (
        "gpus",
        "volumes",
        "priority_class",
        "after",
        "max_retry",
        "retry_on",
        "retry_reset_steps",
        "max_infrastructure_retry",
        "stop_timer",
        "grace_s",
        "health_params",
        "hang_action",
        "alarm",
        "notify",
        "elastic_min_workers",
        "elastic_max_workers",
        "elastic_max_restarts",
    ),
    "Kubernetes": (
        "include_nodes",
        "exclude_nodes",
        "queue_name",
        "internet",
        "shm_size_class",
        "tmp_storage",
    ),
    "ML Space platform": (
        "region",
        "allocation_name",
        "logs_dir",
        "job_desc",
    ),
}
"""Fields by the heading under which the help of a command shows their options, in this order.
Every field stands under one heading."""

MORE_HELP = {
    "env_variables": "NAME alone passes on the value that it has here.",
    "checkpoint_params": "As in keep=3,from_step=400.",
    "gpus": "As in 0,1.",
    "health_params": "As in log_period=30,action=restart.",
}

NONE = {"flags": "KEY alone", "log_file": "''"}
"""Texts that give the value None, where a missing option gives another value."""


class Reading(NamedTuple):
    """The conversion of an option's text into a value."""

    kind: Any
    """The type, for typer; str where `parse` reads the text."""
    parse: Callable[[str], Any] | None = None
    metavar: str | None = None
    container: Any = None
    """list or dict, to which each use of the option adds."""


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise typer.BadParameter(f"{text!r} is not a whole number") from None


def _whole_numbers(text: str) -> list[int]:
    """`0,1,2`."""
    return [_whole(part) for part in text.split(",")]


def _whole_or_default(text: str) -> int | str:
    return text if text == "default" else _whole(text)


def _variable(text: str) -> tuple[str, str | None]:
    """`NAME=VALUE`; `HOME` alone has the value that it has here."""
    if text and "=" not in text:
        if text not in os.environ:
            raise typer.BadParameter(f"{text} is not set here; give it a value: {text}=VALUE")
        return text, os.environ[text]
    return key_value(text)


def _flag(text: str) -> tuple[str, str | None]:
    """`KEY=VALUE`; `verbose` alone is a flag without a value."""
    return (text, None) if text and "=" not in text else key_value(text)


def _keys(text: str, numbers: Sequence[str]) -> dict[str, Any]:
    """`keep=3,damaged=aside` -> a value for each key; the keys `numbers` have whole numbers."""
    given: dict[str, Any] = dict(key_value(part) for part in text.split(","))
    return {name: _whole(text) if name in numbers else text for name, text in given.items()}


def _watchdog(text: str) -> dict[str, Any]:
    """`log_period=30,action=restart` -> the fields of HealthParams."""
    given = _keys(text, ["log_period"])
    if "sub_actions" in given:
        given["sub_actions"] = given["sub_actions"].split("+")
    return given


_SCRIPT = Annotated[
    str | None,
    Argument(
        metavar="[SCRIPT]",
        help="Path of the script, or the line of a launcher.",
        show_default=False,
    ),
]
_ARGS = Annotated[
    list[str] | None, Argument(metavar="[ARGS]...", help="Arguments of the script, as they are.")
]
ConfigOption = Annotated[
    str | None,
    Option(
        "-c",
        "--config",
        metavar="FILE",
        help="A YAML file with fields of the job; options win over it.",
    ),
]


class JobCommand(Command):
    """A command with the options of a job. Their texts are loaded only for help and completion:
    loading them takes 30 ms, and a submit shows none."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        self._describe()
        super().format_options(ctx, formatter)

    def shell_complete(self, ctx: Any, incomplete: str) -> Any:
        self._describe()
        return super().shell_complete(ctx, incomplete)

    def _describe(self) -> None:
        for parameter in self.params:
            name = parameter.name or ""
            if name not in JobSpec.model_fields or name in POSITIONAL:
                continue
            text = f"{descriptions(JobSpec)[name]} {MORE_HELP.get(name, '')}"
            said = " ".join(text.split())
            if name in NONE:
                said = said.replace("None:", f"{NONE[name]}:")
            said = said.replace("; None:", "; without it:").replace("None:", "Without it:")
            default = defaults()[name]
            if isinstance(default, Enum):
                default = default.value
            if default not in (None, [], {}):
                said += f" Default: {default}."
            parameter.help = said  # type: ignore[attr-defined]  # all of them are options


def job_command(
    app: CommandApp, name: str | None = None, *, examples: str = ""
) -> Callable[[F], F]:
    """Register a command with SCRIPT, ARGS and an option for each field of the spec as its
    `**values`; what is not given arrives as None. Our options end at SCRIPT, and what follows is
    its own, as with torchrun."""
    end_at_script = {"allow_interspersed_args": False}
    register = app.command(name, cls=JobCommand, context_settings=end_at_script, examples=examples)

    def registered(command: F) -> F:
        own = inspect.signature(command, eval_str=True).parameters.values()
        keyword = inspect.Parameter.KEYWORD_ONLY
        parameters = [
            inspect.Parameter("script", keyword, default=None, annotation=_SCRIPT),
            inspect.Parameter("args", keyword, default=None, annotation=_ARGS),
            *(
                parameter.replace(kind=keyword)
                for parameter in own
                if parameter.kind is not parameter.VAR_KEYWORD
            ),
            *_parameters(),
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # typer reads it
        return register(command)

    return registered


@cache  # for two commands of one module
def _parameters() -> tuple[inspect.Parameter, ...]:
    found = []
    for heading, names in HEADINGS.items():
        found += [_parameter(name, heading) for name in names]
    return tuple(found)


def _parameter(name: str, heading: str) -> inspect.Parameter:
    reading = reading_of(name)
    names = option_names(name)
    if reading.kind is bool:
        names = (f"{names[0]}/--no-{names[0].removeprefix('--')}",)
    option = Option(*names, metavar=reading.metavar, parser=reading.parse, rich_help_panel=heading)
    # mypy knows no type that is made while the program runs
    kind = list[reading.kind] if reading.container else reading.kind  # type: ignore[name-defined]
    annotation = Annotated[kind | None, option]  # type: ignore[valid-type]
    keyword_only = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(name, keyword_only, default=None, annotation=annotation)


@cache
def reading_of(name: str) -> Reading:
    """The way in which the option of a field reads its text. Raises TypeError for a type that no
    option can read yet: a new kind of field needs an entry here."""
    annotation = JobSpec.model_fields[name].annotation
    held = next((leaf for leaf in _leaves(annotation) if get_origin(leaf) in (list, dict)), None)
    container = get_origin(held)
    if container is dict:
        special = {"env_variables": (_variable, "NAME[=VALUE]"), "flags": (_flag, "KEY[=VALUE]")}
        return Reading(str, *special.get(name, (key_value, "KEY=VALUE")), dict)
    leaves = _leaves(get_args(held)[0] if container is list else annotation)
    if container is list and leaves == [int]:
        return Reading(str, _whole_numbers, "NUMBERS", list)
    if leaves == [int, Literal["default"]]:
        return Reading(str, _whole_or_default, "NUMBER|default")
    if leaves == [HealthParams]:
        return Reading(str, _watchdog, "KEY=VALUE,...")
    if leaves == [CheckpointParams]:
        return Reading(str, partial(_keys, numbers=["keep", "from_step"]), "KEY=VALUE,...")
    kind, *others = leaves
    is_simple = isinstance(kind, type) and issubclass(kind, str | int | float | bool | Enum)
    if not others and (is_simple or get_origin(kind) is Literal):
        return Reading(kind, container=container)
    raise TypeError(f"no option can read {name}: {annotation}")


def _leaves(annotation: object) -> list[Any]:
    """The types in a union, without None and without pydantic's constraints."""
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return [leaf for part in get_args(annotation) for leaf in _leaves(part)]
    if origin is Annotated:
        return _leaves(get_args(annotation)[0])
    return [] if annotation is types.NoneType else [annotation]


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that were set on the command line, in the spec's types."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if name in JobSpec.model_fields and value is not None:
            reading = reading_of(name)
            if reading.container is dict:
                value = dict(value)
            elif reading.container is list and reading.parse:
                # each use of the option gives several
                value = list(chain.from_iterable(value))
            found[name] = value
    if found.get("log_file") == "":
        found["log_file"] = None
    return found


def changes(texts: Sequence[str], spec: JobSpec) -> dict[str, Any]:
    """The fields that `--set FIELD=VALUE` sets; the value is read as the field's own option reads
    it. A list is replaced by all values that are given, a mapping gets one key. An empty value
    means the default. Raises InvalidRequest."""
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or name not in JobSpec.model_fields:
            near = get_close_matches(name, JobSpec.model_fields, n=1)
            meant = f"; did you mean {near[0]}=..." if near else ""
            raise InvalidRequest(
                f"--set {text} is not FIELD=VALUE with a field of a job{meant}",
                hint="arguments of the script stand at the end, behind `--`: -- --lr 0.5",
            )
        found[name] = _set(name, value, found.get(name), getattr(spec, name))
    return found


def _set(name: str, text: str, so_far: Any, stored: Any) -> Any:
    if not text:
        return None
    if name == "args" and len(text.split()) > 1:
        raise InvalidRequest(
            f"--set args={shlex.quote(text)} is one argument with a space in it",
            hint=f"write all arguments at the end, behind `--`: -- {text}",
        )
    reading = reading_of(name)
    kind = reading.kind
    try:
        if reading.parse:
            value = reading.parse(text)
        elif kind is bool:
            value = BOOLEANS[text.lower()]
        elif kind in (int, float):
            value = kind(text)
        else:  # words of a closed list are checked by the spec
            value = text
    except typer.BadParameter as wrong:
        raise InvalidRequest(f"--set {name}: {wrong.message}") from wrong
    except (KeyError, ValueError):
        wrong_for = {bool: "neither true nor false", int: "not a whole number"}
        what = wrong_for.get(kind, "not a number")
        raise InvalidRequest(f"--set {name}: {text!r} is {what}") from None

    if reading.container is dict:
        before = stored if so_far is None else so_far
        key, of_key = value
        return {**before, key: of_key}
    if reading.container is list:
        added = value if isinstance(value, list) else [value]
        return [*(so_far or []), *added]
    return value
