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
    folder.mkdir(parents=True, mode=0o700)
    for path, file, executable in _entries(after):
        if file is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
            continue
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        if not (os.geteuid() and _linked(file, folder / path)):
            durable.check_room(str(folder), os.fstat(file.descriptor).st_size, keep_free)
            shutil.copyfile(f"/dev/fd/{file.descriptor}", folder / path)
        (folder / path).chmod(0o555 if executable else 0o444)


def _linked(file: OpenFile, target: Path) -> bool:
    """False: the file system has no links, or it is another one."""
    with suppress(OSError):
        os.link(file.path, target)
        return True
    return False


def archive(after: Sequence[Sequence[Source]]) -> Iterator[bytes]:
    """The folder as a tar.gz without compression, in blocks."""
    packer = zlib.compressobj(0, wbits=_GZIP)
    for path, file, executable in _entries(after):
        header = tarfile.TarInfo(path)
        header.mode = 0o755 if executable else 0o644
        if file is None:
            header.type = tarfile.DIRTYPE
            yield packer.compress(header.tobuf())
            continue
        header.size = os.fstat(file.descriptor).st_size
        yield packer.compress(header.tobuf())
        for position in range(0, header.size, _BLOCK):
            block = os.pread(file.descriptor, min(_BLOCK, header.size - position), position)
            yield packer.compress(block)
        yield packer.compress(bytes(-header.size % tarfile.BLOCKSIZE))
    yield packer.compress(bytes(2 * tarfile.BLOCKSIZE)) + packer.flush()


def _entries(after: Sequence[Sequence[Source]]) -> Iterator[tuple[str, OpenFile | None, bool]]:
    """(path, the file or None for a folder, is it executable) of all that the folder holds."""
    for number, sources in enumerate(after):
        yield str(number), None, False
        for source in sources:
            place = f"{number}/{source.member}".rstrip("/")
            yield place, None, False
            files = set[PurePosixPath]()
            for kept in outputs.listing(source.job_dir)[0]:
                check_path(kept.path)  # processes of that job may have written the list
                path = PurePosixPath(kept.path)
                # a folder of this name in another attempt or worker
                if not files.isdisjoint(path.parents):
                    continue
                files.add(path)
                if found := outputs.find(source.job_dir, kept.path, kept.sha256):
                    yield f"{place}/{kept.path}", found[0], kept.executable
            if result := newest_result(source.job_dir, source.attempt, 0):
                yield f"{place}.result", result, False
