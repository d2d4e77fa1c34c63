"""Folders of transformers' Trainer, of `save_pretrained`, and of Accelerate.

The Trainer writes the model, `training_args.bin`, optimizer, scheduler, the states of random
numbers and then `trainer_state.json`, without which it does not resume. Accelerate writes the
model, `optimizer.bin`, `scheduler.bin` and then `random_states_RANK.pkl`.
"""

import re
from typing import Generator, Optional, Set

from client_lib.checkpoints import sharded, single_files
from client_lib.checkpoints.checkpoint import COMPLETE, Judging, Verdict, damaged
from client_lib.checkpoints.listing import Folder
from client_lib.checkpoints.reading import File

_STATE = "trainer_state.json"
_NAME = re.compile(r"checkpoint-[0-9]+")
_CONFIGS = ("config.json", "adapter_config.json", "model_index.json")
_WEIGHTS = re.compile(
    r"(?:model|pytorch_model|adapter_model|diffusion_pytorch_model).*\.(?:safetensors|bin)"
)
_STEP = re.compile(rb'"global_step":[ ]{0,9}([0-9]{1,15})[,} \r\n]')
_STEP_WITHIN = 2**16


def has_name_of_trainer(folder: Folder) -> bool:
    """Say whether it is called `checkpoint-N`."""
    return bool(_NAME.fullmatch(folder.name))


def is_of_trainer(folder: Folder) -> bool:
    """Say whether the Trainer has written it, or is about to."""
    names = folder.names
    if _STATE in names:
        return True
    if not has_name_of_trainer(folder) or _is_accelerate(names):
        return False
    is_unknown = folder.is_empty or bool(folder.error)
    return is_unknown or _has_evidence(names) or bool(names.intersection(_CONFIGS))


def judge_trainer(folder: Folder) -> Judging:
    """Judge by the file that the Trainer writes last, and by the numbers of ranks."""
    names = folder.names
    if folder.is_empty:
        return damaged("it is empty")
    if _STATE in folder.files:
        with File(folder.location_of(_STATE)) as file:
            if not sharded.ends_with_brace(file):
                return damaged(f"{_STATE} is cut off: {file.size} bytes")
        yield
    elif _STATE not in names and (_has_evidence(names) or _is_beside_trainers(folder)):
        return Verdict(f"{_STATE} is missing, which the Trainer writes last")
    verdict = yield from sharded.judge(folder)
    if verdict and verdict.missing:
        return verdict
    gap = _gap(names, "rng_state_", ".pth")
    if gap:
        return Verdict(gap)
    if not _has_weights(folder):
        return Verdict("there is no file of weights")
    return COMPLETE


def is_model(folder: Folder) -> bool:
    """Say whether `save_pretrained` has written it."""
    names = folder.names
    return bool(names.intersection(_CONFIGS)) and any(map(_WEIGHTS.fullmatch, names))


def judge_model(folder: Folder) -> Judging:
    """Judge by the index of shards."""
    return (yield from sharded.judge(folder))


def is_of_accelerate(folder: Folder) -> bool:
    """Say whether `Accelerator.save_state` has written it."""
    return _is_accelerate(folder.names)


def judge_accelerate(folder: Folder) -> Judging:
    """Judge by the files that are written last."""
    names = folder.names
    if not any(name.startswith("random_states_") for name in names):
        return Verdict("random_states_0.pkl is missing, which Accelerate writes last")
    gap = _gap(names, "random_states_", ".pkl")
    if gap:
        return Verdict(gap)
    return (yield from sharded.judge(folder))


def step_inside(folder: Folder) -> Generator[None, None, Optional[int]]:
    """The step in the state of the Trainer."""
    if _STATE not in folder.files:
        return None
    try:
        with File(folder.location_of(_STATE)) as file:
            found = _STEP.search(file.read(0, _STEP_WITHIN))
    except OSError:  # it is gone, or can't be read
        return None
    yield
    return int(found.group(1)) if found else None


def _is_accelerate(names: Set[str]) -> bool:
    states = any(name.startswith("random_states_") and name.endswith(".pkl") for name in names)
    return states or "optimizer.bin" in names


def _has_evidence(names: Set[str]) -> bool:
    """Say whether there is a file that the Trainer alone writes."""
    if "training_args.bin" in names or any(name.startswith("rng_state") for name in names):
        return True
    return "optimizer.pt" in names and any(map(_WEIGHTS.fullmatch, names))


def _is_beside_trainers(folder: Folder) -> bool:
    """Say whether the Trainer has written another folder beside this one."""
    beside = folder.parent.folders.values() if folder.parent else ()
    return any(has_name_of_trainer(other) and _STATE in other.names for other in beside)


def _gap(names: Set[str], before: str, after: str) -> str:
    """The text that a file is missing, of those that are numbered from 0; "": none is."""
    numbers = set()
    for name in names:
        number = name[len(before) : -len(after)]
        if name.startswith(before) and name.endswith(after) and number.isdigit():
            numbers.add(number)
    for expected in map(str, range(len(numbers))):
        if expected not in numbers:
            return f"{before}{expected}{after} is missing"
    return ""


def _has_weights(folder: Folder) -> bool:
    for part in folder.tree():
        for name in part.names:
            of_trainer = name.startswith(("optimizer", "scheduler", "scaler", "rng_", "training_"))
            if name.endswith((*single_files.SUFFIXES, ".distcp")) and not of_trainer:
                return True
    return False
