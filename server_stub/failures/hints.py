"""The table of known causes: from the output of a failed rank to the way out. Pure.

Each row has a test in `tests/failures/test_hints.py`. The first match wins, so narrow rows stand first.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePosixPath

from client_lib.spec.wire import Code, CodeSnapshot, RankReport
from client_lib.worker.function_runner import PACKAGES

_MISSING_FILE = re.compile(r"No such file or directory: b?'([^'\n]+)'|can't open file '([^'\n]+)'")


@dataclass(frozen=True)
class Facts:
    """Facts about the job beside the report of its rank. The caller looks them up."""

    code: Code
    python: str | None = None
    """The submitter's interpreter."""
    beside_submitter: str | None = None
    """Path of the missing file in the submitter's folder; None if it isn't there or the folder can't be seen."""


def missing_file(rank: RankReport) -> str | None:
    """The path that the rank could not open, as its error names it."""
    match = _MISSING_FILE.search(_output(rank))
    return (match.group(1) or match.group(2)) if match else None


def path_beside_submitter(path: str, code: CodeSnapshot) -> str | None:
    """Path in the submitted folder of a file that is missing in the unpacked snapshot; None if it lies outside."""
    parts = PurePosixPath(path).parts
    if path.startswith("/"):
        if "work" not in parts:  # snapshots are unpacked in `work/` of the worker's directory
            return None
        inside = parts[len(parts) - parts[::-1].index("work") :]
        return str(PurePosixPath(code.root, *inside))
    return str(PurePosixPath(code.root, code.working_dir, path))


@dataclass(frozen=True)
class Cause:
    """A row of the table."""

    symptom: str
    """The cause as a reader of the documentation looks for it."""
    shows: re.Pattern[str] | None
    """Pattern for the exception, the traceback or the last lines. None: only the signal counts."""
    hint: str
    """`{module}` is the pattern's group of that name, `{python}` the job's interpreter."""
    signal: int | None = None
    """This signal, or the exit code 128 + signal, is enough without the pattern."""

    def matches(self, rank: RankReport, output: str) -> bool:
        if self.signal and (rank.signal == self.signal or rank.exit_code == 128 + self.signal):
            return True
        return bool(self.shows and self.shows.search(output))


_PLATFORM_HOST = r"[a-z0-9][a-z0-9-]*-mpi(?:master|worker)-\d+[\w.-]*"
_UNRESOLVED = (
    r"gai ?error|Name or service not known|nodename nor servname|[Tt]emporary failure in name resolution|"
    r"[Cc]ould not resolve|[Nn]o address associated|unknown host"
)
_OWN_PORT = (
    "do not write a fixed port into the script; init_process_group() without init_method takes MASTER_ADDR and "
    "MASTER_PORT, which are free and set for each job"
)
CAUSES = (
    Cause(
        "prints `Bus error` or `out of shared memory`",
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
        "prints `No space left on device`",
        re.compile(r"No space left on device|Disk quota exceeded"),
        "a disk that the script writes to is full: the path beside the error shows which one. Make room there, keep "
        "fewer checkpoints, or write to another disk (checkpoint_dir, a volume, TMPDIR)",
    ),
    Cause(
        "cannot use a port that another job has",
        re.compile(r"port (?P<port>\d+) is held by (?P<holder>.*)"),
        "port {port} is held by {holder}: " + _OWN_PORT,
    ),
    Cause(
        "prints `Address already in use`",
        re.compile(r"EADDRINUSE|[Aa]ddress already in use"),
        "another process listens on that port: " + _OWN_PORT,
    ),
    Cause(
        "can't resolve the host name of a job of ML Space",
        re.compile(
            rf"(?P<host>{_PLATFORM_HOST})(?s:.{{0,400}}?)(?:{_UNRESOLVED})|"
            rf"(?:{_UNRESOLVED})[^\n]{{0,100}}?(?P<host_behind>{_PLATFORM_HOST})"
        ),
        "`...-mpimaster-0` and `...-mpiworker-N` are host names of pods on ML Space, which do not exist here. "
        "MASTER_ADDR and MASTER_PORT in the environment of each process are the address of rank 0 of this job. Other "
        "jobs have no host names: start the processes that work together as one job (n_workers)",
    ),
    Cause(
        "prints `CUDA out of memory`",
        re.compile(r"CUDA out of memory|CUDA error: out of memory|CUBLAS_STATUS_ALLOC_FAILED"),
        "the GPU's memory is full: a smaller batch, gradient accumulation or checkpointing, bf16, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True against fragmentation, "
        "or an instance_type with more memory per GPU",
    ),
    Cause(
        "lost a rank that had ended with code 0",
        re.compile(r"had ended with code 0 when rank \d+"),
        "every rank must make the same number of steps: a DistributedSampler gives each as many samples, or let the "
        "others go on without it (`with model.join():` of DistributedDataParallel)",
    ),
    Cause(
        "needs a GPU and finds none",
        re.compile(
            r"ProcessGroupNCCL is only supported with GPUs|requires at least one CUDA device|"
            r"No CUDA GPUs are available|Found no NVIDIA driver|"
            r"not compiled with CUDA enabled|doesn't have NCCL built in|torch\.cuda\.is_available\(\) is False|"
            r"no CUDA-capable device"
        ),
        "this worker has no GPU, and the script always uses nccl or CUDA: take backend 'nccl' if "
        "torch.cuda.is_available() else 'gloo', the device likewise, or run it where there are GPUs",
    ),
    Cause(
        "prints `No module named ...`",
        re.compile(r"No module named '?(?P<module>(?P<package>[A-Za-z_]\w*)[\w.]*)"),
        "the job's interpreter does not find the module {module}: add requirements=['{package}'], install it "
        "(`{python} -m pip install ...`), submit from the environment that has it, or, if it is a file of yours, keep "
        "it inside the folder of the script",
    ),
    Cause(
        "is killed by signal 9",
        None,
        "if memory ran out: a smaller batch, fewer DataLoader workers, or an instance_type with more memory",
        signal=9,
    ),
)


def hint_for(rank: RankReport, facts: Facts) -> str | None:
    """The way out for the first known cause that matches the rank's output; None if none matches."""
    if facts.beside_submitter:
        return (
            f"{facts.beside_submitter} exists, but the snapshot left it out: an ignore file (.gitignore, "
            ".clientlibignore) matches it. Add `!<its path>` to .clientlibignore, or give an absolute path "
            "that the workers see"
        )
    output = _output(rank)
    cause = next((cause for cause in CAUSES if cause.matches(rank, output)), None)
    return _filled(cause, output, facts) if cause else None


def _filled(cause: Cause, output: str, facts: Facts) -> str:
    found = cause.shows.search(output) if cause.shows else None
    groups = found.groupdict() if found else {}
    if "package" in groups:
        groups["package"] = PACKAGES.get(groups["package"], groups["package"])
    return cause.hint.format(python=facts.python or "python", **groups)


def _output(rank: RankReport) -> str:
    return "\n".join([rank.exception or "", rank.traceback or "", *rank.last_lines])
