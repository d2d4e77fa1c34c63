"""A server of nothing but logs, for tests and benchmarks: one job, described by a file, its records
written by them.

    python tests/logs/log_server.py FOLDER PORT

FOLDER/job.json says how the job stands; it is looked at every 10 ms, as no service is here to tell
of changes.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import uvicorn
from fastapi import FastAPI
from fastapi.responses import StreamingResponse

from client_lib.errors import NotFound
from client_lib.spec.states import Reason, State
from server_stub.http.api.answers import add_error_handlers, error, http_error, invalid_request
from server_stub.http.api.context import context, current_user
from server_stub.http.api.jobs import router
from server_stub.logs.hub import LogHub
from server_stub.logs.records import LoggedJob
from server_stub.turns import Turns
from server_stub.users import User

NAME = "train"


def write_job(folder: Path, **changes: object) -> None:
    """Change how the job stands; the version grows by itself."""
    path = folder / "job.json"
    fields = json.loads(path.read_text()) if path.exists() else {"version": 0}
    fields = fields | changes | {"version": fields["version"] + 1}
    (folder / "job.new").write_text(json.dumps(fields))
    os.replace(folder / "job.new", path)


def read_job(folder: Path) -> LoggedJob:
    try:
        fields = json.loads((folder / "job.json").read_text())
    except FileNotFoundError:
        raise NotFound(f"no job named {NAME}") from None
    state, reason = State(fields.pop("state", "RUNNING")), Reason(fields.pop("reason", "Running"))
    usual = {"job_id": "1", "n_workers": 1, "attempt": 1, "message": ""}
    return LoggedJob(job_dir=folder, state=state, reason=reason, **usual | fields)


async def next_logs(logs: LoggedJob) -> LoggedJob:
    while (job := read_job(logs.job_dir)).version <= logs.version and not job.state.final:  # noqa: ASYNC110  # a file
        await asyncio.sleep(0.01)
    return job


def make_app(folder: Path, *, polling: bool = False) -> FastAPI:
    """`app.state.hub` is there while it runs."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        app.state.hub = LogHub(next_logs, inotify=not polling)
        yield
        app.state.hub.close()

    searches = Turns("searches", at_once=3, of_user=1, waiting_of_user=8)

    async def find_logs(user: User, name: str, owner: str | None) -> LoggedJob:
        if name != NAME:
            raise NotFound(f"no job named {name}")
        return read_job(folder)

    async def parts() -> SimpleNamespace:
        service = SimpleNamespace(lookup=SimpleNamespace(find_logs=find_logs))
        return SimpleNamespace(hub=app.state.hub, service=service, searches=searches)

    async def anyone() -> User:
        return User("ann")

    app = FastAPI(lifespan=lifespan)
    app.include_router(router)
    app.dependency_overrides = {context: parts, current_user: anyone}

    add_error_handlers(app, error, http_error, invalid_request)

    @app.get("/raw")
    async def raw(path: str) -> StreamingResponse:
        """The floor of the benchmarks: the bytes of a file as they are, in blocks of 64 KiB."""

        async def blocks() -> AsyncIterator[bytes]:
            with open(path, "rb", buffering=0) as file:  # noqa: ASYNC230  # from the cache
                while block := file.read(64 * 1024):
                    yield block

        return StreamingResponse(blocks())

    @app.get("/followers")
    async def followers() -> int:
        return app.state.hub.followers

    return app


if __name__ == "__main__":
    uvicorn.run(
        make_app(Path(sys.argv[1]), polling="--polling" in sys.argv),
        port=int(sys.argv[2]),
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
