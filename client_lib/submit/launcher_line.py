"""A launcher's line in the place of the script: read, compared with the options of the job, and
shown as options of ours.

For `client_lib.launch_lines`, which knows the launchers, this module reads the files and cores of
this machine.
"""

import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import option_names, parse_yaml, split_script
from client_lib.spec.job import JobType

if TYPE_CHECKING:
    from client_lib.launch_lines import LaunchLine

_COMMANDS = (JobType.BINARY.value, JobType.BINARY_EXP.value)
_POSITIONAL = ("script", "args")
FILE_SUFFIXES = (".yaml", ".yml", ".sbatch", ".slurm")
"""Ends of the names of job files that other systems read."""
_TEXT_MAX = 1024 * 1024  # characters
_CORES = re.compile(r"\.(\d+)C(?:\.|$)")  # of cpu.8C.32G, a100.1gpu.80vG.12C.96G


class ReadLine(NamedTuple):
    """The meaning of a launcher's line for a job."""

    fields: dict[str, Any]
    """The fields of the job with those that the line says."""
    python: str | None
    """Absolute path of the interpreter that the line names; None: none."""
    messages: list[str]
    """Sentences for the user about the reading."""


def read(fields: Mapping[str, Any], *, local: bool, in_shell: bool = True) -> ReadLine | None:
    """Read the launcher's line in `fields["script"]` and `fields["args"]`; None: there is none.
    With a type of `binary` the launcher itself is the command. To read the result again changes
    nothing. `fields`: the given fields of the job. `local`: workers run on this machine.
    `in_shell`: the line was typed in a shell, where a lone `python` has no variables of ranks; the
    platform's `Job(script="python ...")` has them.

    Raises InvalidRequest or NotSupported: the line can't be read, or it contradicts the options.
    """
    fields = {name: value for name, value in fields.items() if value is not None}
    words = _words(fields["script"])
    if not words or words[0].endswith(".py") or fields.get("type") in _COMMANDS:
        return None
    from client_lib import launch_lines  # here: a script, the usual case, needs none of it

    if words[0].endswith(FILE_SUFFIXES):
        refuse_file(words[0], read_text(words[0]) or "")
    cores = _cores(fields.get("instance_type"), local)
    machine = launch_lines.Machine(cores, _accelerate_config, os.path.isfile, read_text, os.environ)
    given_workers = fields.get("n_workers")
    n_workers = given_workers if isinstance(given_workers, int) else 1
    reading = launch_lines.read([*words, *fields.get("args", [])], machine, n_workers)
    if reading is None:
        return None
    if not in_shell and launch_lines.is_python(reading.launcher):
        reading = replace(reading, defaults={})
    both = _compared(fields, reading)
    python = shutil.which(reading.python) if reading.python else None
    if reading.python and not python:
        raise InvalidRequest(f"there is no program {reading.python}")
    if python:
        python = os.path.abspath(python)
        if local:
            both["script"] = _by_path(both["script"], python)
    messages = [_shown(reading, both), *reading.notices]
    if python and not local:
        messages.append(
            f"{python} is this machine's: on another one the script runs with its image's python"
        )
    return ReadLine(both, python, messages)


def _by_path(script: str, python: str) -> str:
    """The script with this interpreter in the place of `python`, which is another one in the shell
    that submits: `uv run -m pkg.train`."""
    program, space, rest = script.partition(" ")
    return f"{shlex.quote(python)}{space}{rest}" if program in ("python", "python3") else script


def refuse_file(path: str, text: str, values: object = None) -> None:
    """Raises NotSupported for a job file of another system, with the line to write. `values`: the
    file as YAML, where it is known."""
    from client_lib import launch_lines

    if values is None and "#SBATCH" not in text:
        try:
            values = parse_yaml(text, path)
        except InvalidRequest:  # the reader of the job file raises it with its reason
            return
    machine = launch_lines.Machine(is_file=os.path.isfile, text=read_text)
    launch_lines.refuse_file(path, text, values, machine)


def _words(script: str) -> list[str]:
    """A path that exists is one word, whatever it holds."""
    if os.path.isfile(script.strip()):
        return [script.strip()]
    try:
        return split_script(script)
    except ValueError:  # the spec says what is wrong with it
        return []


def _cores(instance_type: str | None, local: bool) -> int | None:
    """The cores of one worker; None: not known here."""
    if instance_type:
        named = _CORES.search(instance_type)
        return int(named[1]) if named else None
    if not local:
        return None
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count()


def read_text(path: str) -> str | None:
    """The first MiB of a file; None: it is not there. Raises InvalidRequest for a file that can't
    be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as opened:
            return opened.read(_TEXT_MAX)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRequest(f"{path} can't be read: {error.strerror}") from error


def merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Merge the fields of a job: a field of `above` replaces the field of `below`; of a mapping
    each key by itself (`-e` sets one variable).
    """
    both = dict(below)
    for name, value in above.items():
        under = below.get(name)
        if isinstance(under, dict) and isinstance(value, dict):
            value = {**under, **value}
        both[name] = value
    return both


def _compared(fields: Mapping[str, Any], reading: "LaunchLine") -> dict[str, Any]:
    """Merge the fields of the line into the fields of the job. Raises InvalidRequest where an
    option contradicts the line."""
    said = dict(reading.fields)
    for name, value in reading.fields.items():
        if name not in fields or name in _POSITIONAL:
            continue
        given = fields[name]
        if name == "requirements" and isinstance(given, list):  # they add to each other
            said[name] = [*given, *(each for each in value if each not in given)]
            continue
        option = option_names(name)[0]
        both = [(option, given, value)]
        if isinstance(given, dict) and isinstance(value, dict):  # a file may hold anything
            both = [(f"{option} {key}", given[key], value[key]) for key in value if key in given]
        for what, ours, read in both:
            if ours != read:
                by = reading.given_by[name]
                raise InvalidRequest(
                    f"{what}={ours} contradicts {by}, which is {what}={read}",
                    hint="leave one of them out",
                )
    return merged(merged(reading.defaults, fields), said)


def _shown(reading: "LaunchLine", fields: Mapping[str, Any]) -> str:
    """The line as a line of ours, which means the same."""
    options: list[str] = []
    for name in [*(reading.defaults.keys() - reading.fields.keys()), *reading.fields]:
        if name in _POSITIONAL:
            continue
        option = option_names(name)[0]
        value = fields[name]
        if isinstance(value, dict):
            for key, text in value.items():
                options += [option, f"{key}={text}"]
        elif name == "requirements":
            for each in value:
                options += [option, each]
        elif isinstance(value, list):
            options += [option, ",".join(map(str, value))]
        else:
            options += [option, str(value)]
    line = shlex.join(["client-lib", "submit", *options])
    script = f"{fields['script']} {shlex.join(fields['args'])}"
    return f"{reading.launcher} line read as: {line} {script}".rstrip()


def _accelerate_config(path: str | None, environment: Mapping[str, str]) -> Mapping[str, Any]:
    """Read the file that accelerate would read: the named file, else the file that `accelerate
    config` wrote. Raises InvalidRequest: it can't be read."""
    caches = environment.get("XDG_CACHE_HOME", "~/.cache")
    home = environment.get("HF_HOME", os.path.join(caches, "huggingface"))
    file = os.path.expanduser(path or os.path.join(home, "accelerate", "default_config.yaml"))
    if not path and not os.path.isfile(file):
        return {}
    import yaml

    try:
        with open(file, encoding="utf-8") as opened:
            values = json.load(opened) if file.endswith(".json") else yaml.safe_load(opened)
    except OSError as error:
        raise InvalidRequest(
            f"accelerate's config file {file} can't be read: {error.strerror}"
        ) from error
    except (ValueError, yaml.YAMLError, RecursionError) as error:
        found = " ".join(str(error).split())
        raise InvalidRequest(
            f"accelerate's config file {file} is not valid JSON or YAML: {found}"
        ) from error
    if not isinstance(values, dict):
        raise InvalidRequest(f"accelerate's config file {file} holds no settings")
    return values
