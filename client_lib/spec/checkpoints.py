"""The checkpoints of a job: the answer of `GET /jobs/{name}/checkpoints`."""

from datetime import datetime
from typing import Literal

from client_lib.spec.validation import Lenient


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
    job: str
    checkpoints: list[JobCheckpoint]
    """Ordered by step, then by time; at most 1000, of which the newest are kept."""
    complete: bool = True
    """False: the log is long, and a part of it was not read yet; ask again."""
