"""The table of known causes: what a failed rank said -> the way out. Pure; `server_stub.diagnose` asks.

A row costs a test in `tests/service/test_hints.py`. First match wins, so the narrow ones stand first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from client_lib.spec.wire import Code, CodeSnapshot, RankReport
from client_lib.worker.function_runner import PACKAGES

_MISSING_FILE = re.compile(r"No such file or directory: b?'([^'\n]+)'|can't open file '([^'\n]+)'")
_MISSING_MODULE = re.compile(r"No module named '?([A-Za-z_][\w.]*)'?")


@dataclass(frozen=True)
class Facts:
    """What is known besides the spec and the report. The caller looks; nothing here touches a disk."""

    code: Code
    python: str | None = None
    """The submitter's interpreter."""
    beside_submitter: str | None = None
    """Where the file of `missing_file` lies in the submitter's folder; None: not there, or that folder isn't seen."""


def missing_file(rank: RankReport) -> str | None:
    """The path that the rank could not open, as it named it."""
    match = _MISSING_FILE.search(_said(rank))
    return (match.group(1) or match.group(2)) if match else None


def path_beside_submitter(path: str, code: CodeSnapshot) -> str | None:
    """Where a file that is missing in the unpacked snapshot would lie in the folder that was packed; None: it names a
    place outside of it."""
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        if "work" not in parts:  # snapshots are unpacked in `work/` of the worker's directory
            return None
        inside = parts[len(parts) - parts[::-1].index("work") :]
        return str(PurePosixPath(code.root, *inside))
    return str(PurePosixPath(code.root, code.working_dir, path))


@dataclass(frozen=True)
class Cause:
    """A row: how a known cause shows, and the way out of it."""

    shows: re.Pattern[str] | None
    """Found in the exception, the traceback or the last lines. None: only the signal tells."""
    hint: str
    """`{module}`: the pattern's group; `{python}`: the job's interpreter."""
    signal: int | None = None
    """Enough by itself; 128 + signal as an exit code counts too."""

    def matches(self, rank: RankReport, said: str) -> bool:
        if self.signal and (rank.signal == self.signal or rank.exit_code == 128 + self.signal):
            return True
        return bool(self.shows and self.shows.search(said))


_OWN_PORT = (
    "don't fix a port in the script; init_process_group() without init_method takes MASTER_ADDR and MASTER_PORT, "
    "which are free and set for each job"
)
CAUSES = (
    Cause(
        re.compile(
            r"out of shared memory|insufficient shared memory|unable to (?:open|write|mmap).*shm|Bus error|"
            r"No space left on device.*(?:/dev/shm|/torch_)|(?:/dev/shm|/torch_).*No space left"
        ),
        "/dev/shm is too small for the DataLoader's workers: fewer num_workers, "
        "torch.multiprocessing.set_sharing_strategy('file_system'), or a larger /dev/shm "
        "(shm_size_class='large' on a cluster, `mount -o remount,size=16G /dev/shm` on this machine)",
        signal=7,
    ),
    Cause(
        re.compile(r"port (?P<port>\d+) is held by (?P<holder>.*)"),
        "port {port} is held by {holder}: " + _OWN_PORT,
    ),
    Cause(re.compile(r"EADDRINUSE|[Aa]ddress already in use"), "another process listens on that port: " + _OWN_PORT),
    Cause(
        re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
        "the GPU's memory is full: a smaller batch, gradient accumulation or checkpointing, bf16, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation, "
        "or an instance_type with more memory per GPU",
    ),
    Cause(
        re.compile(
            r"ProcessGroupNCCL is only supported with GPUs|requires at least one CUDA device|"
            r"No CUDA GPUs are available|Found no NVIDIA driver|"
            r"not compiled with CUDA enabled|doesn't have NCCL built in|torch\.cuda\.is_available\(\) is False|"
            r"no CUDA-capable device"
        ),
        "this worker has no GPU, and the script fixes nccl or CUDA: take backend 'nccl' if "
        "torch.cuda.is_available() else 'gloo', the device likewise, or run it where there are GPUs",
    ),
    Cause(
        re.compile(r"No module named '?(?P<module>(?P<package>[A-Za-z_]\w*)[\w.]*)"),
        "the job's interpreter does not find the module {module}: add requirements=['{package}'], install it "
        "(`{python} -m pip install ...`), submit from the environment that has it, or, if it is a file of yours, keep "
        "it inside the folder of the script",
    ),
    Cause(
        None,
        "if memory ran out: a smaller batch, fewer DataLoader workers, or an instance_type with more memory",
        signal=9,
    ),
)


def hint_for(rank: RankReport, facts: Facts) -> str | None:
    """The way out for the first known cause that matches what the rank said; None: none does."""
    if facts.beside_submitter:
        return (
            f"{facts.beside_submitter} exists, but the snapshot left it out: an ignore file (.gitignore, "
            ".clientlibignore) matches it. Add `!<its path>` to .clientlibignore, or give an absolute path "
            "that the workers see"
        )
    said = _said(rank)
    cause = next((cause for cause in CAUSES if cause.matches(rank, said)), None)
    return _filled(cause, said, facts) if cause else None


def _filled(cause: Cause, said: str, facts: Facts) -> str:
    found = cause.shows.search(said) if cause.shows else None
    words = found.groupdict() if found else {}
    if "package" in words:
        words["package"] = PACKAGES.get(words["package"], words["package"])
    return cause.hint.format(python=facts.python or "python", **words)


def _said(rank: RankReport) -> str:
    return "\n".join([rank.exception or "", rank.traceback or "", *rank.last_lines])
