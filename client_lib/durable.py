"""Files that are written durably, locks between processes, and room on a disk that may be full.

The command line, the server and the launcher share these functions. Standard library only,
Python >= 3.8; on Windows, where clients run, the locks are missing.
"""

import contextlib
import errno
import json
import os
import sys
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Union

if sys.platform != "win32":  # where clients use other functions of this module
    import fcntl

Opener = Callable[[str, int], int]
"""Opens a file by path and flags, as the `opener` of open() does: a server may have
to refuse links and pipes.
"""


# --- locks


def is_held(path: str, opener: Opener = os.open) -> bool:
    """True if a process holds the lock now; False also without a lock file."""
    try:
        fd = opener(path, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        return not take(fd, fcntl.LOCK_SH)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: str, wait: bool = True) -> Iterator[bool]:
    """Hold the exclusive lock of a file inside; yields False if another process holds a
    lock (only without `wait`).
    """
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        yield take(fd, fcntl.LOCK_EX, wait)
    finally:
        os.close(fd)


def take(fd: int, kind: int, wait: bool = False) -> bool:
    """Take a lock, LOCK_EX or LOCK_SH; False if another process holds one that excludes
    it (only without `wait`).
    """
    try:
        fcntl.flock(fd, kind | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True


# --- files


def remove(path: str) -> None:
    """Remove the file if it is there."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def read_json(path: str, opener: Optional[Opener] = None) -> Optional[Dict[str, Any]]:
    """The object in a file of this directory; None: it is missing or incomplete."""
    try:
        with open(path, encoding="utf-8", opener=opener) as file:
            data = json.load(file)
    except (FileNotFoundError, ValueError, RecursionError):
        return None
    return data if isinstance(data, dict) else None


def last_line(path: str, opener: Optional[Opener] = None) -> str:
    """The last line of a text file; "": the file is empty, or can't be read."""
    try:
        with open(path, encoding="utf-8", errors="replace", opener=opener) as file:
            return (file.read().strip().splitlines() or [""])[-1]
    except OSError:
        return ""


def write_json(path: str, data: Mapping[str, object], durable: bool = False) -> None:
    """Write an object as `write_file` does."""
    write_file(path, json.dumps(data).encode(), durable)


def write_file(path: str, data: bytes, durable: bool = False) -> None:
    """Write a complete file atomically, for this user alone; `durable`: it is on the
    disk before it gets its name.
    """
    temporary = path + ".new"
    remove(temporary)  # of a killed process; or a pipe of the job's, at which `open` would wait
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(data)
            file.flush()
            if durable:
                os.fsync(fd)
        os.replace(temporary, path)
    except OSError:
        remove(temporary)  # a full disk, say; the data may hold a token
        raise


def private(path: str, flags: int) -> int:
    """Open a file, as an `opener` of open(): a new one is for this account alone, whatever the
    umask."""
    return os.open(path, flags, 0o600)


def make_private_folders(path: str) -> None:
    """Make a folder with what is missing above it, each for this account alone, whatever the umask;
    `mode` of os.makedirs is for the last folder alone. A folder that is there stays as it is."""
    above = os.path.dirname(path)
    if above and not os.path.isdir(above):
        make_private_folders(above)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def sync(path: "Union[str, os.PathLike[str]]") -> None:
    """Write a file, or the list of names in a folder, through to the disk, so that it
    survives a loss of power.
    """
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sha256_of(path: "Union[str, os.PathLike[str]]") -> str:
    """Digest of a whole file."""
    import hashlib  # here: few launchers need it

    found = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1024 * 1024), b""):
            found.update(block)
    return found.hexdigest()


def write_all(fd: int, data: bytes) -> None:
    """Write all bytes to a descriptor. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


# --- room on a disk

_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAYS_FULL = tuple("[Errno %d]" % number for number in _FULL) + tuple(map(os.strerror, _FULL))
_LEAST = 64 * 1024  # with fewer bytes free, file systems refuse to create a file


def is_full(error: BaseException) -> bool:
    """True if the error says that the disk, or the user's quota on it, is full."""
    if not isinstance(error, OSError):
        return False
    # shutil joins errors of files
    return error.errno in _FULL or (error.errno is None and says_full(str(error)))


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


def allocate(fd: int, size: int) -> None:
    """Make the file at least so large, with room on the disk for its whole size. Raises OSError."""
    try:
        os.posix_fallocate(fd, 0, size)
    except (AttributeError, OSError) as error:  # macOS, or a file system without support for it
        if is_full(error):
            raise
        write_all(fd, bytes(size - os.lseek(fd, 0, os.SEEK_END)))


def copy_folder(source: str, target: str, keep_free: int) -> None:
    """Copy a folder. `target`, which may be an empty folder, has a complete copy or none. Raises
    OSError, also if fewer than `keep_free` bytes of the disk would stay free."""
    import shutil

    incomplete = target + ".new"
    shutil.rmtree(incomplete, ignore_errors=True)  # of a launcher that was killed
    os.makedirs(os.path.dirname(target), exist_ok=True)
    check_room(os.path.dirname(target), size_of(source), keep_free)
    try:
        shutil.copytree(source, incomplete, symlinks=True)
        # replaces an empty one, which another worker may have made meanwhile
        os.rename(incomplete, target)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise
