"""File locks: one command at a time changes a cluster, one at a time builds. The kernel
frees them with the holder.
"""

import fcntl
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TypeVar

from tests.cluster.errors import ClusterError
from tests.cluster.waiting import until

Thing = TypeVar("Thing")


@contextmanager
def held(path: Path, limit_s: float, what: str) -> Iterator[None]:
    """Raises ClusterError when another process still holds it after `limit_s`;
    `what` says what that one does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        for _ in until(limit_s, pause_s=0.1):
            if _locks(file):
                break
        else:
            raise ClusterError(
                f"another process {what}, for {limit_s:g} s now; `fuser {path}` tells which"
            )
        yield


@contextmanager
def first_free(things: Iterable[Thing], lock_of: Callable[[Thing], Path]) -> Iterator[Thing]:
    """The first of them whose lock no other process holds; held for as long as the block runs."""
    for thing in things:
        path = lock_of(thing)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a") as file:
            if _locks(file):
                yield thing
                return
    raise ClusterError("other processes hold them all")


def _locks(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
