"""The service: everything the server can do, without HTTP.

`admission` checks a submit, `submit` stores it, `reconciler` drives the job by the decisions of
`lifecycle`, `lookup` finds it, `job_metrics` and `job_stacks` show what it does, `provenance` what
it ran, `sessions` lets users into its workers, `cleanup` removes it by the rule of `retention`.
HTTP calls six of these parts directly; here is what needs several of them.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import Any

from client_lib.errors import Conflict, ServerError, StorageFull, Unavailable
from client_lib.spec.command_line import name_for
from client_lib.spec.job import defaults
from client_lib.spec.replace import replaced
from client_lib.spec.request import CodeInPlace, SubmitRequest, Submitter
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import DoctorReport, GroupInfo, Manifest, OutputList
from server_stub.files import outputs
from server_stub.files.request_log import RequestLog
from server_stub.files.room import Room
from server_stub.files.snapshots import Snapshots
from server_stub.logs.expressions import MetricChecks
from server_stub.runtimes import Attempt, Runtime
from server_stub.runtimes.checks import checked
from server_stub.runtimes.plan import working_dir
from server_stub.runtimes.tasks import Clock, Tasks
from server_stub.service import job_json
from server_stub.service.active import ActiveJob, ActiveJobs, StoredJob
from server_stub.service.admission import Admission
from server_stub.service.cleanup import Cleanup
from server_stub.service.job_checkpoints import CheckpointKeeper
from server_stub.service.job_files import LOST, JobFiles
from server_stub.service.job_metrics import MetricsReader
from server_stub.service.job_stacks import StackTaker
from server_stub.service.lifecycle import Stop
from server_stub.service.lookup import JobLookup
from server_stub.service.notifications import AllowedHosts, Notifier
from server_stub.service.provenance import ProvenanceReader
from server_stub.service.reconciler import Reconciler
from server_stub.service.retention import DEFAULT_GB, Retention
from server_stub.service.sessions import Sessions
from server_stub.service.stored import from_row
from server_stub.service.submit import Submits
from server_stub.settings import Settings
from server_stub.store import Store, StoreDamaged, StoreError, group_rows, rows
from server_stub.store.rows import JobFilters
from server_stub.users import User

log = logging.getLogger(__name__)
_OF_THE_SERVER = dict.fromkeys(
    (
        "checkpoints_name",
        "dependencies",
        "namespace",
        "team",
        "service_account",
        "pull_secrets",
        "provenance",
    ),
    True,
)
"""Fields of a stored request that a new one must not have."""


def _at_default(request: SubmitRequest) -> dict[str, bool]:
    """The fields that have their default, as pydantic takes a choice of fields."""
    fields = SubmitRequest.model_fields.items()
    return {
        name: True
        for name, field in fields
        if getattr(request, name) == field.get_default(call_default_factory=True)
    }


class Service:
    """One per server process. All methods run on the event loop's thread.

    In every method, `owner` None means the user's own job. Another owner's job is NotFound unless
    the user is admin or the server shares its jobs. When a method that changes something returns,
    the change is on disk.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        clock: Clock | None = None,
        room: Room | None = None,
    ) -> None:
        """Make the parts; `start` connects them to the database and the runtime."""
        self._settings = settings
        self.runtime = runtime
        clock = clock or Clock()
        self.room = room or Room(settings.data_dir, settings.min_free_bytes)
        # This object and the Snapshots of the uploads use one folder. The other object opens it,
        # before `start`.
        snapshots = Snapshots(
            settings.data_dir / "snapshots", settings.max_snapshot_bytes, self.room
        )
        self._request_log = RequestLog(settings.data_dir / "submissions")
        hosts = AllowedHosts(settings.notify_hosts, several_users=settings.users_file is not None)
        self._retention = Retention(
            settings.retention_days, settings.retention_gb or DEFAULT_GB[settings.runtime]
        )
        self._store = store = Store(
            settings.database_url, self._request_log, self.room.spare.give_up
        )
        self._jobs = jobs = ActiveJobs()
        self._files = files = JobFiles(
            self._request_log, snapshots, settings.data_dir / "jobs", self.room, store
        )
        self._cleanup = Cleanup(store, files, self._retention, clock)
        self._notifier = Notifier(store, files, hosts)
        self.lookup = JobLookup(store, jobs, files, settings.share_jobs)
        self.metrics = MetricsReader(clock, store, self.lookup)
        self.checkpoints = CheckpointKeeper(runtime, jobs, files, self.lookup, self.metrics)
        self.stacks = StackTaker(runtime, clock, self.lookup)
        self.provenance = ProvenanceReader(store, self.lookup, files)
        self._reconciler = Reconciler(
            store,
            runtime,
            clock,
            jobs,
            files,
            self.metrics,
            self.stacks,
            self._notifier,
            self._cleanup,
        )
        self.sessions = Sessions(runtime, self.lookup, self._reconciler, allowed=settings.sessions)
        self._admission = Admission(runtime, snapshots, settings.secrets_file, hosts)
        self._metric_checks = MetricChecks()
        self.submits = Submits(
            *(runtime.name, self._admission, store, jobs, self.lookup, files, self._reconciler),
            clock,
            self._metric_checks,
        )
        self._sweeping = Tasks(log, "retention has ended")

    async def start(self, *, recover: bool = False) -> None:
        """Open the store (migrations run here), resubmit every job that is not final to the
        runtime, start retention.

        `recover`: rebuild a lost or damaged database from the files beside it.

        Raises:
            ServerError: the database can't be opened, is read-only, damaged or lost, belongs to a
                newer version or to a running server.
        """
        self._admission.open()
        try:
            self._files.jobs_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._request_log.open()
        except OSError as error:
            raise ServerError(
                f"the data directory {self._settings.data_dir} can't be used: {error}",
                hint="it must be writable for this user",
            ) from error
        is_new = await self._store.open(self._files.exist, recover=recover)
        if is_new and recover:
            lost = await asyncio.to_thread(self._files.lost_jobs, self.runtime.name)
            rebuilt = await self._store.write(group_rows.add_lost, *lost)
            log.warning("%d jobs were rebuilt from their files; %s", rebuilt, LOST)
        with suppress(StorageFull):  # a sweep does it later
            await self._cleanup.finish()
        await self.runtime.start(self._reconciler.observe)
        unfinished = await self._store.read_all(rows.unfinished)
        self._reconciler.gate.open(await self._store.read_all(group_rows.unfinished))
        failed = await self._store.read_all(group_rows.failed)
        # running jobs first: their GPUs must not be given to waiting jobs, nor the places of their
        # groups
        order = {State.RUNNING: 0, State.RESTARTING: 1}
        for row in sorted(unfinished, key=lambda row: order.get(row.state, 2)):
            self._reconciler.add(from_row(row), failed.get(row.group_id or ""))
        await self._notifier.start()
        self._sweeping.begin(self._cleanup.run())

    async def close(self) -> None:
        """Stop watching and close the store. Workers keep running; a later `start` finds them."""
        await self._sweeping.close()
        await self.runtime.close()
        await self._reconciler.close()
        await self._notifier.close()
        self.metrics.close()
        await self._store.close()
        self._request_log.close()

    # --- one job

    async def get(self, user: User, name: str, owner: str | None = None) -> bytes:
        """The JobInfo as it is now, with its progress, as JSON. Raises NotFound."""
        found = await self.lookup.find(user, name, owner)
        job = found.public
        text = found.text
        live = await self.metrics.details(user, job)
        return job_json.with_live(text, job.attention, live) if live else text

    async def page(self, user: User, wanted: JobFilters, limit: int, cursor: str | None) -> bytes:
        """A JobPage as JSON, newest first, with progress. Raises as `JobLookup.page`."""
        found = await self.lookup.page(user, wanted, limit, cursor)
        listed = [job.public for row in found.jobs if (job := self._jobs.by_id.get(row.id))]
        groups = {group.id for group in found.groups}
        members = [
            job.public for job in self._jobs.by_id.values() if groups and job.row.group_id in groups
        ]
        live = await self.metrics.live(user, listed, members)
        jobs = [self.lookup.newest_text(row, live.get(row.id)) for row in found.jobs]
        of_groups = [
            group_rows.with_attention(
                group,
                [
                    (job.name, live[job.id].attention)
                    for job in members
                    if job.id in live and job.group and job.group.id == group.id
                ],
            )
            for group in found.groups
        ]
        return job_json.page(jobs, of_groups, found.next_cursor)

    async def manifest(self, user: User, name: str, owner: str | None = None) -> Manifest:
        """The Manifest of the newest attempt, with secrets masked."""
        row = (await self.lookup.find(user, name, owner)).row
        return self._rendered(await asyncio.to_thread(self._files.stored, row))

    async def request(self, user: User, name: str, owner: str | None = None) -> bytes:
        """The SubmitRequest as JSON without submitter, proof and secret values, to submit the job
        again. Values of variables like tokens are masked unless the user is the owner.

        A field that has its default is left out: a client knows only the fields of its own version,
        and refuses to run a job again whose request has another field.
        """
        row = (await self.lookup.find(user, name, owner)).row
        request = await asyncio.to_thread(self._files.request_of, row)
        shown = replaced(request, submitter=Submitter(), secret_values={})
        if row.owner != user.name:
            shown = replaced(shown, spec=shown.spec.masked())
        spec = {name for name, value in defaults().items() if getattr(shown.spec, name) == value}
        left_out: dict[str, Any] = {**_at_default(shown), **_OF_THE_SERVER, "spec": spec}
        return shown.model_dump_json(exclude=left_out).encode()

    async def cancel(
        self, user: User, name: str, owner: str | None = None, *, interrupt: bool = False
    ) -> bytes:
        """Stop the job, running or queued; a final job does not change. The order survives a
        restart of the server. The job ends later (`wait`). `interrupt`: its ranks get SIGINT in
        place of SIGTERM. Returns its JobInfo as JSON."""
        found = await self.lookup.find(user, name, owner)
        if (active := _driven(found)) is not None:
            message = f"cancelled by {user.name}"
            self._reconciler.stop(active, Stop(Reason.CANCELLED, message, interrupt=interrupt))
            await self._durable(active)
        return found.text

    async def cancel_group(self, user: User, name: str, owner: str | None = None) -> GroupInfo:
        """Stop all members of a group as `cancel` stops a job; none of them starts in between."""
        group = await self.lookup.group(user, name, owner)
        members = self._reconciler.stop_group(
            group.id, Stop(Reason.CANCELLED, f"cancelled by {user.name}")
        )
        if not (members or group.state.final):
            raise Unavailable("the group is being accepted", hint="try again")
        for active in members:
            await self._durable(active)
        return await self.lookup.group(user, name, owner)

    async def delete(
        self, user: User, name: str, owner: str | None = None, *, force: bool = False
    ) -> str:
        """Remove the job with its logs and events; returns a message. With `force` a running job is
        stopped and then removed, which may be after this returns.

        Raises Conflict: it is not final and `force` is False.
        """
        found = await self.lookup.find(user, name, owner)
        active = _driven(found)
        if active is None:
            await self._cleanup.remove([found.row.seq])
            return f'Job "{name}" deleted.'
        if not force:
            raise Conflict(
                f"job {name} is {active.info.state} and was not deleted",
                hint=f"stop it first (client-lib cancel {name}), or delete it with force",
            )
        self._reconciler.remove_at_end(active)
        self._reconciler.stop(active, Stop(Reason.CANCELLED, f"deleted by {user.name}"))
        await self._durable(active)
        return f'Job "{name}" is being stopped; it is deleted when it has ended.'

    async def outputs(self, user: User, name: str, owner: str | None = None) -> OutputList:
        """The files of a job that are kept, and the files that are not kept. Raises NotFound."""
        row = (await self.lookup.find(user, name, owner)).row
        in_place = None
        with suppress(ServerError):  # its request can't be read
            attempt = await asyncio.to_thread(self._files.stored, row)
            in_place = working_dir(attempt, "/") if isinstance(attempt.code, CodeInPlace) else None
        files, left_out = await asyncio.to_thread(outputs.listing, self._files.job_dir(row.id))
        return OutputList(files=files, left_out=left_out, in_place=in_place, final=row.state.final)

    async def check(self) -> None:
        """Raises StoreError: the database can't be written now; Superseded: another
        server has taken it over.
        """
        await self._store.check()

    def busy(self) -> bool:
        """True if some job is not final, or its end is not told yet: an idle
        server must not end then.
        """
        return len(self._jobs.by_id) > 0 or self._notifier.busy()

    # --- without a job

    async def render(self, user: User, request: SubmitRequest) -> Manifest:
        """The Manifest that `submit` would create; nothing is stored or created, and the result is
        the same each time. Raises as `submit` does, except for a taken name or a full disk."""
        admitted = self._admission.admit(user, request, dry_run=True)
        self._admission.check_size(request, len(request.model_dump_json()))
        if (expression := request.spec.metrics) is not None:
            await self._metric_checks.check(user.name, expression)
        name = request.spec.name or name_for(request.spec.script, "xxxxx")
        return self._rendered(self._files.dry_run(admitted.request, user.name, name))

    def _rendered(self, attempt: Attempt) -> Manifest:
        return self.runtime.render(replace(attempt, spec=attempt.spec.with_masked_command()))

    async def doctor(self) -> DoctorReport:
        """The runtime's checks, the disk, the database and the retention settings."""
        capped = f"; the log of a job at most {self._settings.log_limit_bytes / 1e9:.3g} GB"
        free = self.room.free
        short = (
            "make room there: submits are refused below this"
            if free < self._settings.min_free_bytes
            else None
        )
        disk = checked("disk", f"{free / 1e9:.1f} GB free in {self._settings.data_dir}", short)
        checks = [disk, checked("retention", f"{self._retention}{capped}")]
        try:
            await self._store.check()
            checks.append(checked("database", self._store.shown))
        except StoreError as error:
            fix = (
                error.hint
                if isinstance(error, StoreDamaged)
                else "start it; the server goes on by itself"
            )
            checks.append(checked("database", f"{self._store.shown}: {error.message}", fix))
        return DoctorReport(checks=[*checks, *await self.runtime.doctor()])

    async def _durable(self, active: ActiveJob) -> None:
        """Wait until the newest decision is on disk. Raises StorageFull,
        StoreError: it can't be stored yet.
        """
        decided = active.info.version
        while active.public.version < decided:
            if (problem := active.not_saved) is not None:
                raise type(problem)(
                    f"the order was given, but can't be stored yet: {problem.message}"
                )
            await asyncio.wait({self._jobs.next_change(active.row.id)})


def _driven(found: StoredJob) -> ActiveJob | None:
    """The active job; None: it is final. Raises Unavailable: its submit is being
    answered at this very moment.
    """
    if found.row.state.final:
        return None
    if not isinstance(found, ActiveJob):
        raise Unavailable("the job is being accepted", hint="try again")
    return found
