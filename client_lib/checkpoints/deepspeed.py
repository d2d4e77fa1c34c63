"""Folders of DeepSpeed: `global_stepN`, with the files of each rank."""

import itertools
import re
from typing import Dict, List, Optional, Set, Tuple

from client_lib.checkpoints.checkpoint import COMPLETE, Judging, damaged
from client_lib.checkpoints.listing import Folder

_FILE = re.compile(r".*_(?:model|optim)_states\.pt")
_NAME = re.compile(r"global_step[0-9]+")
_RANK = re.compile(r"(?<=rank_)[0-9]{1,9}")
_HOLE = "\0"
"""Stands for the number of a rank: no name has it."""
_MOST = 100_000
"""Combinations of ranks that are looked for."""


def fits(folder: Folder) -> bool:
    """Say whether it has files of DeepSpeed, or the name of a folder that is about to get them."""
    if folder.is_empty or folder.error:
        return bool(_NAME.fullmatch(folder.name))
    return any(_FILE.fullmatch(name) for name in folder.names())


def judge(folder: Folder) -> Judging:
    """Judge by names: the numbers of ranks have no gaps."""
    yield
    names = folder.names()
    if folder.is_empty:
        return damaged("it is empty")
    if not any(name.endswith("_model_states.pt") for name in names):
        return damaged("the files *_model_states.pt are missing")
    for kind, found in _by_kind(names).items():
        gap = _gap(found)
        if gap:
            return damaged(f"{_with_ranks(kind, gap)} is missing")
    return COMPLETE


def _by_kind(names: List[str]) -> Dict[str, Set[Tuple[str, ...]]]:
    """The numbers of ranks by the name without them."""
    kinds: Dict[str, Set[Tuple[str, ...]]] = {}
    for name in names:
        # layers and experts without parameters have no file
        if _FILE.fullmatch(name) and not name.startswith("layer_"):
            numbers = tuple(_RANK.findall(name))
            kinds.setdefault(_RANK.sub(_HOLE, name), set()).add(numbers)
    return kinds


def _gap(found: Set[Tuple[str, ...]]) -> Optional[Tuple[str, ...]]:
    """The first combination of ranks that is missing below the largest of each."""
    counts = []
    widths = []
    for column in zip(*found):
        counts.append(max(map(int, column)) + 1)
        widths.append(min(map(len, column)))
    combinations = 1
    for count in counts:
        combinations *= count
    if combinations > _MOST:
        return None
    present = {tuple(map(int, numbers)) for numbers in found}
    for numbers in itertools.product(*map(range, counts)):
        if numbers not in present:
            return tuple(str(number).zfill(width) for number, width in zip(numbers, widths))
    return None


def _with_ranks(kind: str, numbers: Tuple[str, ...]) -> str:
    first, *rest = kind.split(_HOLE)
    return first + "".join(map("".join, zip(numbers, rest)))
