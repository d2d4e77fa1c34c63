"""Joins answers from the JSON of jobs as it is kept: a page of the list, and a job with its
progress. Pure.

Nothing is parsed, because `list` and the pages ask often: 100 jobs are joined in 0.1 ms; models of
them are read and written in 11 ms, in which the server's one thread answers nobody else.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from pydantic import TypeAdapter

from client_lib.spec.wire import Attention, GroupInfo, JobProgress

_NO_PROGRESS = b'"progress":null}'
"""The end of a JobInfo in JSON: `progress` is its last field, and is never stored."""
_attention = TypeAdapter(list[Attention])


class Live(NamedTuple):
    """The part of an answer that is not stored with the job."""

    progress: JobProgress | None
    attention: list[Attention]


def with_live(job: bytes, stored: list[Attention], live: Live) -> bytes:
    """A JobInfo with its progress and attention. `stored`: the attention that `job` has."""
    if not job.endswith(_NO_PROGRESS):
        return job
    # a job that was stored by an older version has no such field
    fields_before = job.removesuffix(_NO_PROGRESS).removesuffix(_field(stored))
    progress = b"null" if live.progress is None else _json(live.progress)
    return fields_before + _field(live.attention) + b'"progress":' + progress + b"}"


def _field(attention: list[Attention]) -> bytes:
    return b'"attention":' + _attention.dump_json(attention) + b","


def page(jobs: Iterable[bytes], groups: Sequence[GroupInfo], next_cursor: int | None) -> bytes:
    """A JobPage of these JobInfos."""
    fields = {
        "jobs": _list(jobs),
        "groups": _list(map(_json, groups)),
        "next_cursor": b"null" if next_cursor is None else b'"%d"' % next_cursor,
    }
    members = (b'"%b":%b' % (name.encode(), value) for name, value in fields.items())
    return b"{" + b",".join(members) + b"}"


def _json(model: GroupInfo | JobProgress) -> bytes:
    return model.model_dump_json().encode()


def _list(items: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(items) + b"]"
