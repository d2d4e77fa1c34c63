"""Finds the job or the process that listens on a TCP port which a script needs, for the message "address in use".

Works on Linux only.
"""

import os
import re
from typing import Iterator, Optional

from client_lib.worker.directory import Directory, read_json
from client_lib.worker.system import content, open_files, parent, pids

_IN_USE = "EADDRINUSE"
_PORT = r"port: ?(\d+)"
_LISTENS = "0A"  # state of a socket, as in include/net/tcp_states.h


def named(exception: Optional[str], owner: str) -> Optional[str]:
    """The exception, with a last line that names the holder of the port if that is known. `owner`: the reader."""
    found = re.search(_PORT, exception) if exception and _IN_USE in exception else None
    holder = holder_of(int(found.group(1)), owner) if found else None
    return "%s\nport %s is held by %s" % (exception, found.group(1), holder) if found and holder else exception


def holder_of(port: int, owner: str) -> Optional[str]:
    """`job train-x7k2m (process 4711)`, without the name of another owner's job; None: no process that is visible to
    this one."""
    sockets = {"socket:[%s]" % inode for inode in _listening(port)}
    for pid in pids() if sockets else ():
        if any(link in sockets for link in open_files(pid)):
            job = _job_of(pid, owner)
            return "%s (process %d)" % (job, pid) if job else "process %d (%s)" % (pid, _command(pid))
    return None


def _listening(port: int) -> Iterator[str]:
    """Inodes of the sockets that listen on the port, on any address."""
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        for fields in map(str.split, content(path).decode().splitlines()[1:]):
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                yield fields[9]


def _job_of(pid: int, owner: str) -> Optional[str]:
    """The job of the launcher among the process's ancestors: a launcher holds the lock of its directory open."""
    above: Optional[int] = pid
    while above is not None and above > 1:
        for link in open_files(above):
            if link.endswith("/lock"):
                job = _job_in(Directory(os.path.dirname(link)), owner)
                if job is not None:
                    return job
        above = parent(above)
    return None


def _job_in(directory: Directory, owner: str) -> Optional[str]:
    try:
        plan = read_json(directory.plan)
    except OSError:  # another user's
        return None
    if not plan or "job" not in plan:
        return None
    return "job %s" % plan["job"] if plan.get("owner", "") == owner else "another user's job"


def _command(pid: int) -> str:
    line = content("/proc/%d/cmdline" % pid).replace(b"\0", b" ").decode("utf-8", "replace")
    return line.strip()[:200] or "ended since"
