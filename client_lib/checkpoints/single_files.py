"""A file by its suffix: which format it has, and whether it is complete."""

from typing import Generator, NamedTuple, Optional

from client_lib.checkpoints import old_torch, safetensors, zip_archive
from client_lib.checkpoints.checkpoint import Verdict, damaged
from client_lib.checkpoints.reading import File

TORCH = (".pt", ".pth", ".ckpt", ".bin")
SAFETENSORS = ".safetensors"
SUFFIXES = (*TORCH, SAFETENSORS)
_ZEROS = 4096
"""Zeros at both ends of a file that was made large before it was written."""


class Judged(NamedTuple):
    format: str
    verdict: Verdict


def judge(file: File, name: str) -> Generator[None, None, Optional[Judged]]:
    """Judge a file with one of SUFFIXES. None: it is no checkpoint."""
    if name.endswith(SAFETENSORS):
        verdict = yield from safetensors.judge(file)
        return verdict and Judged("safetensors", verdict)
    begin = file.read(0, _ZEROS)
    yield
    if begin.startswith(zip_archive.MAGIC):
        verdict = yield from zip_archive.judge(file)
        return verdict and Judged("torch", verdict)
    if old_torch.MAGIC in begin[: old_torch.MAGIC_WITHIN]:
        verdict = yield from old_torch.judge(file)
        return verdict and Judged("torch (before 1.6)", verdict)
    # files of any program have the suffix .bin
    verdict = None if name.endswith(".bin") and not _is_weights(name) else _unwritten(file, begin)
    return verdict and Judged("torch", verdict)


def is_member(name: str) -> bool:
    """Say whether a file in the folder of a checkpoint is judged: Accelerate gives the suffix .pkl
    to files of `torch.save`.
    """
    return name.endswith(SUFFIXES) or name.startswith(("random_states_", "custom_checkpoint_"))


def unreadable(name: str, error: OSError) -> Judged:
    """The verdict about a file that the system does not let us read."""
    reason = error.strerror or type(error).__name__
    kind = "safetensors" if name.endswith(SAFETENSORS) else "torch"
    return Judged(kind, Verdict(f"it can't be read: {reason}"))


def _is_weights(name: str) -> bool:
    return name.startswith(("pytorch_model", "adapter_model", "optimizer", "scheduler"))


def _unwritten(file: File, begin: bytes) -> Optional[Verdict]:
    """The verdict about a file whose first bytes were never written, or only they were."""
    if not begin:
        return damaged("it is empty")
    if zip_archive.MAGIC.startswith(begin) or old_torch.MAGIC_AT_0.startswith(begin):
        return damaged(f"cut off: {file.size} bytes")
    end = file.read(max(0, file.size - _ZEROS), _ZEROS)
    if not (begin + end).strip(b"\0"):
        return damaged(f"not written: {file.size} bytes, zeros at both ends")
    return None
