"""Looks for the checkpoints of a job while its ranks run, and tells the server which there are: in
lines of `launcher_protocol.checkpoint_lines`. Removes early ones, if the job keeps only some.
"""

import os
import time
from typing import Callable, Dict, Generator, List, NamedTuple, Optional, Set

from client_lib.checkpoints import Checkpoint, search, surplus
from client_lib.launcher_protocol.checkpoint_lines import (
    COMPLETE,
    DAMAGED,
    POINTERS_MAX,
    WRITING,
    SeenCheckpoint,
    begin_line,
    line_of,
    removed_line,
    told,
)
from client_lib.worker.checkpoint_removal import remove
from client_lib.worker.checkpoint_values import CheckpointValues
from client_lib.worker.loop import Loop
from client_lib.worker.slices import in_slices

_LOOK_S = 2.0
"""Least seconds between two searches."""
_SHARE = 0.02
"""Longest share of the time that searches take."""
_LAST_LOOK_S = 2.0
"""Longest time of the search after the end of the ranks."""
_SETTLED_S = 30.0
"""A checkpoint that lacks something is damaged if it has not changed for so long. Ranks that write
one together may wait long for the last of them."""
_MOST = 1000
"""Largest number of checkpoints that are told, the newest first."""


class _Root(NamedTuple):
    """A folder that is searched."""

    folder: str
    since: float
    """Only what was changed since then counts, in seconds since 1970."""


class CheckpointWatch:
    """The checkpoints in the folders of one job. Worker 0 has a watch."""

    def __init__(
        self,
        loop: Loop,
        checkpoint_dir: str,
        started_at: float,
        keep: Optional[int],
        values: Optional[CheckpointValues],
        sink: Callable[[bytes], None],
    ) -> None:
        """`started_at`: the start of the ranks, in seconds since 1970. `keep`: the number of steps
        whose checkpoints stay in `checkpoint_dir`; None: all stay. `values`: know the best
        checkpoint, which stays, too."""
        self._loop = loop
        self._roots = [_Root(checkpoint_dir, 0.0)]
        self._started_at = started_at
        self._keep = keep
        self._values = values
        self._sink = sink
        self._removed: Set[str] = set()
        self._known: List[Dict[str, Checkpoint]] = []
        self._told: Optional[Dict[str, SeenCheckpoint]] = None
        self._found: List[Dict[str, Checkpoint]] = []
        self._searching = self._search()
        self._is_finished = False

    def start(self, working_dir: str) -> None:
        """Begin to search, also for what the ranks write to their working directory."""
        if working_dir != self._roots[0].folder:
            self._roots.append(_Root(working_dir, self._started_at))
        self._look()

    def finish(self) -> None:
        """The ranks have ended: what lacks something now is damaged."""
        self._is_finished = True
        self._searching.close()
        until = time.monotonic() + _LAST_LOOK_S
        for _ in self._search():
            if time.monotonic() > until:
                return
        self._tell()

    def _search(self) -> "Generator[None, None, None]":
        """Search all roots, and remove what is not kept, in small pieces of work."""
        self._found = []
        self._removed = set()
        for number, root in enumerate(self._roots):
            known = self._known[number] if self._known else {}
            found: Dict[str, Checkpoint] = {}
            self._found.append(found)
            for checkpoint in search(root.folder, root.since, known):
                if checkpoint is not None:
                    found[checkpoint.path] = checkpoint
                yield
        if self._keep is not None:
            early = surplus(self._found[0].values(), self._keep)
            if self._values:
                early = self._values.may_go(early, self._found[0].values())
            for checkpoint in early:
                path = os.path.join(self._roots[0].folder, checkpoint.path)
                if (yield from remove(path)):
                    self._removed.add(told(path))

    def _look(self) -> None:
        """Begin a search, unless the ranks have ended."""
        if not self._is_finished:
            self._searching = self._search()
            in_slices(self._loop, self._searching, self._searched, _SHARE)

    def _searched(self) -> None:
        if self._is_finished:
            return
        self._known = self._found
        self._tell()
        self._loop.call_later(_LOOK_S, self._look)

    def _tell(self) -> None:
        """Tell what is new since the last time."""
        seen = self._newest()
        lines = []
        if self._told is None:
            self._told = {}
            lines.append(begin_line())
        lines += [line_of(each) for path, each in seen.items() if self._told.get(path) != each]
        lines += [removed_line(path) for path in self._told if path not in seen]
        self._told = seen
        if lines:
            self._sink(b"".join(lines))

    def _newest(self) -> Dict[str, SeenCheckpoint]:
        now = time.time()
        every = {
            told(os.path.join(root.folder, path)): checkpoint
            for root, found in zip(self._roots, self._found)
            for path, checkpoint in found.items()
        }
        there = [item for item in every.items() if item[0] not in self._removed]
        newest = sorted(there, key=lambda item: item[1].modified)[-_MOST:]
        return {path: self._seen(path, checkpoint, now) for path, checkpoint in newest}

    def _state(self, checkpoint: Checkpoint, now: float) -> str:
        if not checkpoint.missing:
            return COMPLETE
        is_at_rest = self._is_finished or now - checkpoint.modified > _SETTLED_S
        return DAMAGED if is_at_rest else WRITING

    def _seen(self, path: str, checkpoint: Checkpoint, now: float) -> SeenCheckpoint:
        return SeenCheckpoint(
            path,
            checkpoint.format,
            checkpoint.step,
            checkpoint.size,
            round(checkpoint.modified, 3),
            told(checkpoint.missing),
            self._state(checkpoint, now),
            checkpoint.modified >= self._started_at,
            [told(name) for name in checkpoint.pointers[:POINTERS_MAX]],
        )
