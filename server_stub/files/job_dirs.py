"""Paths of the directories of an attempt, below the directory of its job."""

from pathlib import Path


def attempt_dir(job_dir: Path, attempt: int) -> Path:
    return job_dir / "attempts" / str(attempt)


def worker_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    return attempt_dir(job_dir, attempt) / "workers" / str(worker)


def log_dir(job_dir: Path, attempt: int, worker: int) -> Path:
    """Folder of one worker's log segments (client_lib.worker.format), the same for every runtime."""
    return worker_dir(job_dir, attempt, worker) / "log"


def inputs_dir(job_dir: Path, attempt: int) -> Path:
    """Folder with what a local attempt gets of other jobs (see `inputs`)."""
    return attempt_dir(job_dir, attempt) / "inputs"
