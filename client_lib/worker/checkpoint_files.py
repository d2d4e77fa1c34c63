"""Works on the files of checkpoints for the server of this machine, in a process of its own: a
process with the rights of the job can't be led elsewhere by a link in a folder of the job's user.

A request is JSON on stdin, and the answer is JSON on stdout:

    prune  {"folder", "keep", "best", "only"}
             checkpoints of earlier steps than the last `keep`; by `best`, which is `max:METRIC` or
             `min:METRIC`, the best one stays, too. `only`: paths of the checkpoints to remove;
             null: nothing is removed, and the answer lists all that could be
    gone   {"paths"}
             which of these paths are no longer there
    send   {"path"}
             a checkpoint, as a tar archive in place of JSON
"""

import json
import os
import stat
import sys
import tarfile
from typing import BinaryIO, Callable, Dict, Generator, List, Optional, Tuple, TypeVar

from client_lib.checkpoints import files_of, search, surplus
from client_lib.launcher_protocol.checkpoint_lines import told
from client_lib.launcher_protocol.processes import files_in_use
from client_lib.worker.checkpoint_removal import remove
from client_lib.worker.checkpoint_values import known_values, values_of

_MOST = 1000
"""Largest number of checkpoints in an answer."""
T = TypeVar("T")


def main(verb: str) -> int:
    """The exit code of a request. Raises OSError, ValueError, KeyError: the server logs it."""
    request = json.load(sys.stdin)
    if verb == "send":
        send(request["path"], sys.stdout.buffer)
        return 0
    answers: Dict[str, Callable[[], object]] = {
        "prune": lambda: prune(**request),
        "gone": lambda: [path for path in request["paths"] if not os.path.lexists(path)],
    }
    sys.stdout.write(json.dumps(answers[verb]()))
    sys.stdout.flush()
    return 0


def prune(
    folder: str, keep: int, best: Optional[str], only: Optional[List[str]]
) -> Dict[str, object]:
    """Remove the surplus checkpoints whose paths are in `only`, or list all of them; and say why
    some stay. Paths are as in the list of checkpoints. Without `best` the best one stays by the
    metric of an earlier job that has left values in the folder."""
    found = [each for each in search(folder) if each is not None]
    in_use = [os.path.realpath(path) for path in files_in_use()]
    values = values_of(folder, best) if best else known_values(folder)
    best_one = values.best(found) if values else None
    goes: List[Tuple[str, Optional[int], int, float]] = []
    stays: Dict[str, str] = {}
    for each in surplus(found, keep)[:_MOST]:
        location = os.path.join(folder, each.path)
        path = told(location)
        if only is not None and path not in only:
            continue
        why = values.why_kept(each, best_one) if values else ""
        if why:
            stays[path] = why
        elif _is_open(os.path.realpath(location), in_use):
            stays[path] = "a process has it open"
        elif only is not None and not _at_once(remove(location)):
            stays[path] = "it can't be removed"
        else:
            goes.append((path, each.step, each.size, each.modified))
    return {"goes": goes, "stays": stays}


def _is_open(location: str, in_use: List[str]) -> bool:
    below = location + os.sep
    return any(path == location or path.startswith(below) for path in in_use)


def send(path: str, target: BinaryIO) -> None:
    """Write the files of a checkpoint to a tar archive. Raises OSError: one is missing, or shrinks
    meanwhile."""
    above = os.path.dirname(path)
    with tarfile.open(fileobj=target, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for location in _at_once(files_of(path)):
            _send_file(archive, location, os.path.relpath(location, above))
    target.flush()


def _send_file(archive: tarfile.TarFile, location: str, name: str) -> None:
    # without O_NONBLOCK a pipe would block
    fd = os.open(location, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise OSError("%s is no file any more" % location)
        entry = tarfile.TarInfo(name)
        entry.size = status.st_size
        entry.mtime = status.st_mtime
        archive.addfile(entry, file)


def _at_once(work: Generator[None, None, T]) -> T:
    """The result of work that can be done in small pieces."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            result: T = end.value
            return result
