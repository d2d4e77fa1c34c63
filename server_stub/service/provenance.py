"""Collects what a job ran: the submitter's part from its request, the workers' from their logs,
images from its events.
"""

import asyncio
import json
import re
from collections.abc import Iterable
from contextlib import closing, suppress

from client_lib.launcher_protocol.record import METRICS, pattern
from client_lib.spec.request import SubmitRequest
from client_lib.spec.states import State
from client_lib.spec.wire import Event, JobInfo, JobProvenance, WorkerMachine
from server_stub.files.job_dirs import log_dir
from server_stub.logs.records import LoggedJob
from server_stub.logs.segments import LogReader
from server_stub.runtimes import RAN_IMAGE
from server_stub.service.job_files import JobFiles
from server_stub.service.lookup import JobLookup, check_owner
from server_stub.service.stored import found
from server_stub.store import Store, rows
from server_stub.store.rows import JobRow
from server_stub.users import User

_SEARCHED = 2 * 2**20
"""Bytes at the beginning of a log that are searched for the description of a machine, which the
launcher writes there."""
_BLOCK = 2**20
"""Bytes of a log that are read at once."""
_LINES_MAX = 200
"""Largest number of lines of one block that are looked at."""
_WORKERS_MAX = 64
"""Largest number of workers whose machines are shown."""
_NAMES_MAX = 5000
"""Largest number of names that one worker may send."""
_ALL_NAMES_MAX = 50_000
"""Largest number of names of all workers together."""
_LINE = re.compile(
    ("^" + pattern(rank="-", stream=METRICS, mark="", text=r"(\{.*\})")).encode(), re.MULTILINE
)


class ProvenanceReader:
    """Collects what the jobs of one service ran. Event loop only."""

    def __init__(self, store: Store, lookup: JobLookup, files: JobFiles) -> None:
        self._store = store
        self._lookup = lookup
        self._files = files

    async def of(self, user: User, name: str, owner: str | None = None) -> JobProvenance:
        """The record of what the job ran. Raises NotFound; Forbidden: the user is
        neither its owner nor admin.
        """
        stored = await self._lookup.find(user, name, owner)
        row = stored.row
        job = stored.public
        check_owner(user, job, "can see what it ran")
        request = await asyncio.to_thread(self._files.request_of, row)
        events = await self._store.read(rows.list_events, row.seq)
        succeeded = (
            await self._store.read(rows.succeeded_before, row) if job.state is State.FAILED else []
        )
        return await asyncio.to_thread(
            provenance, job, request, self._lookup.logs(job), events, succeeded
        )


def provenance(
    info: JobInfo,
    request: SubmitRequest,
    logs: LoggedJob,
    events: Iterable[Event],
    succeeded: Iterable[JobRow],
    all_names_max: int = _ALL_NAMES_MAX,
) -> JobProvenance:
    """The record of what the job ran. Reads files. `succeeded`: earlier jobs
    of its owner, newest first.
    """
    images = {
        event.message.removeprefix(RAN_IMAGE)
        for event in events
        if event.message.startswith(RAN_IMAGE)
    }
    machines: list[WorkerMachine] = []
    left = all_names_max
    for worker in range(min(logs.n_workers, _WORKERS_MAX)):
        machines.append(_machine(logs, worker, min(left, _NAMES_MAX)))
        left -= sum(map(len, _parts(machines[-1])))
    before = (found(row).public for row in succeeded)
    last = next((job.name for job in before if _program(job) == _program(info)), None)
    return JobProvenance(
        submitted=request.provenance, machines=machines, images=sorted(images), last_success=last
    )


def _machine(job: LoggedJob, worker: int, left: int) -> WorkerMachine:
    """The facts that a launcher has written into its log, in lines that follow each
    other. `left`: the number of names that are still taken.
    """
    offset = 0
    found = WorkerMachine(worker=worker, hardware={}, seeds={}, packages={})
    with closing(LogReader(log_dir(job.job_dir, job.attempt, worker))) as log:
        while left > 0 and offset < _SEARCHED and (block := log.block(offset, _BLOCK)):
            offset = block.end
            texts = _LINE.findall(block.data)[:_LINES_MAX]
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
    """The script's path, the function's name, or the command's first two words:
    what two runs have in common.
    """
    words = [word for word in info.spec.command() if not word.startswith("-")][:2]
    return info.function.name if info.function else info.spec.python_script or " ".join(words)
