"""Chooses the processes of a command that get a signal to end. Pure.

A shell or a launcher (`accelerate launch`) starts the training as a child, and need not pass a
signal on. So all processes get the signal, except two kinds, which end when others end. Workers of
multiprocessing, such as the workers of a DataLoader, work for the Python process above them, which
may need them to save a checkpoint. The reader of a pipe (`python train.py | tee log`) gets what the
training prints until its end.
"""

import os
from typing import Dict, FrozenSet, List, NamedTuple, Sequence, Tuple

_PYTHONS = (b"python", b"pypy")
"""Beginnings of the names of Python's interpreters."""
_MARKS = (
    b"--multiprocessing-fork",
    b"from multiprocess",
    b"loky.backend.",
)
"""Parts of the command line of a process that multiprocessing, its copy `multiprocess` or loky has
started as a new program."""


class Member(NamedTuple):
    """A process of a rank."""

    pid: int
    parent: int
    program: bytes
    """Name or path of its program."""
    argv: Sequence[bytes] = ()
    memory: Tuple[str, ...] = ()
    """Addresses that only a process which was forked without exec shares with its parent;
    empty: not known."""
    reads: FrozenSet[str] = frozenset()
    """Its standard input, if that is a pipe."""
    writes: FrozenSet[str] = frozenset()
    """Its standard output and standard error, if these are pipes."""


def receivers(members: Sequence[Member]) -> List[int]:
    """The pids that get the signal, in the order of `members`: no workers of a Python process that
    is one of them, no readers of a pipe to which one of them writes, and nothing below these."""
    by_pid = {member.pid: member for member in members}
    written: FrozenSet[str] = frozenset().union(*(member.writes for member in members))
    return [member.pid for member in members if not _is_served(member, by_pid, written)]


def _is_served(member: Member, by_pid: Dict[int, Member], written: FrozenSet[str]) -> bool:
    """True if the process, or one above it, is of a kind that gets no signal."""
    # processes end while they are listed, and their numbers are used again: no search without end
    for _ in by_pid:
        parent = by_pid.get(member.parent)
        if member.reads & written:
            return True
        if parent is None:
            return False
        if _is_worker(member, parent):
            return True
        member = parent
    return False


def _is_worker(member: Member, parent: Member) -> bool:
    if not (_is_python(member) and _is_python(parent)):
        return False
    is_fork = bool(member.memory) and member.memory == parent.memory
    return is_fork or any(mark in argument for mark in _MARKS for argument in member.argv[1:])


def _is_python(member: Member) -> bool:
    return os.path.basename(member.program).startswith(_PYTHONS)
