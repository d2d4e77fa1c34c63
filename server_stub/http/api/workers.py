"""Endpoints of workers on other machines (pods), by the token of their attempt; see
`server_stub.worker_gateway`.

Each request names the pod that sends it: the first pod owns the worker's place in this attempt, and
another pod gets 409 and must start nothing; in an elastic job it may replace a lost pod. The
protocol has a number: a server answers with the number that it knows, and ignores what a newer
worker adds to the protocol.
"""

import asyncio
from pathlib import Path
from typing import Annotated, Any, NamedTuple, cast

from fastapi import APIRouter, Depends, Header, Query
from pydantic import BaseModel, FailFast
from starlette.requests import Request
from starlette.responses import FileResponse, StreamingResponse

from client_lib.errors import InvalidRequest, NotFound
from client_lib.launcher_protocol.output_store import Kept
from client_lib.spec import paths
from client_lib.spec.request import SHA256, LogLengths, OutputLength, WorkerOrder, WorkerSays
from client_lib.spec.wire import Answer
from server_stub.files import outputs
from server_stub.http.api.answers import ARCHIVE, BYTES, LiveResponse, raw_answer, raw_body
from server_stub.http.api.context import JsonBody, Number, Offset, Parts, Wait
from server_stub.http.api.large_bodies import BodyRoute
from server_stub.worker_gateway.attempt import OpenAttempt
from server_stub.worker_gateway.report import WorkerReport, parse
from server_stub.worker_gateway.worker import RemoteWorker

PROTOCOLS = frozenset({"1"})
"""Protocols of workers that this server knows."""
_UID_MAX = 100  # characters; a UUID has 36
_OFFSET_MAX = 2**53
_TIME_MAX = 10**11
_REASON_MAX = 500

router = APIRouter(route_class=BodyRoute)


class CallingWorker(NamedTuple):
    """The attempt that the token opens, and the worker of the pod that sent the request."""

    attempt: OpenAttempt
    worker: RemoteWorker


async def calling_worker(
    request: Request,
    name: str,
    attempt: Number,
    worker: Number,
    pod_uid: Annotated[
        str,
        Header(
            alias=paths.POD_UID,
            description="The pod; the first owns the worker's place, another gets 409.",
        ),
    ] = "",
    pod_name: Annotated[
        str | None, Header(alias=paths.POD_NAME, description="Name of the pod, for people.")
    ] = None,
    pod_start: Annotated[
        str,
        Header(
            alias=paths.POD_START,
            description="Changes with each start of the container, as in elastic jobs.",
        ),
    ] = "",
    protocol: Annotated[
        str,
        Header(
            alias=paths.WORKER_PROTOCOL,
            description=f"This server knows: {', '.join(sorted(PROTOCOLS))}.",
        ),
    ] = "",
) -> CallingWorker:
    """The sender of a request.

    Raises:
        Forbidden: the path is not of this token's attempt; NotFound: there is no such worker.
        Conflict: another pod owns the worker; InvalidRequest: no pod is named, or the protocol is
            unknown.
    """
    opened = cast(OpenAttempt, request.scope["attempt"])
    opened.check(name, attempt)
    if protocol not in PROTOCOLS:
        raise InvalidRequest(
            f"{paths.WORKER_PROTOCOL}={protocol[:20]!r}: this server knows "
            f"{', '.join(sorted(PROTOCOLS))}",
            hint="the launcher and the server must be of versions that are at most two minors "
            "apart",
        )
    if not 0 < len(pod_uid) <= _UID_MAX:
        raise InvalidRequest(
            f"{paths.POD_UID} has {len(pod_uid)} characters; 1 to {_UID_MAX} are allowed"
        )
    return CallingWorker(
        opened, await opened.worker(worker, pod_uid, pod_name, pod_start[:_UID_MAX])
    )


Caller = Annotated[CallingWorker, Depends(calling_worker)]


@router.put(f"{paths.WORKERS}/state")
async def put_worker_state(
    parts: Parts,
    caller: Caller,
    state: Annotated[WorkerSays, JsonBody],
    knows: Annotated[
        str, Query(description="The order that the worker has; another one is answered at once.")
    ] = "",
    wait: Wait = 0.0,
) -> WorkerOrder:
    """Report the state of a worker and get its order: with `wait` as soon
    as the order has changed.
    """
    attempt, worker = caller
    worker.note_activity(state.signs_of_life, state.quiet)
    await attempt.report_state(worker, state.state)
    worker.sessions.supported = state.sessions
    return await attempt.next_order(worker, knows, wait, parts.stopping, state.stacks)


@router.put(f"{paths.WORKERS}/log", openapi_extra=raw_body("text/plain"))
async def put_worker_log(
    request: Request,
    caller: Caller,
    offset: Annotated[
        int, Query(ge=0, le=_OFFSET_MAX, description="Of the body in the worker's log.")
    ] = 0,
    gap: Annotated[
        bool,
        Query(description="Records before `offset` that the server lacks are counted as lost."),
    ] = False,
) -> LogLengths:
    """Append whole records to a worker's log. Records that the server has are skipped; if some
    before them are missing, none is taken, and the response has the offset to continue from. An
    empty body asks for that offset."""
    return await caller.worker.take_log(offset, await request.body(), gap=gap)


@router.put(f"{paths.WORKERS}/report")
async def put_worker_report(
    request: Request, caller: Caller, report: Annotated[WorkerReport, JsonBody]
) -> Answer:
    """Report how the worker ended. The first report is kept."""
    try:
        whole = await asyncio.to_thread(parse, await request.body())
    except ValueError as error:
        raise InvalidRequest(
            f"the report of worker {report.worker} can't be read: {error}"
        ) from error
    await caller.attempt.take_report(caller.worker, whole)
    return Answer(message="the report is stored")


class WorkerStacks(BaseModel):
    """The processes of a worker with their stacks, as its launcher has written them
    (client_lib.worker.stacks).
    """

    mark: str
    """Mark of the order."""
    processes: Annotated[list[dict[str, Any]], FailFast()]


@router.put(f"{paths.WORKERS}/stacks")
async def put_worker_stacks(caller: Caller, taken: Annotated[WorkerStacks, JsonBody]) -> Answer:
    """Send the stacks of the worker's ranks, as the server has ordered."""
    caller.worker.stacks.answer(taken.mark, taken.processes)
    return Answer(message="the stacks were received")


@router.get(
    f"{paths.WORKERS}/sessions/{{mark}}",
    response_class=StreamingResponse,
    responses=raw_answer(BYTES),
)
async def get_worker_session(caller: Caller, mark: str) -> StreamingResponse:
    """Take up a session: a line of JSON with its request, then the bytes of the user."""
    caller.worker.sessions.end(mark)
    return LiveResponse(caller.worker.sessions.to_worker(mark), BYTES)


@router.put(f"{paths.WORKERS}/sessions/{{mark}}", openapi_extra=raw_body(BYTES))
async def put_worker_session(
    request: Request, caller: Caller, mark: str, offset: Offset = 0
) -> Answer:
    """Send bytes to the user of a session; an empty body ends it."""
    await caller.worker.sessions.end(mark).take_all(offset, request.stream())
    return Answer(message="the bytes were passed on")


@router.put(f"{paths.WORKERS}/results/{{rank}}", openapi_extra=raw_body(paths.RESULT))
async def put_worker_result(request: Request, parts: Parts, caller: Caller, rank: Number) -> Answer:
    """Upload the result of a function in one rank of the worker."""
    await caller.attempt.take_result(
        caller.worker, rank, request.stream(), parts.settings.max_snapshot_bytes
    )
    return Answer(message=f"the result of rank {rank} is stored")


@router.put(f"{paths.WORKERS}/outputs/{{path:path}}", openapi_extra=raw_body(BYTES))
async def put_worker_output(
    request: Request,
    parts: Parts,
    caller: Caller,
    path: str,
    size: Annotated[int, Query(ge=0, le=_OFFSET_MAX, description="Bytes of the whole file.")] = 0,
    sha256: Annotated[
        str | None, Query(pattern=SHA256, description="Digest of the whole file.")
    ] = None,
    mtime: Annotated[
        float, Query(ge=-_TIME_MAX, le=_TIME_MAX, allow_inf_nan=False, description="Unix seconds.")
    ] = 0.0,
    executable: Annotated[bool, Query()] = False,
    offset: Annotated[
        int,
        Query(
            ge=0,
            le=_OFFSET_MAX,
            description="Of the body in the file. An empty body asks how much the server has.",
        ),
    ] = 0,
    left_out: Annotated[
        str | None,
        Query(description="Why the file is not kept; then only `size` is read beside it."),
    ] = None,
) -> OutputLength:
    """Upload a piece of a file; the response has the number of bytes of the file that the server
    has."""
    folder = _folder(caller)
    if left_out is not None:
        await parts.outputs.leave_out(folder, path, size, left_out[:_REASON_MAX])
        return OutputLength(length=0)
    if sha256 is None:
        raise InvalidRequest("sha256 is missing: which bytes are these?")
    kept = Kept(path, size, sha256, mtime, executable)
    return OutputLength(length=await parts.outputs.put(folder, kept, offset, await request.body()))


@router.delete(f"{paths.WORKERS}/outputs/{{path:path}}")
async def delete_worker_output(parts: Parts, caller: Caller, path: str) -> Answer:
    """Forget a file that the script of the worker has removed."""
    await parts.outputs.forget(_folder(caller), path)
    return Answer(message="forgotten")


def _folder(caller: CallingWorker) -> Path:
    group = caller.attempt.group
    return outputs.folder(group.folder.parent.parent, group.attempt, caller.worker.view.worker)


@router.get(f"{paths.WORKERS}/snapshot", response_class=FileResponse, responses=raw_answer(ARCHIVE))
async def get_worker_snapshot(caller: Caller) -> FileResponse:
    """The code of this job, and of no other."""
    return _file(caller.attempt.group.snapshot, ARCHIVE)


@router.get(f"{paths.WORKERS}/function", response_class=FileResponse, responses=raw_answer(BYTES))
async def get_worker_function(caller: Caller) -> FileResponse:
    """The pickled function of this job."""
    return _file(caller.attempt.group.function, BYTES)


@router.get(
    f"{paths.WORKERS}/inputs", response_class=StreamingResponse, responses=raw_answer(ARCHIVE)
)
async def get_worker_inputs(caller: Caller) -> StreamingResponse:
    """The outputs of the jobs for which this job waited, and the results of functions."""
    if caller.attempt.group.inputs is None:
        raise NotFound("this job waited for no other")
    return StreamingResponse(await caller.attempt.group.inputs(), media_type=ARCHIVE)


def _file(path: Path | None, media_type: str) -> FileResponse:
    if path is None or not path.is_file():
        raise NotFound("this job has none")
    return FileResponse(path, media_type=media_type)
