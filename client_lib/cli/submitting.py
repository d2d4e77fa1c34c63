"""From a command line to a job: what `submit`, `render` and `resubmit` share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

import click
from pydantic import ValidationError

from client_lib.cli import interpreter, job_spec, launch_line, printer
from client_lib.cli.connection import Connection
from client_lib.cli.parameters import JSON, NAME
from client_lib.job import Job
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import invalid_request
from client_lib.spec.wire import JobInfo, Manifest

TEXT = "text"

F = TypeVar("F", bound=Callable[..., Any])


def job_arguments(command: F) -> F:
    """SCRIPT [ARGS] behind all of our options, the options of the spec, and `-c`. The command gets them as `values`."""
    for decorate in (
        job_spec.options,
        click.option(
            "-c", "--config", "file", metavar="FILE", help="A YAML file with fields of the job; options win over it."
        ),
        click.argument("args", nargs=-1, type=click.UNPROCESSED),
        click.argument("script", required=False),
    ):
        command = decorate(command)
    return command


class Asked(NamedTuple):
    """What a command line asks for."""

    job: Job
    python: str | None
    """The interpreter that it names; None: that of the user's shell, never that of this program."""


STOP_AT_SCRIPT = {"allow_interspersed_args": False}
"""Context settings: our options end at SCRIPT, and what follows is its own, as with torchrun."""


def job_of(connection: Connection, values: dict[str, Any], file: str | None) -> Asked:
    """The job that the command line and the file mean; nothing is sent yet. A launcher's line in the place of the
    script is read, and said on stderr in our own words.

    Raises:
        InvalidRequest: an unknown key of the file (with the nearest), a value that no job can have, a launcher's line
            that contradicts the options.
        UsageError: no script in either.
    """
    line = job_spec.given(values)
    fields = job_spec.merged(_of_file(file), line) if file else line
    if "script" not in fields:
        raise click.UsageError(
            "which SCRIPT? Give its path, or `script:` in the file of -c", click.get_current_context()
        )
    _check_names(fields)
    meant = launch_line.read(fields, connection.is_local) if "script" in line else launch_line.Meant(fields, [], None)
    for sentence in meant.said:
        printer.hint(sentence)
    return Asked(Job(**meant.fields, client=connection.client), meant.python)


def _of_file(path: str) -> dict[str, Any]:
    from client_lib.cli import job_file  # loads yaml, 20 ms

    return job_file.read(path)


def _check_names(fields: Mapping[str, Any]) -> None:
    unknown = {name: value for name, value in fields.items() if name not in JobSpec.model_fields}
    try:
        JobSpec.model_validate({"script": "any", **unknown})
    except ValidationError as error:
        raise invalid_request(error, JobSpec) from error


def submit(asked: Asked) -> JobInfo:
    """The job, accepted."""
    job = asked.job
    python = asked.python or interpreter.find(os.environ)
    with printer.progress("submitting") as say:
        job.submit(
            python=python,
            on_upload=lambda sent, size: say(f"uploading {sent / 1e6:.1f} of {size / 1e6:.1f} MB"),
        )
        return job.info()


def render(asked: Asked) -> Manifest:
    with printer.progress("rendering"):
        return asked.job.render(python=asked.python or interpreter.find(os.environ))


def announce(info: JobInfo, output: str, follow: bool) -> None:
    """Say that there is a job now. With -f stdout belongs to the job's own lines, unless a form was asked for."""
    if output == JSON:
        printer.data_json(info.model_dump(mode="json"))
    elif output == NAME:
        printer.data(info.name)
    elif follow:
        printer.hint(f'Job "{info.name}" created.')
    else:
        printer.data(f'Job "{info.name}" created.')
        printer.hint(f"`client-lib logs -f {info.name}` follows it")
    for notice in [] if follow else info.notices:  # with -f they stand before the job's lines
        printer.hint(notice)
