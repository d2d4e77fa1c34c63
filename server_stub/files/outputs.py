"""The outputs of jobs that are kept. `listing` and `find` read the disk: call them in a thread.
OutputsUpload stores what workers on other machines upload in pieces
(`client_lib.worker.outputs.http_store`).

`client_lib.launcher_protocol.output_store` defines their place on disk, the runtime which files are
kept. An upload is stored as the launcher on this machine stores a file. A piece is on disk when its
upload is answered, because the pod and its files may be gone the next moment.
"""

import asyncio
import os
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from itertools import count
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

from client_lib.durable import megabytes, private, remove, sha256_of
from client_lib.errors import InvalidRequest, StorageFull, TooLarge
from client_lib.launcher_protocol.output_store import (
    DirectoryStore,
    Index,
    Kept,
    NotKept,
    data_path,
    read_index,
)
from client_lib.launcher_protocol.report import Report
from client_lib.spec.wire import OutputFile, OutputLeftOut
from server_stub.files.job_dirs import OpenFile, opener
from server_stub.files.room import Room, refusing_full_disk

OUTPUTS = "outputs"
_SHOWN_MAX = 5
_OPEN_MAX = 64  # largest number of stores kept in memory: the most recently used
_PATH_MAX = 4096
_TIME_MAX = 10**11  # of a modification: some file systems keep times that no datetime holds

T = TypeVar("T")
_Origin = tuple[int, int]
"""(attempt, worker)"""
_Report = Report | None


def folder(job_dir: Path, attempt: int, worker: int) -> Path:
    """The folder with the outputs of one worker."""
    return job_dir / OUTPUTS / f"{attempt}.{worker}"


def listing(job_dir: Path) -> tuple[list[OutputFile], list[OutputLeftOut]]:
    """The files kept so far, ordered by path, and the files that were left out."""
    return merged(_indexes(job_dir))[:2]


def find(job_dir: Path, path: str, sha256: str | None) -> tuple[OpenFile, str] | None:
    """(the file of that name, its digest); with `sha256` only if it still has these
    bytes. None: there is none.
    """
    if sha256:  # any file with these bytes, without reading a list
        places = [(place, sha256) for _, place in _folders(job_dir)]
    else:
        files = (file for file in listing(job_dir)[0] if file.path == path)
        places = [(folder(job_dir, file.attempt, file.worker), file.sha256) for file in files]
    for place, digest in places:
        with suppress(FileNotFoundError):
            return OpenFile(data_path(str(place), digest), job_dir / OUTPUTS), digest
    return None


def merged(
    found: Mapping[_Origin, Index],
) -> tuple[list[OutputFile], list[OutputLeftOut], list[str]]:
    """Merge the outputs of a job: its files, each under a name of its own; the files that were left
    out; and the names that no script gave. Pure.

    The file of the newest attempt of each worker counts. If workers have different files of one
    name, the file of the first worker keeps the name, and the others are `worker-<n>/<path>`; of
    equal files one is listed.
    """
    newest: dict[str, dict[int, tuple[int, Kept]]] = {}
    left: dict[tuple[str, int], OutputLeftOut] = {}
    # a later attempt replaces what an earlier one left
    for (attempt, worker), one in sorted(found.items()):
        for kept in one.kept.values():
            newest.setdefault(kept.path, {})[worker] = attempt, kept
        for out in one.left_out.values():
            left[out.path, worker] = OutputLeftOut(
                path=out.path, size=out.size, why=out.why, worker=worker
            )
    files: dict[str, OutputFile] = {}
    apart = []
    for path, of_workers in newest.items():
        seen: set[str] = set()
        for worker, (attempt, kept) in sorted(of_workers.items()):
            if kept.sha256 in seen:
                continue
            name = path
            if seen:
                names = (f"worker-{worker}/{path}{'_' * more}" for more in count())
                name = next(name for name in names if name not in newest and name not in files)
                apart.append(name)
            seen.add(kept.sha256)
            files[name] = OutputFile(
                path=name,
                size=kept.size,
                sha256=kept.sha256,
                modified_at=datetime.fromtimestamp(
                    min(max(0.0, kept.mtime), _TIME_MAX), timezone.utc
                ),
                executable=kept.executable,
                attempt=attempt,
                worker=worker,
            )
    return (
        [files[name] for name in sorted(files)],
        [left[key] for key in sorted(left)],
        sorted(apart),
    )


def notes(reports: Iterable[_Report]) -> tuple[str, ...]:
    """Messages for the job's events about files that are not kept, from
    the reports of the workers.
    """
    lines = []
    for report in filter(None, reports):
        said = report.get("outputs")
        if not said:
            continue
        who = f"worker {report['worker']}"
        shown = said.get("left_out", [])
        if problem := said.get("problem"):
            lines.append(f"outputs of {who} could not be kept: {problem}")
        for left in shown:
            lines.append(
                f"output {left['path']} of {who} ({megabytes(left['size'])}) is not kept: "
                f"{left['why']}"
            )
        if (more := said.get("left_out_count", 0) - len(shown)) > 0:
            lines.append(f"{more} more outputs of {who} are not kept")
    return tuple(lines)


def conflict_notes(job_dir: Path, reports: Sequence[_Report]) -> tuple[str, ...]:
    """A message if several workers wrote different files of one name."""
    of_workers = [report.get("outputs") for report in reports if report]
    keeping = [outputs for outputs in of_workers if outputs and outputs.get("kept")]
    apart = merged(_indexes(job_dir))[2] if len(keeping) > 1 else []
    if not apart:
        return ()
    shown = ", ".join(apart[:_SHOWN_MAX])
    if len(apart) > _SHOWN_MAX:
        shown += f" and {len(apart) - _SHOWN_MAX} more"
    return (f"workers wrote different outputs of one name; they are kept apart, as {shown}",)


def _indexes(job_dir: Path) -> dict[_Origin, Index]:
    ours = opener(job_dir / OUTPUTS)
    return {origin: read_index(str(path), ours) for origin, path in _folders(job_dir)}


def _folders(job_dir: Path) -> Iterator[tuple[_Origin, Path]]:
    """The folders of all workers, newest attempt first."""
    try:
        names = [path.name for path in (job_dir / OUTPUTS).iterdir() if path.is_dir()]
    except FileNotFoundError:
        return
    origins = [tuple(map(int, name.split("."))) for name in names]
    for attempt, worker in sorted(origins, reverse=True):
        yield (attempt, worker), folder(job_dir, attempt, worker)


# --- uploads


class OutputsUpload:
    """The uploads of one server. Used on one event loop, one call at a time per worker."""

    def __init__(self, limit_bytes: int, room: Room) -> None:
        """`limit_bytes`: the largest size of one job's outputs."""
        self._limit_bytes = limit_bytes
        self._room = room
        self._stores: OrderedDict[Path, DirectoryStore] = OrderedDict()
        self._locks: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    async def put(self, folder: Path, kept: Kept, offset: int, data: bytes) -> int:
        """Store a piece of a file; returns how many bytes of this version the server has. The file
        is kept when it has them all, or deleted (0) if their digest is wrong. A piece after a
        missing part is not stored.

        Raises:
            TooLarge: the job keeps too much; StorageFull: the disk is full.
            InvalidRequest: a path that could lie elsewhere.
        """
        check_path(kept.path)
        try:
            with self._room.claim(len(data)):
                return await self._with_store(folder, lambda store: _put(store, kept, offset, data))
        except StorageFull:  # the worker leaves the file out
            await self._with_store(folder, lambda store: remove(store.incoming(kept.sha256)))
            raise

    async def leave_out(self, folder: Path, path: str, size: int, why: str) -> None:
        """Note that a file is not kept."""
        check_path(path)
        await self._with_store(folder, lambda store: store.leave_out(path, size, why))

    async def forget(self, folder: Path, path: str) -> None:
        """Forget a file that the script removed."""
        await self._with_store(folder, lambda store: store.forget(path))

    async def _with_store(self, folder: Path, act: Callable[[DirectoryStore], T]) -> T:
        async with self._locks.setdefault(folder, asyncio.Lock()):
            with refusing_full_disk():
                return await asyncio.to_thread(self._act, folder, act)

    def _act(self, folder: Path, act: Callable[[DirectoryStore], T]) -> T:
        store = self._stores.pop(folder, None) or DirectoryStore(str(folder), self._limit_bytes)
        self._stores[folder] = store
        if len(self._stores) > _OPEN_MAX:
            self._close_oldest()
        try:
            done = act(store)
        except NotKept as refused:
            raise TooLarge(str(refused), hint="name fewer files in `outputs`") from refused
        store.sync()
        return done

    def _close_oldest(self) -> None:
        """Close the least recently used store that no other call uses: the digest of a
        large file takes minutes.
        """
        for folder in list(self._stores):
            if folder not in self._locks and (unused := self._stores.pop(folder, None)):
                unused.close()
                return


def _put(store: DirectoryStore, kept: Kept, offset: int, data: bytes) -> int:
    there = store.index.kept.get(kept.path)
    if there is not None and (there.sha256, there.size) == (kept.sha256, kept.size):
        return kept.size
    store.make_room(kept.path, kept.size)
    incoming = store.incoming(kept.sha256)
    with open(incoming, "ab", opener=private) as file:
        have = file.tell()
        if offset <= have < offset + len(data):
            file.write(data[have - offset :])
            file.flush()
            os.fsync(file.fileno())
            have = file.tell()
    if have < kept.size:
        return have
    if sha256_of(incoming) != kept.sha256:  # the worker changed it during the upload
        os.unlink(incoming)
        return 0
    store.adopt(kept, incoming)
    return kept.size


def check_path(path: str) -> None:
    """Raises InvalidRequest: the path could lead out of the folder."""
    parts = path.split("/")
    if (
        len(path.encode()) > _PATH_MAX
        or "\0" in path
        or any(part in ("", ".", "..") for part in parts)
    ):
        raise InvalidRequest(f"{path[:200]!r} is no relative path")
