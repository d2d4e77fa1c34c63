"""Archives of code at `/snapshots/{sha256}`, and files that the ranks of a job wrote at `/jobs/{name}/outputs`.

An archive is visible only to users who uploaded its bytes. Workers upload outputs by `workers`.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from client_lib.errors import NotFound
from client_lib.spec import paths
from client_lib.spec.request import SHA256
from client_lib.spec.wire import Answer, OutputList
from server_stub.files import outputs
from server_stub.http.api.answers import ARCHIVE, BYTES, OpenFileResponse, raw_answer, raw_body
from server_stub.http.api.context import JOB, Context, CurrentUser, Owner, Parts
from server_stub.service.lookup import User

SNAPSHOT = f"{paths.SNAPSHOTS}/{{sha256}}"

router = APIRouter()


def _missing(sha256: str) -> NotFound:
    return NotFound(f"no snapshot {sha256[:12]} of yours is on this server")


@router.head(SNAPSHOT, response_class=Response)
async def has_snapshot(parts: Parts, user: CurrentUser, sha256: str) -> Response:
    """200 if this user has uploaded the archive, else 404. A user who may only read it gets 404, too, because a submit
    needs an upload by the same user."""
    archive = parts.snapshots.find(sha256, user.name)
    if archive is None:
        raise _missing(sha256)
    return Response(headers={"Content-Length": str(archive.stat().st_size)}, media_type=ARCHIVE)


@router.get(SNAPSHOT, response_class=FileResponse, responses=raw_answer(ARCHIVE))
async def get_snapshot(parts: Parts, user: CurrentUser, sha256: str) -> FileResponse:
    """The archive, for users who uploaded it, for admins, and for everyone where the server shares jobs."""
    return FileResponse(readable(parts, user, sha256), media_type=ARCHIVE)


def readable(parts: Context, user: User, sha256: str) -> Path:
    """The archive, if this user may read it. Raises NotFound."""
    found = parts.snapshots.find(sha256, user.name)
    if found is None and (user.admin or parts.settings.share_jobs) and parts.snapshots.exists(sha256):
        found = parts.snapshots.path(sha256)
    if found is None:
        raise _missing(sha256)
    return found


@router.put(
    SNAPSHOT,
    status_code=201,
    response_model=Answer,
    responses={200: {"model": Answer, "description": "This user had uploaded it already."}},
    openapi_extra=raw_body(ARCHIVE),
)
async def put_snapshot(request: Request, response: Response, parts: Parts, user: CurrentUser, sha256: str) -> Answer:
    """Upload the archive, a tar.gz whose bytes have this digest. Sending it again is harmless (200)."""
    announced = int(request.headers.get("Content-Length", 0))
    if not await parts.snapshots.put(sha256, user.name, request.stream(), announced):
        response.status_code = 200
    return Answer(message=f"snapshot {sha256[:12]} is stored")


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
