"""Jobs as a table, and what all texts about a job share: its command line, sizes, durations and
times. Pure.

Plain dicts of the server's JSON and not JobInfo, so that `client-lib list` loads no pydantic. A
field that an older server does not send is not shown.
"""

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, NamedTuple, TypeVar

from client_lib import visible_text
from client_lib.spec.wording import about, duration

Json = Mapping[str, Any]
Row = Sequence[str]
J = TypeVar("J", bound=Json)

CUT = ("SCRIPT", "WHY")
"""Columns that are cut where the terminal ends; no other column is as long."""
_FOLDER = re.compile(r"^/[^\s()]*/")
"""The folder of a script."""
_GPUS = re.compile(r"(?:^|\.)(\d+)gpu")
"""The number of GPUs in the name of an instance type."""
_WHOLE_MAX = 1e15
"""Whole numbers from here on are shown with four digits."""
_RAISED = re.compile(r"[^\s:]+(?::|$)", re.MULTILINE)
"""The class of an exception, at the begin of its text."""
_ON_CPU = "the job runs on the CPU"
"""Words in a notice of the server."""


class Column(NamedTuple):
    """A column of the table of jobs, for `client-lib list`, notebooks and the server's page."""

    text: Callable[[Json, datetime], str]
    key: Callable[[Json, datetime], Any] | None = None
    """Value by which jobs are sorted; None: the text."""
    heading: str = ""
    """Heading on the page; "": the name of the column in small letters."""


COLUMNS: dict[str, Column] = {
    "NAME": Column(lambda job, _: job["name"], heading="Job"),
    "STATE": Column(lambda job, _: job["state"]),
    "TOOK": Column(lambda job, now: took(job, now), lambda job, now: _seconds(job, now) or 0.0),
    "AGE": Column(lambda job, now: duration(_age(job, now)), lambda job, now: _age(job, now)),
    "SIZE": Column(
        lambda job, _: size(job), lambda job, _: workers_and_processes(job), heading="Workers"
    ),
    "SCRIPT": Column(lambda job, _: _short_script(job["spec"])),
    "WHY": Column(lambda job, _: why_and_progress(job), heading="Progress and reason"),
    "METRIC": Column(lambda job, _: first_metric(job), heading="Loss"),
    "INSTANCE": Column(lambda job, _: str(job["spec"].get("instance_type") or "")),
    "LABELS": Column(lambda job, _: labels(job["spec"])),
    "ATTEMPT": Column(
        lambda job, _: str(job.get("attempt", 1)), lambda job, _: job.get("attempt", 1)
    ),
    "REASON": Column(lambda job, _: job.get("reason", "")),
    "DESCRIPTION": Column(lambda job, _: str(job["spec"].get("job_desc") or "")),
    "OWNER": Column(lambda job, _: job.get("owner", "")),
    "CREATED": Column(lambda job, _: stamp(job.get("created_at"))),
    "STARTED": Column(lambda job, _: stamp(job.get("started_at"))),
    "FINISHED": Column(lambda job, _: stamp(job.get("finished_at"))),
}
USUAL = ("NAME", "STATE", "TOOK", "AGE", "SIZE", "SCRIPT", "WHY")
"""Columns of `client-lib list` and of a notebook."""
WIDE = ("NAME", "STATE", "TOOK", "AGE", "SIZE", "INSTANCE", "CREATED", "LABELS", "SCRIPT", "WHY")
"""Columns of `client-lib list -o wide`."""
PAGE = ("NAME", "STATE", "WHY", "METRIC", "TOOK", "SIZE", "SCRIPT", "LABELS", "AGE")
"""Columns of the server's page; `cells.html` there has the look of those that are more than
text."""


def heading(name: str) -> str:
    """The heading of a column on the page."""
    return COLUMNS[name].heading or name.capitalize()


def rows(jobs: Sequence[Json], now: datetime, columns: Sequence[str] = USUAL) -> list[Row]:
    """A row per job, its cells in the order of `columns`."""
    return [[COLUMNS[name].text(job, now) for name in columns] for job in jobs]


def group_as_job(group: Json) -> dict[str, Any]:
    """The row of a group: its state, and how many of its members have succeeded."""
    counts = group["counts"]
    others = [f"{number} {state}" for state, number in counts.items() if state != "SUCCEEDED"]
    told = ", ".join([f"{counts.get('SUCCEEDED', 0)}/{group['size']} SUCCEEDED", *others])
    return {**group, "group": group, "told": told, "spec": {"script": group["script"]}}


def sorted_by(
    jobs: Sequence[J], column: str, now: datetime, *, descending: bool = False
) -> list[J]:
    """The jobs by the value in a column: numbers and durations by their size, all else as text."""
    found = COLUMNS[column]
    return sorted(jobs, key=lambda job: (found.key or found.text)(job, now), reverse=descending)


def aligned(cells: Sequence[Row]) -> str:
    """Columns two spaces apart, nothing cut off, no tab, no space at a line's end."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    )


def one_line(text: str) -> str:
    """`text` with its white space folded, as `visible_text` shows it; `-` if nothing is left."""
    return visible_text.one_line(" ".join(text.split())) or "-"


# --- facts of a job


def why(job: Json) -> str:
    """The reason why the job waits or did not succeed, with the failing rank and its
    exception, or what of it deserves attention; "": all is well.
    """
    if "told" in job:  # a group
        return "; ".join([job["told"], *attention(job)])
    reason = job.get("reason", "")
    message = str(job.get("message", ""))
    failure = job.get("failure") or {}
    if job["state"] == "SUCCEEDED" or (job["state"], reason) == ("RUNNING", "Running"):
        return "; ".join(attention(job))
    if failure.get("exception"):
        exception = str(failure["exception"])
        if not _RAISED.match(exception):  # a sentence about the cause stands before
            exception = exception.splitlines()[0]
        rank = failure.get("rank")
        names_ranks = rank is None or exception.startswith(("rank ", "ranks "))
        return exception if names_ranks else f"rank {rank}: {exception}"
    if reason.upper() in ("", job["state"]) or reason in message:
        return message
    return f"{reason}: {message}" if message else reason


def why_and_progress(job: Json) -> str:
    """The reason, else the progress; of a running job that does not hang both."""
    reason = why(job)
    if job.get("reason") == "Running":
        return " · ".join(filter(None, (reason, progress(job))))
    return reason or progress(job)


def attention(job: Json) -> list[str]:
    """The sentences about what deserves attention in a job or group; an older server sends none."""
    return [str(each["sentence"]) for each in job.get("attention") or ()]


def hints(job: Json) -> list[str]:
    """The sentences of `attention`, and the slow rank of a job that has ended. An older server
    sends both as parts of the progress.
    """
    found = job.get("progress") or {}
    slow = found.get("slow") if job["state"] != "RUNNING" or not attention(job) else None
    return list(dict.fromkeys(filter(None, (*attention(job), found.get("nan"), slow))))


def progress(job: Json) -> str:
    """`45% · 12 min left · loss 0.231` of a running job; "": not known."""
    parts = _done(job.get("progress") or {})
    metric = first_metric(job)
    if metric:
        parts.append(metric)
    return " · ".join(parts)


def first_metric(job: Json) -> str:
    """`loss 0.231`: the newest value of the first metric of a running job; "": none is known."""
    metrics = (job.get("progress") or {}).get("metrics") or {}
    return next((f"{name} {number(value)}" for name, value in metrics.items()), "")


def progress_facts(job: Json) -> tuple[str, str]:
    """Progress with its speed and the range of the time left, and the
    newest values of all metrics.
    """
    found = job.get("progress") or {}
    parts = _done(found)
    if found.get("left_s") is not None:
        parts[-1] += f" ({about(found['left_from_s'])} to {about(found['left_to_s'])})"
        if found.get("rate") is not None:
            parts.append(f"{number(found['rate'])} steps/s")
    values = found.get("metrics") or {}
    metrics = [f"{name} {number(value)}" for name, value in values.items()]
    return " · ".join(parts), ", ".join(metrics)


def _done(found: Json) -> list[str]:
    """The part that is done and the time that is left, as far as they are known."""
    parts = []
    if found.get("done") is not None:
        parts.append(f"{int(100 * found['done'])}%")
    if found.get("left_s") is not None:
        parts.append(f"{about(found['left_s'])} left")
    return parts


def number(value: float | str) -> str:
    """Four digits, or all of a whole number; NaN comes as text."""
    exact = float(value)
    is_whole = abs(exact) < _WHOLE_MAX and exact.is_integer()
    return str(int(exact)) if is_whole else f"{exact:.4g}"


def end(job: Json, state: str) -> str:
    """The last line about a job that was followed: its name and state, and what deserves
    attention.
    """
    return f"{job['name']} {'; '.join([state, *attention(job)])}"


def state(job: Json, now: datetime) -> str:
    """`SUCCEEDED in 1m05s`, `FAILED after 5s`, `RUNNING for 2m03s`; a state
    without a duration alone.
    """
    word = {"SUCCEEDED": "in", "RUNNING": "for"}.get(job["state"], "after")
    span = took(job, now) if job.get("finished_at") or job["state"] == "RUNNING" else ""
    return f"{job['state']} {word} {span}" if span else str(job["state"])


def took(job: Json, now: datetime) -> str:
    """Running time of the newest attempt; "": it did not start."""
    seconds = _seconds(job, now)
    return "" if seconds is None else duration(seconds)


def _seconds(job: Json, now: datetime) -> float | None:
    if not job.get("started_at"):
        return None
    end = time(job["finished_at"]) if job.get("finished_at") else now
    return (end - time(job["started_at"])).total_seconds()


def _age(job: Json, now: datetime) -> float:
    return (now - time(job["created_at"])).total_seconds()


def size(job: Json) -> str:
    """`2x8`: workers and processes of each; `2`: one each, or as many as only the server
    knows; a group's `10 jobs`.
    """
    if "told" in job:
        return f"{job['size']} jobs"
    workers, processes = workers_and_processes(job)
    return f"{workers}x{processes}" if processes > 1 else str(workers)


def workers_and_processes(job: Json) -> tuple[int, int]:
    """The number of workers, and of processes of each: 1 where only the server knows it."""
    spec = job["spec"]
    workers = spec.get("n_workers", 1)
    processes = spec.get("processes_per_worker", "default")
    if processes != "default":
        return workers, processes
    moved_to_cpu = any(_ON_CPU in notice for notice in job.get("notices", []))
    gpus = _GPUS.search(spec.get("instance_type") or "")
    if gpus is None or moved_to_cpu or spec.get("type") == "nogpu":
        return workers, 1
    return workers, max(1, int(gpus[1]))


def script(spec: Json) -> str:
    """The command line as a user would type it; of a function its call."""
    if spec["script"].endswith("()"):
        return f"{spec['script'][:-1]}{', '.join(spec.get('args', []))})"
    flags = [
        f"--{key}" if value is None else f"--{key}={value}"
        for key, value in spec.get("flags", {}).items()
    ]
    words = [*spec.get("args", []), *flags]
    return " ".join([spec["script"], *map(shlex.quote, words)])


def _short_script(spec: Json) -> str:
    """The command line without the folder of the script."""
    return script({**spec, "script": _FOLDER.sub("", spec["script"])})


def labels(spec: Json) -> str:
    return ", ".join(f"{key}={value}" for key, value in spec.get("labels", {}).items())


# --- times


def time(text: str) -> datetime:
    """An aware time of RFC 3339; Python 3.10 doesn't know its Z."""
    found = datetime.fromisoformat(text.replace("Z", "+00:00"))
    return found if found.tzinfo else found.replace(tzinfo=timezone.utc)


def stamp(at: str | datetime | None) -> str:
    """`2026-01-02T03:04:05Z`: every time that people read is UTC, says so, and
    can be given to `--since`.
    """
    if not at:
        return ""
    then = time(at) if isinstance(at, str) else at
    return f"{then.astimezone(timezone.utc):%Y-%m-%dT%H:%M:%SZ}"
