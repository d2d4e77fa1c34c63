"""Decides which jobs may start: those whose dependencies have ended, and of a group at most `max_parallel` at a time,
in order of their index.

A job that is held back is not passed to the runtime and uses no resources of a machine. Pure: the reconciler acts by
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from client_lib.spec.wire import GroupInfo
from server_stub.service.active import ActiveJob

_NAMED = 3  # dependencies in a message


@dataclass
class _Group:
    info: GroupInfo
    admitted: set[str] = field(default_factory=set)
    held: dict[str, ActiveJob] = field(default_factory=dict)
    """Members by their ids, in the order in which they came."""


class Gate:
    """The jobs that wait for others, and the groups of members that have not ended."""

    def __init__(self, active: Mapping[str, ActiveJob]) -> None:
        """`active`: the jobs that have not ended, by their ids."""
        self._active = active
        self._groups: dict[str, _Group] = {}
        self._waiting: defaultdict[str, dict[str, ActiveJob]] = defaultdict(dict)
        """Jobs by their ids, by the id of what they wait for."""

    def open(self, groups: Iterable[GroupInfo]) -> None:
        """Note groups, before the first of their members is asked for."""
        for info in groups:
            if info.max_parallel or info.stop_on_failure:
                self._groups.setdefault(info.id, _Group(info))

    def holds(self, active: ActiveJob) -> str:
        """The reason why the job must not start yet; "": it may start, and counts until it has ended."""
        turn = self._waits_for_turn(active)  # first: a group is known as long as it has members here
        return self._waits_for(active) or turn

    def _waits_for(self, active: ActiveJob) -> str:
        left = [dependency for dependency in active.status.dependencies if dependency.ended is None]
        if not left:
            return ""
        for dependency in left:
            self._waiting[dependency.id][active.row.id] = active
        known = [(dependency.name, self._active.get(dependency.id)) for dependency in left[:_NAMED]]
        names = [f"{name} ({job.status.state})" if job else name for name, job in known]
        return f"waits for {', '.join(names)}" + (f" and {len(left) - _NAMED} more" if len(left) > _NAMED else "")

    def _waits_for_turn(self, active: ActiveJob) -> str:
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

    def waiting_for(self, job_or_group: str) -> list[ActiveJob]:
        """The jobs that wait for the end of this one."""
        jobs = self._waiting[job_or_group].values() if job_or_group in self._waiting else ()
        return [job for job in jobs if not (job.status.stop or job.status.state.final)]

    def release(self, job_or_group: str) -> list[ActiveJob]:
        """The same, when it has ended."""
        found = self.waiting_for(job_or_group)
        self._waiting.pop(job_or_group, None)
        return found

    def leave(self, active: ActiveJob) -> ActiveJob | None:
        """Note that the job has ended; return the one that may start now."""
        for dependency in active.status.dependencies:
            self._waiting[dependency.id].pop(active.row.id, None)
            if not self._waiting[dependency.id]:
                del self._waiting[dependency.id]
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
