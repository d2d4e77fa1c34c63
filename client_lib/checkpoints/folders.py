"""The format of a folder, and the verdict whether it is complete as a whole."""

import os
from typing import Callable, Generator, List, NamedTuple, Optional, Sequence

from client_lib.checkpoints import deepspeed, distributed, hugging_face, sharded, single_files
from client_lib.checkpoints.checkpoint import COMPLETE, Judging, Verdict
from client_lib.checkpoints.listing import Folder
from client_lib.checkpoints.reading import File, NotAFile


class _Rule(NamedTuple):
    format: str
    fits: Callable[[Folder], bool]
    judge: Callable[[Folder], Judging]
    """Judges what must be there; the files themselves are judged by their suffixes."""
    owns: Callable[[Folder], bool]
    """Says whether the folders below belong to it."""


def _always(_: Folder) -> bool:
    return True


def _never(_: Folder) -> bool:
    return False


def _is_of_lightning(folder: Folder) -> bool:
    """Say whether Lightning has written it by DeepSpeed, whose tag is `checkpoint` then."""
    return folder.name.endswith(".ckpt") and "checkpoint" in folder.folders


_RULES: Sequence[_Rule] = (
    _Rule("distributed", distributed.fits, distributed.judge, _always),
    _Rule("DeepSpeed", deepspeed.fits, deepspeed.judge, _always),
    _Rule(
        "Hugging Face",
        hugging_face.is_of_trainer,
        hugging_face.judge_trainer,
        hugging_face.has_name_of_trainer,
    ),
    _Rule("Accelerate", hugging_face.is_of_accelerate, hugging_face.judge_accelerate, _always),
    _Rule("Hugging Face", hugging_face.is_model, hugging_face.judge_model, _never),
    _Rule("sharded", sharded.fits, sharded.judge, _never),
    _Rule("Lightning", _is_of_lightning, sharded.judge, _always),
)


class Unit(NamedTuple):
    """A folder that is a checkpoint as a whole."""

    rule: _Rule
    folder: Folder
    parts: List[Folder]
    """The folder, and those below it that belong to it."""
    others: List[Folder]
    """Folders below it that do not."""


def unit_of(folder: Folder) -> Optional[Unit]:
    """The checkpoint that a folder is. None: it is no checkpoint as a whole."""
    rule = _rule(folder)
    if rule is None:
        return None
    parts = [folder]
    others = []
    for below in folder.folders.values():
        if not rule.owns(folder) or hugging_face.has_name_of_trainer(below):
            others.append(below)
        else:
            parts += below.tree()
    return Unit(rule, folder, parts, others)


def judge(unit: Unit) -> Generator[None, None, single_files.Judged]:
    """Judge a folder as a whole: each file of weights in it, and what must be there."""
    unknown = next((part for part in unit.parts if not part.is_whole), None)
    if unknown:  # a file that seems to be missing may be among the names that were not listed
        reason = unknown.error or "it has too many files"
        return single_files.Judged(unit.rule.format, Verdict(f"it can't be read: {reason}"))
    verdicts: List[Verdict] = []
    for part in unit.parts:
        rule = unit.rule if part is unit.folder else _rule(part)
        inside = part.location[len(unit.folder.location) + 1 :]
        verdicts += yield from _judge_files(part, inside)
        if rule:
            verdict = yield from _judge_by(rule, part)
            if verdict and verdict.missing:
                where = f"{inside}: " if inside else ""
                verdicts.append(verdict._replace(missing=where + verdict.missing))
    # a proven damage is told before a doubtful one
    verdicts.sort(key=lambda verdict: not verdict.is_proof)
    return single_files.Judged(unit.rule.format, verdicts[0] if verdicts else COMPLETE)


def step_inside(folder: Folder) -> Generator[None, None, Optional[int]]:
    """The step that the trainer wrote into the folder."""
    return (yield from hugging_face.step_inside(folder))


def _rule(folder: Folder) -> Optional[_Rule]:
    return next((rule for rule in _RULES if rule.fits(folder)), None)


def _judge_by(rule: _Rule, folder: Folder) -> Judging:
    try:
        return (yield from rule.judge(folder))
    except OSError as error:
        return Verdict(f"it can't be read: {error.strerror or type(error).__name__}")


def _judge_files(folder: Folder, inside: str) -> Generator[None, None, List[Verdict]]:
    """The verdicts about the damaged files in a folder; `inside`: its path in the checkpoint."""
    found = []
    for name in sorted(folder.files):
        if not single_files.is_member(name):
            continue
        judged: Optional[single_files.Judged]
        try:
            with File(folder.location_of(name)) as file:
                judged = yield from single_files.judge(file, name)
        except (FileNotFoundError, NotADirectoryError, NotAFile):  # gone since it was listed
            continue
        except OSError as error:
            judged = single_files.unreadable(name, error)
        if judged and judged.verdict.missing:
            missing = f"{os.path.join(inside, name)}: {judged.verdict.missing}"
            found.append(judged.verdict._replace(missing=missing))
    return found
