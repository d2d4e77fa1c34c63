"""`/jobs/{name}/outputs`: files that the ranks of a job wrote: listed, fetched, and uploaded by remote workers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import FileResponse

from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec import paths
from client_lib.spec.request import SHA256, OutputLength
from client_lib.spec.wire import Answer, OutputList
from client_lib.worker.outputs.store import Kept
from server_stub.files import outputs
from server_stub.files.outputs import Piece
from server_stub.http.api.answers import BYTES, OpenFileResponse, raw_answer, raw_body
from server_stub.http.api.context import CurrentUser, Owner, Parts
from server_stub.http.api.jobs import JOB
from server_stub.http.api.workers import Caller, CallingWorker

_SIZE_MAX = 2**53
_TIME_MAX = 10**11
_REASON_MAX = 500

router = APIRouter()


@router.get(f"{JOB}/outputs")
async def list_outputs(parts: Parts, user: CurrentUser, name: str, owner: Owner = None) -> OutputList:
    """The files of the job that are kept, while it runs and afterwards, and those that are not kept."""
    job = await parts.service.find_outputs(user, name, owner)
    files, left_out = await asyncio.to_thread(outputs.listing, job.job_dir)
    return OutputList(files=files, left_out=left_out, in_place=job.in_place, final=job.final)


@router.get(f"{JOB}/outputs/{{path:path}}", response_class=FileResponse, responses=raw_answer(BYTES))
async def get_output(
    parts: Parts,
    user: CurrentUser,
    name: str,
    path: str,
    sha256: Annotated[
        str | None,
        Query(pattern=SHA256, description="Only these bytes: the file may have been rewritten since it was listed."),
    ] = None,
    owner: Owner = None,
) -> FileResponse:
    """One of these files; `Range` is understood."""
    job = await parts.service.find_outputs(user, name, owner)
    found = await asyncio.to_thread(outputs.find, job.job_dir, path, sha256)
    if found is None:
        raise NotFound(f"job {name} keeps no output {path}" + (" with these bytes any more" if sha256 else ""))
    return OpenFileResponse(found[0], media_type=BYTES, headers={"ETag": f'"{found[1]}"'})


@router.put(f"{paths.WORKERS}/outputs/{{path:path}}", openapi_extra=raw_body(BYTES))
async def put_worker_output(
    request: Request,
    parts: Parts,
    caller: Caller,
    path: str,
    size: Annotated[int, Query(ge=0, le=_SIZE_MAX, description="Bytes of the whole file.")] = 0,
    sha256: Annotated[str | None, Query(pattern=SHA256, description="Digest of the whole file.")] = None,
    mtime: Annotated[float, Query(ge=-_TIME_MAX, le=_TIME_MAX, allow_inf_nan=False, description="Unix seconds.")] = 0.0,
    executable: Annotated[bool, Query()] = False,
    offset: Annotated[
        int,
        Query(ge=0, le=_SIZE_MAX, description="Of the body in the file. An empty body asks how much the server has."),
    ] = 0,
    left_out: Annotated[
        str | None, Query(description="Why the file is not kept; then only `size` is read beside it.")
    ] = None,
) -> OutputLength:
    """Upload a piece of a file; the response has the length of what the server has of it."""
    folder = _folder(caller)
    if left_out is not None:
        await parts.outputs.leave_out(folder, path, size, left_out[:_REASON_MAX])
        return OutputLength(length=0)
    if sha256 is None:
        raise InvalidRequest("sha256 is missing: which bytes are these?")
    piece = Piece(Kept(path, size, sha256, mtime, executable), offset, await request.body())
    return OutputLength(length=await parts.outputs.put(folder, piece))


@router.delete(f"{paths.WORKERS}/outputs/{{path:path}}")
async def delete_worker_output(parts: Parts, caller: Caller, path: str) -> Answer:
    """Forget a file that the script of the worker has removed."""
    await parts.outputs.forget(_folder(caller), path)
    return Answer(message="forgotten")


def _folder(caller: CallingWorker) -> Path:
    group = caller.attempt.group
    return outputs.folder(group.folder.parent.parent, group.attempt, caller.worker.view.worker)
