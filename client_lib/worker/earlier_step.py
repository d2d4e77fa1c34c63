"""Lets an attempt start from an earlier checkpoint than the last one, in the job's own directory:
moves the later ones away, and lets their pointers name the earlier one.
"""

import contextlib
import os
import posixpath
from typing import List, Optional, Tuple

from client_lib.checkpoints import Checkpoint, search

_LATER = ".later-than-"
_AFTER_ALARM = ".after-alarm-"
_MOVING = ".moving"
_MEGATRON = "iter_"


class NoSuchStep(Exception):
    """No complete checkpoint of this step is there; the message lists the steps that are."""


def go_back(folder: str, step: int, job: str) -> None:
    """Move later checkpoints than the ones of `step` to a hidden folder in `folder`: checkpoints of
    a later step, and checkpoints without a step that were changed later. A second call for the same
    job does nothing: the job has begun by then. Raises NoSuchStep, OSError."""
    done = os.path.join(folder, "%s%d-%s" % (_LATER, step, job))
    if os.path.isdir(done):
        return
    found = [each for each in search(folder) if each is not None]
    complete = [each for each in found if not each.missing]
    starts = [each for each in complete if each.step == step]
    if not starts:
        steps = sorted({each.step for each in complete if each.step is not None})
        raise NoSuchStep(
            "there is no complete checkpoint of step %d; there are: %s"
            % (step, ", ".join(map(str, steps)) or "none")
        )
    later = _alone(later_than(step, found, starts), found)
    _move(folder, later, done, starts)


def go_back_before(
    folder: str, step: Optional[float], time: float, job: str, attempt: int
) -> Optional[str]:
    """Move the checkpoints that were written after the last good point to a hidden folder in
    `folder`: each one whose step is `step` or later, and each one that was changed after `time`, in
    seconds since 1970. `step` None: not known. Returns a sentence for people. A second call for the
    same attempt does nothing, and returns None. Raises OSError."""
    done = os.path.join(folder, "%s%d-%s" % (_AFTER_ALARM, attempt, job))
    if os.path.isdir(done):
        return None
    found = [each for each in search(folder) if each is not None]
    later = [each for each in found if each.path != "." and _is_after(each, step, time)]
    earlier = [each for each in found if each not in later and not each.missing]
    newest = max(earlier, key=_age, default=None)
    starts = [] if newest is None else [each for each in earlier if each.step == newest.step]
    later = _alone(later, found)
    _move(folder, later, done, starts)
    moved = "checkpoints after the alarm were moved to %s: %d" % (done, len(later))
    if newest is None:
        return moved + "; none is left"
    named = "" if newest.step is None else " of step %d" % newest.step
    return "%s; the newest one left is %s%s" % (moved, newest.path, named)


def _is_after(each: Checkpoint, step: Optional[float], time: float) -> bool:
    has_later_step = step is not None and each.step is not None and each.step >= step
    return has_later_step or each.modified > time


def _age(each: Checkpoint) -> Tuple[float, float]:
    """Order by the step, then by the time; a checkpoint without a step comes first."""
    return -1 if each.step is None else each.step, each.modified


def _alone(later: List[Checkpoint], found: List[Checkpoint]) -> List[Checkpoint]:
    """Leave out each folder that also holds a checkpoint that stays."""
    going = {each.path for each in later}
    holders = {folder for each in found if each.path not in going for folder in each.above}
    return [each for each in later if each.path not in holders]


def _move(folder: str, later: List[Checkpoint], done: str, starts: List[Checkpoint]) -> None:
    """Move checkpoints to the folder `done`, which is there when all have been moved."""
    moving = done + _MOVING
    os.makedirs(moving, exist_ok=True)
    going = {each.path for each in later}
    for each in later:
        if going.isdisjoint(each.above):  # else it moves with its folder
            target = os.path.join(moving, each.path)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(os.path.join(folder, each.path), target)
        for pointer in each.pointers:
            _point(folder, pointer, starts)
    os.rename(moving, done)


def later_than(step: int, found: List[Checkpoint], starts: List[Checkpoint]) -> List[Checkpoint]:
    """The checkpoints that a script might take for newer ones than `starts`, the checkpoints of
    `step`. A model in the searched folder itself stays: a trainer writes it there for others to
    load."""
    began = max(each.modified for each in starts)

    def is_later(each: Checkpoint) -> bool:
        return each.modified > began if each.step is None else each.step > step

    return [each for each in found if each.path != "." and is_later(each)]


def _point(folder: str, pointer: str, starts: List[Checkpoint]) -> None:
    """Let a pointer of a checkpoint that was moved name the nearest one of `starts` below
    the pointer's folder; without one, remove it."""
    path = os.path.join(folder, pointer)
    above = posixpath.dirname(pointer)
    named = [each for each in starts if not above or each.path.startswith(above + "/")]
    with contextlib.suppress(FileNotFoundError):  # an index went with its checkpoint
        target = os.readlink(path) if os.path.islink(path) else ""
        os.unlink(path)
        if not named:
            return
        nearest = min(named, key=lambda each: each.path.count("/"))
        parts = posixpath.relpath(nearest.path, above or ".").split("/")
        if target:
            os.symlink("/".join(parts[: posixpath.normpath(target).count("/") + 1]), path)
            return
        with open(path, "w") as file:
            is_number = parts[0].startswith(_MEGATRON) and nearest.step is not None
            file.write(str(nearest.step) if is_number else parts[0])
