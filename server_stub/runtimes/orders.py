"""What the planners of all runtimes read alike from an attempt: command, working directory, options. Pure."""

from __future__ import annotations

import os.path
import re
from enum import Enum, auto

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.wire import CodeSnapshot
from server_stub.runtimes import Attempt

RANK_RUNNER = "CLIENT_LIB_RANK_RUNNER"
"""0 in a job's environment: its ranks start as plain `python script`."""


_FUNCTION = re.compile(r"\w+\(\)")


class Fate(Enum):
    """What a runtime makes of a field of the spec; none is ignored in silence."""

    HONOURED = auto()
    SERVICE = auto()  # honoured, by the service: the same on every runtime
    REFUSED = auto()  # unless it asks for nothing
    NAMED = auto()  # it means nothing here, or another thing: a notice says so


def calls_function(spec: JobSpec) -> bool:
    """Whether the job calls a function: its name, and not a script, stands in the spec."""
    return _FUNCTION.fullmatch(spec.script) is not None


def from_caller(attempt: Attempt, path: str) -> str:
    """A relative path counts from where the submitter stood, `~/` is the submitter's home."""
    if path.startswith("~/") and "HOME" in attempt.submitter.environment:
        path = attempt.submitter.environment["HOME"] + path[1:]
    return os.path.normpath(os.path.join(attempt.submitter.working_dir or "/", path))


def command(attempt: Attempt) -> list[str]:
    """The words of the script or command; a script's path is absolute, in a snapshot relative to its root."""
    words = attempt.spec.command()
    if attempt.spec.python_script is None:
        return words
    if isinstance(attempt.code, CodeSnapshot):
        return [attempt.code.script or words[0], *words[1:]]
    return [from_caller(attempt, words[0]), *words[1:]]


def working_dir(attempt: Attempt, default: str) -> str:
    """In place: as asked, else the caller's, else the script's folder, else `default`. In a snapshot the client has
    chosen it."""
    if isinstance(attempt.code, CodeSnapshot):
        return attempt.code.working_dir
    if attempt.spec.working_dir is not None:
        return from_caller(attempt, attempt.spec.working_dir)
    if attempt.submitter.working_dir is not None:
        return attempt.submitter.working_dir
    script = attempt.spec.python_script
    return os.path.dirname(script) if script else default


def local_rank(spec: JobSpec) -> tuple[str | None, bool]:
    """(argument, auto) of the plan. Asked for outright, it is passed also where the script declares no such option.

    `pytorch` asks for it, as torch.distributed.launch did; an elastic agent hands on one command line to all its ranks.
    """
    if spec.pytorch_use_env or spec.type is JobType.PYTORCH_ELASTIC:
        return None, False
    if spec.pytorch_use_env is None and spec.type is not JobType.PYTORCH:
        return None, True
    return "--local_rank", True


def log_share(spec: JobSpec, limit_bytes: int) -> int:
    """Bytes that one worker may log in one attempt, where the whole job may log `limit_bytes`."""
    return max(1, limit_bytes // (spec.n_workers * (1 + (spec.max_retry or 0))))


def volume_words(volume: str) -> tuple[str, str, bool]:
    """(name, path, read only) of `name:path[:ro]`. Raises InvalidRequest: it is not of that form."""
    parts = volume.split(":")
    read_only = parts[2:] == ["ro"]
    if len(parts) not in (2, 3) or (len(parts) == 3 and not read_only) or not all(parts) or parts[1][0] != "/":
        raise InvalidRequest(f"volume {volume!r} is not of the form name:/path or name:/path:ro")
    return parts[0], parts[1], read_only


def check_paths(spec: JobSpec, working_dir: str | None) -> None:
    """Raises InvalidRequest: a relative path, and the request doesn't say from where."""
    if working_dir is not None:
        return
    relative = {"script": spec.python_script, "working_dir": spec.working_dir, "checkpoint_dir": spec.checkpoint_dir}
    for name, path in relative.items():
        if path is not None and not path.startswith(("/", "~/")):
            raise InvalidRequest(
                f"{name}={path!r} is relative, and the request names no folder to start from",
                hint="give an absolute path, or submitter.working_dir",
            )
