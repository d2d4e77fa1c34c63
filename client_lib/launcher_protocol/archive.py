"""Unpacks a code snapshot safely: writes nothing outside of the target, and no more than a limit
and the disk allow.

Only plain files, folders and links within the target are made; permissions of others, set-id bits,
owners and times of the archive are ignored.
"""

import contextlib
import gzip
import os
import shutil
import stat
import tarfile
import zlib
from typing import BinaryIO, Iterator, List, Protocol, Tuple, cast

from client_lib.durable import check_room, free_bytes, naming

MAX_FILES = 200000
MAX_BYTES = 20 * 2**30  # unpacked
UNLIMITED = 2**60
# a long name or a block of extended attributes is read into memory, and parsed slowly
_MAX_HEADER = 2**16
_BLOCK = 256 * 1024
_ON_DISK = 4096  # files and folders take whole blocks of a disk
_RATIO = 1032  # largest ratio of unpacked to packed bytes with deflate
_IN_MEMORY = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class Readable(Protocol):
    """The method of a stream that unpacking needs."""

    def read(self, size: int) -> bytes:
        """At least one byte, and at most `size`; b"" at the end."""
        ...


class ArchiveRefused(Exception):
    """The archive is damaged, or can't be unpacked safely; the message names the entry."""


class _Member(tarfile.TarInfo):
    """A tar header that cannot make tarfile read a huge name into memory."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        if self.type in _IN_MEMORY and self.size > _MAX_HEADER:
            raise ArchiveRefused("a header of %d bytes" % self.size)
        # tarfile has no public hook between a header and the data that it reads for it
        return super()._proc_member(archive)  # type: ignore[misc, no-any-return]


class _BoundedReader:
    """Reads at most `limit` bytes of the unpacked stream."""

    def __init__(self, source: gzip.GzipFile, limit: int) -> None:
        self._source = source
        self._left = limit

    def read(self, size: int) -> bytes:
        data = self._source.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise ArchiveRefused("it unpacks to more than is allowed")
        return data


def unpack(
    path: str,
    target: str,
    max_files: int = MAX_FILES,
    max_bytes: int = MAX_BYTES,
    keep_free: int = 0,
) -> None:
    """Unpack the tar.gz at `path` into the new folder `target`, which exists only if everything was
    unpacked. Raises ArchiveRefused, and OSError: an error of the disk, or fewer than `keep_free`
    bytes of the disk would stay free."""
    with _made_whole(target) as incomplete:
        # it may be too large
        if os.path.getsize(path) * _RATIO > free_bytes(incomplete) - keep_free:
            with reading(path, max_files, max_bytes) as archive:
                blocks = sum(max(0, member.size) // _ON_DISK + 1 for member in archive)  # at most
                check_room(incomplete, blocks * _ON_DISK, keep_free)
        with reading(path, max_files, max_bytes) as archive, naming(target):
            _extract(archive, os.path.realpath(incomplete), max_files, max_bytes, keep_free)


def unpack_stream(stream: Readable, target: str) -> None:
    """Unpack a tar archive without compression, of any size, as it arrives. The same promise, and
    the same errors as `unpack`, and what `stream.read` raises."""
    with _made_whole(target) as incomplete, _entries(stream, _BLOCK) as archive, naming(target):
        _extract(archive, os.path.realpath(incomplete), UNLIMITED, UNLIMITED, 0)


@contextlib.contextmanager
def _made_whole(target: str) -> Iterator[str]:
    """A new folder, which is called `target` at the end of the block, or removed by its error."""
    incomplete = target + ".new"
    shutil.rmtree(incomplete, ignore_errors=True)  # of a process that was killed
    os.makedirs(incomplete, mode=0o700)
    try:
        yield incomplete
        os.rename(incomplete, target)
    except BaseException:
        shutil.rmtree(incomplete, ignore_errors=True)
        raise


@contextlib.contextmanager
def reading(path: str, max_files: int, max_bytes: int) -> Iterator[tarfile.TarFile]:
    """The archive, which can be read once. Raises ArchiveRefused if it is damaged."""
    overhead = 4 * 1024 * (max_files + 16)  # headers and padding
    with open(path, "rb") as file:
        bounded = _BoundedReader(gzip.GzipFile(fileobj=file), max_bytes + overhead)
        with _entries(bounded) as archive:
            yield archive


@contextlib.contextmanager
def _entries(stream: Readable, at_once: int = tarfile.RECORDSIZE) -> Iterator[tarfile.TarFile]:
    """The archive in a stream, of which `at_once` bytes are read at a time. Raises ArchiveRefused
    if it is damaged."""
    try:
        source = cast(BinaryIO, stream)
        with tarfile.open(fileobj=source, mode="r|", tarinfo=_Member, bufsize=at_once) as archive:
            yield archive
        while stream.read(_BLOCK):  # to the end, where gzip's checksum is
            pass
    except (
        tarfile.TarError,
        EOFError,
        zlib.error,
        ValueError,
        RecursionError,
        OSError,
    ) as error:
        # raised by the system, not by gzip
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ArchiveRefused("it is damaged (%s)" % error) from error


def _extract(
    archive: tarfile.TarFile, root: str, files_left: int, bytes_left: int, keep_free: int
) -> None:
    """`root`: an empty folder, without links in its path."""
    links: List[Tuple[str, str]] = []  # made last: nothing can be written through them
    for member in archive:
        files_left = files_left - 1
        bytes_left = bytes_left - member.size
        if files_left < 0:
            raise ArchiveRefused("it holds too many files")
        if bytes_left < 0 or member.size < 0:
            raise ArchiveRefused("it unpacks to more than is allowed")
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if member.name.startswith("/") or ".." in parts or "\0" in member.name:
            raise ArchiveRefused("%r lies outside of it" % member.name)
        place = os.path.join(root, *parts)
        if member.isdir():
            _make_folder(place, root)
        elif member.issym():
            links.append((place, member.linkname))
        elif member.isreg() and not member.issparse():
            _make_folder(os.path.dirname(place), root)
            mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
            try:
                fd = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
            except (FileExistsError, IsADirectoryError) as error:
                raise ArchiveRefused("%r is in it twice" % member.name) from error
            with os.fdopen(fd, "wb") as file:
                source = cast(BinaryIO, archive.extractfile(member))
                for data in iter(lambda: source.read(_BLOCK), b""):  # noqa: B023  # called at once
                    check_room(root, len(data), keep_free)  # others write to the disk, too
                    file.write(data)
        else:
            raise ArchiveRefused("%r is neither a file, a folder nor a symbolic link" % member.name)
    for place, to in links:
        _check_inside(os.path.dirname(place), place, root)
        _make_folder(os.path.dirname(place), root)
        name = os.path.relpath(place, root)
        if not to or "\0" in to or os.path.isabs(to):
            raise ArchiveRefused("the link %r leads outside of it" % name)
        try:
            os.symlink(to, place)
        except FileExistsError as error:
            raise ArchiveRefused("%r is in it twice" % name) from error
    for place, _ in links:  # when all are there: one link may redirect another
        _check_inside(place, place, root)


def _make_folder(place: str, root: str) -> None:
    try:
        os.makedirs(place, mode=0o755, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise ArchiveRefused("%r is a file and a folder" % os.path.relpath(place, root)) from error


def _check_inside(path: str, link: str, root: str) -> None:
    if not (os.path.realpath(path) + os.sep).startswith(root + os.sep):
        raise ArchiveRefused("the link %r leads outside of it" % os.path.relpath(link, root))
