"""The local runtime as an actor: what waits, what runs, and what of this machine is handed out.

All methods run on the event loop's thread, so nothing here needs a lock. Decisions are pure (`needs`, `scheduling`,
`plan`); one attempt that runs is a `gang`.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Hashable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from client_lib.errors import ClientLibError, Conflict
from client_lib.spec.job import JobSpec
from client_lib.spec.states import Reason
from client_lib.spec.wire import Check, InstanceType, Manifest, Submitter, WarmPoolInfo
from client_lib.worker.plan import WorkerPlan
from server_stub.instances import Catalogue, Size, load, of_machine
from server_stub.runtimes import Attempt, Observation, Sink, attempt_dir, log_dir, orders, worker_dir
from server_stub.runtimes.local import conda, doctor, machine, notices, plan, record, scheduling, volumes, warm_rules
from server_stub.runtimes.local.gang import Gang
from server_stub.runtimes.local.gpus import Gpus
from server_stub.runtimes.local.needs import Needs, needs
from server_stub.runtimes.local.options import LocalOptions
from server_stub.runtimes.local.ports import Ports
from server_stub.runtimes.local.queue import Queue, Queued
from server_stub.runtimes.local.record import Record
from server_stub.runtimes.local.scheduling import Capacity, Decision, Grant, Waiting
from server_stub.runtimes.local.warm import WarmPools
from server_stub.tasks import Tasks

LOOK_AGAIN_S = 3.0  # nothing tells that a stranger's process let a GPU go
SHAPES = 256  # whose needs are remembered: most jobs ask for one of a few

_log = logging.getLogger(__name__)


class LocalRuntime:
    """Runs attempts as processes of this machine. See server_stub.runtimes.Runtime for the promises."""

    name = "local"

    def __init__(self, options: LocalOptions) -> None:
        self._options = options
        self._machine = machine.look()
        self._max_cpu_jobs = options.max_cpu_jobs or max(1, self._machine.cores // 2)
        self._gpus = Gpus(options.nvidia_smi)
        self._ports = Ports()
        self._catalogue = Catalogue(by_pattern=options.parse_instance_types)
        self._needs_of_shape: dict[tuple[object, ...], Needs] = {}
        self._sink: Sink | None = None
        self._warm = WarmPools(options.data_dir / "warm", options.warm_idle_s)
        self._queue = Queue()
        self._untold: dict[str, None] = {}
        """Keys of those in the queue that no one was told of what they wait for, in the order of their arrival."""
        self._left: Capacity | None = None
        """What the last decision left for those that come behind all others; None: it must be made anew for all."""
        self._gangs: dict[str, Gang] = {}
        self._tasks = Tasks(_log, "a task of the local runtime failed")
        self._arrivals = 0
        self._admitting = False
        self._look_again: asyncio.TimerHandle | None = None

    # --- before anything runs

    def check(self, spec: JobSpec, submitter: Submitter) -> list[str]:
        notices.refuse(spec)
        plan.own_port(spec)
        orders.check_paths(spec, submitter.working_dir)
        self._conda_prefix(spec, submitter)
        lines = volumes.check_volumes(spec.volumes)
        wanted = self._needs(spec, submitter)
        return notices.notices(spec, submitter, wanted, self._machine, self._gpus.known) + lines

    def workers_see(self, spec: JobSpec, folder: str) -> bool:
        del spec, folder
        return True  # they are processes of this machine

    def render(self, attempt: Attempt) -> Manifest:
        wanted = self._needs(attempt.spec, attempt.submitter)
        setting = plan.Setting(
            grant=scheduling.grant(wanted, wanted.allowed),
            master_port=plan.own_port(attempt.spec) or 0,
            conda_prefix=self._conda_prefix(attempt.spec, attempt.submitter),
        )
        plans = plan.worker_plans(attempt, wanted, setting, self._machine, self._options)
        return plan.manifest(plans, attempt, wanted)

    def _needs(self, spec: JobSpec, submitter: Submitter) -> Needs:
        if self._gpus.known or spec.gpus:  # who may have which of them is a matter of each request
            return needs(spec, submitter, self._catalogue, self._machine, self._gpus.known, self._options.max_processes)
        shape = (spec.instance_type, spec.type, spec.n_workers, spec.processes_per_worker)
        found = self._needs_of_shape.get(shape)
        if found is None:
            found = needs(spec, submitter, self._catalogue, self._machine, (), self._options.max_processes)
            if len(self._needs_of_shape) >= SHAPES:
                self._needs_of_shape.clear()
            self._needs_of_shape[shape] = found
        return found

    def _conda_prefix(self, spec: JobSpec, submitter: Submitter) -> Path | None:
        if spec.conda_env is None:
            return None
        return conda.find_prefix(spec.conda_env, submitter.environment, submitter.working_dir)

    # --- its life

    async def start(self, sink: Sink) -> None:
        await self._gpus.look()
        self._catalogue, self._needs_of_shape = self._read_catalogue(), {}
        self._sink = sink
        self._admit_anew()

    def _read_catalogue(self) -> Catalogue:
        by_pattern = self._options.parse_instance_types
        if self._options.catalogue_file is not None:
            return load(self._options.catalogue_file, by_pattern=by_pattern)
        known = self._gpus.known
        card_gib = round(known[0].memory_mib / 1024) if known else 0
        sizes = of_machine(self._machine.cores, self._machine.memory_gib, [gpu.name for gpu in known], card_gib)
        return Catalogue(sizes, by_pattern=by_pattern)

    async def close(self) -> None:
        self._warm.close()
        if self._look_again is not None:
            self._look_again.cancel()
        await self._tasks.close()

    # --- attempts

    def submit(self, attempt: Attempt) -> None:
        key = _key(attempt.job_id, attempt.number)
        if key in self._queue or key in self._gangs:
            return
        started = None if attempt.fresh else record.read(attempt_dir(attempt.job_dir, attempt.number))
        if started is not None:
            self._left = None
            self._run(attempt, started, lambda gang: gang.adopt(self._machine.boot_id))
            return
        try:
            wanted = self._needs(attempt.spec, attempt.submitter)
        except ClientLibError as error:  # it fitted when it was accepted: the machine has changed
            self._tell_end(key, Reason.UNSCHEDULABLE, error.message)
            return
        self._arrivals += 1
        place = Waiting(key, attempt.spec.priority_class.order, attempt.created_at, self._arrivals, wanted)
        if not self._queue.add(Queued(attempt, place)):
            self._left = None
        self._untold[key] = None
        self._admit_soon()

    def stop(self, job_id: str, attempt: int, grace_s: float) -> None:
        key = _key(job_id, attempt)
        queued = self._dequeue(key)
        if queued is not None:
            self._tell_end(key, Reason.CANCELLED, "stopped while it waited")
            self._admit_anew()
        elif key in self._gangs:
            self._gangs[key].stop(grace_s)

    def signs_of_life(self, job_id: str, attempt: int) -> Hashable:
        gang = self._gangs.get(_key(job_id, attempt))
        if gang is None:
            return None
        workers = range(gang.record.workers)
        files = [entry.stat() for worker in workers for entry in _scan(log_dir(gang.job_dir, attempt, worker))]
        return sum(file.st_size for file in files), sum(file.st_mtime_ns for file in files)

    # --- who goes first

    def _admit_anew(self) -> None:
        """Something that was not free may be free now."""
        self._left = None
        self._admit_soon()

    def _admit_soon(self) -> None:
        """After this turn of the loop, so that attempts found again hold what is theirs before others get it."""
        if not self._admitting and self._sink is not None and self._queue:
            self._admitting = True
            self._tasks.begin(self._admit())

    async def _admit(self) -> None:
        try:
            if self._queue.wanting_gpus:
                await self._gpus.look()
                self._left = None
        finally:
            self._admitting = False
        decision = self._decide()
        self._left = decision.left
        for key, granted in decision.grants.items():
            queued = self._dequeue(key)
            assert queued is not None
            self._begin(queued, granted)
        for key in self._untold.keys() - decision.waits.keys():
            self._tell_wait(key, scheduling.far_back(self._queue[key].waiting, decision.left))
        for key, why in decision.waits.items():
            self._tell_wait(key, why)
        if decision.waits and decision.left.held_gpus and self._look_again is None:
            self._look_again = asyncio.get_running_loop().call_later(LOOK_AGAIN_S, self._admit_again)

    def _decide(self) -> Decision:
        """About those that arrived alone, where nothing has changed for those before them."""
        if self._left is None:
            return scheduling.decide(self._queue, self._capacity())
        arrived = [self._queue[key].waiting for key in self._untold]
        return scheduling.decide(arrived, self._left, before=len(self._queue) - len(arrived))

    def _dequeue(self, key: str) -> Queued | None:
        self._untold.pop(key, None)
        return self._queue.pop(key)

    def _admit_again(self) -> None:
        self._look_again = None
        self._admit_anew()

    def _capacity(self) -> Capacity:
        running = [gang.record for gang in self._gangs.values()]
        handed_out = frozenset[int]().union(*(started.gpus for started in running))
        held = self._held(handed_out)
        return Capacity(
            gpus=len(self._gpus.known),
            free_gpus=frozenset(gpu.index for gpu in self._gpus.known) - handed_out - held.keys(),
            held_gpus=held,
            max_cpu_jobs=self._max_cpu_jobs,
            cpu_jobs=sum(not started.uses_gpus for started in running),
            memory_gib=self._machine.memory_gib,
            memory_free_gib=self._machine.memory_gib - sum(started.memory_gib for started in running),
        )

    def _held(self, handed_out: frozenset[int]) -> dict[int, str]:
        ours_not = [gpu for gpu in self._gpus.known if gpu.index not in handed_out]
        if self._gpus.failure is not None:
            return {gpu.index: f"GPU {gpu.index}: {self._gpus.failure}" for gpu in ours_not}
        found = {gpu.index: gpu.held(self._options.gpu_held_mib) for gpu in ours_not}
        return {index: clause for index, clause in found.items() if clause is not None}

    # --- what runs

    def _begin(self, queued: Queued, granted: Grant) -> None:
        key, wanted = queued.waiting.key, queued.waiting.needs
        try:
            attempt = queued.take()
            port = self._own_port(attempt) or self._ports.reserve(key)
            prefix = self._conda_prefix(attempt.spec, attempt.submitter)
        except ClientLibError as error:
            self._ports.release(key)
            self._tell_end(key, Reason.START_FAILED, error.message)
            self._admit_anew()
            return
        setting = plan.Setting(granted, port, prefix)
        plans = plan.worker_plans(attempt, wanted, setting, self._machine, self._options)
        started = Record(self._machine.boot_id, len(plans), granted, port, wanted.memory_gib)
        self._run(attempt, started, lambda gang: self._start(gang, attempt, plans), plans[0])

    def _own_port(self, attempt: Attempt) -> int | None:
        """The MASTER_PORT that the user chose. Raises Conflict: another job of this server has it."""
        port = plan.own_port(attempt.spec)
        for holder in self._ports.holders_of(port) if port is not None else ():
            if not self._gangs[holder].over:
                raise Conflict(
                    f"MASTER_PORT={port} is held by {self._gangs[holder].named_to(attempt.owner)}: wait for its end, "
                    "or leave MASTER_PORT out, and each job gets a port of its own"
                )
        return port

    async def _start(self, gang: Gang, attempt: Attempt, plans: Sequence[WorkerPlan]) -> None:
        """To its end; the warm pool learns from each job that may use it."""
        first, folder = plans[0], str(worker_dir(attempt.job_dir, attempt.number, 0))
        if first.record_imports:
            self._warm.job_began(first, folder)
        await gang.start(plans)
        if first.record_imports:
            self._warm.job_ended(first, folder, fitted=gang.fresh_because is None)

    def _run(
        self,
        attempt: Attempt,
        started: Record,
        life: Callable[[Gang], Coroutine[Any, Any, None]],
        first: WorkerPlan | None = None,
    ) -> None:
        key = _key(attempt.job_id, attempt.number)
        pool = self._warm.pool_for(first) if first is not None and first.record_imports else None
        never_warm = self._never_warm(attempt) if first is not None else None
        gang = Gang(attempt, started, self._machine.host, self._options.launcher_python, self._tell, pool, never_warm)
        self._gangs[key] = gang
        self._ports.hold(key, started.master_port)
        self._tasks.begin(self._to_its_end(key, life(gang)))

    def _never_warm(self, attempt: Attempt) -> str | None:
        """Why a job of this kind can't use the warm pool that is there."""
        if not warm_rules.asked(attempt.spec, default=self._options.warm) or not self._warm.stands:
            return None
        return warm_rules.unsuited(attempt.spec, attempt.function is not None)

    async def _to_its_end(self, key: str, life: Coroutine[Any, Any, None]) -> None:
        await life
        del self._gangs[key]
        self._ports.release(key)
        self._admit_anew()

    # --- what it tells

    def _tell(self, seen: Observation) -> None:
        if self._sink is not None:
            self._sink(seen)

    def _tell_wait(self, key: str, why: str) -> None:
        queued = self._queue[key]
        self._untold.pop(key, None)
        if queued.told != why:
            queued.told = why
            queued.let_go()
            self._tell(Observation(*_attempt_of(key), "waiting", Reason.QUEUED, why))

    def _tell_end(self, key: str, reason: Reason, message: str) -> None:
        """Of an attempt that never ran. In the next turn: the caller of `submit` or `stop` isn't done yet."""
        seen = Observation(*_attempt_of(key), "ended", reason, message, ended_at=datetime.now(timezone.utc))
        asyncio.get_running_loop().call_soon(self._tell, seen)

    def instance_types(self) -> Sequence[InstanceType]:
        capacity = self._capacity()
        return [_shown(size, capacity) for size in self._catalogue.sizes]

    def warm_pools(self) -> list[WarmPoolInfo]:
        return self._warm.shown()

    async def doctor(self) -> list[Check]:
        await self._gpus.look()
        return await asyncio.to_thread(doctor.checks, self._options, self._machine, self._gpus, self._capacity())


def _key(job_id: str, attempt: int) -> str:
    return f"{job_id}.{attempt}"


def _attempt_of(key: str) -> tuple[str, int]:
    job_id, _, attempt = key.rpartition(".")
    return job_id, int(attempt)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        return list(os.scandir(folder))
    except FileNotFoundError:  # nothing was written yet
        return []


def _shown(size: Size, capacity: Capacity) -> InstanceType:
    """`available`: a type whose GPUs this machine doesn't have at all runs on the CPU, as one without GPUs does."""
    if size.gpus and capacity.gpus:
        free = len(capacity.free_gpus) // size.gpus
    else:
        free = max(capacity.max_cpu_jobs - capacity.cpu_jobs, 0)
    return InstanceType(
        name=size.name,
        gpus=size.gpus,
        cpu=size.cpu,
        memory_gib=size.memory_gib,
        available=free,
        description=size.description,
    )
