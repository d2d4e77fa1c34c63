"""Room on a disk that may be full."""

import contextlib
import errno
import os
from typing import Iterator, Optional

from client_lib.worker.directory import write_all

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAYS_FULL = tuple("[Errno %d]" % number for number in _FULL) + tuple(map(os.strerror, _FULL))
_LEAST = 64 * 1024  # with fewer bytes free, file systems refuse to create a file
# for the launcher, and again for each of its processes: two pipes of 64 KiB and their overhead
_RESERVED = 256 * 1024


def is_full(error: BaseException) -> bool:
    """True if the error says that the disk, or the user's quota of it, is full."""
    if not isinstance(error, OSError):
        return False
    return error.errno in _FULL or (
        error.errno is None and says_full(str(error))
    )  # shutil joins errors of files


def says_full(text: str) -> bool:
    """True for the text of such an error, as Python and C print it."""
    return any(part in text for part in _SAYS_FULL)


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Add the path to an OSError without one, such as an error of a write."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = path
        raise


def ended_program(folder: str, exit_code: Optional[int], last_line: str) -> bool:
    """True if a program ended because of a full disk: its last line in this folder says so, or it
    had no room to print. `exit_code`: negative for a signal; None: not known."""
    if last_line:
        return says_full(last_line)
    try:
        return (exit_code is None or exit_code > 0) and free_bytes(folder) < _LEAST
    except OSError:  # the folder is gone
        return False


def free_bytes(path: str) -> int:
    """Bytes that this user may still write to the disk of an existing path."""
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def size_of(folder: str) -> int:
    """Bytes that the files of a folder take on its disk."""
    paths = (os.path.join(parent, name) for parent, _, names in os.walk(folder) for name in names)
    return sum(os.lstat(path).st_blocks * 512 for path in paths)


def check_room(path: str, size: int, keep_free: int) -> None:
    """Raises OSError (ENOSPC, with the path) if `size` more leave fewer than
    `keep_free` bytes of its disk free.
    """
    free = free_bytes(path)
    if size + keep_free > free:
        kept = ", of which %s must stay free" % megabytes(keep_free) if keep_free else ""
        why = "%s are needed and the disk has %s free%s" % (megabytes(size), megabytes(free), kept)
        raise OSError(errno.ENOSPC, why, path)


def megabytes(size: int) -> str:
    return "{:,.1f} MB".format(size / 1e6)


# --- the reserve: a file that is removed when its room is needed for a worker's last lines and report


def take_reserve(path: str, processes: int) -> None:
    """Make the reserve of a worker with so many processes, unless it is there. Raises
    OSError if there is no room.
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


def allocate(fd: int, size: int) -> None:
    """Make the file at least so large, with room on the disk for all of it. Raises OSError."""
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:  # macOS, or a file system without support for it
        if is_full(error):
            raise
        write_all(fd, bytes(size - os.lseek(fd, 0, os.SEEK_END)))


def give_up(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)
