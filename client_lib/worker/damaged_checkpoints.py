"""Moves a damaged newest checkpoint aside before the ranks start, so that the script resumes from
the checkpoint before it. Nothing is removed.

A killed rank leaves a file that it has written in part, and each new attempt would fail to load it.
Only what its format proves to be damaged is moved: the launcher looks twice, and no process may
have a file of the folder open. What a pointer such as `latest` names stays, because the pointer
would name nothing then.
"""

import os
import shlex
import time
from typing import Callable, Iterator, List, Optional, Tuple

from client_lib.checkpoints import Checkpoint, search
from client_lib.launcher_protocol.checkpoint_lines import told
from client_lib.launcher_protocol.processes import files_in_use
from client_lib.worker.loop import Loop
from client_lib.worker.slices import in_slices

ASIDE = ".damaged"
"""Name of the folder, in the folder of the checkpoint, that gets a damaged one."""
_SETTLED_S = 3.0
"""Least seconds between the last change of a checkpoint and its move."""
_LONGEST_S = 10.0
"""Longest time of one search; a folder that takes longer is left as it is."""
_MOST = 10
"""Largest number of checkpoints that are moved before one attempt."""


class DamagedCheckpoints:
    """The search of one worker before its ranks start."""

    def __init__(
        self,
        loop: Loop,
        folder: str,
        moves: bool,
        note: Callable[[str], None],
        on_done: Callable[[], None],
    ) -> None:
        """`moves`: False only tells of the damage, in a folder that the user named. `note` gets a
        sentence for the job's events. `on_done` is called at the end."""
        self._loop = loop
        self._folder = folder
        self._moves = moves
        self._on_note = note
        self._on_done = on_done
        self._first: Optional[Checkpoint] = None
        self._moved = 0

    def start(self) -> None:
        found: List[Checkpoint] = []
        searching = self._search(found, time.monotonic() + _LONGEST_S)
        in_slices(self._loop, searching, lambda: self._look(found))

    def _search(self, found: List[Checkpoint], until: float) -> Iterator[None]:
        """Add what is in the folder; nothing, if that is not known at a time."""
        for checkpoint in search(self._folder):
            if checkpoint is not None:
                found.append(checkpoint)
            if time.monotonic() > until:
                found.clear()
                return
            yield

    def _look(self, found: List[Checkpoint]) -> None:
        damaged = newest_damaged(found)
        if damaged is None or self._moved == _MOST:
            self._on_done()
        elif damaged != self._first:
            self._first = damaged
            age_s = max(0.0, time.time() - damaged.modified)
            self._loop.call_later(max(1.0, _SETTLED_S - age_s), self.start)
        else:
            self._act(damaged, found)

    def _act(self, damaged: Checkpoint, found: List[Checkpoint]) -> None:
        path = os.path.join(self._folder, damaged.path)
        what = "the newest checkpoint %s is damaged: %s" % (path, damaged.missing)
        target = _free_name(path)
        move = "mv %s %s" % (shlex.quote(path), shlex.quote(target))
        if damaged.path == ".":
            why = "it is the whole folder, so that it was left there"
        elif damaged.pointers:
            why = "%s names it, so that it was left there" % ", ".join(damaged.pointers)
        elif not self._moves:
            why = "checkpoint_dir was named in the job, so that it was left there; %s" % move
        elif _is_open(self._folder):
            why = "a process has a file of the folder open, so that it was left there"
        else:
            self._move(what, path, target, goes_on_from(damaged, found))
            return
        self._note("%s; %s" % (what, why))
        self._on_done()

    def _note(self, text: str) -> None:
        self._on_note(told(text))

    def _move(self, what: str, path: str, target: str, then: str) -> None:
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(path, target)
        except OSError as error:
            self._note("%s; it can't be moved aside: %s" % (what, error.strerror))
            self._on_done()
            return
        undo = "mv %s %s" % (shlex.quote(target), shlex.quote(path))
        self._note("%s; it was moved aside, and %s; `%s` undoes the move" % (what, then, undo))
        self._moved += 1
        self.start()


def newest_damaged(found: List[Checkpoint]) -> Optional[Checkpoint]:
    """The checkpoint that a script would probably load, by its step or by its time, if its format
    proves that it can't be loaded."""
    if not found:
        return None
    latest = max(found, key=lambda each: each.modified)
    farthest = max(found, key=_by_step)
    return next((each for each in (latest, farthest) if each.missing and each.is_proof), None)


def goes_on_from(damaged: Checkpoint, found: List[Checkpoint]) -> str:
    """Tell what a script finds without the damaged checkpoint, as a clause."""
    complete = [each for each in found if not each.missing and each.path != damaged.path]
    if not complete:
        return "there is no complete one before it"
    newest = max(complete, key=_by_step)
    step = "" if newest.step is None else " of step %d" % newest.step
    return "the one before it is %s%s" % (newest.path, step)


def _by_step(checkpoint: Checkpoint) -> Tuple[int, float]:
    """Order by the step, then by the time; a checkpoint without a step comes first."""
    return -1 if checkpoint.step is None else checkpoint.step, checkpoint.modified


def _is_open(folder: str) -> bool:
    """True if a process of this machine, or of this pod, has a file below the folder open."""
    below = os.path.realpath(folder) + os.sep
    return any(path.startswith(below) for path in files_in_use())


def _free_name(path: str) -> str:
    """A path for the checkpoint in the folder for damaged ones."""
    folder, name = os.path.split(path)
    target = os.path.join(folder, ASIDE, name)
    number = 1
    while os.path.lexists(target):
        number += 1
        target = os.path.join(folder, ASIDE, "%s.%d" % (name, number))
    return target
