"""Sessions of users in the workers of running jobs: commands, terminals
and connections to ports.
"""

import shlex
from collections.abc import AsyncGenerator, AsyncIterable

from client_lib.errors import Conflict, NotFound, NotSupported
from client_lib.spec.request import SessionRequest
from server_stub.runtimes import Runtime
from server_stub.service.active import ActiveJob, StoredJob
from server_stub.service.lookup import JobLookup, check_owner, check_running
from server_stub.service.reconciler import Reconciler
from server_stub.users import User
from server_stub.worker_gateway.sessions import SessionEnd

OPEN_MAX = 100  # sessions of one user; each holds a connection, and a process in a worker
_SHOWN = 200  # characters of a command in an event


class Sessions:
    """All sessions of one service. Event loop only."""

    def __init__(
        self, runtime: Runtime, lookup: JobLookup, reconciler: Reconciler, *, allowed: bool
    ) -> None:
        """`allowed`: the server's setting."""
        self._runtime = runtime
        self._lookup = lookup
        self._reconciler = reconciler
        self._allowed = allowed
        self._open: dict[tuple[str, str], SessionEnd | None] = {}
        """The server's end of each session, by the name of the user and the id of the session;
        None: the session begins."""

    async def begin(
        self, user: User, name: str, session: str, request: SessionRequest, owner: str | None = None
    ) -> AsyncGenerator[bytes, None]:
        """Begin a session in a worker of a running job, with an event; returns the bytes that the
        session sends to the user. `session`: an id for `take`. The session ends when the result is
        closed.

        Raises:
            NotFound: there is no such job, rank or worker.
            Forbidden: the job belongs to another user, and the caller is no admin.
            NotSupported: the server has no sessions.
            Conflict: the job does not run, or the worker does not answer.
        """
        found = await self._lookup.find(user, name, owner)
        job = found.public
        check_owner(user, job, "may enter its workers")
        if not self._allowed:
            raise NotSupported(
                "sessions are switched off on this server (sessions=False)",
                hint="its operator can set CLIENT_LIB_SERVER_SESSIONS=true",
            )
        check_running(job, "only the workers of a running job can be entered")
        content = self._content((user.name, session), found, request)
        await anext(content)  # the end of a generator that has not begun would free nothing
        return content

    async def _content(
        self, key: tuple[str, str], found: StoredJob, request: SessionRequest
    ) -> AsyncGenerator[bytes, None]:
        """Run one session: yield b"" once it has begun, then its output."""
        user, session = key
        if key in self._open:
            raise Conflict(f"session {session} exists already")
        if sum(name == user for name, _ in self._open) >= OPEN_MAX:
            raise Conflict(
                f"{user} has {OPEN_MAX} open sessions, the limit", hint="end one of them"
            )
        self._open[key] = end = None
        job = found.public
        place = f"worker {request.worker or 0}" if request.rank is None else f"rank {request.rank}"
        try:
            try:
                connected = await self._runtime.begin_session(
                    job.id, job.attempt, request.model_dump(mode="json")
                )
            except Conflict as problem:
                raise Conflict(
                    f"{place} of job {job.name} can't be entered: {problem.message}"
                ) from problem
            self._open[key] = end = await SessionEnd.of(connected)
            message = f"{user} {_what(request)} {place}"
            if isinstance(found, ActiveJob) and (found.info.attempt, message) not in found.reported:
                if request.port is not None:  # one event for all connections to it
                    found.reported.add((found.info.attempt, message))
                self._reconciler.add_event(found, found.info.reason, message)
            yield b""
            async for data in end.content():
                yield data
        finally:
            del self._open[key]
            if end:
                end.close()

    async def take(
        self, user: User, session: str, offset: int, pieces: AsyncIterable[bytes]
    ) -> None:
        """See `SessionEnd.take_all`. Raises NotFound: this user has no such session."""
        end = self._open.get((user.name, session))
        if end is None:
            raise NotFound("there is no such session, or it has ended")
        await end.take_all(offset, pieces)

    def close(self) -> None:
        """End all sessions: the server stops."""
        for end in filter(None, self._open.values()):
            end.close()


def _what(request: SessionRequest) -> str:
    if request.port is not None:
        return f"connects to port {request.port} of"
    return f"runs `{shlex.join(request.argv)[:_SHOWN]}` in" if request.argv else "opens a shell in"
