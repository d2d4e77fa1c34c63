"""The step in the name of a checkpoint."""

import re
from typing import Optional

_DIGITS = 15
"""A step has at most so many digits: larger numbers are dates with times, hashes, or nonsense."""
_NUMBER = r"[-_=]?([0-9]+)(?![0-9]|\.[0-9]|[-_]of[-_][0-9])"
_WORDS = [
    re.compile(r"(?<![a-z])(?:" + words + ")" + _NUMBER, re.IGNORECASE)
    for words in (
        "global[-_]?steps?",
        "steps?",
        "iterations?|iters?|it",
        "checkpoint|ckpt|model|optimizer|optim|scheduler|scaler",
    )
]
"""Words that stand before a step, the clearest first."""
_NUMBER_ALONE = re.compile(r"([0-9]+)(?:\.[a-z]+)?", re.IGNORECASE)


def step_of(name: str) -> Optional[int]:
    """The step in the name of a checkpoint: `step=500`, `checkpoint-500`, `global_step500`,
    `epoch=3-step=1200.ckpt`, `400.pt`. None: the name has none, or a number of more than 15 digits.
    """
    found = _NUMBER_ALONE.fullmatch(name)
    for word in _WORDS:
        found = found or word.search(name)
    if not found:
        return None
    digits = found.group(1).lstrip("0") or "0"
    return int(digits) if len(digits) <= _DIGITS else None
