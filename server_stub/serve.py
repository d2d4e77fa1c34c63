"""Runs the application: locks, socket, uvicorn, and an ordered stop.

At SIGTERM or SIGINT `server.json` is removed first (no new client connects), long polls answer, log
streams are cut without `@end` (their readers resume at the next server), and other responses get
STOP_GRACE_S. Workers keep running.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from client_lib import __version__
from client_lib.errors import ClientLibError, Conflict, InvalidRequest, ServerError
from client_lib.launcher_protocol.plan import OPEN_FILES
from client_lib.spec.paths import is_loopback
from client_lib.spec.state_dir import SERVER_LOG
from server_stub import server_files, standby
from server_stub.app import build
from server_stub.files.job_dirs import attempt_dir
from server_stub.files.outputs import OutputsUpload
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from server_stub.http import users_file
from server_stub.http.api.context import Context
from server_stub.http.auth import Logins, Users
from server_stub.http.limits import Bodies, Connection, Strangers
from server_stub.http.metrics import Traffic
from server_stub.http.users_file import CurrentTokens, FileTokens, UserTokens
from server_stub.logs.hub import LogHub
from server_stub.runtimes import Runtime
from server_stub.runtimes.local import LocalOptions, accounts
from server_stub.runtimes.local.runtime import LocalRuntime
from server_stub.server_log import rotate
from server_stub.service import Service
from server_stub.settings import Settings
from server_stub.standby import StandIn
from server_stub.store import Superseded
from server_stub.worker_gateway.attempt import WorkerRegistry

BACKLOG = 2048
STOP_GRACE_S = 5
SERVER_LOG_BYTES = 32 * 2**20  # size of server.log at which a new file begins; one old file is kept
_MACOS_OPEN_FILES = 10240  # OPEN_MAX
_M_MMAP_THRESHOLD = -3
"""A parameter of `mallopt` (malloc.h)."""
_LARGE_BLOCK = 256 * 1024
"""Twice the first value of glibc: the heap still has what is made and freed all the time."""
_IDLE_LOOKS = 20  # checks for idleness within idle_exit_s
_LOOK_S = 2.0  # between two looks at the machine, and at the database

log = logging.getLogger(__name__)


def serve(settings: Settings, *, recover: bool = False) -> None:
    """Run until a signal or idleness ends it. `recover`: rebuild a lost or damaged database.

    Raises ClientLibError if it can't start or go on: a busy port, another server, a directory that
    can't be used. On a cluster it waits for the end of another server.
    """
    _raise_open_files()
    keep_large_blocks_apart()
    server_files.prepare(settings.state_dir, settings.data_dir)
    facts = server_files.facts(__version__, settings.data_dir)
    with ExitStack() as held:

        def take_locks() -> Sequence[server_files.DirectoryLock]:
            directories = [settings.state_dir, settings.data_dir]
            return held.enter_context(server_files.locked(directories, facts))

        if settings.runtime == "kubernetes":
            listening = held.enter_context(_listen(settings))
            stand_in = StandIn(listening)
            held.callback(stand_in.end)
            locks = standby.wait(take_locks, stand_in)
        else:
            locks = take_locks()
            listening = held.enter_context(_listen(settings))
            stand_in = StandIn(listening)
        facts["url"] = _url(listening)
        for lock in locks:
            lock.write(facts)
        # run() would wait for threads, perhaps of a file system that does not answer
        loop = uvloop.new_event_loop()
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(_run(settings, listening, facts, locks, recover, stand_in))
        finally:
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()


def _raise_open_files() -> None:
    """Raise the soft limit of open files to the hard one: followers, workers and log files are
    many. Launchers restore the earlier limit for their ranks."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    os.environ[OPEN_FILES] = str(soft)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (ValueError, OSError):  # macOS has a lower bound than its hard limit says
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, _MACOS_OPEN_FILES), hard))


def keep_large_blocks_apart() -> None:
    """Have blocks of _LARGE_BLOCK bytes and more, such as bodies of requests, leave the memory of
    this process as soon as they are freed. By default glibc takes blocks of up to 32 MB from its
    heap once it has freed one of that size, and one small object above them keeps them all."""
    with suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


async def _run(
    settings: Settings,
    listening: socket.socket,
    facts: server_files.Facts,
    locks: Sequence[server_files.DirectoryLock],
    recover: bool,
    stand_in: StandIn,
) -> None:
    tokens, user_accounts = _users(settings)
    room = Room(settings.data_dir, settings.min_free_bytes)
    room.open()
    snapshots = Snapshots(settings.data_dir / "snapshots", settings.max_snapshot_bytes, room)
    await asyncio.to_thread(snapshots.open)
    registry = WorkerRegistry(
        settings.data_dir / "worker.key",
        lambda job_id, attempt: attempt_dir(settings.data_dir / "jobs" / job_id, attempt),
        room.spare,
    )
    if settings.runtime == "kubernetes":
        # half a second of imports that others do not need
        from server_stub.runtimes.kube.runtime import assemble

        runtime: Runtime = assemble(
            settings, registry, {team.namespace for team in tokens().teams if team.namespace}
        )
    else:
        runtime = LocalRuntime(LocalOptions(settings, accounts=user_accounts))
    service = Service(settings, runtime, room=room)
    await service.start(recover=recover)  # the database is migrated and running jobs are adopted
    hub = LogHub(service.lookup.next_logs)
    uploads = OutputsUpload(settings.outputs_limit_bytes, room)
    logins = Logins(settings.data_dir / "logins.json", tokens, loopback=is_loopback(settings.host))
    users = Users(tokens)
    bodies = Bodies(settings.max_snapshot_bytes)
    parts = Context(
        settings, service, snapshots, hub, Traffic(), registry, uploads, users, logins, bodies
    )
    try:
        config = uvicorn_config(build(parts))
        server = Server(config, parts)
        watches = [_watch_machine(server, parts, locks), _watch_database(server, parts)]
        tasks = [asyncio.create_task(watch) for watch in watches]
        # what the start has made stays: a full collection that walks it stops all requests for 0.1
        # s
        gc.freeze()
        stand_in.end()
        listening.listen(BACKLOG)  # connections wait there until uvicorn accepts them
        with server.capture_signals():  # a client may send one as soon as it sees server.json
            server_files.write_server_json(settings.state_dir, facts)
            log.info(
                "listening on %s, pid %d, data in %s", facts["url"], os.getpid(), settings.data_dir
            )
            await server.serve([listening])
        for task in tasks:
            task.cancel()
        if server.failure:
            raise server.failure
    finally:
        parts.hub.close()
        await parts.service.close()


def _users(settings: Settings) -> tuple[CurrentTokens, Callable[[], Mapping[str, str]] | None]:
    """The tokens of this server, and the names of the accounts under which jobs of their users run;
    None: all jobs run under the server's account. The data directory is opened to these accounts.

    Raises InvalidRequest: other machines could reach it, and it has no users file; or it has a
    users file, and jobs of all users would run under one account, or some user has no account, or
    has an account that can run no jobs there.
    """
    if settings.users_file is None:
        if not is_loopback(settings.host):
            raise InvalidRequest(
                f"a server that listens on {settings.host} can be reached from other machines and "
                "needs --users-file",
                hint="`client-lib server token NAME --users-file FILE` makes the file and a token; "
                "or write a table [oidc] with the issuer of your users' tokens",
            )
        user = users_file.local_user()
        tokens = UserTokens({users_file.digest(server_files.local_token(settings.state_dir)): user})
        return lambda: tokens, None
    if settings.runtime != "local" or settings.insecure_shared_uid:
        return FileTokens(settings.users_file), None
    if not accounts.are_possible():
        raise InvalidRequest(
            "jobs of all users in --users-file would run as this account: each can read the "
            "others' files and secrets",
            hint="started as root on Linux, it runs the jobs of each user under an account of its "
            "own; --insecure-shared-uid starts it for users who trust each other; on "
            "Kubernetes jobs are separated",
        )
    separated = FileTokens(settings.users_file, _check_accounts)
    os.umask(0o077)  # of this server's own files; a job has the usual one
    accounts.open_data_dir(settings.data_dir)
    jobs = settings.data_dir / "jobs"
    python = LocalOptions.python
    found = accounts.of_users(separated().accounts())
    if why := next(
        filter(None, (account.why_unusable(jobs, python) for account in found.values())), None
    ):
        raise InvalidRequest(
            why,
            hint="let everybody enter the folders above it, or choose others: a data directory "
            "such as --data-dir /var/lib/client_lib, and an installation of Python outside of "
            "private homes",
        )
    return separated, lambda: separated().accounts()


def _check_accounts(tokens: UserTokens) -> None:
    """Raises InvalidRequest: a user has no account on this machine."""
    if tokens.oidc is not None:
        raise InvalidRequest(
            "users of the table [oidc] in --users-file have no accounts on this machine, and "
            "their jobs would run as this account",
            hint="--insecure-shared-uid starts it for users who trust each other; on Kubernetes "
            "jobs are separated",
        )
    accounts.of_users(tokens.accounts())


def _listen(settings: Settings) -> socket.socket:
    """A bound socket. Raises Conflict: the port is busy; InvalidRequest: the
    address is not of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listening = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:  # the latter for a name with two dots in a row
        raise InvalidRequest(
            f"host {settings.host!r} is no address to listen on: {error}"
        ) from error
    try:
        # the last server's connections may linger
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
    except OSError as error:
        listening.close()
        raise Conflict(
            f"port {settings.port} of {settings.host} can't be listened on: {error.strerror}",
            hint="--port 0 takes a free one",
        ) from error
    return listening


def _url(listening: socket.socket) -> str:
    """The URL on this machine. 0.0.0.0 and :: mean every address, loopback among them."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    """Options of uvicorn: no log, no websockets and no lifespan of its own."""
    connection: Any = partial(Connection, strangers=Strangers())
    return uvicorn.Config(
        app,
        http=connection,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_graceful_shutdown=STOP_GRACE_S,
    )


async def _watch_machine(
    server: Server, parts: Context, locks: Sequence[server_files.DirectoryLock]
) -> None:
    """Keep the log small, and stop the server when it is idle or its directories were removed: what
    it writes would be lost."""
    limit = parts.settings.idle_exit_s
    while True:
        await asyncio.sleep(_LOOK_S if limit is None else min(_LOOK_S, limit / _IDLE_LOOKS))
        rotate(parts.settings.state_dir / SERVER_LOG, SERVER_LOG_BYTES)
        if limit is not None and parts.traffic.idle_s() >= limit and not parts.service.busy():
            server.stop(f"no job and no request for {limit:g} s")
            return
        try:
            for lock in locks:
                lock.check()
        except ServerError as error:
            server.stop(error.message, error)
            return


async def _watch_database(server: Server, parts: Context) -> None:
    """Stop the server when another one has taken over its database. While the database is away
    nothing is decided, because each decision is stored first; the lock is taken again at the first
    answer."""
    away = False
    while True:
        await asyncio.sleep(_LOOK_S)
        try:
            await parts.service.check()
        except Superseded as error:
            server.stop(error.message, error)
            return
        except ClientLibError as error:
            if not away:
                log.error("%s: %s", error.message, error.__cause__ or error.hint)
            away = True
        else:
            if away:
                log.warning("the database answers again")
            away = False


class Server(uvicorn.Server):
    """uvicorn with a stop that does not raise the signal again."""

    def __init__(self, config: uvicorn.Config, parts: Context) -> None:
        super().__init__(config)
        self._parts = parts
        self.failure: ServerError | None = None
        """The reason of a stop that nobody asked for."""
        self._loop = asyncio.get_running_loop()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # uvicorn waits until a connection that it accepts in this moment is idle for seconds,
        # unless it is closed here
        self.server_state.default_headers.append((b"connection", b"close"))
        await super().shutdown(sockets)

    def stop(self, why: str, failure: ServerError | None = None) -> None:
        """Begin to stop, with a line of the log; call it on the event loop's thread."""
        if not self.should_exit:
            log.info("stopping: %s", why)
        self.failure = failure or self.failure
        self.should_exit = True
        server_files.remove_server_json(self._parts.settings.state_dir)
        self._parts.stopping.set()
        self._parts.hub.close()
        self._parts.service.sessions.close()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002  # as uvicorn calls it
        """A second SIGINT does not wait for open responses."""
        if self.should_exit and sig == signal.SIGINT:
            self.force_exit = True
        self._loop.call_soon_threadsafe(self._stop_at, signal.Signals(sig))

    def _stop_at(self, received: signal.Signals) -> None:
        who = server_files.who_asked_to_stop(self._parts.settings.state_dir)
        self.stop(who or f"signal {received.name}")
