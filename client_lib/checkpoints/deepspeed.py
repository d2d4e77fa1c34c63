"""Folders of DeepSpeed: `global_stepN`, with the files of each rank.

The states of models are written first, then the partitions of the optimizer (with ZeRO), then the
file `latest` beside the folder. The former hold the number of data parallel ranks, and so tell how
many partitions there are.
"""

import itertools
import re
from typing import Dict, Iterable, Optional, Set, Tuple

from client_lib.checkpoints.checkpoint import COMPLETE, Judging, Verdict, damaged
from client_lib.checkpoints.listing import Folder
from client_lib.checkpoints.reading import File

_FILES = ("_model_states.pt", "_optim_states.pt")
_NAME = re.compile(r"global_step[0-9]+")
_RANK = re.compile(r"(?<=rank_)[0-9]{1,9}")
_RANK_0 = re.compile(r"(?:^|zero_pp_rank_0_)mp_rank_[0-9]+_model_states\.pt$")
_PARTITION = re.compile(r"(?:bf16_)?zero_pp_rank_([0-9]{1,9})_mp_rank_[0-9]+_optim_states\.pt")
_RANKS_IN_STATE = re.compile(
    # a key of the pickle, which is remembered (BINPUT and so on), and a number of 1, 2 or 4 bytes
    rb"\r(?:\0\0\0)?dp_world_size(?:q.|r....|\x94)?[KMJ]((?<=K).|(?<=M)..|(?<=J)....)",
    re.DOTALL,
)
_STATE_WITHIN = 2**22
"""Bytes of a state of models that are searched."""
_HOLE = "\0"
"""Stands for the number of a rank: no name has it."""
_MOST = 100_000
"""Combinations of ranks that are looked for."""


def fits(folder: Folder) -> bool:
    """Say whether it has files of DeepSpeed, or the name of a folder that is about to get them."""
    if folder.is_empty or folder.error:
        return bool(_NAME.fullmatch(folder.name))
    return any(name.endswith(_FILES) for name in folder.names)


def judge(folder: Folder) -> Judging:
    """Judge by names: the numbers of ranks have no gaps, and there is a partition of each."""
    yield
    names = folder.names
    if folder.is_empty:
        return damaged("it is empty")
    if not any(name.endswith("_model_states.pt") for name in names):
        return damaged("the files *_model_states.pt are missing")
    for kind, found in _by_kind(names).items():
        gap = _gap(found)
        if gap:
            return damaged(f"{_with_ranks(kind, gap)} is missing")
    if not _has_optimizer(folder):
        return _without_optimizer(folder)
    return (yield from _judge_partitions(folder))


def _has_optimizer(folder: Folder) -> bool:
    return any(name.endswith("_optim_states.pt") for name in folder.names)


def _without_optimizer(folder: Folder) -> Verdict:
    """The verdict if there are no partitions: without ZeRO there are none, and the states of models
    hold the optimizer.
    """
    if not folder.parent:
        return COMPLETE
    if any(_has_optimizer(other) for other in folder.parent.folders.values()):
        return Verdict("the files *_optim_states.pt are missing, which the folders beside it have")
    if "latest" not in folder.parent.names and _NAME.fullmatch(folder.name):
        return Verdict("`latest` is missing beside it, which DeepSpeed writes last")
    return COMPLETE


def _judge_partitions(folder: Folder) -> Judging:
    partitions = {
        int(match.group(1)) for match in filter(None, map(_PARTITION.fullmatch, folder.names))
    }
    models = sorted(name for name in folder.files if _RANK_0.search(name))
    if not partitions or not models:
        return COMPLETE
    with File(folder.location_of(models[0])) as file:
        for match in file.find(_RANKS_IN_STATE, 0, _STATE_WITHIN):
            if match is None:
                yield
                continue
            ranks = int.from_bytes(match.group(1), "little")
            if max(partitions) + 1 < ranks:  # subgroups of ranks may have partitions of their own
                return Verdict(f"partitions of {max(partitions) + 1} ranks are there, of {ranks}")
            break
    return COMPLETE


def _by_kind(names: Iterable[str]) -> Dict[str, Set[Tuple[str, ...]]]:
    """The numbers of ranks by the name without them."""
    kinds: Dict[str, Set[Tuple[str, ...]]] = {}
    for name in names:
        # layers and experts without parameters have no file
        if name.endswith(_FILES) and not name.startswith("layer_"):
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
