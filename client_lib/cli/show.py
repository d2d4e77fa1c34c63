"""Jobs, events and instance types as text: rows and lines from the server's JSON. Pure; nothing is printed here.

`client_lib.reports.table` has the rows of jobs. Plain dicts and not JobInfo, so that no pydantic is loaded.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from client_lib.reports import table
from client_lib.reports.table import Json
from client_lib.spec.summary import duration, in_brackets

Row = tuple[str, ...]


def job_lines(job: Json, now: datetime, used: str = "") -> list[str]:
    """The lines of `status` for one job, without the report of a failure. `used`: what its time was used for."""
    facts = [(name, text) for name, text in (*_facts(job, now), ("time", used)) if text]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {text}" for name, text in facts]
    lines += [f"{'notice':<{width}}  {notice}" for notice in job.get("notices", [])]
    return [*lines, *_worker_lines(job)]


def _facts(job: Json, now: datetime) -> Iterator[tuple[str, str]]:
    spec = job["spec"]
    yield "name", job["name"]
    yield "state", table.state(job, now)
    yield "why", table.why(job)
    yield from zip(("progress", "metrics"), table.progress_facts(job), strict=True)
    for hint in ("nan", "slow"):
        yield "hint", (job.get("progress") or {}).get(hint) or ""
    yield "script", table.script(spec)
    yield "description", spec.get("job_desc") or ""
    yield "workers", _size(spec)
    yield "threads", _threads(job)
    yield "code", _code(job.get("code", {}))
    yield "labels", table.labels(spec)
    yield "created", _when(job.get("created_at"), now)
    yield "started", _when(job.get("started_at"), now)
    yield "finished", _when(job.get("finished_at"), now)
    yield "attempt", f"{job['attempt']}{in_brackets(job.get('retry'))}" if job.get("attempt", 1) > 1 else ""


def _size(spec: Json) -> str:
    text = f"{spec.get('n_workers', 1)} x {spec.get('instance_type') or 'the default instance type'}"
    per_worker = spec.get("processes_per_worker", "default")
    return text if per_worker == "default" else f"{text}, {per_worker} processes each"


def _threads(job: Json) -> str:
    known = [worker["threads"] for worker in job.get("workers", []) if worker.get("threads")]
    return f"{known[0]} in every process (OMP_NUM_THREADS; --env sets another)" if known else ""


def _code(code: Json) -> str:
    if code.get("mode") == "in_place":
        return "in place"
    if not code:
        return ""
    number = code.get("files", "?")
    return f"snapshot of {code.get('root', '?')} ({'1 file' if number == 1 else f'{number} files'})"


def _when(at: str | None, now: datetime) -> str:
    return f"{table.stamp(at)}, {duration((now - table.time(at)).total_seconds())} ago" if at else ""


def _worker_lines(job: Json) -> list[str]:
    workers = job.get("workers", [])
    if len(workers) < 2 and not any(worker.get("message") for worker in workers):
        return []
    return ["", "workers:", *(f"  {_worker(worker)}" for worker in workers)]


def _worker(worker: Json) -> str:
    exit_code = worker.get("exit_code")
    parts = [
        f"{worker['worker']}  {worker['state']}",
        "" if exit_code is None else f"exit code {exit_code}",
        worker.get("host") or "",
        worker.get("message") or "",
    ]
    return "  ".join(filter(None, parts))


def event_row(event: Json) -> Row:
    return table.stamp(event["time"]), str(event["attempt"]), event["state"], event["reason"], event["message"]


EVENT_COLUMNS = ("TIME", "ATTEMPT", "STATE", "REASON", "MESSAGE")
INSTANCE_COLUMNS = ("NAME", "GPUS", "CORES", "MEMORY", "FREE", "DESCRIPTION")
CHECK_COLUMNS = ("CHECK", "OK", "MESSAGE", "FIX")


def instance_row(kind: Json) -> Row:
    available = kind.get("available")
    return (
        kind["name"],
        str(kind["gpus"]),
        f"{kind['cpu']:g}",
        f"{kind['memory_gib']:g} GiB",
        "?" if available is None else str(available),
        kind.get("description", ""),
    )


def check_row(check: Json) -> Row:
    return check["name"], "yes" if check["ok"] else "NO", check["message"], check.get("fix") or ""
