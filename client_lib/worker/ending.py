"""Ends the ranks of a worker: on request, or after the failure of one of them."""

import signal
import time
from typing import Any, Callable, Dict, List, Optional

from client_lib.worker.directory import Directory, read_json
from client_lib.worker.loop import Loop, Timer
from client_lib.worker.observer import Observer
from client_lib.worker.outcome import PEERS_END_S, Ended
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.rank_environment import others_may_wait
from client_lib.worker.ranks import Exit, Ranks
from client_lib.worker.worker_log import WorkerLog

_POLL_S = 0.01
_ANSWER_S = 0.3  # longest delay of a stop for ranks that unwind; one that is in C does not answer
_STILL_S = 10.0  # ranks that have printed nothing for this time are asked for their stacks before they are stopped
_STACKS_S = 2.0  # longest delay of the stop for that


class Ending:
    def __init__(
        self,
        plan: WorkerPlan,
        directory: Directory,
        loop: Loop,
        log: WorkerLog,
        ranks: Ranks,
        observer: Observer,
        ended: Callable[[Exit], Ended],
    ) -> None:
        """`ended` returns the facts about the end of a rank."""
        self._plan, self._directory, self._loop, self._log = plan, directory, loop, log
        self._ranks, self._observer, self._ended = ranks, observer, ended
        self.peer_failed = False
        """Another worker has."""
        self.stacks: Optional[List[Dict[str, Any]]] = None
        """Taken before the stop; []: they could not be."""
        self._is_ordered = False
        self._kill_timer: Optional[Timer] = None
        self._grace_after_stacks: Optional[float] = None  # of a stop that waits for the stacks

    def stop(self, grace_s: float) -> None:
        """Stop on request. If the ranks have printed nothing for long, take their stacks before, for the report."""
        self._is_ordered = True
        if not self._ranks.running:
            return
        if self._grace_after_stacks is not None:
            self._grace_after_stacks = min(self._grace_after_stacks, grace_s)
            return
        silent_s = min(time.monotonic() - self._log.active_at, time.time() - (self._ranks.started_at or 0.0))
        if self.stacks is not None or not self._plan.observe or silent_s < _STILL_S:
            self.end_ranks(grace_s)
        else:
            self._grace_after_stacks = grace_s
            self._loop.call_later(_STACKS_S, self._end_after_stacks)
            self._observer.take_stacks(self._end_after_stacks)

    def end_others(self) -> None:
        """End the other ranks after a failure. If that rank only lost a peer, wait before: the peer may still end."""
        wait_s = self.time_for_peers_s()
        if wait_s > 0:
            self._loop.call_later(wait_s, self.end_others)
        elif self._ranks.running and self._kill_timer is None:
            self.end_ranks(self._plan.grace_s)

    def end_ranks(self, grace_s: float, since: Optional[float] = None) -> None:
        """Send SIGTERM to all running ranks, SIGKILL after the grace; a second call can only shorten the grace.

        A rank that unwinds may be the cause: it can write its exception before. `since`: monotonic time of the call.
        """
        since = time.monotonic() if since is None else since
        waits = self._cause_is_open() and not self._ranks.unwinding_is_known()
        if waits and time.monotonic() - since < _ANSWER_S:
            self._loop.call_later(_POLL_S, lambda: self.end_ranks(grace_s, since))
            return
        self._ranks.signal(signal.SIGTERM)
        timer = self._loop.call_later(grace_s, lambda: self._ranks.signal(signal.SIGKILL))
        if self._kill_timer is None or timer.due < self._kill_timer.due:
            if self._kill_timer:
                self._kill_timer.cancel()
            self._kill_timer = timer
        else:
            timer.cancel()

    def time_for_peers_s(self) -> float:
        """Seconds that other ranks still have to end by themselves; 0 if a rank failed without losing a peer."""
        failed = self._ranks.failed
        if self._is_ordered or not failed or not all(self._ended(exit).lost_peer for exit in failed):
            return 0.0
        passed = time.time() - failed[0].ended_at
        return PEERS_END_S - passed if 0 <= passed < PEERS_END_S else 0.0

    def _end_after_stacks(self) -> None:
        if self._grace_after_stacks is None:
            return
        grace_s, self._grace_after_stacks = self._grace_after_stacks, None
        self.stacks = (read_json(self._directory.stacks_taken) or {}).get("processes") or []
        self.end_ranks(grace_s)

    def _cause_is_open(self) -> bool:
        """True if a rank, here or in another worker, may have failed only because it lost one that runs here."""
        failed = self._ranks.failed
        others = others_may_wait(self._plan) and (failed or self.peer_failed)
        return bool(others) and all(self._ended(exit).lost_peer for exit in failed)
