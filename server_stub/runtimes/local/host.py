"""This machine as a place for jobs: the meaning of a request on it (refusal, notices, needs, plans
of the workers), its free resources (a GPU that another program holds is not free), and checks of
it, with a fix for each problem."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.processes import number
from client_lib.spec.job import JobSpec
from client_lib.spec.request import Submitter
from client_lib.spec.wire import Check, InstanceType, Manifest
from server_stub.runtimes import Attempt, fields
from server_stub.runtimes.checks import checked
from server_stub.runtimes.instance_types import Catalogue, load, of_machine
from server_stub.runtimes.local import LocalOptions, accounts, machine, plan, scheduling
from server_stub.runtimes.local.accounts import Account
from server_stub.runtimes.local.gang import Record
from server_stub.runtimes.local.gpus import Gpus
from server_stub.runtimes.local.machine import GIB
from server_stub.runtimes.local.scheduling import (
    Capacity,
    Grant,
    Needs,
    available,
    needs,
    notices,
)

SHM_LEAST_GIB = 1.0  # a DataLoader with workers passes its batches through /dev/shm
MEMORY_LEAST_GIB = 2.0  # a rank that has imported torch takes 0.3 to 1 GiB
GPU_HELD_MIB = 100  # a GPU is handed out if foreign processes hold less of its memory
_SHM = Path("/dev/shm")


class Host:
    """`running` is always the records of the running attempts."""

    def __init__(self, options: LocalOptions) -> None:
        self.machine = machine.look()
        self.gpus = Gpus(options.nvidia_smi)
        self._options = options
        self._catalogue = Catalogue()

    async def start(self) -> None:
        """Detect the GPUs, then read the catalogue of instance types, which may depend on them."""
        await self.gpus.look()
        if (file := self._options.settings.catalogue) is not None:
            self._catalogue = load(file)
        else:
            names = [gpu.name for gpu in self.gpus.known]
            sizes = of_machine(self.machine.cores, self.machine.memory_gib, names)
            self._catalogue = Catalogue(instance_types=sizes)

    # --- a request

    def check(self, spec: JobSpec, owner: str, submitter: Submitter) -> list[str]:
        """Notices; raises as Runtime.check does."""
        fields.check_command(spec)
        plan.own_port(spec)
        fields.check_paths(spec, submitter.working_dir)
        account = self.account(owner)
        self._conda_prefix(spec, submitter, account)
        lines = check_volumes(spec.volumes, account)
        wanted = self.needs(spec, submitter)
        return notices(spec, submitter, wanted, self.machine, self.gpus.known) + lines

    def needs(self, spec: JobSpec, submitter: Submitter) -> Needs:
        return needs(spec, submitter, self._catalogue, self.machine, self.gpus.known)

    def render(self, attempt: Attempt) -> Manifest:
        wanted = self.needs(attempt.spec, attempt.submitter)
        granted = scheduling.grant(wanted, wanted.allowed)
        port = plan.own_port(attempt.spec) or 0
        plans = self.plans(attempt, wanted, granted, port, self.account(attempt.owner))
        return plan.manifest(plans, attempt, wanted)

    def account(self, user: str) -> Account | None:
        """The account that runs the jobs of a user; None: this server's. Raises
        InvalidRequest: the user has none.
        """
        names = self._options.accounts
        return accounts.of_user(user, names()) if names else None

    def plans(
        self,
        attempt: Attempt,
        wanted: Needs,
        granted: Grant,
        master_port: int,
        account: Account | None,
    ) -> list[WorkerPlan]:
        """One plan per worker. Raises InvalidRequest: the conda environment is gone."""
        prefix = self._conda_prefix(attempt.spec, attempt.submitter, account)
        if account is not None:
            attempt = accounts.with_own_copies(attempt)
        return plan.worker_plans(
            attempt,
            wanted,
            granted,
            master_port,
            self.machine,
            self._options,
            conda_prefix=prefix,
            account=account,
        )

    def _conda_prefix(
        self, spec: JobSpec, submitter: Submitter, account: Account | None
    ) -> Path | None:
        if spec.conda_env is None:
            return None
        return find_prefix(spec.conda_env, submitter.environment, submitter.working_dir, account)

    # --- resources

    def capacity(self, running: Sequence[Record]) -> Capacity:
        handed_out = frozenset[int]().union(*(record.gpus for record in running))
        others = [gpu for gpu in self.gpus.known if gpu.index not in handed_out]
        failure = self.gpus.failure
        why = {
            gpu.index: f"GPU {gpu.index}: {failure}" if failure else gpu.held(GPU_HELD_MIB)
            for gpu in others
        }
        held = {index: clause for index, clause in why.items() if clause is not None}
        return Capacity(
            gpus=len(self.gpus.known),
            free_gpus=frozenset(gpu.index for gpu in self.gpus.known) - handed_out - held.keys(),
            held_gpus=held,
            max_cpu_jobs=self._options.settings.max_cpu_jobs,
            cpu_jobs=sum(not record.gpus for record in running),
            memory_gib=self.machine.memory_gib,
            memory_free_gib=self.machine.memory_gib - sum(record.memory_gib for record in running),
        )

    def instance_types(self, running: Sequence[Record]) -> Sequence[InstanceType]:
        capacity = self.capacity(running)
        return [
            InstanceType(
                available=available(size, capacity, self.machine.cores),
                **size.model_dump(exclude={"gpu_memory_gib"}),
            )
            for size in self._catalogue.instance_types
        ]

    # --- checks

    def diagnose(self, running: Sequence[Record]) -> list[Check]:
        """One result per check, good or bad. The service checks the data directory, the
        database and the retention.
        """
        capacity = self.capacity(running)
        jobs = (
            f"{capacity.cpu_jobs} of {capacity.max_cpu_jobs} jobs without GPUs run; "
            f"{self.machine.cores} cores"
        )
        return [
            self._check_gpus(capacity),
            self._check_memory(),
            _check_shared_memory(),
            self._check_launcher(),
            self._check_accounts(),
            checked("cpu jobs", jobs),
        ]

    def _check_gpus(self, capacity: Capacity) -> Check:
        if self.gpus.failure is not None:
            return checked("gpus", self.gpus.failure, "run nvidia-smi by hand; reload the driver")
        if shutil.which(self._options.nvidia_smi) is None:
            return checked(
                "gpus", f"none: there is no {self._options.nvidia_smi} here; jobs run on the CPU"
            )
        if capacity.held_gpus:
            message = "; ".join(clause for _, clause in sorted(capacity.held_gpus.items()))
            return checked("gpus", message, "end those processes: their GPUs are not handed out")
        return checked("gpus", f"{len(capacity.free_gpus)} of {capacity.gpus} are free")

    def _check_memory(self) -> Check:
        free = number("/proc/meminfo", b"MemAvailable:") * 1024 / GIB
        if not free:  # macOS
            return checked("memory", f"{self.machine.memory_gib:.1f} GiB")
        fix = (
            None
            if free >= MEMORY_LEAST_GIB
            else "end what holds it, or run fewer processes per worker"
        )
        return checked(
            "memory", f"{free:.1f} of {self.machine.memory_gib:.1f} GiB are available", fix
        )

    def _check_launcher(self) -> Check:
        python = self._options.python
        if shutil.which(python) is None:
            fix = "restart the server with the environment that has client-lib"
            return checked(
                "worker launcher", f"runs with {python}, which is not there any more", fix
            )
        return checked("worker launcher", f"runs with {python}")

    def _check_accounts(self) -> Check:
        if self._options.accounts is None:
            return checked("accounts", "all jobs run under the account of this server")
        folder = self._options.settings.data_dir / "jobs"
        python = self._options.python
        try:
            found = accounts.of_users(self._options.accounts()).values()
        except InvalidRequest as error:
            return Check(name="accounts", ok=False, message=error.message, fix=error.hint)
        bad = [why for account in found if (why := account.why_unusable(folder, python))]
        if bad:
            return checked("accounts", "; ".join(bad), "let these accounts enter all folders above")
        return checked(
            "accounts", f"the jobs of {len(found)} users run under accounts of their own"
        )


def _check_shared_memory() -> Check:
    if not _SHM.is_dir():  # macOS
        return checked("shared memory", "this system has no /dev/shm; none is needed")
    size = os.statvfs(_SHM)
    free = size.f_bavail * size.f_frsize / GIB
    message = f"{free:.1f} of {size.f_blocks * size.f_frsize / GIB:.1f} GiB of {_SHM} are free"
    fix = (
        None
        if free >= SHM_LEAST_GIB
        else f"a larger {_SHM} (docker run --shm-size=8g), or num_workers=0"
    )
    return checked("shared memory", message, fix)


# --- folders that a job names


def _can_read(account: Account | None, paths: Sequence[str]) -> list[bool]:
    """Find out for each path if the processes of a job can read it; the
    server itself may see more.
    """
    return [os.path.exists(path) for path in paths] if account is None else account.can_read(paths)


def find_prefix(
    env: str,
    environment: Mapping[str, str],
    working_dir: str | None,
    account: Account | None = None,
) -> Path:
    """The folder of the environment called `env`, or at the path `env`, as the submitter's conda
    would find it. Nothing is run: conda's own Python takes a second to start. Raises
    InvalidRequest, with the folders that were searched."""
    looked = list(_candidates(env, environment, working_dir))
    for prefix in compress(
        looked, _can_read(account, [str(prefix / "bin" / "python") for prefix in looked])
    ):
        return prefix
    raise InvalidRequest(
        f"conda_env={env!r}: no such environment on this machine; looked for bin/python in "
        + (
            ", ".join(map(str, looked))
            or "no folder, as the submitter's environment names no conda"
        ),
        hint="give the environment's path, as `conda env list` shows it",
    )


def _candidates(
    env: str, environment: Mapping[str, str], working_dir: str | None
) -> Iterator[Path]:
    if os.sep in env or env.startswith("~"):
        home = environment.get("HOME", "~")
        yield Path(working_dir or "/", home + env[1:] if env.startswith("~/") else env)
        return
    roots = dict[
        Path, None
    ]()  # installations: of the conda in use, of the active environment, of micromamba
    if "CONDA_EXE" in environment:
        roots[Path(environment["CONDA_EXE"]).parent.parent] = None
    if "CONDA_PREFIX" in environment:
        prefix = Path(environment["CONDA_PREFIX"])
        roots[prefix.parent.parent if prefix.parent.name == "envs" else prefix] = None
    if "MAMBA_ROOT_PREFIX" in environment:
        roots[Path(environment["MAMBA_ROOT_PREFIX"])] = None
    if env in ("base", "root"):
        yield from roots
    folders = environment.get("CONDA_ENVS_DIRS", environment.get("CONDA_ENVS_PATH", "")).split(
        os.pathsep
    )
    yield from (Path(folder, env) for folder in folders if folder)
    yield from (root / "envs" / env for root in roots)
    if "HOME" in environment:
        yield Path(environment["HOME"], ".conda", "envs", env)


def check_volumes(volumes: Sequence[str], account: Account | None = None) -> list[str]:
    """Notices for volumes. Nothing is mounted on one machine, so the path must be a folder of this
    machine. Raises InvalidRequest: not of the form `name:path[:ro]`, or no such folder."""
    notices = []
    parsed = [fields.parse_volume(volume) for volume in volumes]
    found = _can_read(account, [f"{volume.path}/." for volume in parsed])
    for volume, is_there in zip(parsed, found, strict=True):
        if not is_there:
            raise InvalidRequest(
                f"volume {volume.name!r}: this machine has no folder {volume.path}, and the local "
                "server mounts nothing",
                hint=f"create {volume.path}, or leave the volume out",
            )
        if volume.read_only:
            notices.append(
                f"volume {volume.name!r}: {volume.path} is this machine's own folder; `ro` is not "
                "enforced"
            )
    return notices
