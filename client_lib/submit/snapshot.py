"""The code as it is now, in one archive: the same files give the same bytes and so the same digest,
on any machine. The archive has no times, no owners and no order of a directory. `ignore` decides
which files are in the archive; `worker.archive` unpacks it."""

import gzip
import heapq
import io
import os
import stat
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple

from client_lib.durable import megabytes, sha256_of
from client_lib.errors import InvalidRequest, TooLarge
from client_lib.launcher_protocol.output_globs import ENVIRONMENT_MARKS
from client_lib.submit.ignore import Ignore, never

LIMIT_FILES = 200_000  # in the archive that a worker unpacks
# Bytes of all files together. A server's own bound is on the archive, and has the same default.
LIMIT_BYTES = 2 * 2**30
TRIES = 3  # packing starts over when a file was changed meanwhile
# 1980-01-02: zip files, which user code may write from these, know no earlier day
_EPOCH = 315_619_200
_BLOCK = 1024 * 1024
_LEVEL = 3  # of gzip; 6 takes twice as long for 5 % less
# not all on each system
_FLAGS = sum(getattr(os, name, 0) for name in ("O_BINARY", "O_NOFOLLOW", "O_NONBLOCK"))
_LEAVE_OUT = "leave data out with .clientlibignore (the syntax of .gitignore)"
_KINDS = {
    stat.S_IFSOCK: "socket",
    stat.S_IFIFO: "named pipe",
    stat.S_IFBLK: "device",
    stat.S_IFCHR: "device",
}


class Entry(NamedTuple):
    name: str  # relative to the root, with slashes
    path: str
    mode: int  # type and permissions, from lstat
    size: int = 0
    target: str = ""  # of a link, relative to its folder


@dataclass(frozen=True)
class Packed:
    path: Path
    sha256: str
    size: int  # bytes of the archive
    names: frozenset[str]  # of the files in it
    skipped: tuple[str, ...]
    """A sentence each: what was left out or may be missed."""


@contextmanager
def packed(root: Path, limit_bytes: int = LIMIT_BYTES) -> Iterator[Packed]:
    """The archive of `root`, a temporary file that is gone when the block ends.

    Raises:
        TooLarge: more than `limit_bytes`; names the largest files.
        InvalidRequest: a file can't be read, or is changed each time it is packed; or the disk is
            full.
    """
    with tempfile.TemporaryDirectory(prefix="client-lib-") as folder:
        archive = Path(folder, "code.tar.gz")
        for tries_left in reversed(range(TRIES)):
            entries, skipped = list_files(root)
            check_size(entries, limit_bytes)
            try:
                skipped += _write(entries, archive)
                break
            except _Changed as changed:
                if not tries_left:
                    raise InvalidRequest(
                        f"{changed} is changed while the folder {root} is packed",
                        hint="add it to .clientlibignore, or submit when it is at rest",
                    ) from changed
            except OSError as error:
                message = f"there is no room for a snapshot of {root} in {folder}: {error.strerror}"
                raise InvalidRequest(
                    message, hint="set TMPDIR to a folder on another disk"
                ) from error
        names = frozenset(entry.name for entry in entries if stat.S_ISREG(entry.mode))
        yield Packed(archive, sha256_of(archive), archive.stat().st_size, names, tuple(skipped))


# --- which files


def list_files(root: Path) -> tuple[list[Entry], list[str]]:
    """All below `root` that is not ignored, in a fixed order, and a sentence for each special file
    and each link that leads out of `root`, which are left out. Only ignore files are read.
    """
    listed: list[Entry] = []
    skipped: list[str] = []
    resolved = os.path.realpath(root)

    def walk(directory: Path, relative: str, above: Ignore) -> None:
        try:
            with os.scandir(directory) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:  # removed since the folder above was read
            return
        except OSError as error:
            raise _unreadable(str(directory), error) from error
        if relative:
            if any(entry.name in ENVIRONMENT_MARKS for entry in entries):
                return
            listed.append(Entry(relative.rstrip("/"), str(directory), stat.S_IFDIR | 0o755))
        ignore = above.inside(directory, relative)
        for entry in entries:
            name = relative + entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            if never(entry.name) or ignore.matches(name + "/" if is_directory else name):
                continue
            if is_directory:
                walk(Path(entry.path), name + "/", ignore)
                continue
            with suppress(FileNotFoundError):  # removed since the directory was read
                status = entry.stat(follow_symlinks=False)
                taken: Entry | str = Entry(name, entry.path, status.st_mode, status.st_size)
                if stat.S_ISLNK(status.st_mode):
                    taken = _link(entry.path, name, resolved)
                elif not stat.S_ISREG(status.st_mode):
                    taken = (
                        f"a {_KINDS.get(stat.S_IFMT(status.st_mode), 'special file')} can't be "
                        "packed"
                    )
                if isinstance(taken, Entry):
                    listed.append(taken)
                else:
                    skipped.append(f"{name} was left out: {taken}")

    walk(root, "", Ignore())
    return listed, skipped


def _link(path: str, name: str, root: str) -> Entry | str:
    """A link stays a link where it leads to something inside the root; it is never followed, so a
    loop is harmless. For any other the reason why it is left out."""
    target = os.path.realpath(path)
    if not os.path.lexists(target) or os.path.islink(target):
        return f"a link to {os.readlink(path)}, which leads nowhere"
    if os.path.commonpath([target, root]) != root:
        return f"a link out of the folder, to {target}"
    here = os.path.dirname(os.path.join(root, name))
    return Entry(name, path, stat.S_IFLNK | 0o777, target=os.path.relpath(target, here))


def check_size(entries: Sequence[Entry], limit_bytes: int) -> None:
    """Raises TooLarge, with the largest files, if they are more than
    `limit_bytes` together; or too many.
    """
    if len(entries) > LIMIT_FILES:
        raise TooLarge(
            f"the code has {len(entries):,} files; {LIMIT_FILES:,} are allowed", hint=_LEAVE_OUT
        )
    total = sum(entry.size for entry in entries)
    files = [entry for entry in entries if stat.S_ISREG(entry.mode)]
    if total > limit_bytes:
        largest = heapq.nlargest(5, files, key=lambda entry: entry.size)
        raise TooLarge(
            f"the code has {megabytes(total)} in {len(files)} files; {megabytes(limit_bytes)} are "
            "allowed. The largest:\n"
            + "\n".join(f"  {megabytes(entry.size):>12}  {entry.name}" for entry in largest),
            hint=_LEAVE_OUT,
        )


# --- the archive


class _Changed(Exception):
    """A file has changed while it was packed; its path."""


def _write(entries: Sequence[Entry], archive: Path) -> list[str]:
    """Write the archive; return a sentence for each file that grew meanwhile."""
    grown: list[str] = []
    with (
        archive.open("wb") as file,
        gzip.GzipFile("", "wb", _LEVEL, file, mtime=0) as zipped,
        io.BufferedWriter(zipped, _BLOCK) as tar,
    ):
        for entry in entries:
            if stat.S_ISREG(entry.mode):
                grown += _add_file(tar, entry)
            else:
                tar.write(_header(entry))
        tar.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of an archive
    return grown


def _header(entry: Entry, size: int = 0) -> bytes:
    """The header of an entry: its kind, size and whether it is executable.
    TarFile.addfile takes twice as long.
    """
    header = tarfile.TarInfo(entry.name)
    header.mtime = _EPOCH
    header.size = size
    header.mode = 0o755 if entry.mode & 0o111 else 0o644
    if stat.S_ISDIR(entry.mode):
        header.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(entry.mode):
        header.type = tarfile.SYMTYPE
        header.linkname = entry.target
    return header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _add_file(tar: IO[bytes], entry: Entry) -> list[str]:
    """Add the file as it is. A log that grew meanwhile is taken as far as it went; any
    other change is a _Changed.
    """
    try:
        descriptor = os.open(entry.path, _FLAGS)
    except FileNotFoundError:
        raise _Changed(entry.path) from None
    except OSError as error:
        raise _unreadable(entry.path, error) from error
    with open(descriptor, "rb", buffering=0) as file:
        before = os.fstat(file.fileno())
        tar.write(_header(entry, before.st_size))
        left = before.st_size
        while left:
            if not (data := file.read(min(left, _BLOCK))):
                raise _Changed(entry.path)
            tar.write(data)
            left -= len(data)
        tar.write(bytes(-before.st_size % tarfile.BLOCKSIZE))
        after = os.fstat(file.fileno())
    if after.st_size > before.st_size:
        return [
            (
                f"{entry.name} grew while it was packed; the snapshot has its first "
                f"{before.st_size} bytes"
            )
        ]
    if (after.st_size, after.st_mtime_ns) != (before.st_size, before.st_mtime_ns):
        raise _Changed(entry.path)
    return []


def _unreadable(path: str, error: OSError) -> InvalidRequest:
    return InvalidRequest(
        f"{path} can't be packed: {error.strerror}",
        hint="make it readable, or add it to .clientlibignore",
    )
