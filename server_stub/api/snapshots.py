"""`/snapshots/{sha256}`: is it there, send it, fetch it. There only for those who uploaded the very bytes."""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, Response

from client_lib.errors import NotFound
from client_lib.spec import paths
from client_lib.spec.wire import Answer
from server_stub.api.answers import json_model
from server_stub.api.context import context, user
from server_stub.api.operation import check_query, new_router, operation

ARCHIVE = "application/gzip"
SNAPSHOT = f"{paths.SNAPSHOTS}/{{sha256}}"

router = new_router()


@operation(router, "HEAD", SNAPSHOT, answer=None)
async def has_snapshot(request: Request) -> Response:
    """Whether this user has uploaded the archive; 404 else."""
    check_query(request)
    path = _find(request)
    return Response(headers={"Content-Length": str(path.stat().st_size)}, media_type=ARCHIVE)


@operation(router, "GET", SNAPSHOT, answer=(ARCHIVE,))
async def get_snapshot(request: Request) -> Response:
    """The archive."""
    check_query(request)
    return FileResponse(_find(request), media_type=ARCHIVE)


@operation(router, "PUT", SNAPSHOT, answer=Answer, status=201, body=ARCHIVE)
async def put_snapshot(request: Request) -> Response:
    """Upload the archive, a tar.gz whose bytes have this digest. Sending one again is harmless (200)."""
    check_query(request)
    sha256 = request.path_params["sha256"]
    created = await context(request).snapshots.put(sha256, user(request).name, request.stream())
    return json_model(Answer(message=f"snapshot {sha256[:12]} is stored"), 201 if created else 200)


def _find(request: Request) -> Path:
    """The archive, for who may have it: who uploaded it, admins, and everybody where the server shares jobs."""
    parts, sha256 = context(request), request.path_params["sha256"]
    found = parts.snapshots.find(sha256, user(request).name)
    if found is None and (user(request).admin or parts.settings.share_jobs) and parts.snapshots.exists(sha256):
        found = parts.snapshots.path(sha256)
    if found is None:
        raise NotFound(f"no snapshot {sha256[:12]} of yours is on this server")
    return found
