"""Views of jobs: models of the API in, HTML out. Pure.

`client-lib explain` and `client-lib list` have the same sentences; the next steps name what the
page has.
"""

import html
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import jinja2
from jinja2.filters import do_mark_safe

from client_lib import visible_text
from client_lib.errors import InvalidRequest
from client_lib.reports import checkpoints as checkpoint_table, explanation, table
from client_lib.spec.checkpoints import JobCheckpoint
from client_lib.spec.job import LABELS_MAX
from client_lib.spec.secrets import MASK
from client_lib.spec.states import State
from client_lib.spec.wire import Event, JobInfo
from client_lib.version import described
from server_stub.service import JobFilters

FOLDER = Path(__file__).parent
SPELLING = explanation.Spelling(
    logs="the log below{rank}",
    follow="the log below",
    resubmit="the button Resubmit",
    resubmit_after=explanation.SHELL.resubmit_after,  # the form of the button has no such field
    resubmit_alone=explanation.SHELL.resubmit_alone,
    delete="the button Delete of a job",
    stacks="the section Stacks",
    cancel="the button Cancel",
    instances="`client-lib instances`",
    doctor="`client-lib doctor`",
    events="the table below",
    rank=" (rank {rank})",
)
"""Next steps as a page offers them."""


def _with_code(text: str) -> str:
    """A sentence as HTML, in which what stands between backticks is code."""
    return do_mark_safe(
        re.sub("`([^`]+)`", r"<code>\1</code>", html.escape(visible_text.plain(text)))
    )


_ENVIRONMENT = jinja2.Environment(
    loader=jinja2.FileSystemLoader(FOLDER / "templates"),
    autoescape=True,
    trim_blocks=True,
    lstrip_blocks=True,
    # no Markup
    finalize=lambda value: visible_text.plain(value) if type(value) is str else value,
)
_ENVIRONMENT.filters["with_code"] = _with_code
_ENVIRONMENT.globals.update(described=described, table=table, words=shlex.join, states=list(State))


def render(template: str, **view: object) -> str:
    """The HTML of a page; every text in `view` is shown as it is."""
    return _ENVIRONMENT.get_template(template).render(view)


def filters(query: Mapping[str, str]) -> JobFilters:
    """The jobs that the form of the table asks for. Raises InvalidRequest: an unknown
    state, or too many labels.
    """
    state = query.get("state")
    words = query.get("q", "").split()
    if state not in (None, *State):
        raise InvalidRequest(f"state={state!r} is not known", hint=f"there are: {', '.join(State)}")
    labels = [word for word in words if "=" in word]
    if len(labels) > LABELS_MAX:
        raise InvalidRequest(f"{len(labels)} labels are searched for; at most {LABELS_MAX} are")
    return JobFilters(
        group=query.get("group")
        or (None if query.keys() & {"q", "state"} else ""),  # a search finds members too
        owners=(query["owner"],) if "owner" in query else None,
        states=(State(state),) if state else None,
        labels=dict(word.split("=", 1) for word in labels),
        name_prefix=next((word for word in words if "=" not in word), None),
    )


def rows(
    page: Mapping[str, Any], opened: str, members: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """The jobs and groups of a JobPage, newest first; below the group `opened`
    (OWNER/NAME) stand its members.
    """
    both = [*page["jobs"], *map(table.group_as_job, page.get("groups", []))]
    found: list[Mapping[str, Any]] = []
    for each in sorted(both, key=lambda each: each["created_at"], reverse=True):
        found.append(each)
        if "told" in each and f"{each['owner']}/{each['name']}" == opened:
            found += sorted(members, key=lambda member: member["group"]["index"])
    return found


def job(info: JobInfo, events: Sequence[Event], now: datetime) -> dict[str, Any]:
    """The page of one job."""
    return {
        "job": info.model_dump(mode="json"),
        "spec": info.spec.model_dump(
            mode="json", exclude_defaults=True, exclude={"name", "env_variables"}
        ),
        "summary": explanation.explain(info, events, now, SPELLING)[0].text,
        "advice": explanation.advice(info, SPELLING),
        "failure": explanation.failure_report(info)[1:] if info.state is State.FAILED else [],
        "variables": variables(info.spec.env_variables),
        "events": events,
        "bars": bars(events, info.finished_at or now),
    }


def checkpoints(found: Sequence[JobCheckpoint], now: datetime) -> dict[str, Any]:
    """The table of a job's checkpoints, and a sentence for each that is not complete."""
    return {
        "checkpoints": checkpoint_table.rows(found, now),
        "checkpoint_columns": checkpoint_table.COLUMNS,
        "checkpoint_problems": checkpoint_table.problems(found),
    }


def variables(values: Mapping[str, object]) -> str:
    """Variables as a form has them, NAME=value in each line; `***` stands for what can't be shown
    as it is, or in one line.
    """
    shown = {
        name: MASK if value is None or visible_text.one_line(str(value)) != str(value) else value
        for name, value in values.items()
    }
    return "".join(f"{name}={value}\n" for name, value in sorted(shown.items()))


def bars(events: Sequence[Event], end: datetime) -> list[dict[str, Any]]:
    """The timeline: a bar for each stretch of one state in one attempt, in
    thousandths of the whole time.
    """
    starts = [
        next(same) for _, same in groupby(events, key=lambda event: (event.attempt, event.state))
    ]
    ends = [*(event.time for event in starts[1:]), end]
    whole = max((end - starts[0].time).total_seconds(), 0.001) if starts else 1.0
    found = []
    for event, until in zip(starts, ends, strict=False):
        seconds = max((until - event.time).total_seconds(), 0.0)
        # clocks may be set
        x = min(max(1000 * (event.time - starts[0].time).total_seconds() / whole, 0), 997)
        width = min(max(1000 * seconds / whole, 3), 1000 - x)
        found.append({"event": event, "seconds": seconds, "x": x, "width": width})
    return found
