"""A job in a notebook: a card, and the text around its lines while it is followed.
Pure; every value is escaped.
"""

import html
import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timezone
from itertools import groupby

from client_lib.reports import table
from client_lib.spec.states import Reason, State
from client_lib.spec.wire import JobInfo
from client_lib.spec.wording import duration

_COLOURS: dict[str, str] = {
    State.PENDING: "#b58900",
    State.RUNNING: "#268bd2",
    State.RESTARTING: "#b58900",
    State.SUCCEEDED: "#2e8b57",
    State.FAILED: "#dc322f",
    State.CANCELLED: "#6c6c6c",
}

_SGR = re.compile("(\x1b\\[[0-9;:?]*[A-Za-z])")
_SGR_STYLES = {"1": "font-weight:bold"} | {
    str(base + code): f"color:{colour}"
    for base in (30, 90)
    for code, colour in enumerate(
        ("#555", "#dc322f", "#2e8b57", "#b58900", "#268bd2", "#a347ba", "#2aa198", "#777")
    )
}

_GOOD = (State.RUNNING, State.SUCCEEDED)
"""States whose colour says that all is well."""
_AMBER = _COLOURS[State.PENDING]
"""The colour of what deserves attention."""
Bundle = dict[str, str]  # MIME type -> what is shown
MAX_BARS = 16
# reasons that say no more than the state
_PLAIN = (Reason.RUNNING, Reason.COMPLETED, Reason.CANCELLED)
_FONT = "font:13px/1.45 system-ui,sans-serif"
_PRE = (
    "<pre style='margin:0;padding:6px "
    "8px;max-height:16em;overflow:auto;background:#8881;font-size:12px'>{}</pre>"
)
_CARD = (
    "<div style='border:1px solid #8884;border-left:4px solid "
    f"{{colour}};border-radius:4px;padding:6px 12px;max-width:60em;{_FONT}'>{{inner}}</div>"
)
_NEXT = "<span style='opacity:.7'>next: {}</span>"
# other parts of a report are bold
_PARTS = {"log": _PRE, "line": "{}", "hint": "<b>hint:</b> {}", "next": _NEXT}
_PILL = "color:#fff;padding:1px 8px;border-radius:9px;font-size:11px"
_BAR = (
    "display:inline-block;vertical-align:middle;width:12em;height:6px;margin-right:8px;"
    "background:#8884"
)
_FILLED = f"height:6px;background:{_COLOURS[State.RUNNING]}"
_CUT = "max-width:36em;overflow:hidden;text-overflow:ellipsis"
_CELL = "text-align:left;padding:3px 14px 3px 0;white-space:nowrap"


def as_html(
    info: JobInfo, now: datetime | None = None, note: str = "", lines: Sequence[str] = ()
) -> str:
    """A card of what a user asks first. `note`: why this may be out of date.
    `lines`: the last of its log.
    """
    job = info.model_dump(mode="json")
    at = now or datetime.now(timezone.utc)
    span = ran_for(info, at) + (f", attempt {info.attempt}" if info.attempt > 1 else "")
    colour = _colour(info.state, deserves_attention=bool(info.attention))
    name = f"<b>{html.escape(info.name)}</b>"
    head = f"{_pill(info.state, colour)} {name} {_faint(f'{span} {note}'.strip())}"
    states = Counter(worker.state for worker in info.workers)
    workers = f"{info.spec.n_workers} of {info.spec.instance_type or 'this machine'}"
    workers += (": " if states else "") + ", ".join(
        f"{count} {state}" for state, count in states.items()
    )
    what = f"<code>{html.escape(table.script(job['spec']))}</code> {_faint(f'on {workers}')}"
    done = (job.get("progress") or {}).get("done")
    bar = (
        ""
        if done is None
        else f"<div style='{_BAR}'><div style='width:{100 * done:.0f}%;{_FILLED}'></div></div>"
    )
    bar += html.escape(table.progress(job))
    hint = info.failure.hint if info.failure else None
    below = [bar, html.escape(table.why(job)), f"<b>hint:</b> {html.escape(hint)}" if hint else ""]
    below += [_faint(notice) for notice in info.notices]
    below += [_PRE.format(coloured("\n".join(lines)))] if lines else []
    return _card(colour, head, what, *below)


def report_as_html(parts: Sequence[tuple[str, str]], state: str) -> str:
    """The report of a job that ended in this state, as pairs of a kind and a text
    (`explanation.Part`), as a card.
    """
    shown: list[str] = []
    for kind, same in groupby(parts, key=lambda part: part[0]):
        text = coloured("\n".join(text for _, text in same))
        shown.append(_PARTS.get(kind, "<b>{}</b>").format(text))
    return _card(_colour(state), *shown)


def _colour(state: str, *, deserves_attention: bool = False) -> str:
    return _AMBER if deserves_attention and state in _GOOD else _COLOURS.get(state, "#888")


def _card(colour: str, *parts: str) -> str:
    """A frame with a coloured edge; the notebook's theme, light or dark, gives the other
    colours.
    """
    inner = "".join(f"<div style='margin:3px 0'>{part}</div>" for part in parts if part)
    return _CARD.format(colour=colour, inner=inner)


def _pill(state: str, colour: str) -> str:
    return f"<b style='background:{colour};{_PILL}'>{html.escape(state)}</b>"


def _faint(text: str) -> str:
    return f"<span style='opacity:.7'>{html.escape(text)}</span>" if text else ""


def coloured(text: str) -> str:
    """Escaped HTML of a terminal's text: of its escape sequences the 16
    colours and bold are kept.
    """
    shown = ""
    spans = 0
    for place, part in enumerate(_SGR.split(text)):
        if place % 2 == 0:  # even parts are text, odd parts are escape sequences
            shown += html.escape(part)
            continue
        styles = [_SGR_STYLES[code] for code in part[2:-1].split(";") if code in _SGR_STYLES]
        if styles:
            shown = f"{shown}<span style='{';'.join(styles)}'>"
            spans = spans + 1
        elif part[-1] == "m":  # the end of a colour, or one that is not known
            shown = shown + "</span>" * spans
            spans = 0
    return shown + "</span>" * spans


def jobs_as_text(infos: Sequence[JobInfo], limit: int, now: datetime) -> str:
    """The table of `client-lib list`; the rest after `limit` jobs is only mentioned."""
    cells = [[table.one_line(cell) for cell in row] for row in _rows(infos, limit, now)]
    return (
        table.aligned([table.USUAL, *cells]) + ("\n…" if len(infos) > limit else "")
        if infos
        else "no jobs"
    )


def jobs_as_html(infos: Sequence[JobInfo], limit: int, now: datetime) -> str:
    """The same as a table whose states have their colours."""
    if not infos:
        return "no jobs"
    head = "".join(
        f"<th style='{_CELL};opacity:.7;font-weight:normal'>{name}</th>" for name in table.USUAL
    )
    body = ""
    for info, row in zip(infos, _rows(infos, limit, now), strict=False):
        colour = _colour(info.state, deserves_attention=bool(info.attention))
        cells = ""
        for text in map(html.escape, row):
            inner = f"<b style='color:{colour}'>{text}</b>" if text == info.state else text
            cells += f"<td style='{_CELL};{_CUT}' title='{text}'>{inner}</td>"
        body += f"<tr>{cells}</tr>"
    return f"<table style='{_FONT};color:inherit'><tr>{head}</tr>{body}</table>" + (
        "…" if len(infos) > limit else ""
    )


def _rows(infos: Sequence[JobInfo], limit: int, now: datetime) -> list[table.Row]:
    return table.rows([info.model_dump(mode="json") for info in infos[:limit]], now)


# --- a cell that follows a job


def live_bundle(
    name: str,
    state: str,
    reason: str,
    message: str = "",
    *,
    attempt: int = 1,
    took: str = "",
    bars: Sequence[str] = (),
    said: Sequence[str] = (),
    attention: Sequence[str] = (),
) -> Bundle:
    """The text above the lines. `took`: the running time, if it is over. `said`:
    sentences that aren't the job's. `attention`: sentences about what deserves attention.
    """
    message = "; ".join([*([message] if message else []), *attention])
    more = f", attempt {attempt}" if attempt > 1 else ""
    more += f" ({reason})" if reason and reason not in _PLAIN else ""
    more += (f" in {took}" if took else "") + (f": {message}" if message else "")
    left_out = [f"and {len(bars) - MAX_BARS} more"] if len(bars) > MAX_BARS else []
    below = "\n".join([*bars[:MAX_BARS], *left_out, *said])
    colour = _colour(state, deserves_attention=bool(attention) or reason == Reason.HUNG)
    shown = f"<div style='{_FONT}'>{_pill(state, colour)} {html.escape(name + more)}</div>"
    return {
        "text/plain": "\n".join(filter(None, [f"{state} {name}{more}", below])),
        "text/html": shown + (_PRE.format(coloured(below)) if below else ""),
    }


def tail_bundle(name: str, hidden: int, lines: Sequence[str]) -> Bundle:
    """The last lines of a log that is too long for a cell."""
    above = (
        [f"… {hidden:,} lines are not shown here; `client-lib logs {name}` shows all of them"]
        if hidden
        else []
    )
    return {"text/plain": "\n".join([*above, *lines])}


def ran_for(info: JobInfo, now: datetime) -> str:
    """Running time, or time of waiting."""
    begin = info.started_at or info.created_at
    end = info.finished_at or now
    span = duration((end - begin).total_seconds())
    return span if info.started_at else f"waiting for {span}"
