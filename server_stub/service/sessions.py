"""Sessions of users in the workers of running jobs: commands, terminals and connections to ports."""

from __future__ import annotations

import shlex
import socket
from collections.abc import AsyncGenerator, Callable

from client_lib.errors import Conflict, NotFound, NotSupported
from client_lib.spec.request import SessionRequest
from client_lib.spec.wire import JobInfo
from server_stub.runtimes import Runtime
from server_stub.service.values import User, check_owner, check_running
from server_stub.worker_gateway.sessions import SessionEnd

OPEN_MAX = 100  # sessions of one user; each holds a connection, and a process in a worker
_SHOWN = 200  # characters of a command in an event


class Sessions:
    """All sessions of one service. Event loop only."""

    def __init__(self, runtime: Runtime, *, allowed: bool) -> None:
        """`allowed`: the server's setting."""
        self._runtime, self._allowed = runtime, allowed
        self._open: dict[tuple[str, str], SessionEnd | None] = {}
        """The name of the user and the id of the session -> this end of it; None: it begins."""

    async def begin(
        self, user: User, job: JobInfo, session: str, request: SessionRequest, note: Callable[[str], None]
    ) -> AsyncGenerator[bytes, None]:
        """See `Service.begin_session`. `note` adds an event to the job. The session ends when the result is closed."""
        self._check(user, job)
        content = self._content((user.name, session), job, request, note)
        await anext(content)  # the end of a generator that has not begun would free nothing
        return content

    async def _content(
        self, key: tuple[str, str], job: JobInfo, request: SessionRequest, note: Callable[[str], None]
    ) -> AsyncGenerator[bytes, None]:
        """Run one session: yield b"" once it has begun, then its output."""
        user, session = key
        if key in self._open:
            raise Conflict(f"session {session} exists already")
        if sum(name == user for name, _ in self._open) >= OPEN_MAX:
            raise Conflict(f"{user} has {OPEN_MAX} open sessions, the limit", hint="end one of them")
        self._open[key] = end = None
        try:
            self._open[key] = end = await SessionEnd.of(await self._connected(job, request))
            note(f"{user} {_what(request)} {_place(request)}")
            yield b""
            async for data in end.content():
                yield data
        finally:
            del self._open[key]
            if end:
                end.close()

    async def _connected(self, job: JobInfo, request: SessionRequest) -> socket.socket:
        try:
            return await self._runtime.begin_session(job.id, job.attempt, request.model_dump(mode="json"))
        except Conflict as problem:
            raise Conflict(f"{_place(request)} of job {job.name} can't be entered: {problem.message}") from problem

    async def take(self, user: User, session: str, offset: int, data: bytes) -> None:
        """See `SessionEnd.take`. Raises NotFound: this user has no such session."""
        end = self._open.get((user.name, session))
        if end is None:
            raise NotFound("there is no such session, or it has ended")
        await end.take(offset, data)

    def close(self) -> None:
        """End all sessions: the server stops."""
        for end in filter(None, self._open.values()):
            end.close()

    def _check(self, user: User, job: JobInfo) -> None:
        check_owner(user, job, "may enter its workers")
        if not self._allowed:
            raise NotSupported(
                "sessions are switched off on this server (sessions=False)",
                hint="its operator can set CLIENT_LIB_SERVER_SESSIONS=true",
            )
        check_running(job, "only the workers of a running job can be entered")


def _place(request: SessionRequest) -> str:
    return f"worker {request.worker or 0}" if request.rank is None else f"rank {request.rank}"


def _what(request: SessionRequest) -> str:
    if request.port is not None:
        return f"connects to port {request.port} of"
    return f"runs `{shlex.join(request.argv)[:_SHOWN]}` in" if request.argv else "opens a shell in"
