"""The typed calls of one server: wire models in, wire models out, one method per path of `/api/v1`.
Answers are read leniently, so that an older client understands a newer server. How a call travels
and fails is `rest`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from pydantic import BaseModel, ValidationError

from client_lib import __version__
from client_lib.errors import InvalidRequest, NotFound, NotSupported
from client_lib.spec import paths, wire
from client_lib.spec.request import GroupRequest, SubmitRequest
from client_lib.spec.states import State
from client_lib.spec.validation import STORED, unknown_fields
from client_lib.transport import local_server
from client_lib.transport.config import Config, Endpoint, resolve
from client_lib.transport.failures import READ_S, bad_content
from client_lib.transport.rest import OnUpload, Params, Rest, Transport, Upload, newer_path

if TYPE_CHECKING:
    from client_lib.spec.checkpoints import JobCheckpoint, PrunedCheckpoints
    from client_lib.spec.metrics import JobGoodput, JobMetrics
    from client_lib.spec.stacks import JobStacks

M = TypeVar("M", bound=BaseModel)

PAGE = 100  # jobs on one page of a list
LONG_POLL_S = 50.0  # below the 60 s after which common proxies cut a silent connection
_REMOVAL_S = 600.0  # of large checkpoints
_UPLOAD_S = 600.0  # after the last byte the server still checks the digest of the whole


class Api:
    """One server. Thread-safe; connects at the first call."""

    def __init__(self, config: Config, rest: Rest | None = None) -> None:
        """`rest` None: calls over requests."""
        self.config = config
        self._rest = rest or Rest(lambda: local_server.locate(config), config, _connect)
        self._here: bool | None = None

    @property
    def endpoint(self) -> str:
        """The server's URL. Starts the local server if the configuration means it and it does not
        run."""
        return self._rest.endpoint.url

    def close(self) -> None:
        """Close idle connections. The next call opens new ones."""
        self._rest.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.config.endpoint or 'local'!r})"

    def runs_here(self) -> bool:
        """Jobs of this server run on this machine: only then may the caller's
        environment travel to it.
        """
        if self.config.endpoint is None:
            return True
        if self._here is None:
            loopback = paths.is_loopback(urlsplit(self.config.endpoint).hostname or "")
            self._here = loopback and self.server_info().runtime == "local"
        return self._here

    # --- one job

    def submit_request(self, request: SubmitRequest, key: str) -> wire.JobInfo:
        """`POST /jobs`. With the same `key` and request it is the same job, however often it is
        sent. An older server refuses the provenance in a request, and gets the request without it.
        """
        try:
            return self._call("POST", paths.JOBS, wire.JobInfo, request=request, key=key)
        except InvalidRequest as refused:
            if "provenance" not in request.model_fields_set or "provenance" not in refused.message:
                raise
            bare = request.model_fields_set - {"provenance"}
            return self.submit_request(
                SubmitRequest.model_construct(bare, **dict(request) | {"provenance": None}), key
            )

    def submit_group(self, request: GroupRequest, key: str) -> wire.GroupInfo:
        """`POST /groups`. With the same `key` and request it is the same group,
        however often it is sent.
        """
        return self._call(
            "POST", paths.GROUPS, wire.GroupInfo, request=request, key=key, lacks="has no groups"
        )

    def group_info(self, name: str) -> wire.GroupInfo:
        """The group as it is, with the number of its jobs in each state."""
        return self._call("GET", paths.group(name), wire.GroupInfo, lacks="has no groups")

    def cancel_group(self, name: str) -> wire.GroupInfo:
        """Order the end of all jobs of the group; they end later, and no job of the group starts
        any more."""
        return self._call(
            "POST",
            paths.group(name, "cancel"),
            wire.GroupInfo,
            lacks="can't cancel a group at once",
        )

    def resubmit_group(self, name: str, key: str, *, failed: bool) -> wire.GroupInfo:
        """Run all jobs of the group again, or with `failed` what did not succeed; once,
        however often it is sent.
        """
        params = {"failed": "true" if failed else None}
        lacks = "can't run a group again"
        return self._call(
            "POST", paths.group(name, "resubmit"), wire.GroupInfo, params, key=key, lacks=lacks
        )

    def job_info(
        self,
        name: str,
        *,
        after_version: int | None = None,
        wait_s: float = 0.0,
        owner: str | None = None,
        retry_s: float | None = None,
    ) -> wire.JobInfo:
        """The job as it is; with `after_version`, as soon as it has changed since, or after
        `wait_s` (at most 60). `retry_s` replaces the configured time for which a silent server is
        asked again."""
        params = {"after_version": after_version, "wait": wait_s or None, "owner": owner}
        return self._call(
            "GET", paths.job(name), wire.JobInfo, params, wait_s=wait_s, retry_s=retry_s
        )

    def cancel_job(
        self, name: str, *, owner: str | None = None, interrupt: bool = False
    ) -> wire.JobInfo:
        """Order the end of the job; the end itself arrives later. A final job stays as it is.
        `interrupt`: its processes get SIGINT in place of SIGTERM, as by Ctrl-C; a later call
        without it sends SIGTERM."""
        params = {"owner": owner, "interrupt": "true" if interrupt else None}
        path = paths.job(name, "cancel")
        try:
            return self._call("POST", path, wire.JobInfo, params)
        except InvalidRequest as refused:
            if not interrupt or "interrupt" not in refused.message:
                raise
            # a server of an older version
            return self._call("POST", path, wire.JobInfo, {"owner": owner})

    def delete_job(self, name: str, *, force: bool = False, owner: str | None = None) -> str:
        """Remove the job with its logs; the server's sentence about it."""
        params = {"force": "true" if force else None, "owner": owner}
        body = self._rest.call("DELETE", paths.job(name), params=params, removes=True)
        return self._read(wire.Answer, body).message if body else f'Job "{name}" deleted'

    def job_events(self, name: str, *, owner: str | None = None) -> list[wire.Event]:
        return self._call("GET", paths.job(name, "events"), wire.EventList, {"owner": owner}).events

    def job_stacks(self, name: str, *, owner: str | None = None) -> JobStacks:
        """The stacks of the running job: see `Job.stacks`."""
        from client_lib.spec.stacks import JobStacks  # few callers need these models

        return self._call(
            "GET", paths.job(name, "stacks"), JobStacks, {"owner": owner}, lacks="can't take stacks"
        )

    def job_metrics(
        self,
        name: str,
        *,
        rank: int | str | None = None,
        points: int | None = None,
        owner: str | None = None,
    ) -> JobMetrics:
        """The curves of a job: see `Job.metrics`."""
        from client_lib.spec.metrics import JobMetrics  # few callers need these models

        params = {"rank": rank, "points": points, "owner": owner}
        return self._call(
            "GET", paths.job(name, "metrics"), JobMetrics, params, lacks="can't read metrics"
        )

    def job_goodput(self, name: str, *, owner: str | None = None) -> JobGoodput:
        """The use of a job's time: see `Job.goodput`."""
        from client_lib.spec.metrics import JobGoodput  # few callers need these models

        path = paths.job(name, "goodput")
        return self._call(
            "GET", path, JobGoodput, {"owner": owner}, lacks="does not tell the use of time"
        )

    def job_checkpoints(self, name: str, *, owner: str | None = None) -> list[JobCheckpoint]:
        """The checkpoints of a job: see `Job.checkpoints`."""
        from client_lib.spec.checkpoints import JobCheckpoints  # few callers need these models

        path = paths.job(name, "checkpoints")
        lacks = "does not list checkpoints"
        return self._call("GET", path, JobCheckpoints, {"owner": owner}, lacks=lacks).checkpoints

    def prune_checkpoints(
        self, name: str, keep: int, only: list[str] | None = None, *, owner: str | None = None
    ) -> PrunedCheckpoints:
        """Remove checkpoints of steps before the last `keep`. `only`: paths of the checkpoints to
        remove; None: nothing is removed, and the answer lists all that could be."""
        from client_lib.spec.checkpoints import CheckpointPrune, PrunedCheckpoints

        return self._call(
            "POST",
            paths.job(name, "checkpoints/prune"),
            PrunedCheckpoints,
            {"owner": owner},
            request=CheckpointPrune(keep=keep, paths=only),
            lacks="does not remove checkpoints",
            wait_s=_REMOVAL_S,
        )

    def open_checkpoint(self, name: str, path: str, *, owner: str | None = None) -> Iterator[bytes]:
        """The bytes of a checkpoint as a tar archive, as they arrive."""
        params = {"path": path, "owner": owner}
        url = paths.job(name, "checkpoints/archive")
        with (
            newer_path("does not send checkpoints"),
            self._rest.stream(url, params=params, read_s=READ_S) as answer,
        ):
            yield from answer.blocks

    def job_provenance(self, name: str, *, owner: str | None = None) -> wire.JobProvenance:
        """The record of what a job ran: see `Job.provenance`."""
        path = paths.job(name, "provenance")
        lacks = "does not record what jobs run"
        return self._call("GET", path, wire.JobProvenance, {"owner": owner}, lacks=lacks)

    def job_manifest(self, name: str, *, owner: str | None = None) -> wire.Manifest:
        """The objects that the newest attempt was started from."""
        return self._call("GET", paths.job(name, "manifest"), wire.Manifest, {"owner": owner})

    def job_request(self, name: str, *, owner: str | None = None) -> SubmitRequest:
        """The request that made the job, without submitter and secret values."""
        return self._call("GET", paths.job(name, "request"), SubmitRequest, {"owner": owner})

    def open_logs(
        self, name: str, params: Params, *, deadline: float | None = None
    ) -> Iterator[bytes]:
        """The body of the job's log stream: see `Rest.open_logs`."""
        return self._rest.open_logs(name, params, deadline)

    def job_result(self, name: str, rank: int, *, owner: str | None = None) -> bytes:
        """The value that the job's function left in this rank, still pickled: see `Job.result`.
        Raises NoResult with the reason."""
        return self._rest.call("GET", paths.job_result(name, rank), params={"owner": owner})

    def job_outputs(self, name: str, *, owner: str | None = None) -> wire.OutputList:
        """The files of the job that are kept for download."""
        return self._call("GET", paths.job(name, "outputs"), wire.OutputList, {"owner": owner})

    def open_output(
        self, name: str, path: str, *, sha256: str, start: int = 0, owner: str | None = None
    ) -> Iterator[bytes]:
        """The bytes of a kept output from `start` on, as they arrive. Raises NotFound: the file has
        other bytes by now.
        """
        headers = {"Range": f"bytes={start}-"} if start else {}
        params = {"sha256": sha256, "owner": owner}
        url = paths.job_output(name, path)
        with self._rest.stream(url, params=params, headers=headers, read_s=READ_S) as answer:
            skipped = 0 if answer.status == HTTPStatus.PARTIAL_CONTENT else start
            for block in answer.blocks:
                yield block[skipped:]
                skipped = max(0, skipped - len(block))

    # --- many jobs

    def list_jobs(
        self,
        state: State | str | None = None,
        label: Mapping[str, str] | None = None,
        name: str | None = None,
        limit: int | None = None,
        group: str | None = None,
    ) -> Iterator[wire.JobInfo]:
        """The caller's jobs, newest first, at most `limit`; pages are fetched as they are needed.
        `name` is the beginning of their names; of several labels all must match. `group`: only
        members of this group."""
        labels = [f"{key}={value}" for key, value in (label or {}).items()]
        asked = {
            "state": str(state) if state else None,
            "name": name,
            "label": labels,
            "group": group,
        }
        cursor: str | None = None
        left = math.inf if limit is None else limit
        while left > 0:
            params: Params = {**asked, "limit": int(min(left, PAGE)), "cursor": cursor}
            page = self._call("GET", paths.JOBS, wire.JobPage, params)
            yield from page.jobs
            cursor = page.next_cursor
            left = left - len(page.jobs) if cursor else 0

    def state_changes(self, after: str | None = None, *, wait_s: float = 0.0) -> wire.StateChanges:
        """The changes of the states of all jobs that the user sees since the cursor `after`, as
        soon as there are some, or none after `wait_s` (at most 60). Without `after` none, with the
        cursor of the newest."""
        params = {"after": after, "wait": wait_s}
        lacks = "can't watch many jobs with one call"
        return self._call(
            "GET", paths.CHANGES, wire.StateChanges, params, wait_s=wait_s, lacks=lacks
        )

    # --- code

    def has_snapshot(self, sha256: str) -> bool:
        try:
            self._rest.call("HEAD", paths.snapshot(sha256))
            return True
        except NotFound:
            return False

    def upload_snapshot(
        self, sha256: str, archive: Path, on_upload: OnUpload | None = None
    ) -> None:
        """Send the archive, in blocks. The server checks the digest; sending what
        it has already is harmless.
        """
        body = Upload(archive, on_upload)
        headers = {"Content-Type": "application/gzip"}
        self._rest.call("PUT", paths.snapshot(sha256), body=body, headers=headers, read_s=_UPLOAD_S)

    def download_snapshot(self, sha256: str, target: Path) -> None:
        """Write the archive to a file. Raises NotFound: the server has none of this user."""
        self._rest.download(paths.snapshot(sha256), target)

    # --- the server

    def render_request(self, request: SubmitRequest) -> wire.Manifest:
        """The objects that a submit of this request would create; nothing is created."""
        return self._call("POST", paths.RENDER, wire.Manifest, request=request)

    def server_info(self) -> wire.ServerInfo:
        return self._call("GET", paths.INFO, wire.ServerInfo)

    def login_link(self) -> wire.LoginLink:
        """A link that logs a browser in to the server's pages, once; without the server's URL."""
        return self._call("POST", paths.LOGIN_LINKS, wire.LoginLink, lacks="has no pages")

    def doctor(self) -> wire.DoctorReport:
        return self._call("GET", paths.DOCTOR, wire.DoctorReport)

    def instance_types(self) -> list[wire.InstanceType]:
        return self._call("GET", paths.INSTANCE_TYPES, wire.InstanceTypes).instance_types

    # --- how a model travels

    def _call(
        self,
        method: str,
        path: str,
        model: type[M],
        params: Params | None = None,
        *,
        request: BaseModel | None = None,
        key: str | None = None,
        lacks: str | None = None,
        wait_s: float = 0.0,
        retry_s: float | None = None,
    ) -> M:
        """The answer. `key`: of idempotency. `lacks`: what servers can't do that do not know the
        path. `wait_s`: the time for which the server may wait before it answers."""
        headers = {} if request is None else {"Content-Type": "application/json"}
        if key is not None:
            headers[paths.IDEMPOTENCY_KEY] = key
        body = None if request is None else request.model_dump_json(exclude_unset=True).encode()
        with newer_path(lacks):
            answer = self._rest.call(
                method,
                path,
                params=params,
                body=body,
                headers=headers,
                read_s=wait_s + READ_S,
                retry_s=retry_s,
            )
        return self._read(model, answer)

    def _read(self, model: type[M], body: bytes) -> M:
        try:
            return model.model_validate_json(body, context=STORED)
        except ValidationError as error:
            if unknown := unknown_fields(error):
                raise NotSupported(  # a request, which `resubmit` reads to send it again
                    f"the job was submitted with {unknown[0][-1]!r}, a field that this client "
                    f"({__version__}) does not know",
                    hint="`pip install --upgrade client-lib` renews the client",
                ) from None
            raise bad_content(self.endpoint, model.__name__, body) from error


def _connect(endpoint: Endpoint, config: Config) -> Transport:
    # loads requests, which the command line does without
    from client_lib.transport.http import RequestsTransport

    return RequestsTransport(endpoint, config)


# --- the configured server

_apis: dict[Config, Api] = {}


def configured() -> Api:
    """The server that the environment and the configuration file mean now; one Api for
    each, kept by the process.
    """
    config = resolve()
    return _apis.setdefault(config, Api(config))
