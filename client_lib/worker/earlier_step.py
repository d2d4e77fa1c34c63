"""Lets a job start from an earlier step than the last one of the checkpoints that were copied for
it: moves the later ones away, and lets their pointers name the earlier one.
"""

import contextlib
import os
import posixpath
from typing import List

from client_lib.checkpoints import Checkpoint, search

_LATER = ".later-than-"
_MOVING = ".moving"
_MEGATRON = "iter_"


class NoSuchStep(Exception):
    """No complete checkpoint of this step is there; the message lists the steps that are."""


def go_back(folder: str, step: int, job: str) -> None:
    """Move what is later than this step to a hidden folder in `folder`: checkpoints of later steps,
    and those without a step that were changed later. A second call for the same job does nothing:
    the job has begun by then. Raises NoSuchStep, OSError."""
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
    moving = done + _MOVING
    os.makedirs(moving, exist_ok=True)
    for each in later_than(step, found, starts):
        target = os.path.join(moving, each.path)
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.rename(os.path.join(folder, each.path), target)
        for pointer in each.pointers:
            _point(folder, pointer, step, starts)
    os.rename(moving, done)


def later_than(step: int, found: List[Checkpoint], starts: List[Checkpoint]) -> List[Checkpoint]:
    """The checkpoints that a script might take for newer ones than `starts`, those of the step. A
    model in the searched folder itself stays: a trainer writes it there for others to load.
    """
    began = max(each.modified for each in starts)

    def is_later(each: Checkpoint) -> bool:
        return each.modified > began if each.step is None else each.step > step

    return [each for each in found if each.path != "." and is_later(each)]


def _point(folder: str, pointer: str, step: int, starts: List[Checkpoint]) -> None:
    """Let a pointer of a checkpoint that was moved name the nearest one of the step below
    the pointer's folder; without one, remove it."""
    path = os.path.join(folder, pointer)
    above = posixpath.dirname(pointer)
    named = [each.path for each in starts if not above or each.path.startswith(above + "/")]
    with contextlib.suppress(FileNotFoundError):  # an index went with its checkpoint
        target = os.readlink(path) if os.path.islink(path) else ""
        os.unlink(path)
        if not named:
            return
        nearest = min(named, key=lambda each: each.count("/"))
        parts = posixpath.relpath(nearest, above or ".").split("/")
        if target:
            os.symlink("/".join(parts[: posixpath.normpath(target).count("/") + 1]), path)
            return
        with open(path, "w") as file:
            file.write(str(step) if parts[0].startswith(_MEGATRON) else parts[0])
