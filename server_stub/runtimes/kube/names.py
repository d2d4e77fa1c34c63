"""Names of the objects of an attempt, the labels by which they are found, and the paths of a pod,
with those that no volume may take. Pure.

`render` writes them and `observe` parses them. Names are deterministic, so a submit that is
repeated after a crash finds its own objects.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from client_lib.spec.command_line import NAME_MAX

JOB_ID = "client-lib.io/job-id"
ATTEMPT = "client-lib.io/attempt"
JOB_NAME = "client-lib.io/job-name"
OWNER = "client-lib.io/owner"
TEAM = "client-lib.io/team"
MANAGED_BY = "app.kubernetes.io/managed-by"
OURS = "client-lib"
"""Value of MANAGED_BY. `app.kubernetes.io/managed-by=client-lib` selects all objects of
all servers in a namespace.
"""
QUEUE = "kueue.x-k8s.io/queue-name"
_LABEL_MAX = 63
_LABEL_VALUE = re.compile(rf"(?=.{{1,{_LABEL_MAX}}}$)[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?")
_NOT_IN_A_LABEL = re.compile(r"[^-A-Za-z0-9_.]+")
PROBE = "client-lib-probe"
"""Name of workloads of dry runs, and of their queue."""


def object_name(
    job_name: str, attempt: int, owner: str | None = None, longest: int = NAME_MAX
) -> str:
    """Name of the workload: the name of the job; for attempt n > 1
    `name[:42]-<4 hex of the name>-r<n>`, with less of the name if n has more digits. At most
    `longest` characters: the operator appends for example `-worker-9997`, and a label has 63. A
    longer name of a job is shortened to `name[:...]-<4 hex of the name>`.

    With `owner`, if another user's job has that name: `name[:43]-<6 hex of owner and name>`, then
    `-r<n>`.
    """
    if attempt == 1 and owner is None and len(job_name) <= longest:
        return job_name
    mark = _hex(job_name)[:4] if owner is None else _hex(f"{owner}/{job_name}")[:6]
    suffix = f"-{mark}" if attempt == 1 else f"-{mark}-r{attempt}"
    return job_name[: longest - len(suffix)] + suffix


def _hex(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def mounted_name(workload: str, job_id: str) -> str:
    """Beginning of the names of the objects that the pods of an attempt mount:
    `<workload>-<6 hex of the job>`.

    A workload of a later job may have the same name. An operator that has not yet seen the end of
    the first one may make a pod for it once more, which must not find the later job's token.
    """
    return f"{workload}-{_hex(job_id)[:6]}"


# Endings after the name of the workload (POLICY) or `mounted_name` (the others), of the objects
# that belong to it.
PLAN = "-plan"
"""ConfigMap with the plan."""
CODE = "-code"
"""ConfigMap with the code."""
SECRET = "-worker"
"""Secret with the workers' token."""
ENVIRONMENT = "-env"
"""Secret with variables of the ranks."""
POLICY = "-network"
"""NetworkPolicy."""


def launcher_name(launcher: bytes, job_id: str) -> str:
    """Name of the ConfigMap with this zipapp, which some jobs share.

    Sharing it between all jobs is too expensive: each change of the object writes all of its
    owners, and the garbage collector checks every other owner when one is deleted, so that n
    deletions cost n * n requests.
    """
    return f"client-lib-launcher-{hashlib.sha256(launcher).hexdigest()[:12]}-{job_id[:2]}"


class AttemptKey(NamedTuple):
    job_id: str
    attempt: int


def labels(job_id: str, attempt: int, job_name: str) -> dict[str, str]:
    """Labels of every object of an attempt, including its pods."""
    return {MANAGED_BY: OURS, JOB_ID: job_id, JOB_NAME: job_name, ATTEMPT: str(attempt)}


def costs(
    owner: str, team: str | None, job: Mapping[str, object], keys: Sequence[str]
) -> dict[str, str]:
    """Labels by which tools for costs and policies tell whose a pod is: its owner and team, and
    those of the job's own labels with one of `keys`."""
    taken = {key: label_value(str(job[key])) for key in keys if key in job}
    of_user = {OWNER: owner, TEAM: team}
    return taken | {key: label_value(name) for key, name in of_user.items() if name}


def label_value(text: str) -> str:
    """The text as the value of a label. One that no label can have gets other characters replaced
    by `_`, is cut, and ends with a mark of the whole: `Ann Lee` is `Ann_Lee-6b3a1c7e`."""
    if not text or _LABEL_VALUE.fullmatch(text):
        return text
    mark = _hex(text)[:8]
    plain = _NOT_IN_A_LABEL.sub("_", text).strip("-_.")[: _LABEL_MAX - 1 - len(mark)]
    return f"{plain}-{mark}" if plain else mark


def attempt_of(labels: Mapping[str, str]) -> AttemptKey | None:
    """The attempt of an object with these labels; None: it belongs to no attempt."""
    job_id = labels.get(JOB_ID, "")
    attempt = labels.get(ATTEMPT, "")
    if not job_id or not attempt.isdigit() or labels.get(MANAGED_BY) != OURS:
        return None
    return AttemptKey(job_id, int(attempt))


ROOT = "/client-lib"
"""Folder of a worker's own files in its pod."""
_TAKEN = (
    ROOT,
    "/bin",
    "/dev",
    "/etc",
    "/lib",
    "/lib64",
    "/proc",
    "/run/secrets",
    "/sbin",
    "/sys",
    "/usr",
    "/var/run/secrets",
)
"""Folders that a container needs to start, and the folders where Kubernetes mounts the token of the
pod's service account."""


def is_free(path: str, more: Sequence[str] = ()) -> bool:
    """True if a volume may be mounted at `path`: the container itself needs neither it nor a folder
    below it.

    `more` are further folders that are not free.
    """
    taken = any(is_in(path, each) for each in (*_TAKEN, *more))
    return path.startswith("/") and ".." not in path.split("/") and not taken


def is_in(path: str, folder: str) -> bool:
    """True if `path` is the folder or lies below it."""
    return f"{path}/".startswith(f"{folder}/")
