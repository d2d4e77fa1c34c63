"""The checkpoints of a job: the list, and the removal of early ones."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from client_lib.spec.validation import MANY_MAX, Lenient, Strict, Text, up_to


class JobCheckpoint(Lenient):
    """A file or folder from which a script can resume, recognised by its format."""

    path: str
    """Absolute path, as the ranks see it: what a loader takes, such as a whole folder
    `checkpoint-500`. A byte that is no UTF-8 is written as `\\xNN`."""
    format: str
    """The library or file format that it belongs to, such as `torch`, `safetensors`, `distributed`
    (torch.distributed.checkpoint), `Hugging Face` or `DeepSpeed`."""
    step: int | None = None
    """The step in its name or in its files, else the last step that the job had printed when it was
    written; None: not known."""
    size: int
    """Bytes of all its files."""
    modified_at: datetime
    attempt: int | None = None
    """The attempt that wrote it; None: it was there before the job."""
    state: Literal["complete", "writing", "damaged"] | str
    """`complete`: sizes, headers and file names agree. `writing`: a part is missing, and the ranks
    may still write it. `damaged`: a part is missing for good. No content is unpickled."""
    missing: str = ""
    """The part that is missing, as a clause."""
    pointers: list[str] = []
    """Names of what points to it: `latest`, a link such as `last.ckpt`, an index."""


class JobCheckpoints(Lenient):
    """`GET /jobs/{name}/checkpoints`."""

    job: str
    checkpoints: list[JobCheckpoint]
    """Ordered by step, then by time; at most 1000, of which the newest are kept."""
    complete: bool = True
    """False: the log is long, and a part of it was not read yet; ask again."""


class CheckpointPrune(Strict):
    """`POST /jobs/{name}/checkpoints/prune`."""

    keep: Annotated[int, Field(ge=1, le=MANY_MAX)]
    """Number of steps whose checkpoints stay, in each folder below the job's directory for
    checkpoints. What has no step, what lacks something, and what a pointer names stays, too."""
    paths: Annotated[list[Text], up_to(MANY_MAX)] | None = None
    """Paths of the checkpoints to remove. None: nothing is removed; the answer lists all that could
    be."""


class EarlyCheckpoint(Lenient):
    """A checkpoint that goes."""

    path: str
    """Absolute path, as in the list."""
    step: int
    size: int
    """Bytes of all its files."""
    modified_at: datetime


class PrunedCheckpoints(Lenient):
    """The answer to CheckpointPrune."""

    job: str
    checkpoints: list[EarlyCheckpoint]
    """Removed, or to be removed; the earliest step first, at most 1000."""
    stays: dict[str, str] = {}
    """Others that stay, by their paths, and the reason of each as a clause."""
