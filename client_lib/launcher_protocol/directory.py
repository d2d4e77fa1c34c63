"""The directory of one worker, which runtimes and the launcher share: its files, the lock of a
living launcher, and the reserve of room for its end.
"""

import contextlib
import json
import os
import socket
import sys

from client_lib.durable import allocate, remove, take
from client_lib.launcher_protocol.processes import boot_id, start_time

if sys.platform != "win32":  # where clients know the names of the files alone
    import fcntl

MARKER = "CLIENT_LIB_WORKER_DIR"
"""Variable in the environment of every process of a worker; empty: the process belongs to no
worker."""
IMPORTS = "imports"
"""Name of a file; rank_runner/imports.py uses the same name."""
STACKS = "stacks"
"""Name of a folder; rank_runner/this_rank.py uses the same name."""
ALREADY_RUNS = 75
"""Exit code of a launcher that found the lock taken."""
ALREADY_RAN = 76
"""Exit code of a launcher that found the traces of another: nothing starts twice in one
directory."""


class Directory:
    """Paths below the directory of one worker."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.plan = self._below("plan.json")
        """The plan (plan.py). Mode 0600, because it holds the environment."""
        self.lock = self._below("lock")
        """Held by the launcher for its whole life. Content: {pid, start_time, boot_id, host}."""
        self.control = self._below("control.sock")
        """The control socket (control.py)."""
        self.output = self._below("launcher.out")
        """Errors of a launcher that cannot even start."""
        self.processes = self._below("processes.json")
        """{rank: {pid, pgid, start_time}}, written as soon as the ranks run; to clean up after a
        dead launcher."""
        self.log = self._below("log")
        """Segments of the log (log_segments.py)."""
        self.errors = self._below("errors")
        """TORCHELASTIC_ERROR_FILE of each rank."""
        self.metrics = self._below("metrics")
        """Pipe to which ranks write their metrics (client_lib.tracking); there if the plan allows
        to observe."""
        self.status_token = self._below("status-token")
        """Token of the receiver of metrics that libraries post."""
        self.rank_pipes = self._below("ranks")
        """Output pipes of an elastic worker's ranks."""
        self.imports = self._below(IMPORTS)
        """JSON list of installed modules that local rank 0 had imported at its end; there if the
        plan asks for it."""
        self.stacks = self._below(STACKS)
        """A file per rank, to which it writes its stacks; there if the plan allows to take
        stacks."""
        self.stacks_taken = self._below("stacks.json")
        """The stacks of all ranks, as they were last taken."""
        self.work = self._below("work")
        """The unpacked snapshot; complete as soon as it is there."""
        self.inputs = self._below("inputs")
        """In a pod: the outputs of the jobs that this job waited for."""
        self.outputs = self._below("outputs")
        """List of the files that existed before the ranks ran."""
        self.environment = self._below("environment.json")
        """The environment with extra packages."""
        self.reserve = self._below("reserve")
        """Takes up room that is needed at the end on a full disk."""
        self.report = self._below("report.json")
        """The end of the worker (report.py); complete as soon as it is there."""

    def _below(self, name: str) -> str:
        return os.path.join(self.path, name)

    def error_file(self, rank: int) -> str:
        return os.path.join(self.errors, "%d.json" % rank)


def is_removed(path: str) -> bool:
    """True if there is no such folder. Another error, as of a file system that is away, is no
    sign of a removal."""
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def has_content(folder: str) -> bool:
    """True if a file or folder is in the folder; False: it is empty, or can't be read."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        return next(entries, None) is not None
    return False


def renew(directory: Directory) -> None:
    """Prepare the directory of a dead launcher, none of whose processes is alive, for another one.
    The log continues, and the unpacked code stays as the ranks left it."""
    for path in (
        directory.lock,
        directory.control,
        directory.processes,
        directory.report,
        directory.imports,
    ):
        remove(path)
    try:  # not through a link in the place of the folder
        fd = os.open(directory.errors, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return
    try:
        for name in os.listdir(fd):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=fd)
    finally:
        os.close(fd)


class Taken(Exception):
    """Another launcher holds the lock, or held it before. `exit_code` is
    ALREADY_RUNS or ALREADY_RAN.
    """

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


def acquire(path: str) -> int:
    """Take the lock while the returned descriptor is open, and write the holder
    into the file. Raises Taken.
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    if not take(fd, fcntl.LOCK_EX):
        os.close(fd)
        raise Taken("another launcher holds %s" % path, ALREADY_RUNS)
    if os.fstat(fd).st_size:
        os.close(fd)
        raise Taken("another launcher held %s before" % path, ALREADY_RAN)
    pid = os.getpid()
    holder = {
        "pid": pid,
        "start_time": start_time(pid),
        "boot_id": boot_id(),
        "host": socket.gethostname(),
    }
    os.pwrite(fd, json.dumps(holder).encode(), 0)
    return fd


# --- the reserve: a file whose room is needed for the last lines of a worker and its report

_RESERVED = 256 * 1024
"""Bytes for the launcher, and again for each of its processes: two pipes of 64 KiB and their
overhead."""


def take_reserve(path: str, processes: int) -> None:
    """Make the reserve of a worker with so many processes, unless it is there.

    Raises:
        OSError: there is no room.
    """
    if os.path.exists(path):
        return
    size = _RESERVED * (1 + processes)
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        allocate(fd, size)
    except OSError as error:
        os.unlink(path)
        raise OSError(error.errno, error.strerror, path) from None
    finally:
        os.close(fd)


def give_up_reserve(path: str) -> None:
    """Remove the reserve, so that others can use its room."""
    with contextlib.suppress(OSError):
        os.unlink(path)
