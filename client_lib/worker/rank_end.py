"""Reads how a rank ended from its exit, its error file and its last lines."""

import contextlib
import json
import os
import re
from typing import List, Optional, Sequence, Tuple

from client_lib.durable import read_json
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.exceptions import (
    Raised,
    exception_before,
    exception_of_error_file,
    exception_of_lines,
    headline,
    unwrapped,
)
from client_lib.launcher_protocol.outcome import LAST_LINES, Ended, is_peer_loss
from client_lib.launcher_protocol.processes import content, open_files, parent, pids
from client_lib.launcher_protocol.script_end import script_end_of_text
from client_lib.launcher_protocol.termination import shortened
from client_lib.worker.ranks import Exit
from client_lib.worker.worker_log import Printed

_ERROR_FILE_MAX = 1024 * 1024
# Bounds in characters: a server reads a report of at most 16 MiB, which may be of many ranks.
_EXCEPTION_MAX = 16 * 1024
_TRACEBACK_MAX = 64 * 1024
# a traceback printed longer than this before the process was gone is taken for a handled one
_TEARDOWN_S = 10.0
_NOTHING_AFTER = 5  # lines: the rest of a message
_TORCHS_MARK = re.compile(r"^\[rank\d+\]: ")  # before each line of a traceback that torch prints
_UNCAUGHT = 1  # exit code of Python after an uncaught exception


def ended(exit: Exit, error_file: str, printed: Printed, owner: str, end_file: str = "") -> Ended:
    """The end of one rank. A rank that had raised its exception before we stopped it is reported as
    it would have ended by itself. `owner`: the user whose job it is. `end_file`: the path of the
    rank's `ScriptEnd`; "": none."""
    failed = exit.exit_code != 0
    raised = _raised(exit, error_file, printed) if failed else Raised()
    code = exit.exit_code
    signal = exit.signal
    stopped = exit.stopped_at is not None
    if exit.stopped_at is not None and raised.at is not None and raised.at <= exit.stopped_at:
        code = code or _UNCAUGHT
        signal = None
        stopped = False
    last = last_lines(printed.lines)
    # a traceback in the lines of a rank that a signal killed may be of an exception that it had
    # handled
    ended_it = raised if signal is None or raised.at is not None else Raised()
    told = _explained(raised, printed, owner)
    return Ended(
        rank=exit.rank,
        exit_code=code,
        signal=signal,
        started_at=exit.started_at,
        ended_at=exit.ended_at,
        failed_at=exit.ended_at if raised.at is None else min(raised.at, exit.ended_at),
        stopped_by_us=stopped,
        lost_peer=failed and is_peer_loss(signal, ended_it.exception, ended_it.traceback, last),
        exception=told.exception and shortened(told.exception, _EXCEPTION_MAX),
        traceback=told.traceback and shortened(told.traceback, _TRACEBACK_MAX),
        last_lines=last,
        script_end=script_end_of_text(_read(end_file)[0]),
    )


def _raised(exit: Exit, error_file: str, printed: Printed) -> Raised:
    text, written_at = _read(error_file)
    raised = exception_of_error_file(text)
    if raised.exception is not None:
        return raised._replace(at=raised.at or written_at)
    streams = [[_TORCHS_MARK.sub("", line) for line in stream] for stream in printed.lines]
    for stream in reversed(streams):
        raised = exception_of_lines(stream)
        if raised.exception:
            is_last = stream is streams[-1] and raised.exception in stream[-_NOTHING_AFTER:]
            is_new = printed.until >= (exit.stopped_at or exit.ended_at) - _TEARDOWN_S
            return raised._replace(at=printed.until if is_last and is_new else None)
    return Raised()


_LOST_CHILD = r"DataLoader worker \(pid|ProcessExitedException|[/\\]multiprocessing[/\\]popen_"
"""Exceptions that say of another process only that it has ended."""


def _explained(raised: Raised, printed: Printed, owner: str) -> Raised:
    """The exception with what this process knows of its cause, in a line before."""
    if raised.exception is None:
        return raised
    if re.search(_LOST_CHILD, "%s\n%s" % (raised.exception, raised.traceback)):
        stderr = printed.lines[-1] if printed.lines else []
        child = exception_before([_TORCHS_MARK.sub("", line) for line in stderr])
        if child.exception is not None and child.traceback is not None:
            again = "_fixup_main_from_path" in child.traceback
            who = "a spawned process ran the script again" if again else "a child process failed"
            exception = "%s: %s\n%s" % (who, headline(child.exception), raised.exception)
            traceback = "%s\n%s" % (child.traceback, raised.traceback or "")
            return Raised(exception, traceback, raised.at)
    return raised._replace(exception=_with_holder(unwrapped(raised.exception), owner))


def exception_at_the_end(streams: Sequence[List[str]]) -> Optional[str]:
    """The exception of a traceback with which a stream ends; None: there is none."""
    for stream in reversed(streams):
        lines = [_TORCHS_MARK.sub("", line) for line in stream]
        found = exception_of_lines(lines).exception
        if found is not None and found in lines[-_NOTHING_AFTER:]:
            return found
    return None


def last_lines(lines: Sequence[List[str]]) -> List[str]:
    """The last lines of a process, stderr's at the end: it has the error, and a chatty
    stdout must not push it out.
    """
    if len(lines) != 2:
        return []
    stdout, stderr = lines
    of_stderr = min(len(stderr), LAST_LINES // 2)
    of_stdout = LAST_LINES - of_stderr
    return (stdout[-of_stdout:] + stderr)[-LAST_LINES:]


def failed_below(error_file: str, lines: Sequence[str], rank: int) -> int:
    """The rank that failed first below an elastic agent; if that is not known, `rank`, the agent's
    own. The failed rank has written the agent's error file (rank_runner/), or torch names the rank
    in `lines`, the agent's last lines."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return int(json.loads(_read(error_file)[0])["message"]["extraInfo"]["rank"])
    cause = next((n for n, line in enumerate(lines) if line.startswith("Root Cause")), len(lines))
    ranks = (re.match(r"\s+rank\s*: (\d+) \(local_rank", line) for line in lines[cause:])
    return next((int(found.group(1)) for found in ranks if found), rank)


def _read(error_file: str) -> Tuple[str, Optional[float]]:
    """(text, time of writing); ("", None) without a file."""
    try:
        with open(error_file, encoding="utf-8", errors="replace") as file:
            return file.read(_ERROR_FILE_MAX), os.fstat(file.fileno()).st_mtime
    except OSError:
        return "", None


# --- the holder of a port that a rank needs (Linux)

_IN_USE = "EADDRINUSE"
_PORT = r"port: ?(\d+)"
_LISTENS = "0A"  # state of a socket, as in include/net/tcp_states.h


def _with_holder(exception: str, owner: str) -> str:
    """The exception, with a first line that names the holder of the port if that is visible to this
    process. `owner`: the reader, who sees no name of another's job."""
    found = re.search(_PORT, exception) if _IN_USE in exception else None
    if not found:
        return exception
    port = found.group(1)
    sockets = set()
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in map(str.split, content(path).decode().splitlines()[1:]):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == int(port):
                sockets.add("socket:[%s]" % fields[9])
    holder = (
        next((pid for pid in pids() if not sockets.isdisjoint(open_files(pid))), None)
        if sockets
        else None
    )
    if holder is None:
        return exception
    job = _job_of(holder, owner)
    line = content("/proc/%d/cmdline" % holder).replace(b"\0", b" ")
    command = line.decode("utf-8", "replace").strip()[:200] or "ended since"
    told = "%s (process %d)" % (job, holder) if job else "process %d (%s)" % (holder, command)
    return "port %s is held by %s\n%s" % (port, told, exception)


def _job_of(pid: int, owner: str) -> Optional[str]:
    """The job of the launcher among the process's ancestors: a launcher holds the
    lock of its directory open.
    """
    above: Optional[int] = pid
    while above is not None and above > 1:
        for link in open_files(above):
            plan = None
            if link.endswith("/lock"):
                with contextlib.suppress(OSError):  # another user's
                    plan = read_json(Directory(os.path.dirname(link)).plan)
            if plan and "job" in plan:
                return (
                    "job %s" % plan["job"]
                    if plan.get("owner", "") == owner
                    else "another user's job"
                )
        above = parent(above)
    return None
