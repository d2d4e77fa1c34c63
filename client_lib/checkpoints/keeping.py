"""Chooses the checkpoints that a job no longer needs. Pure."""

import posixpath
from typing import Dict, Iterable, List, Set

from client_lib.checkpoints.checkpoint import Checkpoint


def surplus(found: Iterable[Checkpoint], keep: int) -> List[Checkpoint]:
    """The checkpoints of earlier steps than the last `keep` complete ones of their folder, the
    earliest first.

    Only complete checkpoints with a step count, and only these are surplus: never one without a
    step, such as `best.pt`, one that lacks something, the searched folder itself, a folder with
    another checkpoint in it, or one that a pointer names. Files of one step (`model-400.pt`,
    `optimizer-400.pt`) stay or go together.
    """
    found = list(found)
    complete = [
        each for each in found if not each.missing and each.step is not None and each.path != "."
    ]
    kept = _last_steps(complete, keep)
    holders = {folder for each in found for folder in each.above}
    surplus = [
        each
        for each in complete
        if each.step not in kept[posixpath.dirname(each.path)]
        and not each.pointers
        and each.path not in holders
    ]
    return sorted(surplus, key=lambda each: (each.step or 0, each.modified))


def _last_steps(complete: List[Checkpoint], keep: int) -> "Dict[str, Set[int]]":
    """The steps that stay, for each folder."""
    steps: Dict[str, Set[int]] = {}
    for each in complete:
        if each.step is not None:
            steps.setdefault(posixpath.dirname(each.path), set()).add(each.step)
    return {folder: set(sorted(found)[-keep:]) for folder, found in steps.items()}
