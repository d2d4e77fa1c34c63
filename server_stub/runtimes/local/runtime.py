"""The local runtime: the waiting and the running attempts, and the resources that are handed out to
them.

All methods run on the event loop's thread, so nothing here needs a lock. `scheduling` decides,
`host` holds the resources, and one running attempt is a `gang`.
"""

import asyncio
import logging
import socket
from collections.abc import Coroutine, Hashable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from typing import Any

from client_lib.errors import ClientLibError, Conflict, ServerError
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check, InstanceType, Manifest, WarmPoolInfo
from server_stub.files.job_dirs import attempt_dir, log_dir, worker_dir
from server_stub.runtimes import Attempt, Observation, Sink
from server_stub.runtimes.local import LocalOptions, plan, scheduling
from server_stub.runtimes.local.accounts import Account
from server_stub.runtimes.local.checkpoints import LocalCheckpoints
from server_stub.runtimes.local.gang import Gang, Record, read_record
from server_stub.runtimes.local.host import Host
from server_stub.runtimes.local.launcher import Launcher
from server_stub.runtimes.local.ports import Ports
from server_stub.runtimes.local.scheduling import Grant, Key, Waiting
from server_stub.runtimes.local.warm import WarmPools
from server_stub.runtimes.plan import keep_best
from server_stub.runtimes.tasks import Tasks
from server_stub.worker_gateway.worker import StackDump

# Pause for each waiting attempt before the queue is decided, so that many submits share a decision.
# The decision itself takes a hundredth of the pause.
PAUSE_PER_WAITING_S = 5e-5
# interval at which GPUs held by foreign processes are checked: their release is no event
LOOK_AGAIN_S = 3.0

_log = logging.getLogger(__name__)


class LocalRuntime:
    """Runs attempts as processes of this machine. See
    server_stub.runtimes.Runtime for the promises.
    """

    name = "local"

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._host = Host(options)
        self._ports = Ports()
        self._sink: Sink | None = None
        self._warm = WarmPools(options.settings.data_dir / "warm")
        self._waiting: dict[Key, Waiting] = {}
        """Attempts in the order of their arrival."""
        self._gangs: dict[Key, Gang] = {}
        self._tasks = Tasks(_log, "a task of the local runtime failed")
        self._admitting = False
        self._look_again: asyncio.TimerHandle | None = None

    # --- before anything runs

    def check(
        self, spec: JobSpec, owner: str, submitter: Submitter, namespace: str | None = None
    ) -> list[str]:
        del namespace
        return self._host.check(spec, owner, submitter)

    async def why_hidden(self, spec: JobSpec, owner: str, path: str) -> str | None:
        del spec
        account = self._host.account(owner)
        if account is None or all(await asyncio.to_thread(account.can_read, [path])):
            return None
        return (
            f"jobs of {owner} run under the account {account.name} of the server's machine, which "
            f"can't read {path}"
        )

    def checkpoint_files(self, attempt: Attempt) -> LocalCheckpoints:
        folder = plan.checkpoint_dir(attempt)
        account = self._host.account(attempt.owner)
        return LocalCheckpoints(folder, account, self._options.python, keep_best(attempt.spec))

    def render(self, attempt: Attempt) -> Manifest:
        return self._host.render(attempt)

    # --- start and end

    async def start(self, sink: Sink) -> None:
        await self._host.start()
        self._sink = sink
        self._admit_soon()

    async def close(self) -> None:
        self._warm.close()
        if self._look_again is not None:
            self._look_again.cancel()
        await self._tasks.close()
        self._ports.close()

    # --- attempts

    def submit(self, attempt: Attempt) -> None:
        key = attempt.job_id, attempt.number
        if key in self._waiting or key in self._gangs:
            return
        try:
            started = (
                None
                if attempt.never_started
                else read_record(attempt_dir(attempt.job_dir, attempt.number))
            )
        except ServerError as error:
            self._tasks.begin(self._end_unrecorded(attempt, error.message))
            return
        if started is not None:
            gang = Gang(
                attempt, started, self._host.machine.host, self._options.python, self._report
            )
            self._run(key, gang, gang.adopt(self._host.machine.boot_id))
            return
        try:
            wanted = self._host.needs(attempt.spec, attempt.submitter)
        except ClientLibError as error:  # it fitted when it was accepted: the machine has changed
            self._report_end(key, Reason.START_FAILED, error.message)
            return
        priority = attempt.spec.priority_class.order
        self._waiting[key] = Waiting(key, priority, attempt.created_at, wanted, lambda: attempt)
        self._admit_soon()

    def stop(self, job_id: str, attempt: int, grace_s: float, *, interrupt: bool = False) -> None:
        key = job_id, attempt
        if self._waiting.pop(key, None):
            self._report_end(key, Reason.CANCELLED, "stopped while it waited")
            self._admit_soon()
        elif key in self._gangs:
            self._gangs[key].stop(grace_s, interrupt=interrupt)

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        gang = self._gangs.get((job_id, attempt))
        if gang is None:
            return None
        written = 0
        for worker in range(gang.record.workers):
            # a segment was removed since the listing, or no file can be opened
            with suppress(OSError):
                for segment in log_dir(gang.attempt.job_dir, attempt, worker).glob("*"):
                    # samples of the launcher do not change these times
                    written += segment.stat().st_mtime_ns
        return written

    async def stacks(self, job_id: str, attempt: int) -> list[StackDump]:
        gang = self._gangs.get((job_id, attempt))
        return [] if gang is None else await gang.stacks()

    async def begin_session(
        self, job_id: str, attempt: int, request: Mapping[str, object]
    ) -> socket.socket:
        gang = self._gangs.get((job_id, attempt))
        if gang is None:
            raise Conflict("its attempt has ended")
        return await asyncio.to_thread(gang.begin_session, request)

    # --- admission

    def _admit_soon(self) -> None:
        """Admit after this turn of the loop: attempts found again must hold their
        resources before others start.
        """
        if not self._admitting and self._sink is not None and self._waiting:
            self._admitting = True
            self._tasks.begin(self._admit())

    async def _admit(self) -> None:
        try:
            await asyncio.sleep(len(self._waiting) * PAUSE_PER_WAITING_S)
            if self._host.gpus.known and any(
                waiting.needs.wants_gpus for waiting in self._waiting.values()
            ):
                await self._host.gpus.look()
            self._admitting = False
            self._admit_now()
        except Exception:  # noqa: BLE001  # without another try, the queue would stand still
            _log.exception("the queue could not be considered")
            self._admitting = False
            self._look_again_later()

    def _admit_now(self) -> None:
        capacity = self._host.capacity(self._running())
        grants, waits = scheduling.decide(self._waiting.values(), capacity)
        for key, granted in grants.items():
            self._begin(self._waiting.pop(key), granted)
        for key, why in waits.items():
            if waiting := self._waiting.get(key):
                self._report_wait(waiting, why)
        if waits and capacity.held_gpus:
            self._look_again_later()

    def _look_again_later(self) -> None:
        if self._look_again is not None:
            self._look_again.cancel()
        self._look_again = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._admit_soon)

    # --- running attempts

    def _running(self) -> list[Record]:
        return [gang.record for gang in self._gangs.values()]

    def _begin(self, queued: Waiting, granted: Grant) -> None:
        key = queued.key
        wanted = queued.needs
        try:
            attempt = queued.take()
            port = self._own_port(attempt) or self._ports.reserve(key)
            account = self._host.account(attempt.owner)
            plans = self._host.plans(attempt, wanted, granted, port, account)
        except Exception as error:  # noqa: BLE001  # only this attempt fails
            self._ports.release(key)
            if isinstance(error, ClientLibError):
                self._report_end(key, Reason.START_FAILED, error.message)
            else:
                self._report_end(key, Reason.SERVER_ERROR, _failed(key, error))
            self._admit_soon()
            return
        machine = self._host.machine
        python = self._options.python
        started = Record(machine.boot_id, len(plans), granted, port, wanted.memory_gib)
        pool = self._warm.pool_for(plans[0])
        never_warm = None
        if self._options.warm and attempt.spec.warm is not False and self._warm.any_ready:
            never_warm = plan.never_warm(attempt.spec, attempt.function is not None)
        gang = Gang(attempt, started, machine.host, python, self._report, pool, never_warm)
        self._run(key, gang, self._start(gang, attempt, plans, account))

    def _own_port(self, attempt: Attempt) -> int | None:
        """The MASTER_PORT that the user chose. Raises Conflict: another
        job of this server has it.
        """
        port = plan.own_port(attempt.spec)
        for gang in self._gangs.values():
            if gang.record.master_port == port and not gang.over:
                other = gang.attempt
                named = (
                    f"job {other.job_name}"
                    if other.owner == attempt.owner
                    else "another user's job"
                )
                raise Conflict(
                    f"MASTER_PORT={port} is held by {named}: wait for its end, or leave "
                    "MASTER_PORT out, and each job gets a port of its own"
                )
        return port

    async def _start(
        self, gang: Gang, attempt: Attempt, plans: Sequence[WorkerPlan], account: Account | None
    ) -> None:
        """Run the attempt to its end; the warm pool learns from each job that may use it."""
        first = plans[0]
        folder = str(worker_dir(attempt.job_dir, attempt.number, 0))
        self._warm.job_began(first, folder)
        await gang.start(plans, account)
        self._warm.job_ended(first, folder, fitted=gang.fresh_because is None)

    def _run(self, key: Key, gang: Gang, life: Coroutine[Any, Any, None]) -> None:
        self._gangs[key] = gang
        self._ports.hold(key, gang.record.master_port)
        self._tasks.begin(self._to_its_end(key, gang, life))

    async def _to_its_end(self, key: Key, gang: Gang, life: Coroutine[Any, Any, None]) -> None:
        try:
            await life
        except Exception as error:  # noqa: BLE001  # otherwise its resources would stay taken
            await gang.give_up(_failed(key, error))
        del self._gangs[key]
        self._ports.release(key)
        self._admit_soon()

    async def _end_unrecorded(self, attempt: Attempt, why: str) -> None:
        """End the processes of an attempt whose record is damaged: the resources
        that they hold are unknown.
        """
        for folder in sorted((attempt_dir(attempt.job_dir, attempt.number) / "workers").glob("*")):
            await Launcher(folder, 0, self._host.machine.host, lambda: None).destroy()
        self._report_end((attempt.job_id, attempt.number), Reason.SERVER_ERROR, why)

    # --- observations

    def _report(self, seen: Observation) -> None:
        if self._sink is not None:
            self._sink(seen)

    def _report_wait(self, waiting: Waiting, why: str) -> None:
        if not waiting.message:
            waiting.unload()
        if waiting.message != why:
            waiting.message = why
            self._report(Observation(*waiting.key, "waiting", Reason.QUEUED, why))

    def _report_end(self, key: Key, reason: Reason, message: str) -> None:
        """Report the end of an attempt that never ran, in the next turn of the loop:
        after `submit` or `stop`.
        """
        seen = Observation(*key, "ended", reason, message, ended_at=datetime.now(timezone.utc))
        asyncio.get_running_loop().call_soon(self._report, seen)

    def instance_types(self) -> Sequence[InstanceType]:
        return self._host.instance_types(self._running())

    def warm_pools(self) -> list[WarmPoolInfo]:
        return self._warm.shown()

    def warning(self) -> str:
        return ""

    async def doctor(self) -> list[Check]:
        await self._host.gpus.look()
        return await asyncio.to_thread(self._host.diagnose, self._running())


def _failed(key: Key, error: Exception) -> str:
    """Log an error of this server while it handled an attempt; return the message for the job."""
    _log.error("the server had an error in attempt %s.%d", *key, exc_info=error)
    return f"the server had an error in this attempt: {type(error).__name__}: {error}"
