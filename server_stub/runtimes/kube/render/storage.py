"""The folders of a pod and the volumes that are mounted there. Pure.

A worker's own folders are below /client-lib. Its directory (client_lib.launcher_protocol.directory)
is /client-lib/run. The log in it has a separate volume with a limit: an emptyDir that exceeds its
limit evicts the pod, and the limit of the log must not apply to files that a script writes into its
snapshot.
"""

import glob
import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from client_lib.errors import InvalidRequest
from client_lib.spec.job import JobSpec
from server_stub.runtimes import Attempt, fields, plan
from server_stub.runtimes.kube import names
from server_stub.runtimes.kube.catalogue import ClusterCatalogue, Needs, Volume
from server_stub.runtimes.kube.names import ROOT, is_free, is_in

# Paths in the container of a worker.
LAUNCHER = f"{ROOT}/launcher"
PLAN = f"{ROOT}/plan"
SECRET = f"{ROOT}/secret"
CODE = f"{ROOT}/code"
RUN = f"{ROOT}/run"
LOG = f"{ROOT}/run/log"
HOME = f"{ROOT}/home"
SHM = "/dev/shm"
TMP = "/tmp"
EMPTY_DIRS = {"run": RUN, "log": LOG, "home": HOME, "tmp": TMP, "shm": SHM}
"""Paths of the emptyDirs, by volume name."""
_UNSAFE = re.compile(r"[^a-z0-9_.@+-]|^\.|\.\Z")  # also upper case, as some volumes ignore case
_ENCODED_MAX = 150  # with the digest that follows it is still the name of a file
# Size of the volume for the log of one worker while the server is away; 80 % of the volume is used.
SPOOL_BYTES = 2**30
_LOG_MIB = SPOOL_BYTES // 2**20
DISK_GIB = 1024.0
"""Limit of a type without disk_gib: more than most nodes have, so that it ends no
job of an earlier version.
"""
OWNER_ONLY = 0o400  # with an fsGroup the kubelet makes it 0440, of that group


@dataclass(frozen=True)
class Folder:
    """One mount of a pod, as in its `volumes` and the container's `volumeMounts`. Mounts
    of one name share a volume.
    """

    name: str
    path: str
    source: dict[str, Any]
    sub_path: str | None = None
    read_only: bool = False

    def volume(self) -> dict[str, Any]:
        return {"name": self.name, **self.source}

    def mount(self) -> dict[str, Any]:
        mount = {
            "name": self.name,
            "mountPath": self.path,
            "subPath": self.sub_path,
            "readOnly": self.read_only,
        }
        return {field: value for field, value in mount.items() if value}


@dataclass(frozen=True)
class Claimed:
    """A volume of the catalogue at its path in this job."""

    volume: Volume
    path: str
    read_only: bool
    per_job: bool = False
    """Only the checkpoint folders of the job are mounted, below `path`."""


def own_folders(needs: Needs, launcher: str, mounted: str, *, has_code: bool) -> list[Folder]:
    """Folders of every pod. `launcher`: the name of the ConfigMap with the launcher; `mounted`:
    `mounted_name`."""
    plan = {"name": mounted + names.PLAN}
    code = {"name": mounted + names.CODE}
    secret = {"secretName": mounted + names.SECRET, "defaultMode": OWNER_ONLY}
    disk = {"emptyDir": {"sizeLimit": mebibytes(_disk_mib(needs))}}
    return [
        Folder("launcher", LAUNCHER, {"configMap": {"name": launcher}}, read_only=True),
        Folder("plan", PLAN, {"configMap": plan}, read_only=True),
        Folder("secret", SECRET, {"secret": secret}, read_only=True),
        *([Folder("code", CODE, {"configMap": code}, read_only=True)] if has_code else []),
        Folder("run", RUN, disk),
        Folder("log", LOG, {"emptyDir": {"sizeLimit": mebibytes(_LOG_MIB)}}),
        Folder("home", HOME, disk),
        Folder(
            "shm", SHM, {"emptyDir": {"medium": "Memory", "sizeLimit": mebibytes(needs.shm_mib)}}
        ),
    ]


def mebibytes(amount: int) -> str:
    """The amount as a Kubernetes quantity: `512Mi`, `96Gi`."""
    return f"{amount}Mi" if amount % 1024 else f"{amount // 1024}Gi"


def disk_request_mib(needs: Needs) -> int:
    """Disk that a node must have for the pod."""
    return _LOG_MIB + (_disk_mib(needs) if needs.instance.disk_gib else 0)


def disk_limit_mib(spec: JobSpec, needs: Needs, catalogue: ClusterCatalogue) -> int:
    """Disk of the node that the pod may use, with its log and /tmp. Raises InvalidRequest."""
    return _LOG_MIB + _disk_mib(needs) + math.ceil(tmp_gb(spec, catalogue) * 10**9 / 2**20)


def _disk_mib(needs: Needs) -> int:
    return math.ceil((needs.instance.disk_gib or DISK_GIB) * 1024)


def asked_folders(attempt: Attempt, catalogue: ClusterCatalogue) -> list[Folder]:
    """/tmp if the job asks for space there, and the volumes of the
    catalogue. Raises InvalidRequest.
    """
    found = claims(attempt.spec, attempt.owner, catalogue)
    # a pod that has one claim twice may never start
    volumes = list(dict.fromkeys(each.volume.claim for each in found))
    tmp = tmp_gb(attempt.spec, catalogue)
    folders = [Folder("tmp", TMP, {"emptyDir": {"sizeLimit": f"{tmp}G"}})] if tmp else []
    for claimed in found:
        volume = claimed.volume
        path = claimed.path
        mounts = [(path, None if volume.whole else owner_folder(attempt.owner), claimed.read_only)]
        if claimed.per_job:
            own = job_folder(attempt.job_name, attempt.job_id)
            mounts = [(f"{path}/{own}", own, False)]
            if attempt.checkpoints_from is not None and attempt.checkpoints_name is not None:
                copied = job_folder(attempt.checkpoints_name, attempt.checkpoints_from.parent.name)
                mounts.append((f"{path}/{copied}", copied, True))
        name = f"volume-{volumes.index(volume.claim)}"
        source = {"persistentVolumeClaim": {"claimName": volume.claim}}
        for where, folder, read_only in mounts:
            sub_path = "/".join(filter(None, (volume.sub_path, folder))) or None
            folders.append(Folder(name, where, source, sub_path, read_only))
    return folders


def owner_folder(owner: str) -> str:
    """Folder of a user on a volume. No two users share one, also if the
    volume's names ignore case.
    """
    encoded = _UNSAFE.sub(
        lambda found: "".join(f"%{byte:02x}" for byte in found[0].encode()), owner
    )
    if not 0 < len(encoded) <= _ENCODED_MAX:
        encoded = f"{encoded[:_ENCODED_MAX]}%%{hashlib.sha256(owner.encode()).hexdigest()}"
    return f"owners/{encoded}"


def job_folder(job_name: str, job_id: str) -> str:
    """Folder of a job's checkpoints. It ends with the id of the job, so it is
    never the folder `owners`.
    """
    return f"{job_name}-{job_id[:8]}"


def tmp_gb(spec: JobSpec, catalogue: ClusterCatalogue) -> int:
    """Space for /tmp in GB, if the job asks for it; else 0. Raises InvalidRequest."""
    if spec.tmp_storage is None:
        return 0
    if spec.tmp_storage not in catalogue.tmp_storage:
        there = ", ".join(catalogue.tmp_storage) or "none"
        raise InvalidRequest(
            f"tmp_storage={spec.tmp_storage!r} is unknown; this server has: {there}"
        )
    return catalogue.tmp_storage[spec.tmp_storage]


def claims(spec: JobSpec, owner: str, catalogue: ClusterCatalogue) -> list[Claimed]:
    """The volumes that the job names, then those of every job, then the volume of its checkpoints.

    Raises InvalidRequest: a volume is unknown or not for this owner, or a path is not free.
    """
    found: list[Claimed] = []
    taken = [TMP] if spec.tmp_storage is not None else []

    def add(volume: Volume, path: str, *, read_only: bool, per_job: bool = False) -> None:
        at = next((old for old in found if old.path == path), None)
        if at is None:
            if not is_free(path, taken):
                raise InvalidRequest(
                    f"volume {volume.name!r} can't be mounted at {path or '/'}: that folder is "
                    "the container's own",
                    hint="mount it at a path such as /data",
                )
            found.append(Claimed(volume, path, read_only, per_job))
        elif at.volume != volume:
            raise InvalidRequest(
                f"volumes {at.volume.name!r} and {volume.name!r} are both at {path}"
            )

    for words in spec.volumes:
        wanted = fields.parse_volume(words)
        volume = catalogue.volume(wanted.name)
        if not volume.is_for(owner):
            raise InvalidRequest(
                f"volume {wanted.name!r} can't be mounted by jobs of {owner}: it is for "
                f"{', '.join(volume.users or ())}",
                hint="leave it out, or ask the operator of this server, whose catalogue lists the "
                "users of each volume",
            )
        read_only = wanted.read_only or volume.read_only
        add(volume, wanted.path.rstrip("/"), read_only=read_only)
    for volume in catalogue.volumes:
        if volume.always is not None and volume.is_for(owner):
            add(volume, volume.always, read_only=volume.read_only)
    kept = catalogue.checkpoints
    if kept is not None and spec.checkpoint_dir is None:
        volume = catalogue.volume(kept.volume)
        if not is_on_volume(kept.path, [each for each in found if each.volume == volume]):
            add(volume, kept.path, read_only=False, per_job=not volume.whole)
    return found


def is_shared(path: str, claimed: Sequence[Claimed]) -> bool:
    """True if `path` is on one of the volumes, with the same files in the jobs of all users."""
    above = [each for each in claimed if is_in(path, each.path)]
    return bool(above) and max(above, key=lambda each: len(each.path)).volume.whole


def is_on_volume(path: str, claimed: Sequence[Claimed]) -> bool:
    """True if files at `path` outlive the pod."""
    return any(not each.read_only and is_in(path, each.path) for each in claimed)


def checkpoint_dir(attempt: Attempt, catalogue: ClusterCatalogue) -> str:
    """Checkpoint directory of the job, the same in each attempt; on the pod's own disk if the
    catalogue has no volume for it."""
    if attempt.spec.checkpoint_dir is not None:
        return plan.from_caller(attempt, attempt.spec.checkpoint_dir)
    if catalogue.checkpoints is None:
        return f"{RUN}/checkpoints"
    return f"{catalogue.checkpoints.path}/{job_folder(attempt.job_name, attempt.job_id)}"


def checkpoints_from(attempt: Attempt, catalogue: ClusterCatalogue) -> str | None:
    """Glob of the checkpoint directory of the job being resubmitted, which worker 0
    copies; None: there is none.
    """
    given = attempt.checkpoints_from
    if given is None or attempt.spec.checkpoint_dir is not None or catalogue.checkpoints is None:
        return None
    return f"{glob.escape(catalogue.checkpoints.path)}/{job_folder('*', job_id=given.parent.name)}"


def not_handed_on(attempt: Attempt, catalogue: ClusterCatalogue) -> str | None:
    """Message if the checkpoints of the job being resubmitted are lost; None: they are not."""
    kept = catalogue.checkpoints
    lost = "no checkpoints are handed on: "
    if attempt.checkpoints_from is None or attempt.spec.checkpoint_dir is not None:
        return None
    if kept is None:
        return (
            f"{lost}they ended with their pods, as this server's catalogue names no volume for them"
        )
    if attempt.checkpoints_name is None and not catalogue.volume(kept.volume).whole:
        return f"{lost}this job was submitted to an earlier version of the server; submit it again"
    return None
