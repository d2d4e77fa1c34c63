"""A real server on a real socket: uvicorn in a thread, the real service, and a
runtime that runs nothing.
"""

import asyncio
import io
import json
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import requests
from fastapi import FastAPI

from client_lib.errors import ServerError
from client_lib.spec import paths
from client_lib.spec.replace import replaced
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from server_stub.app import build
from server_stub.files.outputs import OutputsUpload
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from server_stub.http import users_file
from server_stub.http.api.context import Context
from server_stub.http.auth import Logins, Users
from server_stub.http.limits import Bodies
from server_stub.http.metrics import Traffic
from server_stub.http.users_file import FileTokens
from server_stub.logs.hub import LogHub
from server_stub.runtimes.tasks import Clock
from server_stub.serve import Server, uvicorn_config
from server_stub.service import Service
from server_stub.service.stored import row_of
from server_stub.settings import Settings
from server_stub.store.rows import NewJob
from server_stub.worker_gateway.attempt import WorkerGroup, WorkerRegistry
from tests.kit.fakes import FakeRuntime

DEADLINE_S = 20.0
GANG = 20
"""Workers of a job."""


@dataclass
class Api:
    """One user's view of a server."""

    url: str
    token: str | None
    session: requests.Session = field(default_factory=requests.Session)

    def __post_init__(self) -> None:
        self.session.trust_env = False
        if self.token:
            self.session.headers["Authorization"] = f"Bearer {self.token}"

    def __call__(self, method: str, path: str, **options: Any) -> requests.Response:
        return self.session.request(method, self.url + path, timeout=DEADLINE_S, **options)

    def submit(
        self, key: str | None = None, code: dict[str, Any] | None = None, **spec: Any
    ) -> requests.Response:
        body = {
            "spec": {"script": "echo hello", "type": "binary"} | spec,
            "code": code or {"mode": "in_place"},
        }
        return self(
            "POST", paths.JOBS, json=body, headers={paths.IDEMPOTENCY_KEY: key} if key else {}
        )


class PromptServer(Server):
    """Ends as soon as it is stopped; uvicorn looks every tenth of a second."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._stopped = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self._stopped.wait()

    def stop(self, why: str, failure: ServerError | None = None) -> None:
        super().stop(why, failure)
        self._stopped.set()


class Running:
    """A server, its parts and its users: ann, ben, and root who is admin."""

    def __init__(
        self,
        folder: Path,
        app: FastAPI | None = None,
        server: type[Server] = PromptServer,
        users_more: str = "",
        **settings: Any,
    ) -> None:
        """`users_more`: tables of the users file besides its users."""
        folder.mkdir(exist_ok=True)
        users = folder / "users.toml"
        self.tokens = {
            name: users_file.add(users, name, admin=name == "root")
            for name in ("ann", "ben", "root")
        }
        with users.open("a") as file:
            file.write(users_more)
        self.settings = Settings(state_dir=folder, users_file=users, **settings)
        self.settings.data_dir.mkdir(exist_ok=True)
        self.app = app
        self._type = server
        self.access_log = io.StringIO()
        self.runtime = self.new_runtime()
        self.parts: Context
        self.url = ""
        self._listening = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()
        assert self._listening.wait(DEADLINE_S), "the server did not start"
        if self._failure:
            raise self._failure

    def new_runtime(self) -> FakeRuntime:
        return FakeRuntime()

    def new_clock(self) -> Clock:
        return Clock()

    def as_user(self, name: str) -> Api:
        return Api(self.url, self.tokens[name])

    def as_worker(self, owner: str, number: int = 0) -> Api:
        """The view of a worker of attempt 1 of a job `train` of this user, without the job."""
        folder = self.settings.data_dir / f"job-of-{owner}"
        workers = tuple(folder / str(each) for each in range(GANG))
        group = WorkerGroup(folder.name, "train", 1, folder, workers, 1, None, None, 2**30, owner)
        self.call(lambda: self.parts.workers.open(group, lambda: None))
        worker = Api(self.url, self.parts.workers.token(folder.name, 1))
        about = {paths.POD_UID: f"pod-{number}", paths.WORKER_PROTOCOL: "1"}
        worker.session.headers.update(about)
        return worker

    def anonymous(self) -> Api:
        return Api(self.url, None)

    def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the server's event loop; its result."""

        async def on_loop() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(on_loop(), self._loop).result(DEADLINE_S)

    def add_finished_jobs(self, owner: str, number: int) -> None:
        """Put jobs into the database that have run."""
        one = JobInfo.model_validate_json(self.as_user(owner).submit().content)
        jobs = [
            replaced(
                one,
                id=f"{each:032x}",
                name=f"finished-{each}",
                state=State.SUCCEEDED,
                started_at=one.created_at,
                finished_at=one.created_at,
            )
            for each in range(number)
        ]
        new = [NewJob(row_of(job), {}, None) for job in jobs]
        store = self.parts.service._store
        writing = store.write(store._add_jobs, new)
        asyncio.run_coroutine_threadsafe(writing, self._loop).result(DEADLINE_S)

    def log_lines(self) -> list[dict[str, Any]]:
        if self._thread.is_alive():
            self.call(lambda: None)  # the lines of a turn are written at its end
        return [json.loads(line) for line in self.access_log.getvalue().splitlines()]

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._server.stop, "a test asked")
            self._thread.join(DEADLINE_S)

    def _main(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:  # noqa: BLE001  # handed to the test's thread
            self._failure = error
        finally:
            self._listening.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        settings = self.settings
        room = Room(settings.data_dir, settings.min_free_bytes)
        snapshots = Snapshots(settings.data_dir / "snapshots", settings.max_snapshot_bytes, room)
        snapshots.open()
        service = Service(settings, self.runtime, self.new_clock(), room)
        await service.start()
        registry = WorkerRegistry(
            settings.data_dir / "worker.key",
            lambda job_id, attempt: settings.data_dir / job_id,
            room.spare,
        )
        uploads = OutputsUpload(settings.outputs_limit_bytes, room)
        assert settings.users_file
        tokens = FileTokens(settings.users_file)
        self.parts = Context(
            *(
                settings,
                service,
                snapshots,
                LogHub(service.lookup.next_logs),
                Traffic(),
                registry,
                uploads,
            ),
            users=Users(tokens),
            logins=Logins(settings.data_dir / "logins.json", tokens, loopback=True),
            bodies=Bodies(settings.max_snapshot_bytes),
        )
        app = build(self.parts, self.access_log, self.app)
        self._server = self._type(uvicorn_config(app), self.parts)
        with socket.create_server(("127.0.0.1", settings.port)) as listening:
            self.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            self._listening.set()
            await self._server.serve([listening])
        self.parts.hub.close()
        await service.close()


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Start a server with these settings; stopped at the end of the test."""
    running: list[Running] = []

    def start(**settings: Any) -> Running:
        folder = tmp_path / f"server{len(running)}"
        folder.mkdir()
        running.append(Running(folder, **settings))
        return running[-1]

    yield start
    for server in running:
        server.stop()


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One server for the tests of a module that change nothing in it."""
    running = Running(tmp_path_factory.mktemp("shared"))
    yield running
    running.stop()


@pytest.fixture
def server(start_server: Callable[..., Running]) -> Running:
    return start_server()


def user_fixture(name: str) -> Any:
    """The fixture `name`: this user's view of the fixture `server`."""

    def user(server: Any) -> Any:
        return server.as_user(name)

    return pytest.fixture(name=name)(user)


ann, ben, root = map(user_fixture, ("ann", "ben", "root"))
