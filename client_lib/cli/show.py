"""Jobs, events and instance types as text: rows and lines from the server's JSON. Pure; nothing is printed here.

Plain dicts and not JobInfo, so that no pydantic is loaded. A field that an older server doesn't send isn't shown.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

Json = Mapping[str, Any]
Row = tuple[str, ...]

JOB_COLUMNS = ("NAME", "STATE", "AGE", "WORKERS", "INSTANCE", "MESSAGE")


def job_row(job: Json, now: datetime) -> Row:
    spec = job["spec"]
    return (
        job["name"],
        job["state"],
        duration((now - time(job["created_at"])).total_seconds()),
        str(spec.get("n_workers", 1)),
        spec.get("instance_type") or "",
        why(job),
    )


def why(job: Json) -> str:
    """The message, and the reason where it says more than the state."""
    reason, message = job.get("reason", ""), job.get("message", "")
    if reason.upper() in ("", job["state"], "COMPLETED") or reason in message:
        return str(message)
    return f"{reason}: {message}" if message else reason


def job_lines(job: Json, now: datetime) -> list[str]:
    """The lines of `status` for one job, without the report of a failure."""
    facts = [(name, text) for name, text in _facts(job, now) if text]
    width = max(len(name) for name, _ in facts)
    lines = [f"{name:<{width}}  {text}" for name, text in facts]
    lines += [f"{'notice':<{width}}  {notice}" for notice in job.get("notices", [])]
    return [*lines, *_worker_lines(job)]


def _facts(job: Json, now: datetime) -> Iterator[tuple[str, str]]:
    spec = job["spec"]
    yield "name", job["name"]
    yield "state", job["state"]
    yield "why", why(job)
    yield "script", script(spec)
    yield "description", spec.get("job_desc") or ""
    yield "workers", _size(spec)
    yield "code", _code(job.get("code", {}))
    yield "labels", ", ".join(f"{key}={value}" for key, value in spec.get("labels", {}).items())
    yield "created", _when(job.get("created_at"), now)
    yield "started", _when(job.get("started_at"), now)
    yield "finished", _when(job.get("finished_at"), now)
    yield "ran", _ran(job, now)
    yield "attempt", str(job["attempt"]) if job.get("attempt", 1) > 1 else ""


def script(spec: Json) -> str:
    """The command line as a user would type it."""
    flags = [f"--{key}" if value is None else f"--{key}={value}" for key, value in spec.get("flags", {}).items()]
    words = [*spec.get("args", []), *flags]
    return " ".join([spec["script"], *map(shlex.quote, words)])


def _size(spec: Json) -> str:
    text = f"{spec.get('n_workers', 1)} x {spec.get('instance_type') or 'the default instance type'}"
    per_worker = spec.get("processes_per_worker", "default")
    return text if per_worker == "default" else f"{text}, {per_worker} processes each"


def _code(code: Json) -> str:
    if code.get("mode") == "in_place":
        return "in place"
    return f"snapshot of {code.get('root', '?')} ({code.get('files', '?')} files)" if code else ""


def _when(stamp: str | None, now: datetime) -> str:
    if not stamp:
        return ""
    then = time(stamp)
    return f"{then.astimezone():%Y-%m-%d %H:%M:%S}, {duration((now - then).total_seconds())} ago"


def _ran(job: Json, now: datetime) -> str:
    if not job.get("started_at"):
        return ""
    end = time(job["finished_at"]) if job.get("finished_at") else now
    return duration((end - time(job["started_at"])).total_seconds())


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
    stamp = f"{time(event['time']).astimezone():%Y-%m-%d %H:%M:%S}"
    return stamp, str(event["attempt"]), event["state"], event["reason"], event["message"]


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


def time(stamp: str) -> datetime:
    """An aware time of RFC 3339; Python 3.10 doesn't know its Z."""
    found = datetime.fromisoformat(stamp.replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def duration(seconds: float) -> str:
    """`42s`, `17m`, `3h20m`, `5d2h`. A negative duration (a clock was set back) is `0s`."""
    whole = max(0, int(seconds))
    units: Sequence[tuple[str, int]] = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))
    first = next((at for at, (_, size) in enumerate(units) if whole >= size), 3)
    name, size = units[first]
    text = f"{whole // size}{name}"
    if first in (0, 1) and whole % size >= units[first + 1][1]:
        below, below_size = units[first + 1]
        text += f"{whole % size // below_size}{below}"
    return text
