"""Walks a folder, finds the checkpoints in it, and judges them, the newest first."""

import os
import posixpath
import stat
from typing import Generator, Iterator, List, Mapping, NamedTuple, Optional, Tuple

from client_lib.checkpoints import folders, single_files
from client_lib.checkpoints.checkpoint import Checkpoint
from client_lib.checkpoints.listing import Folder, listed
from client_lib.checkpoints.names import step_of
from client_lib.checkpoints.pointers import pointers
from client_lib.checkpoints.reading import File, NotAFile

_PIECE = 100
"""Files whose sizes and times are read at once."""


def search(
    folder: str, since: float = 0.0, known: Optional[Mapping[str, Checkpoint]] = None
) -> Iterator[Optional[Checkpoint]]:
    """Yield each checkpoint in a folder as it is judged, the newest first; and None after each
    small piece of work, so that the caller can do other things in between.

    A piece reads less than 1 MB, or lists a few hundred names. `since`: only what was changed since
    then (seconds since 1970). `known`: earlier results by path; those that are sure are taken over
    where size and time of change are equal, without reading. Links are not followed, so nothing
    outside of the folder is looked at. Folders are searched to a depth of 4, and 20 000 names in
    all (10 000 of a folder), with the newest folders first. Raises nothing: a folder that is
    missing or can't be read has no checkpoints.
    """
    if "\0" in folder:  # no path has it
        return
    root = yield from listed(folder)
    candidates: List[_Candidate] = []
    yield from _candidates(root, candidates)
    named_by = yield from pointers(root)
    candidates.sort(key=lambda candidate: candidate.modified, reverse=True)
    for candidate in candidates:
        if candidate.modified < since:
            break
        names = _pointers_to(candidate.path, named_by)
        earlier = known.get(candidate.path) if known else None
        if earlier and _is_same(candidate, earlier):
            yield earlier._replace(pointers=names)
            continue
        judged = yield from _judged(candidate)
        if judged:
            step = yield from _step(candidate)
            yield Checkpoint(
                candidate.path,
                judged.format,
                step,
                candidate.size,
                candidate.modified,
                judged.verdict.missing,
                judged.verdict.is_proof,
                names,
            )
        yield None


def files_of(path: str) -> Generator[None, None, List[str]]:
    """The files of the checkpoint at a path, which is a file or a folder: without checkpoints below
    that are others. Yields after each small piece of work. Links are left out."""
    if not os.path.isdir(path):
        return [path]
    root = yield from listed(path)
    unit = folders.unit_of(root)
    parts = unit.parts if unit else root.tree()
    return [part.location_of(name) for part in parts for name in part.files]


def _pointers_to(path: str, named_by: Mapping[str, Tuple[str, ...]]) -> Tuple[str, ...]:
    """The pointers that name this path, or a folder above it."""
    found = named_by.get(path, ())
    while posixpath.dirname(path):
        path = posixpath.dirname(path)
        found += named_by.get(path, ())
    return found


class _Candidate(NamedTuple):
    path: str
    folder: Folder
    """The folder of a file, or the folder that is a checkpoint as a whole."""
    unit: Optional[folders.Unit]
    """None: the checkpoint is a file."""
    file: str
    """Name of the file."""
    size: int
    modified: float


def _is_same(candidate: _Candidate, earlier: Checkpoint) -> bool:
    sure = earlier.is_proof or not earlier.missing
    return sure and (earlier.size, earlier.modified) == (candidate.size, candidate.modified)


def _candidates(folder: Folder, found: List[_Candidate]) -> Iterator[None]:
    """Add what may be a checkpoint, in this folder and below it."""
    unit = folders.unit_of(folder)
    yield
    if unit:
        candidate = yield from _of_unit(unit)
        found += [candidate] if candidate else []
        below = unit.others
    else:
        below = list(folder.folders.values())
        for name in folder.files:
            if name.endswith(single_files.SUFFIXES):
                status = _status(folder.location_of(name))
                if status:
                    path = folder.path_of(name)
                    found.append(
                        _Candidate(path, folder, None, name, status.st_size, status.st_mtime)
                    )
                yield
    for folder in below:
        yield from _candidates(folder, found)


def _of_unit(unit: folders.Unit) -> Generator[None, None, Optional[_Candidate]]:
    size = 0
    times = []
    count = 0
    for part in unit.parts:
        for name in part.files:
            status = _status(part.location_of(name))
            if status:
                size += status.st_size
                times.append(status.st_mtime)
            count += 1
            if count % _PIECE == 0:
                yield
    if not times:
        try:
            times.append(os.lstat(unit.folder.location).st_mtime)
        except OSError:  # it is gone
            return None
    return _Candidate(unit.folder.path, unit.folder, unit, "", size, max(times))


def _status(location: str) -> Optional[os.stat_result]:
    try:
        status = os.lstat(location)
    except OSError:  # it is gone
        return None
    return status if stat.S_ISREG(status.st_mode) else None


def _judged(candidate: _Candidate) -> Generator[None, None, Optional[single_files.Judged]]:
    if candidate.unit:
        return (yield from folders.judge(candidate.unit))
    location = candidate.folder.location_of(candidate.file)
    try:
        with File(location) as file:
            return (yield from single_files.judge(file, candidate.file))
    except (FileNotFoundError, NotADirectoryError, NotAFile):  # gone, or another one in its place
        return None
    except OSError as error:
        return single_files.unreadable(candidate.file, error)


def _step(candidate: _Candidate) -> Generator[None, None, Optional[int]]:
    step = step_of(os.path.basename(candidate.path))
    if step is None and candidate.unit:
        step = yield from folders.step_inside(candidate.folder)
    if step is None and not candidate.unit and candidate.folder.path != ".":
        step = step_of(candidate.folder.name)
    return step
