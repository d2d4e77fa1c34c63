"""Anything that a worker may say can be stored, shown and searched, on SQLite and on PostgreSQL."""

import asyncio
import json
import secrets
from contextlib import suppress

from hypothesis import HealthCheck, example, given, settings, strategies as st
from sqlalchemy import Connection

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace
from client_lib.spec.stacks import JobStacks
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import Event, JobInfo
from server_stub.files.request_log import UNWRITTEN
from server_stub.runtimes.verdict import Stage, WorkerStatus, last_stacks, verdict
from server_stub.service.job_stacks import read_dumps
from server_stub.service.stored import row_of
from server_stub.store import rows
from server_stub.store.rows import JobFilters, JobRow, NewJob
from server_stub.worker_gateway.report import parse
from server_stub.worker_gateway.worker import StackDump
from tests.kit.examples import examples
from tests.store.test_store import T0, opened
from tests.worker_gateway.test_report import WHOLE

texts = st.text(st.characters(exclude_categories=()), max_size=20)


def job_that_failed(said: str) -> tuple[JobRow, Event]:
    """The row and the event of a job whose worker has said this in each place."""
    frame = f'Current thread 0x1 (most recent call first):\n  File "/{said}.py", line 1 in {said}'
    process = {
        "rank": 0,
        "pid": 1,
        "parent": 0,
        "name": said,
        "state": said,
        "wchan": said,
        "dump": frame,
        "why": said,
    }
    rank = {**WHOLE["ranks"][0], "exception": said, "traceback": said, "last_lines": [said]}
    sent = {**WHOLE, "message": said, "ranks": [rank], "stacks": [process]}
    worker = WorkerStatus(0, Stage.LOST, "host", lost_because="the report can't be read", warm=True)
    with suppress(ValueError):
        worker = WorkerStatus(0, Stage.ENDED, "host", parse(json.dumps(sent)), warm=True)
    found = verdict([worker], stopped=False, lost_first=True)
    taken, problems = read_dumps([StackDump(0, [process])])
    stacks = str(JobStacks(job="j", attempt=1, time=T0, ranks=taken, problems=problems))
    info = JobInfo(
        name="j",
        id="0" * 32,
        owner="ann",
        version=1,
        runtime="local",
        code=CodeInPlace(),
        state=State.FAILED,
        reason=Reason.EXIT_CODE,
        spec=JobSpec(script="a.py"),
        created_at=T0,
        message=found.message,
        failure=found.first_failing,
        workers=[worker.info()],
        stacks=[*last_stacks([worker]), stacks],
    )
    event = Event(
        time=T0, attempt=1, state=info.state, reason=info.reason, message=f"{info.message} {stacks}"
    )
    return row_of(info, place=UNWRITTEN), event


@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(texts, min_size=1, max_size=20))
@example(["\0", "a\0b", "\ud800", "\udcff", "\\u0000", "KeyError: '\0'"])
def test_a_job_whose_worker_says_anything_is_stored_and_found(url: str, said: list[str]) -> None:
    jobs = [job_that_failed(text) for text in said]

    owner = secrets.token_hex(8)  # of this example

    def add_all(connection: Connection) -> None:
        new = [
            NewJob(row._replace(id=secrets.token_hex(16), owner=owner, name=f"j{n}"), {}, None)
            for n, (row, _) in enumerate(jobs)
        ]
        for done, (_, event) in zip(rows.add_jobs(connection, new), jobs, strict=True):
            assert done.seq
            rows.add_events(connection, done.seq, [event])

    async def main() -> None:
        async with opened(url) as store:
            await store.write(add_all)
            wanted = JobFilters(owners=(owner,), fields=[("script", "a.py", False)])
            count, found = await store.read(rows.search, wanted, 100, 0)
            assert count == len(jobs)
            for each in found:
                assert JobInfo.model_validate_json(each.info)
                (_, event) = await store.read(rows.list_events, each.seq)
                assert event.message

    asyncio.run(main())
