"""The runtime's side of one worker launcher (`client_lib.worker`): started or found again, followed
to its end; and the processes that a dead launcher has left, which are killed.

A launcher is alive if its connection is open or its lock is held; a pid alone proves nothing.
Another process belongs to a worker if its environment holds the worker's marker, or if it belongs
to a recorded group whose leader has the recorded start time. (macOS shows environments through ps
only.)

If the worker's folder belongs to an account other than this server's, only processes of that
account are killed: they write the records themselves, so a record could name any process of the
machine.
"""

import asyncio
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, TypeGuard

from typing_extensions import Unpack  # of the standard library from Python 3.11 on

from client_lib import durable
from client_lib.durable import is_held, last_line, read_json
from client_lib.errors import Conflict
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import ALREADY_RUNS, MARKER, Directory, give_up_reserve
from client_lib.launcher_protocol.plan import OPEN_FILES
from client_lib.launcher_protocol.processes import group_members, marked, start_time, stat, user_of
from client_lib.launcher_protocol.reasons import START_FAILED, reason_of
from client_lib.launcher_protocol.report import Report, storable
from client_lib.spec.states import Reason
from client_lib.worker.programs import launcher_command
from server_stub.files.job_dirs import open_to_append, opener
from server_stub.runtimes import STACKS_S
from server_stub.runtimes.local.accounts import owner_of
from server_stub.runtimes.tasks import is_set_within
from server_stub.runtimes.verdict import Stage, WorkerStatus
from server_stub.worker_gateway import report as reports
from server_stub.worker_gateway.worker import Quiet, StackDump, quiet_since

LAUNCHER_SWEEPS = sys.platform == "linux" and os.environ.get("CLIENT_LIB_PORTABLE") != "1"
"""A launcher that has reported has ended all of its descendants (child subreaper). On other systems
it finds process groups only, and the runtime kills the rest."""
_PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "CLIENT_LIB_PORTABLE", OPEN_FILES)


class _Known(TypedDict, total=False):
    """Fields of a WorkerStatus that change with its stage."""

    report: Report
    lost_because: str
    lost_reason: Reason
    warm: bool
    fresh_because: str | None
    threads: int | None
    quiet: Quiet


class Launcher:
    """Controls one launcher. `changed` is called after each change of `worker`."""

    def __init__(
        self, directory: Path, number: int, host: str, changed: Callable[[], None]
    ) -> None:
        self.worker = WorkerStatus(number, Stage.STARTING, host)
        self._path = directory
        self.files = Directory(str(directory))
        self._opener = opener(directory)
        self._changed = changed
        self._instructions: list[bytes] = []
        self._writer: asyncio.StreamWriter | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._spawn_error: OSError | None = None
        self._damage = ""
        self._takes_stacks = False
        self._stacks_taken = asyncio.Event()

    def was_launched(self) -> bool:
        """A launcher has held the lock of this directory: no other may start there."""
        return read_json(self.files.lock, self._opener) is not None

    def has_begun(self) -> bool:
        return os.path.exists(self.files.processes)

    def spawn(self, python: str) -> None:
        """Start the launcher; blocks for a millisecond. If one runs already, the new one exits at
        once. `follow` reports a failure to start."""
        try:
            account = owner_of(self._path)
            environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
            if account is not None:
                environment.pop("TMPDIR", None)
                environment |= account.environment
            with os.fdopen(open_to_append(Path(self.files.output)), "ab") as output:
                self._child = subprocess.Popen(
                    launcher_command(self.files.path, python),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    cwd=self.files.path,
                    env=environment,
                    # it outlives the server, and no Ctrl-C of a terminal reaches it
                    start_new_session=True,
                    **account.rights if account else {},
                )
        except OSError as error:
            self._spawn_error = error

    def instruct(self, line: bytes) -> None:
        """Send it now or as soon as there is a connection, and again after a reconnect
        (instructions may repeat).
        """
        if line not in self._instructions:
            self._instructions.append(line)
            if self._writer is not None:
                self._writer.write(line)

    async def stacks(self) -> StackDump:
        """Order the stacks of its ranks, and wait for them."""
        number = self.worker.number
        if self.worker.stage is not Stage.STARTED:
            return StackDump(number, [], f"worker {number} runs no ranks now")
        launcher = f"the launcher of worker {number}"
        if self._writer is None:
            return StackDump(number, [], f"{launcher} can't be reached now")
        if not self._takes_stacks:
            return StackDump(number, [], f"{launcher} is of a version that can't take stacks")
        self._stacks_taken.clear()
        self._writer.write(control.order(control.STACKS))
        if not await is_set_within(self._stacks_taken, STACKS_S):
            return StackDump(number, [], f"{launcher} did not answer within {STACKS_S:g} s")
        taken = await asyncio.to_thread(read_json, self.files.stacks_taken, self._opener)
        if taken is None:
            return StackDump(number, [], f"{launcher} could not take stacks")
        return StackDump(number, taken.get("processes") or [])

    def processes(self) -> int:
        """The number of processes that its plan has for each worker."""
        plan = read_json(self.files.plan, self._opener) or {}
        return int(plan.get("processes_per_worker", 1))

    def begin_session(self, request: Mapping[str, object]) -> socket.socket:
        """A connection that the launcher has made a session; blocks. Raises Conflict."""
        try:
            connection = self._connect()
        except OSError as error:
            raise Conflict("its launcher can't be reached now") from error
        try:
            control.begin_session(connection, request)
        except OSError as error:
            connection.close()
            raise Conflict(str(error)) from error
        return connection

    def kill(self) -> None:
        """Send SIGKILL to a launcher that does not answer; its ranks die with it."""
        if self._child is not None:
            self._child.kill()  # it may have ended, as another launcher had the lock
        holder = read_json(self.files.lock, self._opener)
        if holder and is_held(self.files.lock, self._opener) and _lives(holder):
            _kill(holder["pid"], _other_owner(self._path))

    async def destroy(self) -> None:
        """Kill the launcher and all processes that it started; returns when none is alive."""
        await self._sweep(of_launcher=True)

    async def follow(self) -> None:
        """Return when the worker is over."""
        while connection := await self._connected():
            if await self._listen(connection):
                break
        report = await asyncio.to_thread(self._report)
        if report is None or not LAUNCHER_SWEEPS:
            await self._sweep()
        if report is not None:
            self._become(Stage.ENDED, report=report)
            return
        reason, message = await asyncio.to_thread(self._failure)
        give_up_reserve(self.files.reserve)
        self._become(Stage.LOST, lost_because=message, lost_reason=reason)

    async def reap(self) -> None:
        """Return when the launcher's process has ended."""
        for pause in _pauses():
            if self._child is None or self._child.poll() is not None:
                return
            await asyncio.sleep(pause)

    def lose_with_machine(self) -> None:
        """Read the report after a reboot of the machine. The worker is lost if there is none, or if
        it says that the worker was stopped, because the shutdown of the machine did that."""
        report = self._report()
        give_up_reserve(self.files.reserve)
        if report is not None and report["reason"] != Reason.CANCELLED:
            self._become(Stage.ENDED, report=report)
        else:
            why = "the machine was rebooted while the job ran"
            self._become(Stage.LOST, lost_because=why, lost_reason=Reason.NODE_LOST)

    async def _connected(self) -> socket.socket | None:
        """A connection; None: the launcher has ended."""
        for pause in _pauses():
            with suppress(OSError):  # this process has too many open files
                connection = self._connection()
                if connection is not None or self._is_over():
                    return connection
            await asyncio.sleep(pause)
        return None

    def _connection(self) -> socket.socket | None:
        if os.path.exists(self.files.control):  # much cheaper than a connection
            with suppress(OSError):  # it does not listen yet, or no more: the lock decides
                return self._connect()
        return None

    def _connect(self) -> socket.socket:
        """A connection to a launcher of the folder's owner. Raises
        ConnectionRefusedError: it is another account's.
        """
        connection = control.connect(self.files.control)
        owner = _other_owner(self._path)
        if owner is not None:
            credentials = struct.Struct("3i")  # of the process that listens: pid, uid, gid (Linux)
            found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
            if credentials.unpack(found)[1] != owner:
                connection.close()
                raise ConnectionRefusedError(f"{self.files.control} belongs to another account")
        return connection

    def _is_over(self) -> bool:
        if os.path.exists(self.files.report):
            return True
        if self._child is not None:
            self._exit_code = self._child.poll()
            if self._exit_code is None:
                return False  # it starts; a check of the lock could make it fail
            self._child = None
        return not is_held(self.files.lock, self._opener)

    async def _listen(self, connection: socket.socket) -> bool:
        """Read events. Returns True after the event of the worker's end, False at end of file."""
        reader, self._writer = await asyncio.open_unix_connection(sock=connection)
        lines = control.Lines()
        try:
            self._writer.writelines(self._instructions)
            while data := await reader.read(4096):
                for message in lines.feed(data):
                    if message.get("event") == control.ENDED:
                        self._writer.write(control.order(control.EXIT))
                        return True
                    self._handle(storable(message))
        except ConnectionError:  # as at end of file: the lock decides
            pass
        finally:
            self._writer.close()
            self._writer = None
        return False

    def _handle(self, message: control.Message) -> None:
        event = str(message.get("event"))
        if event == control.STACKS:
            self._stacks_taken.set()
        elif event == control.QUIET:
            # processes of the job may send anything
            with suppress(ValueError, TypeError, AttributeError):
                told = {
                    int(rank): float(seconds) for rank, seconds in message.get("ranks", {}).items()
                }
                since = quiet_since(told, self.worker.quiet, time.monotonic())
                self._become(self.worker.stage, quiet=since)
        elif event == control.STARTED:
            self._takes_stacks = bool(message.get("stacks"))
            self._become(
                Stage.STARTED,
                warm=bool(message.get("warm")),
                fresh_because=message.get("fresh_because"),
                threads=message.get("threads"),
            )
        elif event == control.READY:
            self._become(Stage.READY)

    def _report(self) -> Report | None:
        """The report; None: there is none, or none that can be read (`_damage`)."""
        try:
            return reports.read(self.files.report, opener(self._path, reports.MAX_BYTES))
        except (OSError, ValueError) as error:
            self._damage = str(error)
            return None

    async def _sweep(self, *, of_launcher: bool = False) -> None:
        """Return when no process of the worker is alive. `of_launcher`: the launcher
        lives, and is killed, too.
        """
        for pause in _pauses():
            with suppress(OSError):  # this process has too many open files
                if of_launcher:
                    self.kill()
                if not await asyncio.to_thread(kill_leftovers, self._path):
                    return
            await asyncio.sleep(pause)

    def _failure(self) -> tuple[Reason, str]:
        who = f"the launcher of worker {self.worker.number}"
        error = self._spawn_error
        code = self._exit_code
        if error is not None:
            return Reason(reason_of(error, START_FAILED)), f"{who} could not be started: {error}"
        if not self.was_launched() and code is None:
            return Reason.LAUNCHER_LOST, f"{who} was not started"
        damage = f"report.json can't be read: {self._damage}" if self._damage else ""
        last = storable(last_line(self.files.output, self._opener)) or damage
        end = f": {last}" if last else ""
        if durable.ended_program(self.files.path, code, last):
            return Reason.STORAGE_FULL, f"{who} had no room on the disk of {self._path}{end}"
        if code is None or code == ALREADY_RUNS:
            how = "died"
        else:
            how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return Reason.LAUNCHER_LOST, f"{who} {how} without a report{end}"

    def _become(self, stage: Stage, **known: Unpack[_Known]) -> None:
        known.setdefault("quiet", ())
        worker = replace(self.worker, stage=stage, **known)
        if worker != self.worker:
            self.worker = worker
            self._changed()


def _pauses() -> Iterator[float]:
    """Seconds between two checks of a starting launcher: 1 ms for the first 100 ms, then more, up
    to 0.2 s. No event on all systems announces a new socket; a launcher needs about 20 ms to open
    its."""
    waited = 0.0
    while True:
        pause = min(max(0.001, waited / 20), 0.2)
        waited += pause
        yield pause


# --- the processes that a dead launcher has left


def leftovers(worker_dir: Path) -> list[int]:
    """Living processes of the worker, whose launcher is dead."""
    found = set(_marked(Directory(str(worker_dir)).path))
    found |= {record["pid"] for record in _recorded(worker_dir) if _lives(record)}
    found.discard(os.getpid())  # a server that was started by a job has that job's marker
    owner = _other_owner(worker_dir)
    return sorted(pid for pid in found if owner is None or user_of(pid) == owner)


def kill_leftovers(worker_dir: Path) -> list[int]:
    """Send SIGKILL to all processes of the worker, and return them. Repeat until no process is
    found: each may start another.
    """
    found = leftovers(worker_dir)
    owner = _other_owner(worker_dir)
    for group in [record["pgid"] for record in _recorded(worker_dir) if record.get("pid") in found]:
        if owner is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        else:
            found += group_members(group)
    for pid in found:
        _kill(pid, owner)
    return found


def _other_owner(worker_dir: Path) -> int | None:
    """The uid under which the processes of this worker run; None: this server's uid."""
    with suppress(FileNotFoundError):
        uid = os.lstat(worker_dir).st_uid
        return uid if uid != os.geteuid() else None
    return None


def _kill(pid: int, owner: int | None) -> None:
    """Send SIGKILL to a process, if it is one of `owner`."""
    with suppress(ProcessLookupError, PermissionError):  # gone, or another user's by now
        if owner is None:
            os.kill(pid, signal.SIGKILL)
            return
        process = os.pidfd_open(pid)  # after the check the pid may pass to another process
        try:
            if user_of(pid) == owner:
                signal.pidfd_send_signal(process, signal.SIGKILL)
        finally:
            os.close(process)


def _recorded(worker_dir: Path) -> list[dict[str, Any]]:
    """The ranks' {pid, pgid, start_time}; empty before they start."""
    records = read_json(Directory(str(worker_dir)).processes, opener(worker_dir)) or {}
    return [
        record
        for record in records.values()
        if isinstance(record, dict) and _is_pid(record.get("pgid"))
    ]


def _lives(record: Mapping[str, object]) -> bool:
    """True if the process with this {pid, start_time} lives; the job
    may have written any record.
    """
    pid = record.get("pid")
    started = record.get("start_time")
    return (
        _is_pid(pid) and started is not None and start_time(pid) == started and not _is_zombie(pid)
    )


def _is_pid(number: object) -> TypeGuard[int]:
    """True for a pid that the kernel can have given to a process of a job: 0 and 1 name
    groups of other processes.
    """
    return isinstance(number, int) and 1 < number < 2**31


def _is_zombie(pid: int) -> bool:
    """The process has ended, but is not reaped yet: a container's init may take long."""
    if sys.platform == "linux":
        return stat(f"/proc/{pid}")[:1] in ([], ["Z"], ["X"])
    command = ["ps", "-o", "stat=", "-p", str(pid)]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()[
        :1
    ] in ("", "Z")


def _marked(worker_dir: str) -> list[int]:
    if sys.platform == "linux":
        return marked(MARKER, worker_dir)
    # without /proc; `ps -E` shows the environment after the command
    answer = subprocess.run(
        ["ps", "-axEww", "-o", "pid=,command="], capture_output=True, text=True, check=False
    ).stdout
    return find_in_ps(answer, f"{MARKER}={worker_dir}")


def find_in_ps(answer: str, marker: str) -> list[int]:
    """The pids of lines that contain `marker` as a separate word."""
    return [
        int(line.split(None, 1)[0]) for line in answer.splitlines() if f" {marker} " in f"{line} "
    ]
