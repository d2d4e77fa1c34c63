"""Every path, header and content type of `/api/v1`. Standard library only: the fast command-line reads share it."""

from __future__ import annotations

from urllib.parse import quote

API = "/api/v1"
JOBS = f"{API}/jobs"
RENDER = f"{API}/render"
INFO = f"{API}/info"
DOCTOR = f"{API}/doctor"
INSTANCE_TYPES = f"{API}/instance-types"
SNAPSHOTS = f"{API}/snapshots"
HEALTHZ, READYZ, METRICS = "/healthz", "/readyz", "/metrics"

IDEMPOTENCY_KEY = "Idempotency-Key"
LOG_FRAMES = "application/vnd.client-lib.log-frames"  # see client_lib.spec.log_stream
NDJSON = "application/x-ndjson"
RESULT = "application/vnd.client-lib.result"  # see client_lib.worker.function_runner

WORKERS = f"{JOBS}/{{name}}/attempts/{{attempt}}/workers/{{worker}}"
"""What workers elsewhere (pods) say, by a token of their attempt; client_lib.worker.pod.server is who says it."""
POD_UID, POD_NAME, POD_START, WORKER_PROTOCOL = "X-Pod-Uid", "X-Pod-Name", "X-Pod-Start", "X-Worker-Protocol"


def job(name: str) -> str:
    return f"{JOBS}/{quote(name, safe='')}"


def job_logs(name: str) -> str:
    return f"{job(name)}/logs"


def job_events(name: str) -> str:
    return f"{job(name)}/events"


def job_manifest(name: str) -> str:
    return f"{job(name)}/manifest"


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
    """Below it `/state`, `/log`, `/report`, `/snapshot`, `/function` and `/results/{rank}`."""
    return f"{job(name)}/attempts/{attempt}/workers/{number}"


def is_of_workers(path: str) -> bool:
    """Below it the token of an attempt counts, and no user's."""
    return path.startswith(f"{JOBS}/") and path[len(JOBS) + 1 :].partition("/")[2].startswith("attempts/")


def split_worker(path: str) -> tuple[str, dict[str, str]] | None:
    """An operation of a worker, `WORKERS/state` for example, and whose it is; None: it is another path, or one below an
    operation."""
    if not is_of_workers(path):
        return None
    name, _, attempt, workers, worker, *what = [*path[len(JOBS) + 1 :].split("/"), "", "", ""]
    if workers != "workers" or not (name and attempt and worker and what[0]) or what[1:] != ["", "", ""]:
        return None
    return f"{WORKERS}/{what[0]}", {"name": name, "attempt": attempt, "worker": worker}


def snapshot(sha256: str) -> str:
    return f"{SNAPSHOTS}/{sha256}"
