"""How a job shows itself: one line for a terminal, a small table for a notebook. Pure; only `job` uses it."""

from __future__ import annotations

import html
from datetime import datetime, timedelta, timezone

from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo

_COLOURS = {
    State.PENDING: "#b58900",
    State.RUNNING: "#268bd2",
    State.RESTARTING: "#b58900",
    State.SUCCEEDED: "#2e8b57",
    State.FAILED: "#dc322f",
    State.CANCELLED: "#6c6c6c",
}


def as_html(info: JobInfo, now: datetime | None = None, note: str = "") -> str:
    """A table of what a user asks first. Every value is escaped. `note`: why this may be out of date."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{html.escape(key)}</th><td style='text-align:left'>{value}</td></tr>"
        for key, value in _rows(info, now or datetime.now(timezone.utc))
    )
    caption = f"<b>Job {html.escape(info.name)}</b> {html.escape(note)}"
    return f"<table><caption style='text-align:left'>{caption}</caption>{cells}</table>"


def _rows(info: JobInfo, now: datetime) -> list[tuple[str, str]]:
    spec = info.spec
    state = f"<b style='color:{_COLOURS[info.state]}'>{info.state}</b> {html.escape(info.reason)}"
    rows = [("state", state), ("message", html.escape(info.message)), ("script", html.escape(spec.script))]
    size = f"{spec.n_workers} of {spec.instance_type or 'this machine'}"
    rows += [("workers", html.escape(size)), ("type", html.escape(spec.type)), ("time", ran_for(info, now))]
    if info.attempt > 1:
        rows.append(("attempt", str(info.attempt)))
    rows += [("notice", html.escape(notice)) for notice in info.notices]
    return [(key, value) for key, value in rows if value]


def ran_for(info: JobInfo, now: datetime) -> str:
    """How long it ran, or has been waiting; whole seconds."""
    begin, end = info.started_at or info.created_at, info.finished_at or now
    span = timedelta(seconds=max(0, round((end - begin).total_seconds())))
    return f"{span}" if info.started_at else f"waiting for {span}"


def may_have_several_ranks(spec: JobSpec) -> bool:
    """Whether lines need their rank in front: only what certainly is one process goes without."""
    if spec.n_workers > 1:
        return True
    if spec.processes_per_worker != "default":
        return spec.processes_per_worker > 1
    return not (spec.type is JobType.NOGPU or (spec.instance_type or "").startswith("cpu"))
