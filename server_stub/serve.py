"""Runs the application: locks, socket, uvicorn, and an end in the right order. Only `server_stub.__main__` imports it.

At SIGTERM or SIGINT: `server.json` goes first (nobody new comes), long polls answer, log streams are cut without
`@end` (their readers resume at the next server), other answers get `stop_grace_s`. Workers go on.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from client_lib import __version__
from client_lib.errors import Conflict, InvalidRequest, ServerError
from client_lib.spec.state_dir import SERVER_LOG
from server_stub import server_files
from server_stub.api.context import Context
from server_stub.app import build
from server_stub.auth import FileUsers, LocalUsers, Users
from server_stub.file_events import PollingEvents
from server_stub.http_bounds import http_protocol
from server_stub.log_lines import rotate
from server_stub.logs import LogHub
from server_stub.outputs_intake import OutputsIntake
from server_stub.runtimes import Runtime, attempt_dir, log_dir
from server_stub.runtimes.local import LocalOptions, LocalRuntime
from server_stub.service import Service
from server_stub.settings import Settings, is_loopback
from server_stub.snapshots import Snapshots
from server_stub.traffic import Traffic
from server_stub.workers import WorkerDesk

BACKLOG = 2048
_IDLE_LOOKS = 20  # how often idleness is looked at within idle_exit_s
_LOG_LOOK_S = 60.0
_DIRECTORY_LOOK_S = 2.0
_COLLECT_EVERY = (20_000, 20, 20)  # objects, collections of the young, of the middle-aged

log = logging.getLogger(__name__)


def serve(settings: Settings) -> None:
    """Run until a signal or idleness ends it.

    Raises ClientLibError with a sentence where it can't start: a busy port, another server, a directory.
    """
    server_files.prepare(settings.state_dir, settings.data_dir)
    users = _users(settings)
    facts = server_files.facts(__version__, settings.data_dir)
    with server_files.locked([settings.state_dir, settings.data_dir], facts) as locks, _listen(settings) as listening:
        facts["url"] = settings.public_url or _url(listening)
        for lock in locks:
            lock.say(facts)
        loop = _new_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(_run(settings, users, listening, facts, locks))
            for lock in locks:
                lock.check()
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # Windows, PyPy
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


async def _run(
    settings: Settings,
    users: Users,
    listening: socket.socket,
    facts: server_files.Facts,
    locks: Sequence[server_files.DirectoryLock],
) -> None:
    parts = await _start(settings)
    try:
        config = uvicorn_config(build(parts, users), settings)
        server = Server(config, parts, lambda: server_files.remove_server_json(settings.state_dir))
        watches = [_end_when_idle(server, parts), _end_when_lost(server, locks), _keep_log_small(settings)]
        tasks = [asyncio.create_task(watch) for watch in watches]
        await server.listen(listening, lambda: _announce(settings, facts))
        for task in tasks:
            task.cancel()
    finally:
        parts.hub.close()
        await parts.service.close()


async def _start(settings: Settings) -> Context:
    """All parts, working; the database is migrated and running jobs are found again."""
    snapshots = Snapshots(settings.data_dir / "snapshots", settings.max_snapshot_bytes, settings.min_free_bytes)
    await asyncio.to_thread(snapshots.open)
    desk = WorkerDesk(settings.data_dir / "worker.key", _attempt_folder(settings))
    service = Service(settings, _runtime(settings, desk))
    await service.start()
    events = None if settings.inotify else PollingEvents()
    hub, intake = LogHub(service, log_dir, events), OutputsIntake(settings.outputs_limit_bytes)
    return Context(settings, service, snapshots, hub, Traffic(), desk, intake)


def _attempt_folder(settings: Settings) -> Callable[[str, int], Path]:
    return lambda job_id, attempt: attempt_dir(settings.data_dir / "jobs" / job_id, attempt)


def _runtime(settings: Settings, desk: WorkerDesk) -> Runtime:
    if settings.runtime == "kubernetes":
        from server_stub.runtimes.kube.assembly import assemble  # half a second that a local server doesn't need

        return assemble(settings, desk)
    return LocalRuntime(
        LocalOptions(
            data_dir=settings.data_dir,
            catalogue_file=settings.catalogue,
            parse_instance_types=settings.parse_instance_types is not False,
            max_cpu_jobs=settings.max_cpu_jobs,
            max_processes=settings.max_processes,
            rank_runner=settings.rank_runner,
            warm=settings.warm,
            warm_idle_s=settings.warm_idle_s,
            log_limit_bytes=settings.log_limit_bytes,
            segment_bytes=settings.segment_bytes,
            max_result_bytes=settings.max_result_bytes,
            environments_limit_bytes=settings.environments_limit_bytes,
            outputs_limit_bytes=settings.outputs_limit_bytes,
            outputs_every_s=settings.outputs_every_s,
        )
    )


def _users(settings: Settings) -> Users:
    """Raises InvalidRequest: other machines could reach a server that only has the token of a local one."""
    if settings.users_file:
        return FileUsers(settings.users_file)
    if not is_loopback(settings.host):
        raise InvalidRequest(
            f"a server that listens on {settings.host} can be reached from other machines and needs --users-file",
            hint="python -m server_stub token NAME --users-file FILE makes the file and a token",
        )
    return LocalUsers(server_files.local_token(settings.state_dir))


def _listen(settings: Settings) -> socket.socket:
    """Bound, not yet accepting. Raises Conflict for a busy port, InvalidRequest for an address that is none of ours."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InvalidRequest(f"host {settings.host!r} is no address to listen on: {error.strerror}") from error
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the last server's connections may linger
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise Conflict(
            f"port {settings.port} of {settings.host} can't be listened on: {error.strerror}",
            hint="--port 0 takes a free one",
        ) from error
    return listening


def _url(listening: socket.socket) -> str:
    """How this machine reaches it. 0.0.0.0 and :: are every address; loopback is among them."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """How uvicorn runs it: no log, no websockets, no lifespan of its own."""
    return uvicorn.Config(
        app,
        http=http_protocol(),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=max(1, round(settings.stop_grace_s)),
    )


async def _announce(settings: Settings, facts: server_files.Facts) -> None:
    _collect_less()
    server_files.write_server_json(settings.state_dir, facts)
    log.info("listening on %s, pid %d, data in %s", facts["url"], os.getpid(), settings.data_dir)


def _collect_less() -> None:
    """What is there by now stays: the collector must not walk over all of it again and again. Requests leave no cycles,
    and thousands of waiting jobs no garbage: with Python's own thresholds an eighth of a submit went into looking."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_EVERY)


async def _end_when_idle(server: Server, parts: Context) -> None:
    limit = parts.settings.idle_exit_s
    while limit is not None:
        await asyncio.sleep(limit / _IDLE_LOOKS)
        if parts.traffic.idle_s() >= limit and not parts.service.busy():
            log.info("no job and no request for %g s: ending", limit)
            server.stop()
            return


async def _end_when_lost(server: Server, locks: Sequence[server_files.DirectoryLock]) -> None:
    """A server that can keep nothing must not go on as if it could; its directories were removed under it."""
    while True:
        await asyncio.sleep(_DIRECTORY_LOOK_S)
        try:
            for lock in locks:
                lock.check()
        except ServerError:  # `serve` says so at its end
            server.stop()
            return


async def _keep_log_small(settings: Settings) -> None:
    while True:
        rotate(settings.state_dir / SERVER_LOG, settings.server_log_bytes)
        await asyncio.sleep(_LOG_LOOK_S)


class Server(uvicorn.Server):
    """uvicorn, told when it listens and able to end without raising the signal again."""

    def __init__(self, config: uvicorn.Config, parts: Context, retract: Callable[[], None]) -> None:
        super().__init__(config)
        self._parts = parts
        self._retract = retract
        """Called first when it begins to stop."""
        self._loop = asyncio.get_running_loop()
        self._announce: Callable[[], Awaitable[None]] | None = None

    async def listen(self, listening: socket.socket, announce: Callable[[], Awaitable[None]]) -> None:
        """Serve until `stop`; `announce` is awaited once connections are accepted."""
        self._announce = announce
        await self.serve([listening])

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self._announce:
            await self._announce()

    def stop(self) -> None:
        """Begin to end; on the event loop's thread."""
        self.should_exit = True
        self._retract()
        self._parts.stopping.set()
        self._parts.hub.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as uvicorn calls it
        """A second SIGINT doesn't wait for open answers."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self._loop.call_soon_threadsafe(self.stop)
