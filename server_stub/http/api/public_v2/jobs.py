"""`/public/v2/jobs`: run, list, one job with its logs and what else belongs to it.

A request names paths of the platform's shared file system. The check of these paths is no security
boundary: a user who may submit can run any command as the account of the server. It prevents a path
that means a file of another machine from running an unrelated file of the same name here.
"""

# ruff: noqa: ARG002  # arguments of the Renderer protocol that the platform's form does not need

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timezone
from pathlib import Path
from time import monotonic
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query
from pydantic import AfterValidator, BeforeValidator
from starlette.responses import JSONResponse, PlainTextResponse, Response

from client_lib.errors import InvalidRequest, NotFound
from client_lib.launcher_protocol.record import LAUNCHER
from client_lib.launcher_protocol.whole_lines import WholeLines
from client_lib.spec import mlspace
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.mlspace import Status
from client_lib.spec.paths import Position
from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeInPlace, SubmitRequest, Submitter
from client_lib.spec.states import State
from client_lib.spec.validation import LABEL_MAX
from client_lib.spec.wire import JobInfo
from server_stub.http.api.answers import JsonText, LiveResponse
from server_stub.http.api.context import CurrentUser, Parts
from server_stub.http.api.large_bodies import BodyRoute
from server_stub.http.api.public_v2 import models, translate
from server_stub.logs.query import MAX_TAIL, LogQuery
from server_stub.logs.records import LoggedJob
from server_stub.logs.render import FIELDS, HELD_MAX, Renderer, Source
from server_stub.logs.stream import stream as stream_logs
from server_stub.service import JobFilters
from server_stub.settings import Settings

PAGE_MAX = 6000  # Platform: the page size of its command line

_OF_ANY_LOGIN = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR"),
    # to find conda_env
    *("CONDA_EXE", "CONDA_PREFIX", "CONDA_ENVS_DIRS", "CONDA_ENVS_PATH", "MAMBA_ROOT_PREFIX"),
)
"""Variables of the server that such a job gets: a REST request has no
environment of its submitter.
"""
_STREAMS = frozenset({"stdout", "stderr"})
"""Platform: the output of processes. Lines of a train.log are not in its logs."""
SILENCE_S = 240.0
"""Platform: its clients give up a connection after 600 s without a byte."""
_TEXT = "text/plain; charset=utf-8"
"""Platform: without the charset its clients read UTF-8 as Latin-1."""

router = APIRouter(prefix="/public/v2/jobs", route_class=BodyRoute)

Region = Annotated[str | None, Query(max_length=LABEL_MAX, description="Absent: every region.")]


def _utc(time: datetime | None) -> datetime | None:
    return time.replace(tzinfo=timezone.utc) if time is not None and time.tzinfo is None else time


_Time = Annotated[datetime | None, BeforeValidator(lambda text: text or None), AfterValidator(_utc)]


@router.post("")
async def run_job(parts: Parts, user: CurrentUser, order: models.RunJobRequest) -> models.Created:
    """Run a job. It is on disk before this answers."""
    spec = translate.spec_of(order)
    known = translate.catalogue_name(order.instance_type, parts.service.runtime.instance_types())
    whole = await place(replaced(spec, instance_type=known), parts.settings)
    text, _ = await parts.service.submits.submit(user, whole, None, shared=True)
    return translate.created(JobInfo.model_validate_json(text))


@router.get("", response_model=models.JobList)
async def list_jobs(
    parts: Parts,
    user: CurrentUser,
    region: Region = None,
    allocation_name: str | None = None,
    status: Annotated[list[Status], Query()] = [],  # noqa: B006  # FastAPI copies it
    job_author: Annotated[list[str], Query()] = [],  # noqa: B006
    queue_id: str | None = None,
    offset: Annotated[int, Query(ge=0, le=2**31)] = 0,
    limit: Annotated[int, Query(ge=1)] = PAGE_MAX,
    start_date: Annotated[
        _Time, Query(description="ISO 8601, also with a space; UTC where it has no offset.")
    ] = None,
    end_date: _Time = None,
) -> Response:
    """The jobs of the user, newest first.

    Platform: an absent region means DGX2-MT there, where most users have no job; here it means
    every region.
    """
    # a job without a region is in every region; a job without a queue or allocation is in the
    # server's own
    asked = [
        ("region", region, True),
        ("queue_name", queue_id, queue_id == translate.QUEUE),
        ("allocation_name", allocation_name, allocation_name == translate.ALLOCATION),
    ]
    wanted = JobFilters(
        owners=job_author or None,
        states=frozenset().union(*(mlspace.STATES_OF[name] for name in status)) if status else None,
        since=start_date,
        until=end_date,
        fields=[(name, value, or_none) for name, value, or_none in asked if value is not None],
    )
    count, found = await parts.service.lookup.search(user, wanted, min(limit, PAGE_MAX), offset)
    gpus = {kind.name: kind.gpus for kind in parts.service.runtime.instance_types()}
    now = datetime.now(timezone.utc)

    def page() -> bytes:
        items = [translate.item(job, region, gpus, now) for job in found]
        return models.JobList(count=count, jobs=items).model_dump_json().encode()

    return JsonText(await asyncio.to_thread(page))


@router.post("/restart")
async def restart_job(
    parts: Parts, user: CurrentUser, order: models.RestartRequest
) -> models.Created:
    """Run the request of this job again, as a new job."""
    text = await parts.service.submits.resubmit(user, order.job_name)
    return translate.created(JobInfo.model_validate_json(text))


async def find_job(parts: Parts, user: CurrentUser, name: str) -> JobInfo:
    """The job. Raises NotFound."""
    return JobInfo.model_validate_json(await parts.service.get(user, name))


Job = Annotated[JobInfo, Depends(find_job)]


@router.get("/{name}")
async def get_job(parts: Parts, user: CurrentUser, name: str) -> models.JobSummary:
    """The status of a job; for an unknown name 200 with the status `job not found`."""
    try:
        return translate.status(await find_job(parts, user, name))
    except NotFound:  # Platform: 200; its command line fails on anything else
        return models.JobSummary(job_name=name, **translate.MISSING)


@router.delete("/{name}")
async def delete_job(
    parts: Parts,
    user: CurrentUser,
    name: str,
    region: Annotated[str, Query(description="Required; any value is accepted.")],
) -> models.Deleted:
    """Order the end of a job; it stays visible, with its logs. A job that
    has ended keeps its status.
    """
    del region  # Platform: 422 without it
    now = str(mlspace.unix(datetime.now(timezone.utc)))
    try:
        await parts.service.cancel(user, name)
    except NotFound:  # Platform: 200, as for `GET`
        return models.Deleted(job_name=name, deleted_at=now, **translate.MISSING)
    return models.Deleted(job_name=name, deleted_at=now, status="deleted")


@router.get("/{name}/params", response_model=models.JobParams)
async def get_params(job: Job) -> JSONResponse:
    """The parameters of a job as they are stored."""
    return JSONResponse(job.spec.masked().model_dump(mode="json", include={*models.PARAMETERS}))


@router.get("/{name}/nodes")
async def get_nodes(job: Job) -> models.Nodes:
    """The machines that the newest attempt runs on."""
    return models.Nodes(node_names=sorted({worker.host for worker in job.workers if worker.host}))


@router.get("/{name}/preemptors", dependencies=[Depends(find_job)])
async def get_preemptors() -> models.Preemptors:
    """The jobs that preempted this one: always none."""
    return models.Preemptors(preemptors=[])


@router.get("/elastic/{name}/pods")
async def get_pods(job: Job) -> models.Pods:
    """The workers of a job's newest attempt, of any type."""
    return models.Pods(pods=translate.pods(job, datetime.now(timezone.utc)))


async def place(spec: JobSpec, settings: Settings) -> SubmitRequest:
    """The whole request for a job whose code lies on this server.

    Raises InvalidRequest: there is no such file, or it is outside the folders that this server
    shares.
    """
    # without named folders, the one user of a server without a users file can read all files anyway
    any_folder = settings.public_v2_roots is None and settings.users_file is None
    roots = [Path.home()] if any_folder else settings.public_v2_roots or []
    script = spec.python_script
    # of relative paths and of commands; on the platform /home/jovyan
    first = str(roots[0]) if roots else None
    environment = {name: value for name, value in os.environ.items() if name in _OF_ANY_LOGIN}
    submitter = Submitter(python=sys.executable, environment=environment, working_dir=first)
    if script is None:
        return SubmitRequest(spec=spec, code=CodeInPlace(), submitter=submitter)
    path = os.path.join(first or "/", script)
    # links are followed on both sides; a network file system may be slow
    real, *shared = [
        await asyncio.to_thread(os.path.realpath, str(each)) for each in (path, *roots)
    ]
    if not any_folder and not any(Path(real).is_relative_to(root) for root in shared):
        raise InvalidRequest(
            f"script {path!r} lies outside of the folders that this server shares with /public/v2: "
            f"{', '.join(map(str, roots)) or 'none'}",
            hint="its setting public_v2_roots names them",
        )
    try:
        content = await asyncio.to_thread(Path(real).read_bytes)
    except OSError as error:
        raise InvalidRequest(
            f"script {path!r} can't be read on this server: {error.strerror}"
        ) from error
    if os.path.isabs(script):
        submitter = replaced(submitter, working_dir=None)
    code = CodeInPlace(sha256=hashlib.sha256(content).hexdigest())
    return SubmitRequest(spec=spec, code=code, submitter=submitter)


# --- logs: text, chronological, open until the job has ended. A line has the platform's form, after
# the time if `verbose`: `2026-11-21T14:54:31.000001Z [1,<rank>]<stdout>:epoch 1`


class PlatformText(Renderer):
    """The form of the platform; one per answer."""

    def __init__(self, name: str, job_type: str, *, verbose: bool) -> None:
        self._name = name
        self._verbose = verbose
        # Platform: that type runs without mpirun, which tags
        self._tagged = job_type != JobType.PYTORCH_ELASTIC
        self._whole = WholeLines[Source, tuple[str, Source], str](HELD_MAX)
        self._sent_at = monotonic()

    def records(self, position: Position, end: int, data: bytes) -> bytes:
        lines = []
        for _, time, rank, stream, kind, text in FIELDS.findall(data.decode("utf-8", "replace")):
            source = (position, rank, stream)
            lines += self._whole.add(source, (time, source), kind, text)
        return self._sent("".join(map(self._line, lines)))

    def _line(self, line: tuple[tuple[str, Source], str, str]) -> str:
        (time, (_, rank, stream)), _, text = line
        when = f"{time} " if self._verbose else ""
        tag = f"[1,{rank}]<{stream}>:" if self._tagged and stream != LAUNCHER else ""
        return f"{when}{tag}{text}\n"

    def gap(self, position: Position, missing: int) -> bytes:
        return self._sent(f"... {missing} lines of worker {position[1]} are gone ...\n")

    def ping(self) -> bytes:
        return self._sent("\n") if monotonic() - self._sent_at > SILENCE_S else b""

    def end(self, job: LoggedJob) -> bytes:
        """Incomplete lines, the last progress bars, and the reason if the job did not succeed."""
        lines = [*map(self._line, self._whole.close())]
        if job.state.final and job.state is not State.SUCCEEDED:
            lines.append(
                f"Job {self._name} {mlspace.listed_status(job.state, job.reason)}: {job.message}\n"
            )
        return "".join(lines).encode()

    def _sent(self, text: str) -> bytes:
        if text:
            self._sent_at = monotonic()
        return text.encode()


async def line_by_line(pieces: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """Cut the bytes into pieces of one line each.

    Platform: its clients cut the received bytes into pieces of at most 256 bytes, print each on a
    line, and count the pieces to find their position after a lost connection. With one line in each
    piece the count is always the same.
    """
    async with aclosing(pieces):
        async for piece in pieces:
            for line in piece.splitlines(keepends=True):
                yield line


@router.get(
    "/{name}/logs",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
)
async def get_logs(
    parts: Parts,
    user: CurrentUser,
    name: str,
    region: Annotated[str, Query(description="Required; any value is accepted.")],
    tail: Annotated[
        int,
        Query(
            ge=0,
            le=MAX_TAIL,
            description="Begin with this many last lines; 0: with the first line.",
        ),
    ] = 0,
    verbose: Annotated[
        bool, Query(description="The time before each line, and lines of the launcher.")
    ] = True,
    x_client_library: Annotated[str, Header(include_in_schema=False)] = "",
) -> Response:
    """The output of the processes of a job; for a queued job one line that it is in the queue.

    Platform: the answer stays open while the job runs, and when it ends the job's status is a final
    one: the platform's command line asks again at once, without a pause, while it reads `running`.
    """
    del region  # Platform: 422 without it
    info = await find_job(parts, user, name)
    if info.state is State.PENDING:
        return PlainTextResponse(mlspace.in_queue(name) + "\n")
    renderer = PlatformText(name, info.spec.type, verbose=verbose)
    job = await parts.service.lookup.find_logs(user, name)
    streams = _STREAMS | ({LAUNCHER} if verbose else frozenset())
    pieces = stream_logs(
        parts.hub, job, LogQuery(follow=True, tail=tail or None, streams=streams), renderer
    )
    if x_client_library.startswith("mls"):  # the platform's own clients
        pieces = line_by_line(pieces)
    return LiveResponse(pieces, _TEXT)
