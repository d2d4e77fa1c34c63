"""The format of a folder, and the verdict whether it is complete as a whole."""

from typing import Callable, Generator, Iterator, List, NamedTuple, Optional, Sequence

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
    _Rule("Lightning", lambda folder: folder.name.endswith(".ckpt"), sharded.judge, _always),
)


def is_unit(folder: Folder) -> bool:
    """Say whether the folder is a checkpoint as a whole."""
    return _rule(folder) is not None


def parts(folder: Folder) -> Iterator[Folder]:
    """The folder of a checkpoint, and the folders below it that belong to it."""
    yield folder
    outside = {id(below) for below in not_of_unit(folder)}
    for below in folder.folders.values():
        if id(below) not in outside:
            yield from below.tree()


def not_of_unit(folder: Folder) -> List[Folder]:
    """The folders below a checkpoint that are not a part of it."""
    rule = _rule(folder)
    owns = rule is not None and rule.owns(folder)
    return [
        below
        for below in folder.folders.values()
        if not owns or hugging_face.has_name_of_trainer(below)
    ]


def judge(folder: Folder) -> Generator[None, None, Optional[single_files.Judged]]:
    """Judge a folder for which `is_unit` holds."""
    rule = _rule(folder)
    if rule is None:
        return None
    unknown = next((part for part in parts(folder) if not part.is_whole), None)
    if unknown:  # what seems to be missing may be among the names that were not listed
        reason = unknown.error or "it has too many files"
        return single_files.Judged(rule.format, Verdict(f"it can't be read: {reason}"))
    verdicts: List[Verdict] = []
    for part in parts(folder):
        inside = part.path[len(folder.path) + 1 :] + "/" if part is not folder else ""
        verdicts += yield from _judge_files(part, inside)
        part_rule = _rule(part)
        if part_rule:
            verdict = yield from _judge_by(part_rule, part)
            verdicts += [verdict] if verdict else []
    # what is proven is said, rather than what is in doubt
    verdicts.sort(key=lambda verdict: (not verdict.is_proof, not verdict.missing))
    return single_files.Judged(rule.format, verdicts[0] if verdicts else COMPLETE)


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
            missing = f"{inside}{name}: {judged.verdict.missing}"
            found.append(judged.verdict._replace(missing=missing))
    return found
