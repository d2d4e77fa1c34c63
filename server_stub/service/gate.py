"""Decides which jobs may start, and in which order: dependencies, and the limit of a group.

Pure: the reconciler asks and acts.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from client_lib.spec.job import Condition
from client_lib.spec.request import Dependency
from client_lib.spec.wire import GroupInfo
from server_stub.service.active import ActiveJob
from server_stub.service.attention import is_hung

_NAMED = 3
"""Largest number of dependencies that a message names."""
_TO_END: dict[Condition, str] = {"ok": "to succeed", "failed": "to fail", "any": "to end"}


@dataclass
class _Group:
    info: GroupInfo
    admitted: set[str] = field(default_factory=set)
    held: dict[str, ActiveJob] = field(default_factory=dict)
    """Members by their ids, in the order in which they came."""


class Gate:
    """Decides which jobs may start: a job starts when its dependencies have ended, and of a group
    at most `max_parallel` members run at a time, in the order of their index. A job that is held
    back is not passed to the runtime and uses no resources of a machine. Pure: the reconciler
    carries the decisions out."""

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
        """Return the reason why the job must not start yet; "": the job may start, and counts as a
        running member of its group until it has ended.
        """
        job_id = active.row.id
        group = self._groups.get(active.row.group_id or "")
        turn = ""
        # A job with dependencies is noted here, too: a group is known as long as it has members.
        if group and job_id not in group.admitted:
            most = group.info.max_parallel
            never_starts = job_id in group.held and active.status.stop
            if never_starts or (most is not None and len(group.admitted) >= most):
                group.held[job_id] = active
                turn = (
                    f"waits for its turn: the group {group.info.name} runs {most} at a time "
                    "(max_parallel)"
                )
            else:
                group.held.pop(job_id, None)
                group.admitted.add(job_id)
        left = [dependency for dependency in active.info.dependencies if dependency.ended is None]
        if not left:
            return turn
        for dependency in left:
            self._waiting[dependency.id][job_id] = active
        ends = [self._end(dependency) for dependency in left[:_NAMED]]
        more = f" and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
        return f"waits for {', '.join(ends)}{more}"

    def _end(self, dependency: Dependency) -> str:
        """The end that a job waits for, with the state of the other job or group."""
        job = self._active.get(dependency.id)
        hangs = ", hangs" if job and is_hung(job.info) else ""
        state = f" ({job.info.state}{hangs})" if job else ""
        return f"{dependency.name}{state} {_TO_END[dependency.condition]}"

    def is_stuck(self, active: ActiveJob) -> bool:
        """True if the job waits for the end of a job that hangs."""
        left = [
            dependency.id for dependency in active.info.dependencies if dependency.ended is None
        ]
        return any(is_hung(self._active[each].info) for each in left if each in self._active)

    def why_stop(self, group_id: str | None, failed: str | None) -> str:
        """The reason why the members of a group must stop after the member `failed` has
        failed; "": they go on.
        """
        group = self._groups.get(group_id or "")
        if failed is None or group is None or not group.info.stop_on_failure:
            return ""
        return (
            f"{failed} failed, and the group {group.info.name} stops on a failure (stop_on_failure)"
        )

    def waiting_for(self, job_or_group: str) -> list[ActiveJob]:
        """The jobs that wait for the end of this one."""
        jobs = self._waiting[job_or_group].values() if job_or_group in self._waiting else ()
        return [job for job in jobs if not (job.status.stop or job.info.state.final)]

    def release(self, job_or_group: str) -> list[ActiveJob]:
        """Return the jobs that wait for the end of this job or group, and forget that they wait."""
        found = self.waiting_for(job_or_group)
        self._waiting.pop(job_or_group, None)
        return found

    def leave(self, active: ActiveJob) -> ActiveJob | None:
        """Note that the job has ended; return the member of its group that may start now."""
        for dependency in active.info.dependencies:
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
