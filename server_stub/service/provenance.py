"""Finds what a job ran: the submitter's part in its request, the workers' in their logs, images in its events."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from contextlib import closing, suppress

from client_lib.spec.wire import Event, JobInfo, JobProvenance, SubmitRequest, WorkerMachine
from client_lib.worker.format import METRICS, pattern
from server_stub.logs import LoggedJob
from server_stub.logs.segments import LogReader
from server_stub.runtimes import RAN_IMAGE, log_dir

_SEARCHED, _BLOCK = 2 * 2**20, 2**20  # bytes of a log, near whose begin a launcher writes it
_LINES_MAX, _WORKERS_MAX = 200, 64
_NAMES_MAX, _ALL_NAMES_MAX = 5000, 50_000  # of one worker, and of all
_LINE = re.compile(("^" + pattern(rank="-", stream=METRICS, mark="", text=r"(\{.*\})")).encode(), re.MULTILINE)


def find(
    info: JobInfo, request: SubmitRequest, logs: LoggedJob, events: Iterable[Event], succeeded: Iterable[str]
) -> JobProvenance:
    """The record of what the job ran. Reads files. `succeeded`: earlier jobs of its owner, newest first, as JSON."""
    images = {event.message.removeprefix(RAN_IMAGE) for event in events if event.message.startswith(RAN_IMAGE)}
    machines: list[WorkerMachine] = []
    left = _ALL_NAMES_MAX
    for worker in range(min(logs.n_workers, _WORKERS_MAX)):
        machines.append(_machine(logs, worker, min(left, _NAMES_MAX)))
        left -= sum(map(len, _parts(machines[-1])))
    before = (JobInfo.model_validate_json(text) for text in succeeded)
    return JobProvenance(
        submitted=request.provenance,
        machines=machines,
        images=sorted(images),
        last_success=next((job.name for job in before if _program(job) == _program(info)), None),
    )


def _machine(job: LoggedJob, worker: int, left: int) -> WorkerMachine:
    """The facts that a launcher has written into its log, in lines that follow each other. `left`: so many names."""
    offset, found = 0, WorkerMachine(worker=worker, hardware={}, seeds={}, packages={})
    with closing(LogReader(log_dir(job.job_dir, job.attempt, worker))) as log:
        while left > 0 and offset < _SEARCHED and (block := log.block(offset, _BLOCK)):
            offset, texts = block.end, _LINE.findall(block.data)[:_LINES_MAX]
            if found.hardware and not texts:
                break
            for text in texts:
                with suppress(ValueError, RecursionError):  # a script can write any line there
                    new = WorkerMachine.model_validate(json.loads(text))
                    for part, facts in zip(_parts(found), _parts(new), strict=True):
                        names = [name for name in facts if name in part or (left := left - 1) >= 0]
                        part.update((name, facts[name]) for name in names)
    return found


def _parts(machine: WorkerMachine) -> tuple[dict[str, str], ...]:
    return machine.hardware, machine.seeds, machine.packages


def _program(info: JobInfo) -> str:
    """The script's path, the function's name, or the command's first two words: what two runs have in common."""
    words = [word for word in info.spec.command() if not word.startswith("-")][:2]
    return info.function.name if info.function else info.spec.python_script or " ".join(words)
