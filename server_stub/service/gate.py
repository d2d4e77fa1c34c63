"""Decides which members of groups may start: at most `max_parallel` of a group at a time, in order of their index.

A member that is held back is not passed to the runtime and uses no resources of a machine. Pure: the reconciler acts by
it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from client_lib.spec.wire import GroupInfo
from server_stub.service.active import ActiveJob


@dataclass
class _Group:
    info: GroupInfo
    admitted: set[str] = field(default_factory=set)
    held: dict[str, ActiveJob] = field(default_factory=dict)
    """Members by their ids, in the order in which they came."""


class Gate:
    """The groups of members that have not ended."""

    def __init__(self) -> None:
        self._groups: dict[str, _Group] = {}

    def __len__(self) -> int:
        """The number of groups."""
        return len(self._groups)

    def open(self, groups: Iterable[GroupInfo]) -> None:
        """Note groups, before the first of their members is asked for."""
        self._groups.update((info.id, _Group(info)) for info in groups if info.max_parallel or info.stop_on_failure)

    def holds(self, active: ActiveJob) -> str:
        """The reason why the job must not start yet; "": it may start, and counts until it has ended."""
        group = self._groups.get(active.row.group_id or "")
        if group is None or active.row.id in group.admitted:
            return ""
        most = group.info.max_parallel
        never_starts = active.row.id in group.held and active.status.stop
        if not never_starts and (most is None or len(group.admitted) < most):
            group.held.pop(active.row.id, None)
            group.admitted.add(active.row.id)
            return ""
        group.held[active.row.id] = active
        return f"waits for its turn: the group {group.info.name} runs {most} at a time (max_parallel)"

    def why_stop(self, group_id: str | None, failed: str | None) -> str:
        """The reason why the members of a group must stop after one, called `failed`, has failed; "": they go on."""
        group = self._groups.get(group_id or "")
        if failed is None or group is None or not group.info.stop_on_failure:
            return ""
        return f"{failed} failed, and the group {group.info.name} stops on a failure (stop_on_failure)"

    def leave(self, active: ActiveJob) -> ActiveJob | None:
        """Note that the job has ended; return the one that may start now."""
        group = self._groups.get(active.row.group_id or "")
        if group is None:
            return None
        group.held.pop(active.row.id, None)
        following = None
        if active.row.id in group.admitted:
            group.admitted.remove(active.row.id)
            following = next((job for job in group.held.values() if not job.status.stop), None)
        if following:
            group.admitted.add(group.held.pop(following.row.id).row.id)
        if not (group.held or group.admitted):
            del self._groups[group.info.id]
        return following
