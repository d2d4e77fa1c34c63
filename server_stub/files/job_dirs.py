"""Paths of the directories of an attempt, below the directory of its job, and a way to open files
there whose processes may run under another account than this server.

A server that runs as root starts the jobs of each user under an account of the user. Such a process
can replace a file that the server reads by a symbolic link, a pipe, or a hard link to a file of
another account. Each `folder` given here lies in a folder that only the server can change, so the
server can rely on its owner.
"""

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

SMALL = 256 * 2**20  # bytes of the largest file that the server reads as a whole
_NOT_A_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR, errno.ENOTDIR)


def attempt_dir(job_dir: Path, attempt: int) -> Path:
    return job_dir / "attempts" / str(attempt)


def worker_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    return attempt_dir(job_dir, attempt) / "workers" / str(worker)


def log_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    """Folder of one worker's log segments (client_lib.launcher_protocol.record),
    the same for every runtime.
    """
    return worker_dir(job_dir, attempt, worker) / "log"


def inputs_dir(job_dir: Path, attempt: int) -> Path:
    """Folder with what a local attempt gets of other jobs (see `inputs`)."""
    return attempt_dir(job_dir, attempt) / "inputs"


def opener(folder: Path, most: int | None = SMALL) -> Callable[[str, int], int]:
    """Make an `opener` for open(): it opens only regular files of at most `most` bytes, and in a
    server of root only those that belong to the owner of `folder`. For anything else it raises
    FileNotFoundError, as for a missing file."""

    def open_owned(path: str, flags: int) -> int:
        try:  # without O_NONBLOCK a pipe would block
            fd = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _NOT_A_FILE:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
            raise
        there = os.fstat(fd)
        # The jobs of a server without root have the server's own account, whatever owner a network
        # file system shows.
        owned = os.geteuid() != 0 or there.st_uid == os.lstat(folder).st_uid
        if stat.S_ISREG(there.st_mode) and owned and (most is None or there.st_size <= most):
            return fd
        os.close(fd)
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    return open_owned


def open_to_append(path: Path) -> int:
    """Open a file of the owner of its folder to append to it; it is made if it
    is missing. Raises OSError.
    """
    try:
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return opener(path.parent, None)(str(path), os.O_WRONLY | os.O_APPEND)
    folder = os.lstat(path.parent)
    if folder.st_uid != os.geteuid():
        os.fchown(fd, folder.st_uid, folder.st_gid)
    return fd


class OpenFile:
    """A descriptor for reading. It is closed with the last reference to this object, so a thread
    that still reads keeps it open."""

    def __init__(self, path: str, folder: Path) -> None:
        """Raises FileNotFoundError: see `opener`."""
        self.path = path
        self.descriptor = opener(folder, None)(path, os.O_RDONLY)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)
