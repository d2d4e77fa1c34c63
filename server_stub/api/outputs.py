"""`/jobs/{name}/outputs`: what the ranks of a job left behind: listed, fetched, and sent by workers elsewhere."""

from __future__ import annotations

import asyncio
import re

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from client_lib.errors import InvalidRequest, NotFound
from client_lib.spec import paths
from client_lib.spec.wire import Answer, OutputLength, OutputList
from client_lib.worker.outputs.index import Kept
from server_stub import outputs
from server_stub.api.answers import json_model
from server_stub.api.context import context, user
from server_stub.api.context import owner as owner_of
from server_stub.api.jobs import JOB
from server_stub.api.operation import OWNER, check_query, new_router, number, operation
from server_stub.api.workers import POD, speaker
from server_stub.outputs_intake import Piece

BYTES = "application/octet-stream"
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SIZE_MAX = 2**53

router = new_router()

_SHA256 = {"sha256": "Only these very bytes: the file may have been written anew since it was listed."}
_VERSION = {
    "size": "Of the whole file.",
    "sha256": "Of the whole file.",
    "mtime": "Unix seconds.",
    "executable": "`1` or `0`.",
    "offset": "Of the first byte of the body in the file. An empty body asks how much there is.",
    "left_out": "Why the file is not kept; then nothing else but `size` is read.",
}


@operation(router, "GET", f"{JOB}/outputs", answer=OutputList, query=OWNER)
async def list_outputs(request: Request) -> Response:
    """What is kept of the files that the job has written, while it runs and afterwards, and what is not kept."""
    check_query(request, OWNER)
    job = await context(request).service.find_outputs(user(request), request.path_params["name"], owner_of(request))
    files, left_out = await asyncio.to_thread(outputs.listing, job.job_dir)
    return json_model(OutputList(files=files, left_out=left_out, in_place=job.in_place, final=job.final))


@operation(router, "GET", f"{JOB}/outputs/{{path:path}}", answer=(BYTES,), query=_SHA256 | OWNER)
async def get_output(request: Request) -> Response:
    """One of these files; `Range` is understood."""
    check_query(request, _SHA256, OWNER)
    name, path, sha256 = request.path_params["name"], request.path_params["path"], _digest(request)
    job = await context(request).service.find_outputs(user(request), name, owner_of(request))
    if sha256 and (place := await asyncio.to_thread(outputs.find_bytes, job.job_dir, sha256)):
        return FileResponse(place, media_type=BYTES, headers={"ETag": f'"{sha256}"'})
    found = await asyncio.to_thread(outputs.find, job.job_dir, path, sha256)
    if found is None:
        raise NotFound(f"job {name} keeps no output {path}" + (" with these bytes any more" if sha256 else ""))
    return FileResponse(found[0], media_type=BYTES, headers={"ETag": f'"{found[1].sha256}"'})


@operation(router, "PUT", f"{paths.WORKERS}/outputs/{{path:path}}", answer=OutputLength, query=_VERSION, headers=POD)
async def put_worker_output(request: Request) -> Response:
    """Send a piece of a file that a worker elsewhere keeps; the answer says how much of it is there."""
    check_query(request, _VERSION)
    attempt, worker = await speaker(request)
    parts, path, query = context(request), request.path_params["path"], request.query_params
    folder = outputs.folder(attempt.gang.folder.parent.parent, attempt.gang.attempt, worker.view.worker)
    size = int(number(request, "size", 0, low=0, high=_SIZE_MAX))
    if "left_out" in query:
        await parts.outputs.leave_out(folder, path, size, query["left_out"][:500])
        return json_model(OutputLength(length=0))
    sha256 = _digest(request)
    if sha256 is None:
        raise InvalidRequest("sha256 is missing: which bytes are these?")
    kept = Kept(path, size, sha256, number(request, "mtime", 0, low=-1e11, high=1e11), query.get("executable") == "1")
    offset = int(number(request, "offset", 0, low=0, high=_SIZE_MAX))
    return json_model(OutputLength(length=await parts.outputs.put(folder, Piece(kept, offset, await request.body()))))


@operation(router, "DELETE", f"{paths.WORKERS}/outputs/{{path:path}}", answer=Answer, headers=POD)
async def delete_worker_output(request: Request) -> Response:
    """The script of a worker elsewhere has removed the file."""
    check_query(request)
    attempt, worker = await speaker(request)
    folder = outputs.folder(attempt.gang.folder.parent.parent, attempt.gang.attempt, worker.view.worker)
    await context(request).outputs.forget(folder, request.path_params["path"])
    return json_model(Answer(message="forgotten"))


def _digest(request: Request) -> str | None:
    text = request.query_params.get("sha256")
    if text is not None and not _DIGEST.fullmatch(text):
        raise InvalidRequest(f"sha256={text[:80]!r}: must be 64 characters of 0-9 and a-f")
    return text
