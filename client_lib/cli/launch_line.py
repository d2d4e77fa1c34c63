"""A launcher's line in the place of SCRIPT (`client-lib submit torchrun ... train.py`): read, shown, and compared with
the options of the job. `client_lib.launch_lines` knows the launchers; this module reads the files and cores of this
machine for it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from client_lib.cli import PROGRAM, job_options
from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import option_names, split_script
from client_lib.spec.job import JobType

if TYPE_CHECKING:
    from client_lib.launch_lines import LaunchLine

_COMMANDS = (JobType.BINARY.value, JobType.BINARY_EXP.value)
_CORES = re.compile(r"\.(\d+)C(?:\.|$)")  # of cpu.8C.32G, a100.1gpu.80vG.12C.96G


class FieldsRead(NamedTuple):
    """The fields of the job, and what to show the user about the line that they were read from."""

    fields: dict[str, Any]
    notices: Sequence[str] = ()
    python: str | None = None
    """Absolute; None: the shell's."""


def read(fields: dict[str, Any], local: bool) -> FieldsRead:
    """`fields` as they are, unless their script is a launcher's line. `local`: workers run on this machine.

    With a type of `binary` the launcher itself is the command.

    Raises InvalidRequest or NotSupported: the line can't be read, or says otherwise than the options.
    """
    script = fields["script"]
    if script.endswith(".py") or fields.get("type") in _COMMANDS or os.path.isfile(script):
        return FieldsRead(fields)
    from client_lib import launch_lines  # here: a script, the usual case, needs none of it

    machine = launch_lines.Machine(_cores(fields, local), _accelerate_config, os.path.isfile, os.environ)
    reading = launch_lines.read([*_words(script), *fields.get("args", [])], machine)
    if reading is None:
        return FieldsRead(fields)
    merged = _merged(fields, reading)
    python = _interpreter(reading.python)
    notices = [_shown(reading, merged), *reading.notices]
    if python and not local:
        notices.append(f"{python} is this machine's: on another one the script runs with its image's python")
    return FieldsRead(merged, notices, python)


def _words(script: str) -> list[str]:
    try:
        return split_script(script)
    except ValueError:  # the spec says what is wrong with it
        return [script]


def _merged(fields: Mapping[str, Any], reading: LaunchLine) -> dict[str, Any]:
    """Raises InvalidRequest where an option says otherwise than the line."""
    merged = {**reading.defaults, **fields}
    for name, value in reading.fields.items():
        if name in job_options.POSITIONAL or name not in fields:
            merged[name] = value
        elif isinstance(value, dict):
            for key in value.keys() & fields[name].keys():
                _check_same(f"{_option(name)} {key}", fields[name][key], value[key], reading.given_by[name])
            merged[name] = {**fields[name], **value}
        else:
            _check_same(_option(name), fields[name], value, reading.given_by[name])
    return merged


def _check_same(option: str, given: Any, read: Any, said: str) -> None:
    if given != read:
        raise InvalidRequest(
            f"{option}={given} contradicts {said}, which is {option}={read}", hint="leave one of them out"
        )


def _option(field: str) -> str:
    return option_names(field)[0]


def _shown(reading: LaunchLine, merged: Mapping[str, Any]) -> str:
    options: list[str] = []
    for name in [*(reading.defaults.keys() - reading.fields.keys()), *reading.fields]:
        if name not in job_options.POSITIONAL:
            options += _as_option(name, merged[name])
    line = shlex.join([PROGRAM, "submit", *options])
    return f"{reading.launcher} line read as: {line} {merged['script']} {shlex.join(merged['args'])}".rstrip()


def _as_option(name: str, value: Any) -> list[str]:
    if isinstance(value, dict):
        return [word for key, text in value.items() for word in (_option(name), f"{key}={text}")]
    return [_option(name), ",".join(map(str, value)) if isinstance(value, list) else str(value)]


def _cores(fields: Mapping[str, Any], local: bool) -> int | None:
    """Cores of one worker; None: not known here."""
    kind = fields.get("instance_type")
    if kind is not None:
        named = _CORES.search(kind)
        return int(named[1]) if named else None
    if not local:
        return None
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def _interpreter(named: str | None) -> str | None:
    """Raises InvalidRequest: it isn't there."""
    if named is None:
        return None
    found = shutil.which(named)
    if found is None:
        raise InvalidRequest(f"there is no program {named}")
    return os.path.abspath(found)


def _accelerate_config(path: str | None) -> Mapping[str, Any]:
    """Read the file that accelerate would read: the one that is named, else the one that `accelerate config` wrote.

    Raises InvalidRequest: it can't be read.
    """
    file = os.path.expanduser(path) if path else _default_config()
    if not path and not os.path.isfile(file):
        return {}
    import yaml

    try:
        with open(file, encoding="utf-8") as opened:
            values = json.load(opened) if file.endswith(".json") else yaml.safe_load(opened)
    except OSError as error:
        raise InvalidRequest(f"accelerate's config file {file} can't be read: {error.strerror}") from error
    except (ValueError, yaml.YAMLError) as error:
        found = " ".join(str(error).split())
        raise InvalidRequest(f"accelerate's config file {file} is not valid JSON or YAML: {found}") from error
    if not isinstance(values, dict):
        raise InvalidRequest(f"accelerate's config file {file} holds no settings")
    return values


def _default_config() -> str:
    caches = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(caches, "huggingface"))
    return os.path.join(os.path.expanduser(home), "accelerate", "default_config.yaml")
