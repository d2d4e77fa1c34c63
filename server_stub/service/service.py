"""The service: everything the server can do, without HTTP. `server_stub.api` and `server_stub.app` call it, nobody else.

It accepts jobs (durable before it answers), gives their attempts to the runtime, decides what follows from how they end,
and tells those who wait. Pure decisions are in `server_stub.lifecycle` and `server_stub.diagnose`, rows in
`server_stub.store`, files of a job's submitter in `server_stub.submissions`.
"""

from __future__ import annotations

from client_lib.spec.states import State
from client_lib.spec.wire import DoctorReport, InstanceType, Manifest, SubmitRequest
from server_stub.runtimes import Runtime
from server_stub.service.values import JobFilters, JobLogs, JobText
from server_stub.settings import Settings
from server_stub.users import User


class Service:
    """One per server process. All methods run on the event loop's thread.

    Everywhere: `owner` None means the asking user's own job; another owner's job is NotFound unless the user is admin
    or the server shares its jobs. A returned change is on disk.
    """

    def __init__(self, settings: Settings, runtime: Runtime) -> None:
        """Stores only; `start` connects."""

    async def start(self) -> None:
        """Open the store (migrations run here), hand every job that is not final to the runtime again, start retention.

        Raises:
            ServerError: the database can't be opened, is read-only, belongs to a newer version or to a running server.
        """
        raise NotImplementedError

    async def close(self) -> None:
        """Stop watching and close the store. Workers go on; a later `start` finds them."""
        raise NotImplementedError

    # --- one job

    async def submit(self, user: User, request: SubmitRequest, key: str | None) -> tuple[JobText, bool]:
        """Accept a job; durable when this returns. False: the job was there already by this key.

        Raises:
            KeyReused: the key belongs to another spec or code.
            Conflict: the name is taken.
            NotShared: `code` is in place and the server doesn't see the folder; nothing was stored, the key is free.
            NotFound: the snapshot was not uploaded by this user.
            InvalidRequest, NotSupported, NeverFits, TooLarge: with the field, its value and the way out.
            StorageFull: nothing was accepted.
        """
        raise NotImplementedError

    async def get(self, user: User, name: str, owner: str | None = None) -> JobText:
        """The job as it is now. Raises NotFound."""
        raise NotImplementedError

    async def wait(
        self, user: User, name: str, after_version: int, timeout_s: float, owner: str | None = None
    ) -> JobText:
        """The job as soon as its version is greater than `after_version`, or as it is after `timeout_s`; at once if it
        is final, as nothing more will change. Raises NotFound, also when it is deleted meanwhile."""
        raise NotImplementedError

    async def events(self, user: User, name: str, owner: str | None = None) -> bytes:
        """An EventList as JSON, oldest first."""
        raise NotImplementedError

    async def manifest(self, user: User, name: str, owner: str | None = None) -> Manifest:
        """What the newest attempt was started as; secrets masked."""
        raise NotImplementedError

    async def request(self, user: User, name: str, owner: str | None = None) -> bytes:
        """The SubmitRequest as JSON, without submitter, proof and secret values, from which the job can be submitted
        again. Values of variables like tokens are there for the owner alone; to others they are masked."""
        raise NotImplementedError

    async def cancel(self, user: User, name: str, owner: str | None = None) -> JobText:
        """Order the end of the job, also while it waits. Final jobs stay as they are. The order is durable: it holds
        over a restart of the server. The end itself arrives later (`wait`)."""
        raise NotImplementedError

    async def delete(self, user: User, name: str, owner: str | None = None, *, force: bool = False) -> str:
        """Remove the job with its logs and events; a sentence about it. With `force` a running one is stopped first,
        and removed when it has ended, which may be after this returns.

        Raises Conflict: it is not final and `force` is False.
        """
        raise NotImplementedError

    # --- many jobs

    async def page(self, user: User, filters: JobFilters, limit: int, cursor: str | None) -> bytes:
        """A JobPage as JSON, newest first. `limit` is cut to `settings.max_page`.

        Raises InvalidRequest: the cursor is none of ours.
        """
        raise NotImplementedError

    async def counts(self) -> dict[State, int]:
        """How many jobs of all users are in each state; for `/metrics`."""
        raise NotImplementedError

    def busy(self) -> bool:
        """Some job is not final: the server must not end for idleness."""
        raise NotImplementedError

    # --- logs

    async def find_logs(self, user: User, name: str, owner: str | None = None) -> JobLogs:
        """Where the logs of a job are and how it stands. Raises NotFound."""
        raise NotImplementedError

    async def next_logs(self, logs: JobLogs) -> JobLogs:
        """Wait, however long, until the job's version is greater than `logs.version`; at once for a final job. No thread
        and no timer per caller; cancelling the call is fine. Raises NotFound when the job is deleted meanwhile."""
        raise NotImplementedError

    # --- without a job

    def render(self, user: User, request: SubmitRequest) -> Manifest:
        """What `submit` would create; nothing is stored or created, the same answer twice. Raises as `submit` does for a
        request that it would refuse by itself (not for a taken name, a full disk)."""
        raise NotImplementedError

    def instance_types(self) -> list[InstanceType]:
        """The runtime's catalogue with what is free now."""
        raise NotImplementedError

    async def doctor(self) -> DoctorReport:
        """The runtime's checks, the disk, the database and the retention settings."""
        raise NotImplementedError
