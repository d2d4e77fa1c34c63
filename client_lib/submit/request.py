"""Make a request from a spec and send it: the script is resolved, the server is shown that it
shares the folder, or a snapshot is uploaded. One idempotency key covers all steps: a repeated step
never makes a second job."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from client_lib.durable import megabytes
from client_lib.errors import InvalidRequest, NotShared, TooLarge
from client_lib.functions.call import Call
from client_lib.spec.job import JobSpec
from client_lib.spec.refusals import validated
from client_lib.spec.replace import replaced
from client_lib.spec.request import (
    DIFF_MAX,
    GROUP_BYTES_MAX,
    CodeInPlace,
    CodeSnapshot,
    FunctionCode,
    GroupRequest,
    SubmitRequest,
    Submitter,
)
from client_lib.spec.wire import GroupInfo, JobInfo, Manifest
from client_lib.submit import arguments, checks, launcher_line
from client_lib.submit.caller import requirements_of, requirements_within, submitter
from client_lib.submit.git_reading import GitReading, command_line
from client_lib.submit.source import (
    Source,
    place_in_root,
    resolve,
    shared_folder_proof,
    snapshot_root,
)
from client_lib.transport.api import Api
from client_lib.transport.rest import OnUpload

if TYPE_CHECKING:
    from client_lib.submit.snapshot import Packed

T = TypeVar("T")
Code = CodeInPlace | CodeSnapshot
Post = Callable[[SubmitRequest], T]
Upload = Callable[[Path, str, bool], None]
"""Sends a file of this digest; with True it first asks the server, which may have it already."""
# Bytes. A smaller call is sent without asking whether the server has it, as it is nearly always
# new.
_SENT_UNASKED = 64 * 1024
_MEMBER_DIFF_MAX = 16 * 1024  # a group has up to 1000 jobs, each with a request of its own
_log = logging.getLogger("client_lib")


def prepare(
    api: Api, spec: JobSpec, script: str, python: str | None = None, call: Call | None = None
) -> Submission:
    """Look at the script, the caller's directory and environment. `python`: see
    `client_lib.submit.caller`. Raises InvalidRequest for a script that can't run."""
    if call is None:
        spec, script, python = _without_launcher(api, spec, script, python)
    cwd = Path.cwd()
    source = (
        Source(call.script, None, cwd)
        if call
        else resolve(script, spec.type, cwd, spec.conda_env is not None)
    )
    reading = GitReading(source.folder)
    if not (call or source.script or spec.conda_env or spec.requirements) and api.runs_here():
        checks.check_program(source, spec.environment().get("PATH", os.environ.get("PATH")))
    changed: dict[str, Any] = {
        "script": source.text,
        "requirements": _requirements(spec, source.script),
    }
    if spec.notify is None and api.config.notify:
        changed["notify"] = api.config.notify
    spec = replaced(
        spec, **{name: value for name, value in changed.items() if value != getattr(spec, name)}
    )
    return Submission(api, spec, source, _submitter(api, python), call, reading)


def _without_launcher(
    api: Api, spec: JobSpec, script: str, python: str | None
) -> tuple[JobSpec, str, str | None]:
    """Spec, script and interpreter after a launcher's line in the place of the script is read."""
    given = {name: getattr(spec, name) for name in spec.model_fields_set}
    is_local = api.config.endpoint is None
    reading = launcher_line.read({**given, "script": script}, local=is_local, in_shell=False)
    if reading is None:
        return spec, script, python
    read = arguments.checked_spec({**reading.fields, "log_file": spec.log_file})
    if read != spec:  # the command line has read and shown it before
        shown, *notices = reading.messages
        _log.info("%s", shown)
        for notice in notices:
            _log.warning("%s", notice)
    return read, reading.fields["script"], reading.python or python


@dataclass(frozen=True)
class Submission:
    """Everything of one submission but for how the code gets there. `spec.script` is resolved."""

    api: Api
    spec: JobSpec
    source: Source
    submitter: Submitter
    call: Call | None  # the function that runs instead of a script
    git: GitReading

    def check_script(self) -> None:
        """Check a script that will run on this machine, and warn of what it will fail
        at. Raises InvalidRequest.
        """
        source = self.source
        spec = self.spec
        python = self.submitter.python
        if source.script is None or python is None:
            return
        as_here = not (spec.requirements or spec.setup or "PYTHONPATH" in spec.environment())
        own = None if spec.conda_env else python
        for warning in checks.check(source.script, spec.command()[1:], own, imports=as_here):
            _log.warning("%s", warning)

    def submit(self, key: str, on_upload: OnUpload | None = None) -> JobInfo:
        """The job, accepted. Raises what the server refuses it for."""
        return self._send(lambda job: self.api.submit_request(self._recorded(job), key), on_upload)

    def submit_group(self, group: GroupRequest, key: str) -> GroupInfo:
        """The accepted group. The `request` of the group is replaced by the request of this job.
        Raises as `submit`.
        """

        def post(job: SubmitRequest) -> GroupInfo:
            asked = replaced(group, request=self._recorded(job, _MEMBER_DIFF_MAX))
            if len(asked.request.model_dump_json()) * len(asked.members) > GROUP_BYTES_MAX:
                asked = replaced(group, request=self._recorded(job, 0))
            return self.api.submit_group(asked, key)

        return self._send(post)

    def render(self) -> Manifest:
        """The objects that `submit` would create; nothing is uploaded or created."""
        return self._send(self.api.render_request, is_dry=True)

    def _recorded(self, request: SubmitRequest, most: int = DIFF_MAX) -> SubmitRequest:
        """The request with its provenance, without a patch that is
        longer than `most` characters.
        """
        ran = self.git.result
        if len(ran.diff or "") > most:
            missing = "the uncommitted changes are too large to be kept with each job of a group"
            ran = replaced(ran, diff=None, missing=missing)
        return replaced(request, provenance=ran)

    def _send(self, post: Post[T], on_upload: OnUpload | None = None, *, is_dry: bool = False) -> T:
        """Send the code as `spec.code` asks: in place if the server shares the folder, else (unless
        in_place is required) as a snapshot. `is_dry`: upload nothing."""

        def upload(path: Path, sha256: str, ask: bool) -> None:
            if not is_dry and not (ask and self.api.has_snapshot(sha256)):
                self.api.upload_snapshot(sha256, path, on_upload)

        if self.spec.code != "snapshot":
            try:
                return self._in_place(post, upload)
            except NotShared:
                if self.spec.code == "in_place":
                    raise
        return self._as_snapshot(post, upload)

    def _in_place(self, post: Post[T], upload: Upload) -> T:
        folder = self.source.folder
        with shared_folder_proof(folder) as proof, self._function(None, upload) as function:
            if proof is None:
                raise NotShared(
                    f"nothing can be written to {folder}, so the server can't be shown that it "
                    "shares it",
                    hint="make it writable, or give code='snapshot'",
                )
            code = CodeInPlace(mode="in_place", sha256=self.source.sha256(), proof=proof)
            return post(_request(self.spec, code, self.submitter, function=function))

    def _as_snapshot(self, post: Post[T], upload: Upload) -> T:
        from client_lib.submit.snapshot import packed  # 20 ms that a job in place does not cost

        root = snapshot_root(self.source.folder, Path.home())
        script, working_dir = place_in_root(self.source, self.spec, root)
        _log.debug("packing %s", root)
        with packed(root) as archive, self._function(str(root), upload) as function:
            spec = self.spec
            if script is not None:
                why = (
                    f"{script} is ignored in {root}, so a snapshot would not hold the script itself"
                )
                _check_packed(script, archive, root, why)
            # packages of the project itself are installed out of the snapshot
            if spec.requirements is not None:
                lines = requirements_within(spec.requirements, root)
                for line in (line[2:] for line in lines if line.startswith("./")):
                    why = (
                        f"requirements: {line} is not in the snapshot of {root}: it isn't there, "
                        "or is ignored"
                    )
                    _check_packed(line, archive, root, why)
                spec = replaced(spec, requirements=lines)
            files = len(archive.names)
            size = megabytes(archive.size)
            _log.info(
                "snapshot of %s: %s, %s packed",
                root,
                "1 file" if files == 1 else f"{files} files",
                size,
            )
            for sentence in archive.skipped:
                _log.warning("%s", sentence)
            upload(archive.path, archive.sha256, True)
            code = CodeSnapshot(
                mode="snapshot",
                sha256=archive.sha256,
                root=str(root),
                script=script,
                working_dir=working_dir,
                files=files,
                size=archive.size,
            )
            _log.debug("submitting")
            return post(_request(spec, code, self.submitter, function=function))

    @contextmanager
    def _function(self, root: str | None, upload: Upload) -> Iterator[FunctionCode | None]:
        if self.call is None:
            yield None
            return
        from client_lib.functions.payload import too_large, written  # loads cloudpickle

        with written(self.call, root) as (path, code):
            try:
                upload(path, code.sha256, code.size > _SENT_UNASKED)
            except TooLarge as refused:  # by a server whose own bound is lower
                raise too_large(
                    self.call, f"{self.call.name} with what it needs: {refused.message}"
                ) from refused
            yield code


def _request(spec: JobSpec, code: Code, submitter: Submitter, **more: Any) -> SubmitRequest:
    """`more`: fields that an older server may not know, and gets only where they are set."""
    values = {name: os.environ[name] for name in spec.secrets if name in os.environ}
    given = {name: value for name, value in more.items() if value is not None}
    fields = {"spec": spec, "code": code, "submitter": submitter, "secret_values": values, **given}
    return validated(SubmitRequest, fields)


def _check_packed(name: str, archive: Packed, root: Path, why: str) -> None:
    if not any(packed == name or packed.startswith(f"{name}/") for packed in archive.names):
        raise InvalidRequest(why, hint=f"write !/{name} into {root / '.clientlibignore'}")


def resubmit(
    api: Api,
    stored: SubmitRequest,
    spec: JobSpec,
    key: str,
    python: str | None = None,
    before: JobInfo | None = None,
) -> JobInfo:
    """A request for the same code as a new job, with the caller's environment of now. `before`: the
    job whose checkpoints are handed on.
    """
    # the stored ones are resolved: `./one.whl` is in the snapshot
    if spec.requirements != stored.spec.requirements:
        spec = replaced(spec, requirements=_requirements(spec, None))
    if isinstance(stored.code, CodeSnapshot) and stored.provenance:
        ran = replaced(stored.provenance, command_line=command_line())
    else:
        ran = GitReading(Path(stored.spec.python_script or "x").absolute().parent).result

    def send(code: Code) -> JobInfo:
        here = _submitter(api, python)
        source_job = before.id if before else None
        more = {"provenance": ran, "function": stored.function, "checkpoints_of": source_job}
        return api.submit_request(_request(spec, code, here, **more), key)

    if isinstance(stored.code, CodeSnapshot):
        return send(stored.code)
    if spec.python_script is not None:  # the server knows the script
        return send(replaced(stored.code, sha256=script_digest(stored) or stored.code.sha256))
    with shared_folder_proof(Path.cwd()) as proof:
        return send(replaced(stored.code, proof=proof))


def script_digest(stored: SubmitRequest) -> str | None:
    """Digest of a script that runs in place, as it is now; None: it can't be read here."""
    script = stored.spec.python_script
    if script is None or isinstance(stored.code, CodeSnapshot) or not os.path.isfile(script):
        return None
    return Source(script, Path(script), Path.cwd()).sha256()


def _requirements(spec: JobSpec, script: Path | None) -> list[str] | None:
    """The field `requirements` after files and the script's header are
    read. Raises InvalidRequest.
    """
    found = requirements_of(spec.requirements, script, Path.cwd())
    validated(JobSpec, {"script": "any", "requirements": found})
    return found


def _submitter(api: Api, python: str | None) -> Submitter:
    """The caller's environment for a server of this machine; another server gets
    the working directory only.
    """
    cwd = os.getcwd()
    return submitter(os.environ, cwd, python) if api.runs_here() else Submitter(working_dir=cwd)
