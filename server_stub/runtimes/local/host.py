"""This machine: its resources, and the meaning of a request on it (refusal, notices, needs, plans of the workers)."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.wire import Check, InstanceType, Manifest
from client_lib.worker.plan import WorkerPlan
from server_stub.runtimes import Attempt, fields
from server_stub.runtimes.instance_types import Catalogue, Size, load, of_machine
from server_stub.runtimes.local import doctor, folders, machine, plan, scheduling
from server_stub.runtimes.local.accounts import Account
from server_stub.runtimes.local.folders import Sees, check_volumes, find_prefix
from server_stub.runtimes.local.machine import Gpus
from server_stub.runtimes.local.needs import Needs, needs, notices
from server_stub.runtimes.local.options import LocalOptions
from server_stub.runtimes.local.record import Record
from server_stub.runtimes.local.scheduling import Capacity, Grant


class Host:
    """`running` is always the records of the running attempts."""

    def __init__(self, options: LocalOptions) -> None:
        self.machine = machine.look()
        self._options = options
        self._max_cpu_jobs = options.settings.max_cpu_jobs
        self._gpus = Gpus(options.nvidia_smi)
        self._catalogue = Catalogue(by_pattern=options.settings.parse_instance_types is not False)

    async def start(self) -> None:
        """Detect the GPUs, then read the catalogue of instance types, which may depend on them."""
        await self._gpus.look()
        self._catalogue = self._read_catalogue()

    def _read_catalogue(self) -> Catalogue:
        settings = self._options.settings
        by_pattern = settings.parse_instance_types is not False
        if settings.catalogue is not None:
            return load(settings.catalogue, by_pattern=by_pattern)
        known = self._gpus.known
        sizes = of_machine(self.machine.cores, self.machine.memory_gib, [gpu.name for gpu in known])
        return Catalogue(sizes, by_pattern=by_pattern)

    async def look_at_gpus(self) -> None:
        await self._gpus.look()

    # --- a request

    def check(self, spec: JobSpec, owner: str, submitter: Submitter) -> list[str]:
        """Notices; raises as Runtime.check does."""
        fields.check_command(spec)
        plan.own_port(spec)
        fields.check_paths(spec, submitter.working_dir)
        account = self.account(owner)
        self._conda_prefix(spec, submitter, account)
        lines = check_volumes(spec.volumes, _sees(account))
        wanted = self.needs(spec, submitter)
        return notices(spec, submitter, wanted, self.machine, self._gpus.known) + lines

    def needs(self, spec: JobSpec, submitter: Submitter) -> Needs:
        return needs(spec, submitter, self._catalogue, self.machine, self._gpus.known)

    def render(self, attempt: Attempt) -> Manifest:
        wanted = self.needs(attempt.spec, attempt.submitter)
        granted, port = scheduling.grant(wanted, wanted.allowed), plan.own_port(attempt.spec) or 0
        plans = self.plans(attempt, wanted, granted, port, self.account(attempt.owner))
        return plan.manifest(plans, attempt, wanted)

    def account(self, user: str) -> Account | None:
        """The account under which the jobs of a user run; None: that of this server.

        Raises InvalidRequest: the user has none any more.
        """
        return self._options.accounts.of(user) if self._options.accounts else None

    def plans(
        self, attempt: Attempt, wanted: Needs, granted: Grant, master_port: int, account: Account | None
    ) -> list[WorkerPlan]:
        """One plan per worker. Raises InvalidRequest: the conda environment is gone."""
        prefix = self._conda_prefix(attempt.spec, attempt.submitter, account)
        setting = plan.Setting(granted, master_port, prefix, account)
        if account is not None:
            attempt = folders.with_own_copies(attempt)
        return plan.worker_plans(attempt, wanted, setting, self.machine, self._options)

    def _conda_prefix(self, spec: JobSpec, submitter: Submitter, account: Account | None) -> Path | None:
        if spec.conda_env is None:
            return None
        return find_prefix(spec.conda_env, submitter.environment, submitter.working_dir, _sees(account))

    # --- resources

    def capacity(self, running: Iterable[Record]) -> Capacity:
        running = list(running)
        handed_out = frozenset[int]().union(*(record.gpus for record in running))
        held = self._held(handed_out)
        return Capacity(
            gpus=len(self._gpus.known),
            free_gpus=frozenset(gpu.index for gpu in self._gpus.known) - handed_out - held.keys(),
            held_gpus=held,
            max_cpu_jobs=self._max_cpu_jobs,
            cpu_jobs=sum(not record.uses_gpus for record in running),
            memory_gib=self.machine.memory_gib,
            memory_free_gib=self.machine.memory_gib - sum(record.memory_gib for record in running),
        )

    def _held(self, handed_out: frozenset[int]) -> dict[int, str]:
        others = [gpu for gpu in self._gpus.known if gpu.index not in handed_out]
        if self._gpus.failure is not None:
            return {gpu.index: f"GPU {gpu.index}: {self._gpus.failure}" for gpu in others}
        found = {gpu.index: gpu.held(self._options.gpu_held_mib) for gpu in others}
        return {index: clause for index, clause in found.items() if clause is not None}

    def instance_types(self, running: Iterable[Record]) -> Sequence[InstanceType]:
        capacity = self.capacity(running)
        return [_shown(size, capacity) for size in self._catalogue.sizes]

    def diagnose(self, running: Iterable[Record]) -> list[Check]:
        return doctor.checks(self._options, self.machine, self._gpus, self.capacity(running))


def _sees(account: Account | None) -> Sees:
    return os.path.exists if account is None else account.can_read


def _shown(size: Size, capacity: Capacity) -> InstanceType:
    """`available`: a type whose GPUs this machine lacks runs on the CPU, like one without GPUs."""
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
