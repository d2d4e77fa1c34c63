"""The service: everything the server can do, without HTTP. `server_stub.api` and `app` call it, nobody else.

It accepts jobs (durable before it answers), gives their attempts to the runtime, decides what follows from how they
end, and tells those who wait. Pure decisions are in `server_stub.lifecycle` and `server_stub.diagnose`, rows in
`server_stub.store`, what a submitter sent in `server_stub.submissions`. The rooms of this package: `admission` (may it
be stored), `intake` (store it), `conductor` (drive it), `desk` (find and show it), `cleaning` (remove it).
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from client_lib.errors import Conflict, Forbidden, ServerError, StorageFull, Unavailable
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import (
    Check,
    CodeInPlace,
    DoctorReport,
    InstanceType,
    Manifest,
    SubmitRequest,
    Submitter,
    WarmPoolInfo,
)
from server_stub.lifecycle import Pauses, Stop
from server_stub.retention import Retention
from server_stub.runtimes import Runtime
from server_stub.runtimes.orders import working_dir
from server_stub.service.active import Active, from_row
from server_stub.service.admission import Admission, name_stem
from server_stub.service.attempts import Attempts
from server_stub.service.changes import Changes
from server_stub.service.cleaning import Cleaning
from server_stub.service.clock import Clock
from server_stub.service.conductor import Conductor
from server_stub.service.desk import Desk, text_of
from server_stub.service.intake import FreeBytes, Intake, free_bytes
from server_stub.service.values import JobFilters, JobLogs, JobOutputs, JobSearch, JobText
from server_stub.settings import Settings
from server_stub.snapshots import Snapshots
from server_stub.store import Store, rows
from server_stub.store.rows import Found, JobRow
from server_stub.submissions import Submissions
from server_stub.users import User

_DURABLE_WITHIN_S = 10.0


class Service:
    """One per server process. All methods run on the event loop's thread.

    Everywhere: `owner` None means the asking user's own job; another owner's job is NotFound unless the user is admin
    or the server shares its jobs. A returned change is on disk.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        clock: Clock | None = None,
        free: FreeBytes = free_bytes,
    ) -> None:
        """Stores only; `start` connects."""
        self._settings, self._runtime = settings, runtime
        self._clock = clock or Clock()
        self._free = free
        # a view of the folder, as the one that takes the uploads; that one is opened before `start`
        snapshots = Snapshots(settings.data_dir / "snapshots", settings.max_snapshot_bytes, settings.min_free_bytes)
        jobs_dir = settings.data_dir / "jobs"
        self._retention = Retention(settings.retention_days, settings.retention_gb)
        self._submissions = Submissions(settings.data_dir / "submissions")
        self._store = Store(settings.database_url, files=self._submissions)
        self._attempts = Attempts(self._submissions, snapshots, jobs_dir)
        self._changes = Changes()
        self._cleaning = Cleaning(self._store, self._submissions, snapshots, jobs_dir, self._retention, self._clock)
        pauses = Pauses(settings.retry_pause_s, settings.retry_pause_max_s)
        self._conductor = Conductor(
            self._store, runtime, self._clock, pauses, self._changes, self._attempts.newest, self._cleaning.on_end
        )
        self._desk = Desk(self._store, self._conductor, self._changes, jobs_dir, settings.share_jobs)
        self._admission = Admission(runtime, snapshots, settings.secrets_file, settings.max_spec_bytes)
        self._intake = Intake(
            settings,
            runtime.name,
            self._admission,
            self._submissions,
            self._store,
            self._desk,
            self._conductor,
            self._clock,
            free,
        )
        self._retaining: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Open the store (migrations run here), hand every job that is not final to the runtime again, start retention.

        Raises:
            ServerError: the database can't be opened, is read-only, belongs to a newer version or to a running server.
        """
        self._admission.open()
        try:
            (self._settings.data_dir / "jobs").mkdir(mode=0o700, parents=True, exist_ok=True)
            self._submissions.open()
            await asyncio.to_thread(self._intake.open)
        except OSError as error:
            raise ServerError(
                f"the data directory {self._settings.data_dir} can't be used: {error}",
                hint="it must be writable for this user",
            ) from error
        await self._store.open()
        await self._cleaning.start()
        await self._runtime.start(self._conductor.observe)
        unfinished = await self._drop_never_answered(await self._store.read(rows.unfinished))
        # those that ran first: what they hold must not be given to those that wait
        for row in sorted(unfinished, key=lambda row: row.state is not State.RUNNING):
            self._conductor.take(from_row(row))
        self._retaining = asyncio.create_task(self._cleaning.run(self._settings.retention_every_s))

    async def _drop_never_answered(self, unfinished: list[JobRow]) -> list[JobRow]:
        """After a loss of power a row may be on disk whose record is not: its submit was not answered, and its key is
        free for the repeat."""
        lost = [row for row in unfinished if row.version == 1 and not self._submissions.holds(row.place)]
        for row in lost:
            await self._store.write(lambda connection, row=row: rows.discard(connection, row))  # type: ignore[misc]
        return [row for row in unfinished if row not in lost] if lost else unfinished

    async def close(self) -> None:
        """Stop watching and close the store. Workers go on; a later `start` finds them."""
        if self._retaining:
            self._retaining.cancel()
            await asyncio.gather(self._retaining, return_exceptions=True)
        await self._runtime.close()
        await self._conductor.close()
        await self._store.close()
        self._submissions.close()

    # --- one job

    async def submit(
        self, user: User, request: SubmitRequest, key: str | None, *, sent: bytes | None = None, shared: bool = False
    ) -> tuple[JobText, bool]:
        """Accept a job; durable when this returns. False: the job was there already by this key.

        `sent`: the JSON that the request was read from, which is kept as it is; None: it is written anew. `shared`: the
        caller knows that this server sees the folder of an in-place job, and no proof is looked for.

        Raises:
            KeyReused: the key belongs to another spec or code.
            Conflict: the name is taken.
            NotShared: `code` is in place and the server doesn't see the folder; nothing was stored, the key is free.
            NotFound: the snapshot was not uploaded by this user.
            InvalidRequest, NotSupported, NeverFits, TooLarge: with the field, its value and the way out.
            StorageFull: nothing was accepted.
        """
        return await self._intake.submit(user, request, key, sent=sent, shared=shared)

    async def again(self, user: User, name: str) -> JobText:
        """Submit what was submitted as this job once more, with all that its submitter sent, under a new name.

        Raises:
            NotFound: there is no such job.
            Forbidden: it is another's: the values of its secrets are not this user's to run with.
            as `submit` does.
        """
        row = await self._row(await self._desk.find(user, name, None))
        if row.owner != user.name:
            raise Forbidden(f"job {name} belongs to {row.owner}, who alone can start it again")
        request = await asyncio.to_thread(self._attempts.request_of, row)
        unnamed = request.model_copy(update={"spec": request.spec.model_copy(update={"name": None})})
        text, _ = await self._intake.submit(user, unnamed, None, shared=True)
        return text

    async def get(self, user: User, name: str, owner: str | None = None) -> JobText:
        """The job as it is now. Raises NotFound."""
        return text_of(await self._desk.find(user, name, owner))

    async def wait(
        self, user: User, name: str, after_version: int, timeout_s: float, owner: str | None = None
    ) -> JobText:
        """The job as soon as its version is greater than `after_version`, or as it is after `timeout_s`; at once if it
        is final, as nothing more will change. Raises NotFound."""
        found = await self._desk.find(user, name, owner)
        await self._desk.wait_beyond(found, after_version, timeout_s)
        return text_of(found)

    async def events(self, user: User, name: str, owner: str | None = None) -> bytes:
        """An EventList as JSON, oldest first."""
        return await self._desk.events(await self._desk.find(user, name, owner))

    async def manifest(self, user: User, name: str, owner: str | None = None) -> Manifest:
        """What the newest attempt was started as; secrets masked."""
        row = await self._row(await self._desk.find(user, name, owner))
        return self._runtime.render(await asyncio.to_thread(self._attempts.stored, row))

    async def request(self, user: User, name: str, owner: str | None = None) -> bytes:
        """The SubmitRequest as JSON, without submitter, proof and secret values, from which the job can be submitted
        again. Values of variables like tokens are there for the owner alone; to others they are masked."""
        row = await self._row(await self._desk.find(user, name, owner))
        request = await asyncio.to_thread(self._attempts.request_of, row)
        shown = request.model_copy(update={"submitter": Submitter(), "secret_values": {}})
        if row.owner != user.name:
            shown = shown.model_copy(update={"spec": shown.spec.masked()})
        return shown.model_dump_json().encode()

    async def cancel(self, user: User, name: str, owner: str | None = None) -> JobText:
        """Order the end of the job, also while it waits. Final jobs stay as they are. The order is durable: it holds
        over a restart of the server. The end itself arrives later (`wait`)."""
        found = await self._desk.find(user, name, owner)
        if (active := _driven(found)) is not None:
            self._conductor.stop(active, Stop(Reason.CANCELLED, f"cancelled by {user.name}"))
            await self._durable(active)
        return text_of(found)

    async def delete(self, user: User, name: str, owner: str | None = None, *, force: bool = False) -> str:
        """Remove the job with its logs and events; a sentence about it. With `force` a running one is stopped first,
        and removed when it has ended, which may be after this returns.

        Raises Conflict: it is not final and `force` is False.
        """
        found = await self._desk.find(user, name, owner)
        active = _driven(found)
        if active is None:
            await self._cleaning.remove([_seq(found)])
            return f'Job "{name}" deleted.'
        if not force:
            raise Conflict(
                f"job {name} is {active.info.state} and was not deleted",
                hint=f"stop it first (client-lib cancel {name}), or delete it with force",
            )
        self._conductor.remove_at_end(active)
        self._conductor.stop(active, Stop(Reason.CANCELLED, f"deleted by {user.name}"))
        await self._durable(active)
        return f'Job "{name}" is being stopped; it is deleted when it has ended.'

    async def find_result(self, user: User, name: str, rank: int, owner: str | None = None) -> Path:
        """The file that the rank's function left in the newest attempt; see `client_lib.worker.function_runner`.

        Raises:
            NotFound: there is no such job; NoResult: nothing (yet) of that rank, and why.
        """
        return await self._desk.result(await self._desk.find(user, name, owner), rank)

    async def find_outputs(self, user: User, name: str, owner: str | None = None) -> JobOutputs:
        """Where the outputs of a job are. Raises NotFound."""
        row = await self._row(await self._desk.find(user, name, owner))
        attempt = await asyncio.to_thread(self._attempts.stored, row)
        in_place = working_dir(attempt, "/") if isinstance(attempt.code, CodeInPlace) else None
        return JobOutputs(attempt.job_dir, in_place, row.state.final)

    # --- many jobs

    async def page(self, user: User, filters: JobFilters, limit: int, cursor: str | None) -> bytes:
        """A JobPage as JSON, newest first. `limit` is cut to `settings.max_page`.

        Raises InvalidRequest: the cursor is none of ours.
        """
        return await self._desk.page(user, filters, min(limit, self._settings.max_page), cursor)

    async def search(self, user: User, wanted: JobSearch) -> tuple[int, list[bytes]]:
        """How many jobs match, and those of the wanted page as JobInfo in JSON, newest first."""
        return await self._desk.search(user, wanted)

    async def counts(self) -> dict[State, int]:
        """How many jobs of all users are in each state; for `/metrics`."""
        return await self._store.read(rows.counts)

    def busy(self) -> bool:
        """Some job is not final: the server must not end for idleness."""
        return len(self._conductor) > 0

    # --- logs

    async def find_logs(self, user: User, name: str, owner: str | None = None) -> JobLogs:
        """Where the logs of a job are and how it stands. Raises NotFound."""
        return self._desk.logs(await self._desk.find(user, name, owner))

    async def next_logs(self, logs: JobLogs) -> JobLogs:
        """Wait, however long, until the job's version is greater than `logs.version`; at once for a final job. No
        thread and no timer per caller; cancelling the call is fine."""
        found = await self._desk.by_id(logs.job_id)
        if found is None:  # deleted: what was known last was final
            return logs
        await self._desk.wait_beyond(found, logs.version, None)
        return self._desk.logs(found)

    # --- without a job

    def render(self, user: User, request: SubmitRequest) -> Manifest:
        """What `submit` would create; nothing is stored or created, the same answer twice. Raises as `submit`
        does for a request that it would refuse by itself (not for a taken name or a full disk)."""
        admitted = self._admission.admit(user, request, dry_run=True)
        name = request.spec.name or f"{name_stem(request.spec)}-xxxxx"
        return self._runtime.render(self._attempts.dry_run(admitted.request, name))

    def instance_types(self) -> list[InstanceType]:
        """The runtime's catalogue with what is free now."""
        return list(self._runtime.instance_types())

    def warm_pools(self) -> list[WarmPoolInfo]:
        """Processes that the runtime keeps to start ranks faster."""
        return self._runtime.warm_pools()

    async def doctor(self) -> DoctorReport:
        """The runtime's checks, the disk, the database and the retention settings."""
        capped = f"; the log of a job at most {self._settings.log_limit_bytes / 1e9:.3g} GB"
        checks = [self._check_disk(), Check(name="retention", ok=True, message=f"{self._retention}{capped}")]
        checks.append(Check(name="database", ok=True, message=self._store.shown))
        return DoctorReport(checks=[*checks, *await self._runtime.doctor()])

    def _check_disk(self) -> Check:
        free, needed = self._free(self._settings.data_dir), self._settings.min_free_bytes
        message = f"{free / 1e9:.1f} GB free in {self._settings.data_dir}"
        fix = "make room there: submits are refused below this" if free < needed else None
        return Check(name="disk", ok=free >= needed, message=message, fix=fix)

    async def _row(self, found: Active | Found) -> JobRow:
        if isinstance(found, Active):
            return found.row
        row = await self._store.read(lambda connection: rows.row_by_seq(connection, found.seq))
        if row is None:
            raise Conflict("the job was deleted just now")
        return row

    async def _durable(self, active: Active) -> None:
        """Return when what was decided is on disk."""
        decided = active.version
        await self._desk.wait_beyond(active, decided - 1, _DURABLE_WITHIN_S)
        if active.public_version < decided:
            raise StorageFull("the order was given, but can't be stored: the server's disk is full")


def _driven(found: Active | Found) -> Active | None:
    """The job as one that can still be changed; None: it is final.

    Raises:
        Unavailable: its submit is being answered at this very moment.
    """
    if isinstance(found, Active):
        return None if found.row.state.final else found
    if not found.state.final:
        raise Unavailable("the job is being accepted", hint="try again")
    return None


def _seq(found: Active | Found) -> int:
    return found.row.seq if isinstance(found, Active) else found.seq
