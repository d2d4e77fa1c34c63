"""Every statement on groups, as functions of a connection, as in `rows`."""

import json
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import count
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, or_, select, update

from client_lib.spec.replace import replaced
from client_lib.spec.request import GROUP_NAME_MAX
from client_lib.spec.states import FINAL, State, as_sent, state_of_group
from client_lib.spec.wire import Attention, GroupInfo
from server_stub.store.rows import (
    Added,
    JobFilters,
    JobRow,
    NewJob,
    add_jobs,
    all_of,
    kept_attention,
    key_used,
    names_taken,
)
from server_stub.store.tables import events, groups, idempotency_keys, jobs

_EARLIER = "-earlier-"
_AT_ONCE = 1000  # jobs: a statement has a limited number of parameters
_unfinished = select(jobs.c.group_id).where(
    jobs.c.group_id.is_not(None), jobs.c.state.not_in([str(state) for state in FINAL])
)


@dataclass
class NewGroup:
    """Everything that is stored of a group when it is accepted. The first member has its key."""

    info: GroupInfo
    members: Sequence[NewJob]
    replaces: Sequence[JobRow] = ()
    """Members of the stored group that have ended and whose places the new ones take."""


def refusal(connection: Connection, new: NewGroup) -> Added | None:
    """The reason why the group can't be stored: its key or one of its names is
    used; None: there is none.
    """
    key = new.members[0].key
    if key and (used := key_used(connection, key)):
        return Added(None, same_key=used)
    names = [member.row.name for member in new.members] + ([] if new.replaces else [new.info.name])
    taken = names_taken(connection, [new.info.owner], names)
    return Added(None, same_name=min(taken)[1]) if taken else None


def add_group(connection: Connection, new: NewGroup, first: int) -> Added:
    """Store a group that nothing refuses. `first`: the `seq` of its first
    member; the others follow.
    """
    info = _set_aside(connection, new) if new.replaces else new.info
    connection.execute(insert(groups), _values(info, first))
    return add_jobs(connection, new.members, lambda _: first)[0]


def add_lost(connection: Connection, lost: Sequence[NewJob], infos: Sequence[GroupInfo]) -> int:
    """Store jobs and groups that were rebuilt, with an event for the end of jobs that have ended;
    the number of the jobs that were stored."""
    stored: list[Added] = []
    for begin in range(0, len(lost), _AT_ONCE):
        stored += add_jobs(connection, lost[begin : begin + _AT_ONCE])
    added = [(job.row, new.seq) for job, new in zip(lost, stored, strict=True) if new.seq]
    for row, seq in added:
        if row.state.final:
            shown = json.loads(row.info)
            ended = {name: shown[name] for name in ("state", "reason", "message")}
            at = {"job_seq": seq, "time": row.finished_at or row.created_at, "attempt": row.attempt}
            connection.execute(insert(events), at | ended)
    for info in infos:
        first = connection.execute(
            select(func.min(jobs.c.seq)).where(jobs.c.group_id == info.id)
        ).scalar()
        if first is not None:
            connection.execute(insert(groups), _values(info, first))
    return len(added)


def _set_aside(connection: Connection, new: NewGroup) -> GroupInfo:
    """Move the replaced members to a new group, which takes the place of their old group in lists.
    Return the info of the old group, which names the new one as `earlier`.
    """
    info = new.info
    seq = connection.execute(select(groups.c.seq).where(groups.c.id == info.id)).scalar()
    connection.execute(delete(groups).where(groups.c.id == info.id))
    if seq is None:  # its last member was deleted just now
        return info
    begin = info.name[: GROUP_NAME_MAX - len(_EARLIER) - 2] + _EARLIER
    used: set[str] = set()
    for table in (groups, jobs):
        named = select(table.c.name).where(
            table.c.owner == info.owner, table.c.name.startswith(begin, autoescape=True)
        )
        used.update(connection.execute(named).scalars())
    name = next(name for name in (f"{begin}{number}" for number in count(1)) if name not in used)
    earlier = GroupInfo(
        **{**dict(info), "name": name, "id": uuid.uuid4().hex, "size": len(new.replaces)}
    )
    connection.execute(insert(groups), _values(earlier, seq))
    for row in new.replaces:
        shown = json.loads(row.info)
        shown |= {
            "group": {**shown["group"], "name": name, "id": earlier.id},
            "version": row.version + 1,
        }
        text = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
        moved = update(jobs).where(jobs.c.seq == row.seq)
        connection.execute(
            moved, {"group_id": earlier.id, "version": row.version + 1, "info": text}
        )
    return replaced(info, earlier=name)


def _values(info: GroupInfo, seq: int) -> dict[str, Any]:
    return {
        "seq": seq,
        "id": info.id,
        "owner": info.owner,
        "name": info.name,
        "info": info.model_dump_json(),
    }


def discard(connection: Connection, new: NewGroup) -> None:
    """Forget a group that was never accepted, or its new members, and its key."""
    first = new.members[0].row.id
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.job_id == first))
    connection.execute(delete(jobs).where(jobs.c.id.in_([member.row.id for member in new.members])))
    if not new.replaces:
        connection.execute(delete(groups).where(groups.c.id == new.info.id))
    for row in new.replaces:  # they may be in their new group
        connection.execute(update(jobs).where(jobs.c.seq == row.seq), {"group_id": new.info.id})


def find(connection: Connection, owner: str, name: str) -> GroupInfo | None:
    query = select(groups).where(groups.c.owner == owner, groups.c.name == name)
    return next(iter(_counted(connection, query).values()), None)


def page(
    connection: Connection, wanted: JobFilters, limit: int, before: int | None
) -> dict[int, GroupInfo]:
    """At most `limit` groups by their `seq`, newest first, older than `before`; none
    unless `wanted.group` is "".
    """
    if wanted.group != "":
        return {}
    query = select(groups)
    if wanted.owners is not None:
        query = query.where(groups.c.owner.in_(wanted.owners))
    if wanted.name_prefix:
        query = query.where(groups.c.name.startswith(wanted.name_prefix, autoescape=True))
    if before is not None:
        query = query.where(groups.c.seq < before)
    return _counted(connection, query.order_by(groups.c.seq.desc()).limit(limit))


def members(connection: Connection, group_id: str) -> list[JobRow]:
    """The members of a group, in the order of their acceptance."""
    return all_of(connection, select(jobs).where(jobs.c.group_id == group_id).order_by(jobs.c.seq))


def job_or_members(connection: Connection, either: str) -> list[JobRow]:
    """The job of this id, or the members of the group."""
    return all_of(
        connection, select(jobs).where(or_(jobs.c.id == either, jobs.c.group_id == either))
    )


def unfinished(connection: Connection) -> list[GroupInfo]:
    """Groups with members that have not ended, without their counts."""
    return [
        _info(row) for row in connection.execute(select(groups).where(groups.c.id.in_(_unfinished)))
    ]


def failed(connection: Connection) -> dict[str, str]:
    """Name of the member that failed first, by the `id` of its group, for `unfinished` groups."""
    ended = select(jobs.c.group_id, jobs.c.name).where(jobs.c.group_id.in_(_unfinished))
    newest_first = ended.where(jobs.c.state == str(State.FAILED)).order_by(
        jobs.c.finished_at.desc()
    )
    return {group_id: name for group_id, name in connection.execute(newest_first)}


def states(connection: Connection, ids: Collection[str]) -> dict[str, State]:
    """The states of these jobs and groups, without ids that no job or group has."""
    of_jobs = connection.execute(select(jobs.c.id, jobs.c.state).where(jobs.c.id.in_(ids)))
    of_groups = _counted(connection, select(groups).where(groups.c.id.in_(ids))).values()
    return {job_id: as_sent(State, state) for job_id, state in of_jobs} | {
        info.id: info.state for info in of_groups
    }


def with_attention(
    info: GroupInfo, members: Iterable[tuple[str, Sequence[Attention]]]
) -> GroupInfo:
    """The group with what its members deserve, by their names: an entry for each code that the
    group does not have yet.
    """
    sentences: dict[str, list[str]] = {}
    for name, told in members:
        for each in told:
            sentences.setdefault(each.code, []).append(f"{name}: {each.sentence}")
    for each in info.attention:
        sentences.pop(each.code, None)
    more = [Attention(code=code, sentence=_with_number(found)) for code, found in sentences.items()]
    return replaced(info, attention=[*info.attention, *more]) if more else info


def _with_number(sentences: Sequence[str]) -> str:
    others = len(sentences) - 1
    more = f" (and {others} more job{'s' if others > 1 else ''})" if others else ""
    return sentences[0] + more


def _counted(connection: Connection, query: Select[Any]) -> dict[int, GroupInfo]:
    """The groups with their states as they are now."""
    found = connection.execute(query).all()
    counts: dict[str, dict[State, int]] = {row.id: {} for row in found}
    number = select(jobs.c.group_id, jobs.c.state, func.count()).where(jobs.c.group_id.in_(counts))
    for group_id, state, found_so in connection.execute(
        number.group_by(jobs.c.group_id, jobs.c.state)
    ):
        counts[group_id][as_sent(State, state)] = found_so
    told: dict[str, list[tuple[str, list[Attention]]]] = {row.id: [] for row in found}
    deserving = select(jobs.c.group_id, jobs.c.name, jobs.c.attention).where(
        jobs.c.group_id.in_(counts), jobs.c.attention.is_not(None)
    )
    for group_id, name, text in connection.execute(deserving.order_by(jobs.c.seq)):
        told[group_id].append((name, kept_attention(text)))
    infos = {}
    for row in found:
        of_group = counts[row.id]
        counted = replaced(
            _info(row),
            state=state_of_group(of_group),
            counts={str(state): number for state, number in of_group.items()},
        )
        infos[row.seq] = with_attention(counted, told[row.id])
    return infos


def _info(row: Row[Any]) -> GroupInfo:
    """The group as it was stored; a group that can't be read has no limits."""
    try:
        return GroupInfo.model_validate_json(row.info)
    except ValueError:
        long_ago = datetime.fromtimestamp(0, timezone.utc)
        return GroupInfo(
            name=row.name,
            id=row.id,
            owner=row.owner,
            script="unreadable",
            size=0,
            created_at=long_ago,
        )
