"""`/jobs`, `/groups` and `/snapshots`: submit, list, one job with its logs, outputs and what else
belongs to it.

Workers upload outputs by `workers`.
"""

import re
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Header, Path as InPath, Query
from pydantic import AfterValidator, BeforeValidator, Field
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse

from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec import paths, wire
from client_lib.spec.checkpoints import CheckpointPrune, JobCheckpoints, PrunedCheckpoints
from client_lib.spec.job import LABELS_MAX
from client_lib.spec.metrics import POINTS, POINTS_MAX, JobGoodput, JobMetrics
from client_lib.spec.request import SHA256, GroupRequest, SessionRequest, SubmitRequest
from client_lib.spec.stacks import JobStacks
from client_lib.spec.states import State
from server_stub.http.api.answers import (
    ARCHIVE,
    BYTES,
    TAR,
    DownloadResponse,
    JsonText,
    LiveResponse,
    OpenFileResponse,
    raw_answer,
    raw_body,
)
from server_stub.http.api.context import (
    JOB,
    WAIT_S,
    Context,
    CurrentUser,
    JsonBody,
    Number,
    Offset,
    OfPath,
    Owner,
    Parts,
    Wait,
)
from server_stub.http.api.large_bodies import BodyRoute
from server_stub.http.waiting import unless_stopping, while_connected
from server_stub.logs.query import LogQuery
from server_stub.logs.records import LoggedJob
from server_stub.logs.render import Frames, NdJson, Renderer, Text
from server_stub.logs.search import Hit, answer_of, search
from server_stub.logs.stream import logs as written_logs, stream as stream_logs
from server_stub.service import JobFilters
from server_stub.users import User

PAGE = 100
MAX_PAGE = 1000  # about 1.5 MB of response
_VERSION_MAX = 2**53
_SNAPSHOT = f"{paths.SNAPSHOTS}/{{sha256}}"

router = APIRouter(route_class=BodyRoute)


def _key_and_value(text: str) -> str:
    key, equals, _ = text.partition("=")
    if not key or not equals:
        raise ValueError("must be key=value")
    return text


_Labels = Annotated[
    list[Annotated[str, AfterValidator(_key_and_value)]],
    Query(max_length=LABELS_MAX, description="`key=value`; all that are given must match."),
]
_IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=paths.IDEMPOTENCY_KEY,
        min_length=1,
        max_length=255,
        description="The same key and request: the same job or group (200); another request: 409 "
        "key_reused.",
    ),
]
_State = Annotated[State, BeforeValidator(lambda text: text.upper())]


@router.post(
    paths.JOBS,
    status_code=201,
    response_model=wire.JobInfo,
    responses={
        200: {"model": wire.JobInfo, "description": "The job of an earlier request with this key."}
    },
)
async def submit_job(
    parts: Parts,
    user: CurrentUser,
    order: Annotated[SubmitRequest, JsonBody],
    idempotency_key: _IdempotencyKey = None,
) -> Response:
    """Accept a job. It is on disk before this answers."""
    text, created = await parts.service.submits.submit(user, order, idempotency_key)
    return JsonText(text, 201 if created else 200)


@router.post(
    paths.GROUPS,
    status_code=201,
    responses={
        200: {
            "model": wire.GroupInfo,
            "description": "The group of an earlier request with this key.",
        }
    },
)
async def submit_group(
    response: Response,
    parts: Parts,
    user: CurrentUser,
    order: Annotated[GroupRequest, JsonBody],
    idempotency_key: _IdempotencyKey = None,
) -> wire.GroupInfo:
    """Accept many runs of one job. All of its members are on disk before
    this answers, or none is.
    """
    group, created = await parts.service.submits.submit_group(user, order, idempotency_key)
    response.status_code = 201 if created else 200
    return group


@router.get(f"{paths.GROUPS}/{{name}}")
async def get_group(parts: Parts, group: OfPath) -> wire.GroupInfo:
    """The group, with the number of its members in each state;
    `GET /jobs?group=NAME` lists them.
    """
    return await parts.service.lookup.group(*group)


@router.post(f"{paths.GROUPS}/{{name}}/cancel")
async def cancel_group(parts: Parts, group: OfPath) -> wire.GroupInfo:
    """Order the end of all members; they end later, and no member starts any more."""
    return await parts.service.cancel_group(*group)


@router.post(f"{paths.GROUPS}/{{name}}/resubmit")
async def resubmit_group(
    parts: Parts,
    user: CurrentUser,
    name: str,
    failed: Annotated[
        bool, Query(description="True: only members that are FAILED or CANCELLED.")
    ] = False,
    idempotency_key: _IdempotencyKey = None,
) -> wire.GroupInfo:
    """Run members again that have ended. The new members take the places of the earlier ones, which
    move to the group `earlier`.
    """
    return await parts.service.submits.resubmit_group(user, name, idempotency_key, failed=failed)


@router.get(paths.JOBS, response_model=wire.JobPage)
async def list_jobs(
    parts: Parts,
    user: CurrentUser,
    state: Annotated[_State | None, Query(description="Only jobs in this state.")] = None,
    label: _Labels = [],  # noqa: B006  # FastAPI copies it
    name: Annotated[str | None, Query(description="Only names that begin with this.")] = None,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE, description="Jobs in a page.")] = PAGE,
    cursor: Annotated[str | None, Query(description="`next_cursor` of the previous page.")] = None,
    owner: Owner = None,
    group: Annotated[
        str | None, Query(min_length=1, description="Only members of this group.")
    ] = None,
    grouped: Annotated[
        bool,
        Query(description="`groups` in the place of their members; with `name` and `owner` alone."),
    ] = False,
) -> Response:
    """The jobs of a user, newest first."""
    if grouped and (state or label or group):
        raise InvalidRequest(
            "grouped=true shows groups, to which state, label and group do not apply"
        )
    wanted = JobFilters(
        owners=None if owner is None else (owner,),
        states=None if state is None else (state,),
        labels=dict(text.split("=", 1) for text in label),
        name_prefix=name,
        group="" if grouped else group,
    )
    return JsonText(await parts.service.page(user, wanted, limit, cursor))


@router.get(paths.CHANGES)
async def get_state_changes(
    parts: Parts,
    user: CurrentUser,
    after: Annotated[
        str | None,
        Query(
            max_length=100,
            description="`cursor` of the previous response, if this one is to "
            "wait; absent: the newest.",
        ),
    ] = None,
    wait: Wait = WAIT_S,
) -> wire.StateChanges:
    """The jobs that have come into another state, of all that the user sees; with
    `after` as soon as there is one.
    """
    change = parts.service.lookup.state_changes(user, after, wait)
    found = await unless_stopping(change, parts.stopping)
    return found or await parts.service.lookup.state_changes(user, after, 0)


@router.get(JOB, response_model=wire.JobInfo)
async def get_job(
    parts: Parts,
    of: OfPath,
    after_version: Annotated[
        int | None,
        Query(
            ge=-1,
            le=_VERSION_MAX,
            description="Answer when the job's version is greater, or `wait` is over, "
            "or at once if the job is final.",
        ),
    ] = None,
    wait: Wait = WAIT_S,
) -> Response:
    """The job; with `after_version` as soon as it has changed."""
    job = None
    if after_version is not None:
        change = parts.service.lookup.wait(of.user, of.name, after_version, wait, of.owner)
        job = await unless_stopping(change, parts.stopping)
        if job is not None and job.public.version <= after_version:
            job = None  # nothing but its progress has changed
    return JsonText(job.text if job else await parts.service.get(*of))


@router.get(f"{JOB}/events", response_model=wire.EventList)
async def get_events(parts: Parts, job: OfPath) -> Response:
    """The history of the job, oldest first; every change of its state is an event."""
    return JsonText(await parts.service.lookup.events(*job))


@router.get(f"{JOB}/manifest")
async def get_manifest(parts: Parts, job: OfPath) -> wire.Manifest:
    """The plan or manifest of the newest attempt; secrets masked."""
    return await parts.service.manifest(*job)


@router.get(f"{JOB}/request", response_model=SubmitRequest)
async def get_request(parts: Parts, job: OfPath) -> Response:
    """The request that made the job, without its submitter and the values of its secrets."""
    return JsonText(await parts.service.request(*job))


@router.get(
    f"{JOB}/results/{{rank}}", response_class=FileResponse, responses=raw_answer(paths.RESULT)
)
async def get_result(parts: Parts, job: OfPath, rank: Number) -> FileResponse:
    """The result of the job's function in this rank, or its exception. Unpickling
    it runs code of its author.
    """
    found = await parts.service.lookup.find_result(job.user, job.name, rank, job.owner)
    return OpenFileResponse(found, media_type=paths.RESULT)


@router.get(f"{JOB}/outputs")
async def list_outputs(parts: Parts, job: OfPath) -> wire.OutputList:
    """The files of the job that are kept, while it runs and afterwards, and the files that are not
    kept.
    """
    return await parts.service.outputs(*job)


@router.get(
    f"{JOB}/outputs/{{path:path}}", response_class=FileResponse, responses=raw_answer(BYTES)
)
async def get_output(
    parts: Parts,
    job: OfPath,
    path: str,
    sha256: Annotated[
        str | None,
        Query(
            pattern=SHA256,
            description="Only these bytes: the file may have been rewritten since it was listed.",
        ),
    ] = None,
) -> FileResponse:
    """One of the job's kept files; `Range` is understood."""
    found, digest = await parts.service.lookup.find_output(
        job.user, job.name, path, sha256, job.owner
    )
    return OpenFileResponse(found, media_type=BYTES, headers={"ETag": f'"{digest}"'})


@router.get(f"{JOB}/stacks")
async def get_stacks(parts: Parts, job: OfPath) -> JobStacks:
    """The stacks of all threads of the running job, for its owner and admins."""
    return await parts.service.stacks.of(*job)


@router.get(f"{JOB}/provenance")
async def get_provenance(parts: Parts, job: OfPath) -> wire.JobProvenance:
    """The record of what the job ran: code, packages, hardware and images;
    for its owner and admins.
    """
    return await parts.service.provenance.of(*job)


@router.get(f"{JOB}/metrics", response_model=JobMetrics)
async def get_job_metrics(
    request: Request,
    parts: Parts,
    job: OfPath,
    rank: Annotated[
        Annotated[int, Field(ge=0, lt=10**9)] | Literal["all", "workers"],
        Query(
            description="Curves of this rank and of no rank, of `all` ranks, "
            "or of what each of the `workers` used."
        ),
    ] = 0,
    points: Annotated[
        int, Query(ge=4, le=POINTS_MAX, description="At most so many of each curve.")
    ] = POINTS,
    cache_control: Annotated[
        str,
        Header(
            description="max-age=SECONDS, at most 5: an answer of that age "
            "will do, which costs less."
        ),
    ] = "",
) -> Response:
    """The metrics that the job has printed, as curves, and its progress;
    for its owner and admins.
    """
    max_age = re.search(r"\bmax-age=(\d{1,9})", cache_control)
    age_s = float(max_age[1]) if max_age else 0.0
    curves = parts.service.metrics.of(job.user, job.name, rank, points, job.owner, age_s)
    return JsonText(await while_connected(request, curves))


@router.get(f"{JOB}/goodput")
async def get_job_goodput(request: Request, parts: Parts, job: OfPath) -> JobGoodput:
    """The use of the job's time: waiting, starting, steps, lag, checkpoints, and so on;
    for its owner and admins.
    """
    return await while_connected(request, parts.service.metrics.goodput(*job))


@router.get(f"{JOB}/checkpoints")
async def get_job_checkpoints(request: Request, parts: Parts, job: OfPath) -> JobCheckpoints:
    """The checkpoints that the job has, with step, size and whether they are complete; for its
    owner and admins.
    """
    return await while_connected(request, parts.service.checkpoints.listed(*job))


@router.post(f"{JOB}/checkpoints/prune")
async def prune_job_checkpoints(
    parts: Parts, job: OfPath, wanted: Annotated[CheckpointPrune, JsonBody]
) -> PrunedCheckpoints:
    """Remove complete checkpoints of early steps; without `paths` tell which would go. For the
    owner of the job and admins, where the server sees the files."""
    return await parts.service.checkpoints.prune(job.user, job.name, wanted, job.owner)


@router.get(
    f"{JOB}/checkpoints/archive", response_class=StreamingResponse, responses=raw_answer(TAR)
)
async def get_checkpoint_archive(
    parts: Parts,
    job: OfPath,
    path: Annotated[str, Query(description="`path` of a checkpoint of the list.")],
) -> StreamingResponse:
    """The files of a checkpoint as a tar archive, for the owner of the job and admins, where the
    server sees the files. An answer that breaks off is not complete."""
    content = await parts.service.checkpoints.read(job.user, job.name, path, job.owner)
    return DownloadResponse(content, TAR)


@router.post(f"{JOB}/cancel", response_model=wire.JobInfo)
async def cancel_job(
    parts: Parts,
    job: OfPath,
    interrupt: Annotated[
        bool, Query(description="True: its processes get SIGINT in place of SIGTERM.")
    ] = False,
) -> Response:
    """Order the end of the job; it ends later. A final job stays as it is."""
    return JsonText(await parts.service.cancel(*job, interrupt=interrupt))


@router.delete(JOB)
async def delete_job(
    parts: Parts,
    job: OfPath,
    force: Annotated[
        bool, Query(description="True: a running job is stopped and then removed.")
    ] = False,
) -> wire.Answer:
    """Remove the job with its logs and events; 409 while it runs, unless forced."""
    return wire.Answer(message=await parts.service.delete(*job, force=force))


# --- archives of code, each visible only to users who uploaded its bytes


def _missing(sha256: str) -> NotFound:
    return NotFound(f"no snapshot {sha256[:12]} of yours is on this server")


@router.head(_SNAPSHOT, response_class=Response)
async def has_snapshot(parts: Parts, user: CurrentUser, sha256: str) -> Response:
    """200 if this user has uploaded the archive, else 404. A user who may only read the archive
    gets 404, too, because a submit needs an upload by its own user."""
    archive = parts.snapshots.find(sha256, user.name)
    if archive is None:
        raise _missing(sha256)
    return Response(headers={"Content-Length": str(archive.stat().st_size)}, media_type=ARCHIVE)


@router.get(_SNAPSHOT, response_class=FileResponse, responses=raw_answer(ARCHIVE))
async def get_snapshot(parts: Parts, user: CurrentUser, sha256: str) -> FileResponse:
    """The archive, for users who uploaded it, for admins, and for everyone
    where the server shares jobs.
    """
    return FileResponse(readable(parts, user, sha256), media_type=ARCHIVE)


def readable(parts: Parts, user: User, sha256: str) -> Path:
    """The archive, if this user may read it. Raises NotFound."""
    found = parts.snapshots.find(sha256, user.name)
    if found is None and (user.admin or parts.settings.share_jobs):
        found = parts.snapshots.path(sha256)
    if found is None or not found.is_file():
        raise _missing(sha256)
    return found


@router.put(
    _SNAPSHOT,
    status_code=201,
    response_model=wire.Answer,
    responses={200: {"model": wire.Answer, "description": "This user had uploaded it already."}},
    openapi_extra=raw_body(ARCHIVE),
)
async def put_snapshot(
    request: Request, response: Response, parts: Parts, user: CurrentUser, sha256: str
) -> wire.Answer:
    """Upload the archive, a tar.gz whose bytes have this digest. Sending
    it again is harmless (200).
    """
    announced = int(request.headers.get("Content-Length", 0))
    if not await parts.snapshots.put(sha256, user.name, request.stream(), announced):
        response.status_code = 200
    return wire.Answer(message=f"snapshot {sha256[:12]} is stored")


# --- sessions: a command, a terminal or a port of a running worker, for `client-lib exec`, `shell`
# and `port-forward`. Each session is two streams of frames (client_lib.launcher_protocol.frames):
# the answer to its POST, and the bodies of PUTs.

_SESSION = f"{JOB}/sessions/{{session}}"
_SessionId = Annotated[
    str, InPath(pattern="^[0-9a-f]{32}$", description="Chosen by the client, at random.")
]


@router.post(_SESSION, response_class=StreamingResponse, responses=raw_answer(BYTES))
async def begin_session(
    parts: Parts, job: OfPath, session: _SessionId, wanted: Annotated[SessionRequest, JsonBody]
) -> StreamingResponse:
    """Begin a session in a worker of the running job, for its owner and admins. The
    session ends with this answer.
    """
    pieces = await parts.service.sessions.begin(job.user, job.name, session, wanted, job.owner)
    return LiveResponse(pieces, BYTES)


@router.put(_SESSION, openapi_extra=raw_body(BYTES))
async def put_session(
    request: Request,
    parts: Parts,
    user: CurrentUser,
    name: str,
    session: _SessionId,
    offset: Offset = 0,
) -> wire.Answer:
    """Send bytes to a session of this user."""
    del name
    request.scope["routine"] = True
    await parts.service.sessions.take(user, session, offset, request.stream())
    return wire.Answer(message="the bytes were passed on")


# --- logs: frames, text or NDJSON by `Accept`; see server_stub.logs for their content


@router.get(
    f"{JOB}/logs",
    response_class=StreamingResponse,
    responses={
        200: {
            "description": "The log. Frames, for readers that resume, are described in "
            "client_lib.spec.paths. Frames and NDJSON carry a heartbeat every 15 s; text has "
            "none: each byte would be part of a line.",
            "content": {
                "text/plain": {"schema": {"type": "string"}},
                paths.NDJSON: {"schema": {"type": "string"}},
                paths.LOG_FRAMES: {"schema": {"type": "string", "format": "binary"}},
            },
        }
    },
)
async def get_logs(
    request: Request,
    parts: Parts,
    of: OfPath,
    query: Annotated[LogQuery, Query()],
    accept: Annotated[str, Header(include_in_schema=False)] = "",
) -> StreamingResponse:
    """The lines of the job so far, and with `follow` each new line as it is written."""
    job = await parts.service.lookup.find_logs(*of)
    media_type, renderer = _renderer(accept, query)
    if query.grep is None:
        pieces = stream_logs(parts.hub, job, query, renderer)
    else:
        found = await while_connected(request, _search(parts, of.user, job, query))
        pieces = answer_of(job, found, renderer)
    return LiveResponse(pieces, media_type)


async def _search(parts: Context, user: User, job: LoggedJob, query: LogQuery) -> list[Hit]:
    async with parts.searches.of(user.name):
        return await search(written_logs(job, query), query)


def _renderer(accept: str, query: LogQuery) -> tuple[str, Renderer]:
    """The form that `accept` asks for; text where it names no other form."""
    if paths.LOG_FRAMES in accept:
        return paths.LOG_FRAMES, Frames()
    if paths.NDJSON in accept:
        return paths.NDJSON, NdJson()
    return "text/plain; charset=utf-8", Text(
        prefix=len(query.ranks) != 1, timestamps=query.timestamps
    )
