"""Every path, header and content type of `/api/v1`. Standard library only: the fast command-line reads share it."""

from __future__ import annotations

from urllib.parse import quote

API = "/api/v1"
JOBS = f"{API}/jobs"
GROUPS = f"{API}/groups"
CHANGES = f"{API}/changes"
RENDER = f"{API}/render"
INFO = f"{API}/info"
DOCTOR = f"{API}/doctor"
INSTANCE_TYPES = f"{API}/instance-types"
LOGIN_LINKS = f"{API}/login-links"
SNAPSHOTS = f"{API}/snapshots"
HEALTHZ, READYZ, METRICS = "/healthz", "/readyz", "/metrics"
PING = "/ping"
"""`HEALTHZ`, by the name that clients of ML Space ask for."""

IDEMPOTENCY_KEY = "Idempotency-Key"
LOG_FRAMES = "application/vnd.client-lib.log-frames"  # see client_lib.spec.log_stream
NDJSON = "application/x-ndjson"
RESULT = "application/vnd.client-lib.result"  # see client_lib.worker.function_runner

WORKERS = f"{JOBS}/{{name}}/attempts/{{attempt}}/workers/{{worker}}"
"""Endpoints of workers on other machines (pods); `client_lib.worker.pod.server_client` calls them."""
POD_UID, POD_NAME, POD_START, WORKER_PROTOCOL = "X-Pod-Uid", "X-Pod-Name", "X-Pod-Start", "X-Worker-Protocol"


NO_SUCH_PATH = "there is nothing at"
"""Beginning of the message of a server that does not know a path, as older servers do not know newer ones."""


def job(name: str) -> str:
    return f"{JOBS}/{quote(name, safe='')}"


def group(name: str) -> str:
    return f"{GROUPS}/{quote(name, safe='')}"


def group_cancel(name: str) -> str:
    return f"{group(name)}/cancel"


def group_resubmit(name: str) -> str:
    return f"{group(name)}/resubmit"


def job_logs(name: str) -> str:
    return f"{job(name)}/logs"


def job_events(name: str) -> str:
    return f"{job(name)}/events"


def job_manifest(name: str) -> str:
    return f"{job(name)}/manifest"


def job_stacks(name: str) -> str:
    return f"{job(name)}/stacks"


def job_metrics(name: str) -> str:
    return f"{job(name)}/metrics"


def job_provenance(name: str) -> str:
    return f"{job(name)}/provenance"


def job_session(name: str, session: str) -> str:
    return f"{job(name)}/sessions/{session}"


def job_cancel(name: str) -> str:
    return f"{job(name)}/cancel"


def job_result(name: str, rank: int) -> str:
    return f"{job(name)}/results/{rank}"


def job_outputs(name: str) -> str:
    return f"{job(name)}/outputs"


def job_output(name: str, path: str) -> str:
    """`path` is relative, with slashes."""
    return f"{job_outputs(name)}/{quote(path)}"


def job_resubmit_source(name: str) -> str:
    """The whole stored request of a job (secrets left out), from which its owner may submit it again."""
    return f"{job(name)}/request"


def worker(name: str, attempt: int, number: int) -> str:
    """Path of a worker; its operations are `/state`, `/log`, `/report`, `/stacks`, `/snapshot`,
    `/function`, `/results/{rank}` and `/sessions/{mark}`."""
    return f"{job(name)}/attempts/{attempt}/workers/{number}"


def is_of_workers(path: str) -> bool:
    """True for paths of workers, where the token of an attempt is needed instead of a user's."""
    return path.startswith(f"{JOBS}/") and path[len(JOBS) + 1 :].partition("/")[2].startswith("attempts/")


def snapshot(sha256: str) -> str:
    return f"{SNAPSHOTS}/{sha256}"
