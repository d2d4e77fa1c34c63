"""The facts about a checkpoint, and the verdict about one file or folder."""

import posixpath
from typing import Generator, List, NamedTuple, Optional, Tuple


class Checkpoint(NamedTuple):
    """A checkpoint, and whether it is complete."""

    path: str
    """Relative to the searched folder, "/" between names: what a loader is given, so a whole
    `checkpoint-500`, not its files. "." is the searched folder. A byte of a name that is not UTF-8
    is a lone surrogate, as in `os.fsdecode`.
    """
    format: str
    """A short word for people, such as "torch", "safetensors" or "DeepSpeed"."""
    step: Optional[int]
    """Step by the name, or by the state that the trainer wrote; None: not known."""
    size: int
    """Bytes of all its files."""
    modified: float
    """Newest change of its files, in seconds since 1970."""
    missing: str
    """ "": complete. Else what is missing, as a clause for people."""
    is_proof: bool
    """The format itself proves that nothing can load the checkpoint. False if it is complete, or in
    doubt.
    """
    pointers: Tuple[str, ...]
    """Paths of what names this one: a file `latest`, an index of shards, a link."""

    @property
    def above(self) -> List[str]:
        """Paths of the folders that it is in, below the searched folder."""
        found = []
        folder = posixpath.dirname(self.path)
        while folder:
            found.append(folder)
            folder = posixpath.dirname(folder)
        return found


class Verdict(NamedTuple):
    """Says whether a file or folder is complete; the fields are those of Checkpoint."""

    missing: str = ""
    is_proof: bool = False


COMPLETE = Verdict()
Judging = Generator[None, None, Optional[Verdict]]
"""Yields after each small piece of work. Its result is None for what is no checkpoint."""


def damaged(missing: str) -> Verdict:
    """The verdict about what nothing can load."""
    return Verdict(missing, is_proof=True)
