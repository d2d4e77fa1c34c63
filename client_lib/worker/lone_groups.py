"""Finds ranks that train without the others of their job: each trains another model, and all
succeed.

A shell file or a script may start a launcher of its own (`bash run.sh`, with `torchrun --nproc 1`
in the file), which knows nothing of the other workers. Such a launcher gives its ranks a
WORLD_SIZE, which /proc shows. A script may also set another WORLD_SIZE, or call
`init_process_group(world_size=1)`: then the rank itself tells of its group, in a file
(rank_runner/world.py).
"""

import contextlib
import os
import time
from typing import Callable, Dict, Iterable, NamedTuple, Optional

from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.processes import below, content, environment_of
from client_lib.worker.loop import Loop
from client_lib.worker.ranks import Pids

_SHORTEST_S = 0.5
"""Shortest pause between two looks: a short training is found too."""
_LONGEST_S = 30.0
"""Longest pause between two looks."""
_OLDER = 50
"""Between these bounds, the pause is the time that the ranks have run, divided by this."""
_DIGITS = 9
"""Longest number of ranks, in digits."""
_SHARE = 0.001
"""Largest part of a core that looks take: after a look of more CPU time the pause is longer."""


class RankGroup(NamedTuple):
    """The group of ranks to which a process belongs, by its environment."""

    run: str
    """TORCHELASTIC_RUN_ID: the run of torchrun that started the process; "": none."""
    size: int
    """WORLD_SIZE: the ranks of the group."""
    here: int
    """LOCAL_WORLD_SIZE: the ranks of the group on this machine."""


def group_of(environment: Iterable[bytes]) -> Optional[RankGroup]:
    """The group that the variables tell; None: they tell none."""
    pairs = (each.partition(b"=") for each in environment)
    variables = {name: value for name, _, value in pairs}
    try:
        size = int(variables[b"WORLD_SIZE"])
        here = int(variables[b"LOCAL_WORLD_SIZE"])
    except (KeyError, ValueError):
        return None
    run = variables.get(b"TORCHELASTIC_RUN_ID", b"")
    return RankGroup(run.decode("utf-8", "replace"), size, here)


def is_alone(group: RankGroup, n_workers: int) -> bool:
    """True if the group has ranks of this worker only, and the job has several workers."""
    return n_workers > 1 and 0 < group.size == group.here


class LoneGroups:
    """Looks at the ranks and the processes below them until it finds a group that the launcher of
    the job has not made. The first one decides: later ones, such as an evaluation on one worker,
    may be alone."""

    def __init__(
        self, loop: Loop, pids: Pids, plan: WorkerPlan, folder: str, note: Callable[[str], None]
    ) -> None:
        """`folder` has the files in which ranks tell of their groups. `note` gets a sentence if
        ranks train without the others."""
        self._loop = loop
        self._pids = pids
        self._plan = plan
        self._folder = folder
        self._note = note
        self._since = time.monotonic()
        self._is_found = False
        self._look()

    def finish(self) -> None:
        """The ranks have ended: read what they have told last."""
        self._is_found = self._is_found or self._is_told()

    def _look(self) -> None:
        pids = self._pids()
        if not pids:
            return
        begin = time.thread_time()
        with contextlib.suppress(OSError):  # too many open files
            self._is_found = self._is_told() or self._is_made_below(pids)
        if self._is_found:
            return
        pause = min(_LONGEST_S, max(_SHORTEST_S, (time.monotonic() - self._since) / _OLDER))
        self._loop.call_later(max(pause, (time.thread_time() - begin) / _SHARE), self._look)

    def _is_told(self) -> bool:
        """True if a rank has told of a group of fewer ranks than the job has."""
        first = self._plan.worker * self._plan.processes_per_worker
        for rank in range(first, first + self._plan.processes_per_worker):
            size = content(os.path.join(self._folder, "world-%d" % rank))
            # a script may write anything there
            if size.isdigit() and len(size) <= _DIGITS:
                self._note(_sentence_of_rank(rank, int(size), self._plan))
                return True
        return False

    def _is_made_below(self, pids: Dict[int, int]) -> bool:
        """True if a launcher below a rank has made a group."""
        if self._plan.n_workers == 1:
            return False
        for pid, rank in pids.items():
            group = self._made_below(pid)
            if group:
                if is_alone(group, self._plan.n_workers):
                    self._note(_sentence(rank, group, self._plan))
                return True
        return False

    def _made_below(self, pid: int) -> Optional[RankGroup]:
        """A group that a launcher below the rank has made, not the group of the job."""
        own = group_of(environment_of(pid))
        for child in below(pid):
            group = group_of(environment_of(child))
            if group and group != own:
                return group
        return None


def _sentence(rank: int, group: RankGroup, plan: WorkerPlan) -> str:
    return (
        "rank %d started a launcher whose ranks train in a group of %d, and the job has %d "
        "workers: each worker trains alone; submit the launcher's line itself (client-lib submit "
        "-N %d torchrun ...), or give the launcher --nnodes, --node-rank and --rdzv-endpoint"
        % (rank, group.size, plan.n_workers, plan.n_workers)
    )


def _sentence_of_rank(rank: int, size: int, plan: WorkerPlan) -> str:
    return (
        "rank %d has a world size of %d of its own, and the job has %d ranks: it trains without "
        "the others; leave WORLD_SIZE as it is set, and call init_process_group without world_size"
        % (rank, size, plan.world_size)
    )
