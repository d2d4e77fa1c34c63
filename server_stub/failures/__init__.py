"""Explains a failed attempt: the meaning of its exit code, and known causes with their remedies (`hints`).

`explain` and `script_change` look up facts on this machine's disk and may block: call them in a thread.

Which rank failed first is decided in `client_lib.worker.outcome`; nothing here chooses a rank.
"""

from __future__ import annotations

import hashlib
import os
import signal as signals
import stat
from collections.abc import Callable

from client_lib.spec.wire import CodeInPlace, CodeSnapshot, Failure, JobInfo, RankReport
from server_stub.failures.hints import Facts, hint_for, missing_file, path_beside_submitter
from server_stub.runtimes import NO_RANK

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


def exit_meaning(exit_code: int | None, signal: int | None) -> str | None:
    """The meaning of an exit code or signal; None for success and for a code without a known meaning."""
    if signal is None and exit_code is not None and exit_code > 128:
        signal = exit_code - 128  # a shell or container between the launcher and the process reports a signal like this
    if signal is not None:
        return _SIGNALS.get(signal) or _signal_name(signal)
    return _CODES.get(exit_code) if exit_code is not None else None


def diagnose(worker: int, rank: RankReport, facts: Facts) -> Failure:
    """The failure of this rank. `exit_code` is 128 + signal if a signal ended the rank, as in a shell."""
    if rank.rank == NO_RANK:  # the job's message explains the end of its setup
        lines, hint = rank.last_lines, hint_for(rank, facts)
        return Failure(worker=worker, exit_code=rank.exit_code, last_lines=lines, hint=hint)
    return Failure(
        worker=worker,
        rank=rank.rank,
        exit_code=rank.exit_code if rank.signal is None else 128 + rank.signal,
        signal=rank.signal,
        meaning=exit_meaning(rank.exit_code, rank.signal),
        exception=rank.exception,
        traceback=rank.traceback,
        last_lines=rank.last_lines,
        hint=hint_for(rank, facts),
    )


def _signal_name(signal: int) -> str | None:
    try:
        return f"ended by {signals.Signals(signal).name}"
    except ValueError:
        return None


def explain(worker: int, rank: RankReport, info: JobInfo, python_of: Callable[[], str | None]) -> Failure:
    """The failure of the rank that ended the attempt. `python_of` returns the submitter's interpreter."""
    return diagnose(worker, rank, Facts(info.code, python_of(), _beside_submitter(rank, info)))


def script_change(info: JobInfo, script_path: str) -> str | None:
    """A notice if a script that runs in place was changed after it was submitted."""
    if not (isinstance(info.code, CodeInPlace) and info.code.sha256):
        return None
    try:
        now = hashlib.sha256(_read_file(script_path)).hexdigest()
    except OSError:  # gone or unreadable: its ranks report that
        return None
    if now == info.code.sha256:
        return None
    return f"{script_path} was changed after it was submitted; attempt {info.attempt} runs it as it is now"


def _read_file(path: str) -> bytes:
    """Raises OSError: it is a device or a pipe, which may have no end."""
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read()


def _beside_submitter(rank: RankReport, info: JobInfo) -> str | None:
    path = missing_file(rank)
    if path is None or not isinstance(info.code, CodeSnapshot):
        return None
    beside = path_beside_submitter(path, info.code)
    return beside if beside and os.path.exists(beside) else None
