"""Checks a submit request before it is stored. Nothing here writes."""

import asyncio
import base64
import hashlib
import os
import secrets
import stat
import time
import uuid
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from client_lib.errors import InvalidRequest, NotFound, NotShared, ServerError, TooLarge
from client_lib.spec.command_line import name_for, parse_toml, split_script
from client_lib.spec.job import HealthAction, JobSpec
from client_lib.spec.replace import replaced
from client_lib.spec.request import (
    GROUP_BYTES_MAX,
    CodeInPlace,
    CodeSnapshot,
    FunctionCode,
    GroupRequest,
    SharedFolderProof,
    SubmitRequest,
)
from client_lib.spec.secrets import MASK, is_masked
from client_lib.spec.state_dir import Mount, mounts, on_network
from server_stub.files.snapshots import Snapshots
from server_stub.runtimes import Runtime
from server_stub.service.job_files import without_proof
from server_stub.service.notifications import AllowedHosts
from server_stub.users import User

_SUFFIX = 5
_FOLDERS_CACHED = 1024
_MOUNTS_S = 10.0  # in which a new mount is noticed
_PROOF_BYTES = 256
_UPLOAD = "submit with code='auto' or 'snapshot': the folder is then uploaded"
MAX_SPEC_BYTES = 2**20  # the spec is stored with the job and is part of each answer
GROUP_LABELS_MAX = 10_000
_MAPPINGS = {"flags", "env_variables", "labels"}
"""Fields of a spec whose keys have no order."""
_NO_RESTART = (
    "health_params with action='restart' needs max_retry, the number of new attempts: without it "
    "a job that prints nothing is stopped, and not started again"
)


@dataclass(frozen=True)
class Admitted:
    """A request that may be stored."""

    request: SubmitRequest
    """The request with the values of all secrets."""
    notices: list[str]
    script_path: str | None
    """Absolute path of a script that runs in place; None for a command or a snapshot."""


class Admission:
    """The rules of one server."""

    def __init__(
        self, runtime: Runtime, snapshots: Snapshots, secrets_file: Path | None, hosts: AllowedHosts
    ) -> None:
        """`hosts`: hosts that `notify` may name."""
        self._runtime = runtime
        self._snapshots = snapshots
        self._secrets_file = secrets_file
        self._hosts = hosts
        self._secrets: Mapping[str, str] = {}

    def open(self) -> None:
        """Read the server's own secrets: a TOML table of names and strings.

        Raises ServerError: the file can't be read, or has no such table. The message repeats
        nothing of the file.
        """
        if (file := self._secrets_file) is None:
            return
        try:
            self._secrets = parse_toml(file.read_text(encoding="utf-8"), file)
        except (OSError, ValueError) as error:
            why = (
                "it is not valid TOML"
                if isinstance(error, InvalidRequest)
                else type(error).__name__
            )
            raise ServerError(f"the file of secrets {file} can't be read: {why}") from None
        wrong = [name for name, value in self._secrets.items() if not isinstance(value, str)]
        if wrong:
            raise ServerError(f"the file of secrets {file}: {wrong[0]} is not a string")

    def admit(self, user: User, request: SubmitRequest, *, dry_run: bool = False) -> Admitted:
        """Check everything but the size and the shared folder. A dry run needs no snapshot.

        Raises:
            InvalidRequest, NotSupported, NeverFits, TooLarge: with the field, its value and the way
            out.
            Forbidden: `notify` names a host that the settings do not allow, or the job what the
                user's team lacks.
            NotFound: the snapshot was not uploaded by this user.
        """
        _refuse_masks(request)
        self._hosts.check(request.spec.notify)
        request = self._with_secrets(request)
        request = self.of_team(user, request)
        spec = request.spec
        notices = self._runtime.check(request.spec, user.name, request.submitter, request.namespace)
        if (
            spec.health_params
            and spec.health_params.action is HealthAction.RESTART
            and not spec.max_retry
        ):
            notices = [*notices, _NO_RESTART]
        if request.function is not None and spec.type.is_command:
            raise InvalidRequest(
                f"type={str(spec.type)!r} runs a command, and this job is a function",
                hint="leave type out: the ranks of 'pytorch2' call it",
            )
        for part in () if dry_run else (request.code, request.function):
            if (
                isinstance(part, CodeSnapshot | FunctionCode)
                and self._snapshots.find(part.sha256, user.name) is None
            ):
                raise NotFound(
                    f"there is no snapshot {part.sha256} of {user.name}",
                    hint="upload it first: PUT /api/v1/snapshots/{sha256}",
                )
        path = None
        if isinstance(request.code, CodeInPlace) and (script := spec.python_script) is not None:
            path = os.path.join(request.submitter.working_dir or "", script)
            if not os.path.isabs(path):
                raise InvalidRequest(
                    f"script {script!r} is relative and submitter.working_dir is missing: where "
                    "is it?"
                )
        return Admitted(request, list(notices), path)

    def of_team(self, user: User, request: SubmitRequest) -> SubmitRequest:
        """The request with the name, the place and the defaults of the user's team. Raises
        Forbidden: it names what the team lacks."""
        team = user.team
        of_team: dict[str, Any] = {
            "team": team.name if team else None,
            "namespace": team.namespace if team else None,
            "service_account": team.service_account if team else None,
            "pull_secrets": team.pull_secrets if team else [],
        }
        if any(getattr(request, field) != value for field, value in of_team.items()):
            request = replaced(request, **of_team)
        return replaced(request, spec=team.limited(request.spec)) if team else request

    def check_size(self, request: SubmitRequest, size: int) -> None:
        """Check the size of the spec. `size`: of the request; if that is small, the
        spec is too. Raises TooLarge.
        """
        if size <= MAX_SPEC_BYTES:
            return
        size = len(request.spec.model_dump_json())
        if size > MAX_SPEC_BYTES:
            raise TooLarge(
                f"the job spec has {size} bytes; this server takes at most {MAX_SPEC_BYTES}",
                hint="hand data to the script in a file, not in arguments or variables",
            )

    def check_group(self, request: SubmitRequest, members: int) -> None:
        """Check what the members of a group take together: they are stored in one
        transaction. Raises TooLarge.
        """
        size = len(request.model_dump_json()) * members
        labels = len(request.spec.labels) * members
        if size > GROUP_BYTES_MAX:
            raise TooLarge(
                f"the requests of {members} members, with the environment of the submit, have "
                f"{size} bytes; a group has at most {GROUP_BYTES_MAX}",
                hint="submit several smaller groups, or from a shell with fewer variables (`env "
                "-i`); hand data to the script in a file",
            )
        if labels > GROUP_LABELS_MAX:
            raise TooLarge(
                f"{members} members have {labels} labels; a group has at most {GROUP_LABELS_MAX}",
                hint="the members have the labels of the group in common: leave some out",
            )

    async def check_in_place(
        self,
        user: User,
        request: SubmitRequest,
        script_path: str | None,
        proof: SharedFolderProof | None,
    ) -> None:
        """Check by the proof that this machine sees the folder of the script (of a command: its
        working directory), and that the workers can read it, the script and the working directory.
        Raises NotShared: with a hint."""
        submitted_in = request.submitter.working_dir
        folder = os.path.dirname(script_path) if script_path else submitted_in
        if folder is None:  # a command that names no folder of the submitter runs anywhere
            return
        if proof is None or not await self._is_proven(proof, [folder, submitted_in]):
            raise NotShared(
                f"this server does not see the folder {folder} of the submitter", hint=_UPLOAD
            )
        for path in _paths_read(request, folder, script_path):
            if why := await self._runtime.why_hidden(request.spec, user.name, path):
                raise NotShared(why, hint=_UPLOAD)

    async def _is_proven(self, proof: SharedFolderProof, folders: list[str | None]) -> bool:
        # a file server may not answer, so its folders are read in a thread. A local folder is not:
        # the change of threads took a third of the time of all submits (benchmarks/RESULTS.md)
        period = int(time.monotonic() / _MOUNTS_S)
        if any(
            _is_remote(folder, period)
            for folder in (os.path.dirname(proof.path), *filter(None, folders))
        ):
            return await asyncio.to_thread(_proves, proof, folders)
        return _proves(proof, folders)

    def _with_secrets(self, request: SubmitRequest) -> SubmitRequest:
        wanted = request.spec.secrets
        if not (wanted or request.secret_values):
            return request
        unknown = sorted(set(request.secret_values) - set(wanted))
        if unknown:
            raise InvalidRequest(
                f"secret_values has {unknown[0]!r}, which spec.secrets does not name"
            )
        known = {**self._secrets, **request.secret_values}
        missing = [name for name in wanted if name not in known]
        if missing:
            raise InvalidRequest(
                f"there is no value for the secret {missing[0]!r}",
                hint=f"set {missing[0]} in the environment that submits, or in the server's file "
                "of secrets",
            )
        values = {name: known[name] for name in wanted}
        return (
            request if values == request.secret_values else replaced(request, secret_values=values)
        )


def _paths_read(request: SubmitRequest, folder: str, script_path: str | None) -> list[str]:
    """The absolute paths that the workers of a job in place read: `folder`, the working
    directory and the script.
    """
    base = request.submitter.working_dir or folder
    read = (folder, request.spec.working_dir or base, script_path or folder)
    return list(dict.fromkeys(os.path.normpath(os.path.join(base, path)) for path in read))


@lru_cache(_FOLDERS_CACHED)
def _is_remote(folder: str, period: int) -> bool:
    """True if the folder lies on a file server, by the mounts at the first call of this period."""
    return on_network(Path(folder), _mounts(period))


@lru_cache(1)
def _mounts(_period: int) -> list[Mount]:
    return mounts()


def _proves(proof: SharedFolderProof, folders: list[str | None]) -> bool:
    folder = os.path.dirname(proof.path)
    real = os.path.realpath
    seen = folder in folders or real(folder) in {real(other) for other in folders if other}
    if len(proof.nonce) < 16 or not seen:
        return False
    with suppress(OSError), open(proof.path, "rb", buffering=0, opener=_no_link) as file:
        regular = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
        return regular and file.read(_PROOF_BYTES).strip() == proof.nonce.encode()
    return False


def _no_link(path: str, flags: int) -> int:
    # without O_NONBLOCK a FIFO would block
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def fingerprint(request: SubmitRequest, group: GroupRequest | None = None) -> str:
    """SHA-256 of spec and code without the proof, and of the group; the
    order of keys does not matter.
    """
    mappings = {
        name: getattr(request.spec, name) for name in _MAPPINGS & request.spec.model_fields_set
    }
    ordered: dict[str, Any] = {
        name: dict(sorted(found.items())) for name, found in mappings.items()
    }
    spec = replaced(request.spec, **ordered).model_dump_json(exclude_defaults=True)
    function = request.function.sha256 if request.function else ""
    code = without_proof(request.code).model_dump_json()
    runs = group.model_dump_json(exclude={"request": True}) if group else ""
    return hashlib.sha256(f"{spec}\n{code}\n{function}{runs}".encode()).hexdigest()


def draw_name(spec: JobSpec) -> str:
    """The name that the user gave, else one of `name_for`, or the platform's form with a region."""
    if spec.name:
        return spec.name
    if spec.region:
        return f"lm-mpi-job-{uuid.uuid4()}"
    # no characters that look alike
    suffix = base64.b32encode(secrets.token_bytes(_SUFFIX)).decode().lower()
    return name_for(spec.script, suffix[:_SUFFIX])


def refuse_masked_words(field: str, words: Iterable[str]) -> None:
    """Raises InvalidRequest: one of the words is a mask, as in a spec that a server shows."""
    if any(map(is_masked, words)):
        raise InvalidRequest(
            f"{field} holds {MASK}, which stands for a secret that is not shown",
            hint="write the value, or let the owner of the job submit it again",
        )


def _refuse_masks(request: SubmitRequest) -> None:
    """Raises InvalidRequest: a value of the request is a mask, as in a spec that a server shows."""
    spec = request.spec
    texts: list[tuple[str, object]] = [
        *(("script", word) for word in split_script(spec.script)),
        ("setup", spec.setup),
        *(("args", word) for word in spec.args),
        *((f"flags.{name}", value) for name, value in spec.flags.items()),
        *((f"env_variables.{name}", value) for name, value in spec.env_variables.items()),
    ]
    for field, text in texts:
        if isinstance(text, str):
            refuse_masked_words(field, [text])
