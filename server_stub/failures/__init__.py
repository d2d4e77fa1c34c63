"""Explains a failed attempt: the meaning of its exit code, and the way out of a known cause
(`causes`).

`explain` and `script_change` look up facts on this machine's disk and may block: call them in a
thread.

Which rank failed first is decided in `client_lib.launcher_protocol.outcome`; nothing here chooses a
rank.
"""

import hashlib
import os
import re
import signal as signals
import stat
from collections.abc import Callable
from importlib.metadata import packages_distributions
from pathlib import PurePosixPath

from client_lib.spec.command_line import own_module
from client_lib.spec.job import JobSpec
from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeInPlace, CodeSnapshot
from client_lib.spec.wire import Failure, JobInfo
from client_lib.worker.function_runner import package_of
from server_stub.failures.causes import evidence, first_cause

_CODES = {
    1: "an error in the script",
    2: "wrong usage: most often arguments that the script refused",
    120: "its output could not be written at its end",
    124: "a timeout inside the script",
    126: "the command was found but can't be executed",
    127: "command not found",
}
_SIGNALS = {
    1: "hung up",
    2: "interrupted",
    3: "quit",
    4: "illegal instruction: a library built for another processor",
    6: "aborted: a library gave up (its last lines say why)",
    7: "bus error: most often /dev/shm is full",
    8: "arithmetic error",
    9: "killed, most often out of memory",
    11: "segmentation fault",
    13: "wrote to a closed pipe",
    15: "terminated",
    24: "CPU time limit exceeded",
    25: "file size limit exceeded",
}
_MISSING_FILE = re.compile(r"No such file or directory: b?'([^'\n]+)'|can't open file '([^'\n]+)'")

_MISSING_PACKAGE = re.compile(r"No module named '?([A-Za-z_]\w*)")


def explain(failure: Failure, info: JobInfo, python_of: Callable[[], str | None]) -> Failure:
    """The failure that ended the attempt, with meaning and hint. `python_of` returns
    the submitter's interpreter.
    """
    path = missing_file(failure)
    beside = (
        path_beside_submitter(path, info.code)
        if path and isinstance(info.code, CodeSnapshot)
        else None
    )
    hint = _own_package(failure, info) or hint_for(
        failure, python_of(), beside if beside and os.path.exists(beside) else None, info.spec
    )
    # without a rank it is the end of the job's setup, which its message explains
    meaning = None if failure.rank is None else exit_meaning(failure.exit_code)
    return replaced(failure, meaning=meaning, hint=hint)


def _own_package(failure: Failure, info: JobInfo) -> str | None:
    """The way out where the missing package is a folder of the user above the script's own."""
    script = info.spec.python_script
    found = _MISSING_PACKAGE.search("\n".join(evidence(failure)))
    if not found or script is None or not os.path.isabs(script):
        return None
    own = own_module(script, found[1])
    return own and (
        f"{found[1]} is a folder of {own.folder}, where the script does not look: start it there "
        f"as `python -m {own.module}`, or with env_variables={{'PYTHONPATH': '{own.folder}'}}"
    )


def exit_meaning(code: int | None) -> str | None:
    """The meaning of an exit code, which is 128 + signal if a signal ended the process, or one
    below it in a shell or container; None for success and for a code without a known meaning."""
    if code is None or code <= 128:
        return None if code is None else _CODES.get(code)
    names = {int(each): f"ended by {each.name}" for each in signals.Signals}
    return (names | _SIGNALS).get(code - 128)


def hint_for(
    failure: Failure,
    python: str | None = None,
    beside_submitter: str | None = None,
    spec: JobSpec | None = None,
) -> str | None:
    """The way out of the cause that ended the rank; None if the cause is no known one.
    `python`: the submitter's interpreter. `beside_submitter`: the missing file in the submitter's
    folder; None: it is not there, or the folder can't be seen. `spec`: the job's fields, for hints
    that name its size."""
    if beside_submitter:
        return (
            f"{beside_submitter} exists, but the snapshot left it out: an ignore file "
            "(.gitignore, .clientlibignore) matches it. Add `!<its path>` to .clientlibignore, "
            "or give an absolute path that the workers see"
        )
    found = first_cause(failure)
    if found is None:
        return None
    named = {"python": python or "python", **_size(spec), **found.named}
    if "module" in named:
        named["package"] = _package_of(named["module"])
    return found.cause.hint.format_map(named)


def _size(spec: JobSpec | None) -> dict[str, str]:
    """The number of workers and of ranks of a job, as words for a hint."""
    if spec is None:
        return {"workers": "n_workers", "ranks": "more"}
    processes = spec.processes_per_worker
    ranks = str(spec.n_workers * processes) if isinstance(processes, int) else "more"
    return {"workers": str(spec.n_workers), "ranks": ranks}


def _package_of(module: str) -> str:
    """The package that has a module. Of a module that few scripts use it is known only if the
    environment of this server has the module."""
    package = package_of(module)
    name = module.partition(".")[0]
    here = packages_distributions().get(name, []) if package == name else []
    return here[0] if len(set(here)) == 1 else package


def missing_file(failure: Failure) -> str | None:
    """The path that the rank could not open, as its error names it."""
    match = _MISSING_FILE.search("\n".join(evidence(failure)))
    return (match.group(1) or match.group(2)) if match else None


def path_beside_submitter(path: str, code: CodeSnapshot) -> str | None:
    """Path in the submitted folder of a file that is missing in the unpacked
    snapshot; None if it lies outside.
    """
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        if "work" not in parts:  # snapshots are unpacked in `work/` of the worker's directory
            return None
        inside = parts[len(parts) - parts[::-1].index("work") :]
        return str(PurePosixPath(code.root, *inside))
    return str(PurePosixPath(code.root, code.working_dir, path))


def script_change(info: JobInfo, script_path: str) -> str | None:
    """A notice if a script that runs in place was changed after it was submitted."""
    if not (isinstance(info.code, CodeInPlace) and info.code.sha256):
        return None
    try:
        with open(
            script_path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)
        ) as file:
            # a device or a pipe may have no end
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return None
            now = hashlib.sha256(file.read()).hexdigest()
    except OSError:  # gone or unreadable: its ranks report that
        return None
    if now == info.code.sha256:
        return None
    return (
        f"{script_path} was changed after it was submitted; attempt {info.attempt} runs it as it "
        "is now"
    )
