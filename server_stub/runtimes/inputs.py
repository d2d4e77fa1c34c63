"""Collects outputs and results of the jobs that a job waited for (`after`). It reads the disk: call
it in a thread.

<n>/          the outputs of the n-th job of `after`, from 0; of a group: a folder for each of its
              jobs, named like the job
<n>.result    what rank 0 of a function returned (client_lib.worker.function_runner)
"""

import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from client_lib import durable
from client_lib.worker import function_runner
from server_stub.files import outputs
from server_stub.files.job_dirs import OpenFile, attempt_dir
from server_stub.files.outputs import check_path
from server_stub.runtimes import Source

_BLOCK = 2**20
_GZIP = 31  # `wbits` of zlib: with the header and the checksum of gzip


def newest_result(job_dir: Path, attempt: int, rank: int) -> OpenFile | None:
    """The file with the result of a function in a rank, which in an elastic job
    may have run in two workers.
    """
    found = []
    for worker in (attempt_dir(job_dir, attempt) / "workers").glob("*"):
        with suppress(FileNotFoundError):
            found.append(OpenFile(str(worker / function_runner.RESULTS / str(rank)), worker))
    return max(found, key=lambda file: os.fstat(file.descriptor).st_mtime_ns, default=None)


def make_folder(after: Sequence[Sequence[Source]], folder: Path, keep_free: int) -> None:
    """Make the folder with links to the kept files; a server of root copies them, so that the job
    can't change them through links. Raises OSError, also if fewer than `keep_free` bytes of the
    disk would stay free."""
    shutil.rmtree(folder, ignore_errors=True)  # of a server that was killed
    durable.make_private_folders(str(folder))
    for entry in _entries(after):
        target = folder / entry.path
        if entry.file is None:
            durable.make_private_folders(str(target))
            continue
        durable.make_private_folders(str(target.parent))
        may_link = os.geteuid() != 0
        if not (may_link and _linked(entry.file, target)):
            durable.check_room(str(folder), _size(entry.file), keep_free)
            shutil.copyfile(f"/dev/fd/{entry.file.descriptor}", target)
        target.chmod(0o555 if entry.executable else 0o444)


def _size(file: OpenFile) -> int:
    return os.fstat(file.descriptor).st_size


def _linked(file: OpenFile, target: Path) -> bool:
    """False: the file system has no links, or it is another one."""
    with suppress(OSError):
        os.link(file.path, target)
        return True
    return False


def archive(after: Sequence[Sequence[Source]]) -> Iterator[bytes]:
    """The folder as a tar.gz without compression, in blocks."""
    packer = zlib.compressobj(0, wbits=_GZIP)
    for entry in _entries(after):
        header = tarfile.TarInfo(entry.path)
        header.mode = 0o755 if entry.executable else 0o644
        if entry.file is None:
            header.type = tarfile.DIRTYPE
            yield packer.compress(header.tobuf())
            continue
        header.size = _size(entry.file)
        yield packer.compress(header.tobuf())
        for position in range(0, header.size, _BLOCK):
            length = min(_BLOCK, header.size - position)
            yield packer.compress(os.pread(entry.file.descriptor, length, position))
        yield packer.compress(bytes(-header.size % tarfile.BLOCKSIZE))
    yield packer.compress(bytes(2 * tarfile.BLOCKSIZE)) + packer.flush()


class _Entry(NamedTuple):
    """A file or folder within the folder."""

    path: str
    file: OpenFile | None = None
    """None: it is a folder."""
    executable: bool = False


def _entries(after: Sequence[Sequence[Source]]) -> Iterator[_Entry]:
    """All that the folder holds."""
    for number, sources in enumerate(after):
        yield _Entry(str(number))
        for source in sources:
            place = f"{number}/{source.member}".rstrip("/")
            yield _Entry(place)
            yield from _outputs(source.job_dir, place)
            result = newest_result(source.job_dir, source.attempt, 0)
            if result is not None:
                yield _Entry(f"{place}.result", result)


def _outputs(job_dir: Path, place: str) -> Iterator[_Entry]:
    files = set[PurePosixPath]()
    for kept in outputs.listing(job_dir)[0]:
        check_path(kept.path)  # processes of that job may have written the list
        path = PurePosixPath(kept.path)
        # a folder of this name in another attempt or worker
        if not files.isdisjoint(path.parents):
            continue
        files.add(path)
        found = outputs.find(job_dir, kept.path, kept.sha256)
        if found is not None:
            yield _Entry(f"{place}/{kept.path}", found[0], kept.executable)
