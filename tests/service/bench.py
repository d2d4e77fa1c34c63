"""A data directory, a fake runtime and a fake clock, and services on them."""

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from client_lib.spec.job import JobSpec
from client_lib.spec.request import CodeInPlace, SharedFolderProof, SubmitRequest, Submitter
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from server_stub.service import Service
from server_stub.service.lifecycle import JobStatus, Stop
from server_stub.settings import Settings
from server_stub.users import User
from tests.kit.fakes import FakeClock, FakeRuntime

ANN = User("ann")
T0 = datetime(2026, 1, 1, tzinfo=timezone.utc)


def status(*, stop: Stop | None = None, **fields: Any) -> JobStatus:
    """A job with these fields of JobInfo and of its spec."""
    given = {name: fields.pop(name) for name in list(fields) if name in JobSpec.model_fields}
    spec = {"script": "train.py", "max_infrastructure_retry": 0, **given}
    facts = {
        "name": "j",
        "id": "1",
        "owner": "ann",
        "version": 1,
        "runtime": "local",
        "created_at": T0,
    }
    job = {
        "state": State.PENDING,
        "reason": Reason.QUEUED,
        "code": CodeInPlace(),
        **facts,
        **fields,
    }
    return JobStatus(JobInfo(spec=JobSpec(**spec), **job), stop)


class Bench:
    """One data directory, one runtime, and servers on them, one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.scripts = folder / "scripts"
        self.scripts.mkdir(exist_ok=True)
        (self.scripts / "train.py").write_text("print('hello')\n")
        self.nonce = secrets.token_hex(16)
        (self.scripts / ".proof").write_text(self.nonce)
        self.runtime = FakeRuntime()
        self.clock = FakeClock()
        self.free = 10**12
        self.service: Service

    def settings(self, **fields: Any) -> Settings:
        return Settings(state_dir=self.folder / "state", **fields)

    def new_service(self, **fields: Any) -> Service:
        settings = self.settings(**fields)
        self.snapshots = Snapshots(
            settings.data_dir / "snapshots", settings.max_snapshot_bytes, Room(self.folder, 0)
        )
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.snapshots.open()
        return self.new_service_unopened(**fields)

    def new_service_unopened(self, **fields: Any) -> Service:
        """A service whose data directory nobody prepared."""
        settings = self.settings(**fields)
        room = Room(settings.data_dir, settings.min_free_bytes, lambda folder: self.free)
        return Service(settings, self.runtime, self.clock, room)

    @asynccontextmanager
    async def server(self, **fields: Any) -> AsyncIterator[Service]:
        self.service = self.new_service(**fields)
        await self.service.start()
        try:
            yield self.service
        finally:
            await self.service.close()

    @asynccontextmanager
    async def recovered(self) -> AsyncIterator[Service]:
        """A server that is started with --recover."""
        self.service = self.new_service()
        await self.service.start(recover=True)
        try:
            yield self.service
        finally:
            await self.service.close()

    def request(self, *, secret_values: dict[str, str] | None = None, **spec: Any) -> SubmitRequest:
        proof = SharedFolderProof(path=str(self.scripts / ".proof"), nonce=self.nonce)
        return SubmitRequest(
            spec=JobSpec(**{"script": str(self.scripts / "train.py"), **spec}),
            code=CodeInPlace(proof=proof),
            submitter=Submitter(python="/usr/bin/python3", working_dir=str(self.scripts)),
            secret_values=secret_values or {},
        )

    async def submit(self, user: User = ANN, **spec: Any) -> JobInfo:
        text, _ = await self.service.submits.submit(user, self.request(**spec), None)
        return JobInfo.model_validate_json(text)

    async def info(self, name: str, user: User = ANN, owner: str | None = None) -> JobInfo:
        return JobInfo.model_validate_json(await self.service.get(user, name, owner))

    async def until(self, name: str, state: State, attempt: int | None = None) -> JobInfo:
        """The job when it is in that state (and attempt); fails after 10 s."""
        return await self.until_info(
            name, lambda info: info.state is state and attempt in (None, info.attempt)
        )

    async def until_info(self, name: str, holds: Callable[[JobInfo], bool]) -> JobInfo:
        deadline = time.monotonic() + 10
        while True:
            info = await self.info(name)
            if holds(info):
                return info
            assert time.monotonic() < deadline, f"{info.state} {info.reason} {info.message}"
            await asyncio.sleep(0.002)

    async def events(self, name: str) -> list[tuple[str, str, int]]:
        from client_lib.spec.wire import EventList

        listed = EventList.model_validate_json(await self.service.lookup.events(ANN, name))
        return [(str(event.state), str(event.reason), event.attempt) for event in listed.events]
