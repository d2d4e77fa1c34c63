"""The steps that `submit`, `render` and `run` share: from a command line to a job."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from typer import Option

from client_lib.cli import job_options, printer
from client_lib.cli.connection import Connection
from client_lib.errors import InvalidRequest, JobFailed
from client_lib.job import Job
from client_lib.reports import explanation
from client_lib.spec.command_line import parse_yaml
from client_lib.spec.job import JobSpec
from client_lib.spec.refusals import validated
from client_lib.spec.wire import JobInfo
from client_lib.submit import launcher_line

NoCheck = Annotated[
    bool, Option("--no-check", help="Submit without checking the script (jobs of this machine).")
]
_READ_BEFORE = ("args", "instance_type")


class DescribedJob(NamedTuple):
    """The job that a command line describes."""

    job: Job
    named_python: str | None  # the interpreter that the line names, absolute

    @property
    def python(self) -> str:
        """The interpreter of the job: the interpreter that the line names, else the one of the
        user's shell.
        """
        return self.named_python or find_python(os.environ)


def job_of(
    ctx: typer.Context, connection: Connection, config: str | None, values: Mapping[str, object]
) -> DescribedJob:
    """The job that the command line and the file `config` describe; nothing is sent yet. A
    launcher's line in the place of the script is read, and shown on stderr as our own options.

    Raises:
        InvalidRequest: an unknown key of the file, a wrong value, or a launcher's line that
            contradicts the options.
        TyperException: neither names a script.
    """
    fields = line = job_options.given(values)
    if config:
        fields = launcher_line.merged(read_job_file(config), line)
    if "script" not in fields:
        ctx.fail("which SCRIPT? Give its path, or `script:` in the file of -c")
    # Job checks all others; these two are read before, and a file may hold anything
    early = {
        name: fields[name]
        for name in fields
        if name not in JobSpec.model_fields or name in _READ_BEFORE
    }
    validated(JobSpec, {"script": "any", **early})
    python = None
    if "script" in line:
        reading = launcher_line.read(fields, local=connection.config.endpoint is None)
        if reading is not None:
            fields = reading.fields
            python = reading.python
            printer.hint("\n".join(reading.messages))
        script = Path(fields["script"])
        args = fields.get("args", ())
        ours = set[str]()
        for parameter in ctx.command.params:
            ours.update(parameter.opts, parameter.secondary_opts)
        behind = [word.partition("=")[0] for word in args if word.startswith("-")]
        ours_behind = [option for option in behind if option in ours]
        if ours_behind and script.suffix == ".py" and os.path.isfile(script):
            with suppress(OSError):  # the submit says why it can't be read
                for option in undeclared(script.read_text("utf-8", "replace"), ours_behind):
                    printer.hint(
                        f"{option} behind {script} goes to the script, which does not declare it; "
                        "options of client-lib stand before the script"
                    )
    return DescribedJob(Job(**fields, client=connection.api), python)


def read_job_file(path: str) -> dict[str, Any]:
    """The fields of a spec in a file of YAML, and so of JSON. Unknown ones are left for the spec to
    refuse; relative paths (`script`, `working_dir`) are relative to the file, so that it works from
    every folder. Raises InvalidRequest naming the file, and the line where YAML is broken."""
    text = read_text(path)
    if "#SBATCH" in text:
        launcher_line.refuse_file(path, text)
    content = parse_yaml(text, path)
    if isinstance(content, dict) and "script" not in content:
        launcher_line.refuse_file(path, text, content)
    if not isinstance(content, dict) or not all(isinstance(key, str) for key in content):
        raise InvalidRequest(
            f"{path} holds no fields", hint="it needs lines like `script: train.py`, `n_workers: 2`"
        )
    folder = Path(path).parent
    script = content.get("script")
    working_dir = content.get("working_dir")
    if isinstance(script, str):  # a command that is found by PATH stays as it is
        first, space, rest = script.partition(" ")
        if os.path.isfile(folder / script):  # False, too, for a line longer than any name of a file
            content["script"] = shlex.quote(str(folder / script))
        elif first and os.path.isfile(folder / first):
            content["script"] = shlex.quote(str(folder / first)) + space + rest
    if isinstance(working_dir, str):
        content["working_dir"] = str(folder / working_dir)
    return content


def read_text(path: str) -> str:
    """The text of a file. Raises InvalidRequest: it can't be read, or is no UTF-8."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(
            f"can't read {path}: {getattr(error, 'strerror', 'it is no UTF-8 text')}"
        ) from error


def undeclared(source: str, options: list[str]) -> list[str]:
    """The options that a script mentions nowhere: neither as in `add_argument("--name")`, nor as a
    name, from which some parsers make options."""
    words = set(re.findall(r"[\w-]+", source))
    return [
        option
        for option in options
        if words.isdisjoint((option, option.lstrip("-").replace("-", "_")))
    ]


def submit(described: DescribedJob, check: bool) -> JobInfo:
    """Submit the job, and check its script before. The server has stored it when this returns."""
    job = described.job
    with printer.progress("submitting") as show:
        job.submit(
            python=described.python,
            on_upload=lambda sent, size: show(f"uploading {sent / 1e6:.1f} of {size / 1e6:.1f} MB"),
            check=check,
        )
    assert job.last_info is not None
    return job.last_info


def end_of_followed(job: Job) -> JobInfo:
    """Wait for the end of a job whose log was just printed; Ctrl-C prints that the job keeps
    running. Raises JobFailed or JobCancelled; the report does not repeat the log."""
    with printer.hint_on_interrupt(job.name or ""):
        try:
            return job.wait()
        except JobFailed as failed:
            raise explanation.ended(failed.info, printed=True) from None


def find_python(environ: Mapping[str, str]) -> str:
    """Absolute path of the `python` of VIRTUAL_ENV, else of CONDA_PREFIX, else of PATH: what the
    user gets by typing `python`, and never the interpreter of this program, which may be installed
    in an environment of its own (pipx), without torch. Links are not resolved: Python finds a
    virtual environment by the path of the link.

    Raises InvalidRequest if there is none.
    """
    windows = os.name == "nt"
    for variable in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        below = "" if windows and variable == "CONDA_PREFIX" else "Scripts" if windows else "bin"
        path = os.path.join(environ.get(variable, ""), below, "python.exe" if windows else "python")
        # a shell may name an environment that was removed
        if environ.get(variable) and os.path.exists(path):
            return os.path.abspath(path)
    for name in ("python", "python3"):
        if found := shutil.which(name, path=environ.get("PATH", "")):
            return os.path.abspath(found)
    raise InvalidRequest(
        "there is no python in PATH", hint="activate the environment that the script needs"
    )
