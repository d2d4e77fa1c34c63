"""The steps that `submit`, `render` and `run` share: from a command line to a job."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from client_lib.cli import job_options, launch_line, printer, processes
from client_lib.cli.connection import Connection
from client_lib.errors import InvalidRequest, JobFailed
from client_lib.job import Job
from client_lib.reports import explanation
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import validated
from client_lib.spec.wire import JobInfo

NoCheck = Annotated[bool, typer.Option("--no-check", help="Submit without checking the script (jobs of this machine).")]
STOP_AT_SCRIPT = {"allow_interspersed_args": False}
"""Context settings: our options end at SCRIPT, and what follows is its own, as with torchrun."""


class DescribedJob(NamedTuple):
    """The job that a command line describes."""

    job: Job
    python: str | None
    """The interpreter that the line names; None: that of the user's shell, never that of this program."""


def job_of(ctx: typer.Context, connection: Connection, config: str | None, values: Mapping[str, Any]) -> DescribedJob:
    """The job that the command line and the file `config` describe; nothing is sent yet. A launcher's line in the place
    of the script is read, and shown on stderr as our own options.

    Raises:
        InvalidRequest: an unknown key of the file (with the nearest), a value that no job can have, a launcher's line
            that contradicts the options.
        TyperException: no script in either.
    """
    fields = line = job_options.given(values)
    if config:
        fields = job_options.merged(read_job_file(config), line)
    if "script" not in fields:
        ctx.fail("which SCRIPT? Give its path, or `script:` in the file of -c")
    _check_names(fields)
    if "script" not in line:
        return DescribedJob(Job(**fields, client=connection.api), None)
    read = launch_line.read(fields, connection.is_local)
    for notice in [*read.notices, *_misplaced(ctx, read.fields)]:
        printer.hint(notice)
    return DescribedJob(Job(**read.fields, client=connection.api), read.python)


def read_job_file(path: str) -> dict[str, Any]:
    """The fields of a spec in a file of YAML, and so of JSON. Unknown ones are left for the spec to refuse; relative
    paths (`script`, `working_dir`) are relative to the file, so that it works from every folder.

    Raises InvalidRequest naming the file, and the line where YAML is broken.
    """
    import yaml  # 20 ms

    class Loader(yaml.SafeLoader):
        """Refuses a key that stands there twice; YAML would take the last one."""

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
            keys = [self.construct_object(key, deep=True) for key, _ in node.value]
            doubled = next((key for key in keys if keys.count(key) > 1), None)
            if doubled is not None:
                problem = f"the key {doubled!r} stands there twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
            return super().construct_mapping(node, deep)

    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), Loader)
    except OSError as error:
        raise InvalidRequest(f"can't read {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidRequest(f"{path} holds no fields", hint="it needs lines like `script: train.py`, `n_workers: 2`")
    folder, (script, working_dir) = Path(path).parent, map(content.get, ("script", "working_dir"))
    if isinstance(script, str):
        content["script"] = _script_from(script, folder)
    if isinstance(working_dir, str):
        content["working_dir"] = str(folder / working_dir)
    return content


def _script_from(script: str, folder: Path) -> str:
    """A script that lies in the folder gets its path; a command that is found by PATH stays as it is."""
    if (folder / script).is_file():
        return shlex.quote(str(folder / script))
    first, space, rest = script.partition(" ")
    if first and (folder / first).is_file():
        return shlex.quote(str(folder / first)) + space + rest
    return script


def _misplaced(ctx: typer.Context, fields: Mapping[str, Any]) -> list[str]:
    """Notices of our options that stand behind a script which does not declare them."""
    ours = {name for parameter in ctx.command.params for name in (*parameter.opts, *parameter.secondary_opts)}
    given = [word.partition("=")[0] for word in fields.get("args", ()) if word.startswith("-")]
    behind = [option for option in given if option in ours]
    script = Path(fields["script"])
    if not behind or script.suffix != ".py" or not script.is_file() or not os.access(script, os.R_OK):
        return []
    return [
        f"{option} behind {script} goes to the script, which does not declare it; options of client-lib stand before "
        "the script"
        for option in undeclared(script.read_text("utf-8", "replace"), behind)
    ]


def undeclared(source: str, options: list[str]) -> list[str]:
    """The options that a script mentions nowhere: neither as in `add_argument("--name")`, nor as a name, from which
    some parsers make options."""
    words = set(re.findall(r"[\w-]+", source))
    return [option for option in options if words.isdisjoint((option, option.lstrip("-").replace("-", "_")))]


def _check_names(fields: Mapping[str, Any]) -> None:
    unknown = {name: value for name, value in fields.items() if name not in JobSpec.model_fields}
    validated(JobSpec, {"script": "any", **unknown})


def submit(described: DescribedJob, check: bool) -> JobInfo:
    """Submit the job, and check its script before. The server has stored it when this returns."""
    job = described.job
    python = described.python or processes.find_python(os.environ)
    with printer.progress("submitting") as show:
        job.submit(
            python=python,
            on_upload=lambda sent, size: show(f"uploading {sent / 1e6:.1f} of {size / 1e6:.1f} MB"),
            check=check,
        )
    assert job.last_info is not None
    return job.last_info


def end_of_followed(job: Job) -> JobInfo:
    """Wait for the end of a job whose log was just printed. Raises JobFailed or JobCancelled; the report does not
    repeat the log."""
    try:
        return job.wait()
    except JobFailed as failed:
        raise explanation.ended(failed.info, printed=True) from None
