"""When outputs are looked at: every minute while the ranks run, and at their end. The launcher's end of it.

Copying takes as long as it takes, and the launcher must go on reading pipes and orders: each look runs in a thread, and
tells the loop through a pipe that it is over. No thread is there before the first look, and so none when ranks are
forked. Standard library only, Python >= 3.8.
"""

import _thread
import os
import time
from typing import Any, Callable, Dict, Optional

from client_lib.worker.loop import Loop, Timer
from client_lib.worker.outputs.find import Finder
from client_lib.worker.outputs.store import Store
from client_lib.worker.outputs.sync import Interrupted, Sync, open_store
from client_lib.worker.plan import WorkerPlan

LEAST_S = 5.0  # what a worker that was told to stop has for it, also where its ranks took all of the grace
_LEFT_OUT_MAX = 20  # in the report; the others are in the list of outputs


class Collector:
    """Of one worker. `begin` before the ranks run, `start` when they do, `finish` when they have ended."""

    def __init__(self, loop: Loop, plan: WorkerPlan, root: str, memory: str) -> None:
        assert plan.outputs_to is not None
        self._loop, self._plan = loop, plan
        self._finder = Finder(root, plan.outputs, memory)
        self._sync: Optional[Sync] = None
        self._timer: Optional[Timer] = None
        self._over, self._tell = os.pipe()
        self._busy = self._final = self._was_final = False
        self._deadline = float("inf")
        self._done: Optional[Callable[[], None]] = None
        self._problem: Optional[str] = None

    def begin(self) -> None:
        """What lies there now is no output."""
        self._finder.begin()

    def start(self) -> None:
        self._loop.watch(self._over, self._look_is_over)
        self._timer = self._loop.call_later(self._plan.outputs_every_s, self._look)

    def hurry(self, grace_s: float) -> None:
        """The worker was told to stop: what isn't kept by then is left out."""
        self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def finish(self, done: Callable[[], None]) -> None:
        """The last look; `done` is called on the loop when it is over."""
        self._final, self._done = True, done
        self._deadline = max(self._deadline, time.monotonic() + LEAST_S)
        if self._timer is not None:
            self._timer.cancel()
        if not self._busy:
            self._look()

    def report(self) -> Dict[str, Any]:
        """What the worker's report says about it."""
        if self._sync is None:
            return {"kept": 0, "bytes": 0, "left_out": [], "problem": self._problem or "nothing was looked at"}
        files, size, left_out = self._sync.summary()
        shown = [dict(left._asdict()) for left in left_out[:_LEFT_OUT_MAX]]
        known = {"kept": files, "bytes": size, "left_out": shown, "left_out_count": len(left_out)}
        return {**known, "problem": self._problem} if self._problem else known

    def _look(self) -> None:
        self._busy, self._was_final = True, self._final
        _thread.start_new_thread(self._run, (self._final,))

    def _look_is_over(self) -> None:
        os.read(self._over, 1)
        self._busy = False
        if self._done is None:
            self._timer = self._loop.call_later(self._plan.outputs_every_s, self._look)
        elif self._was_final:
            self._done()
        else:
            self._look()

    # --- in the thread

    def _run(self, final: bool) -> None:
        self._problem = "it broke off; launcher.out says why"
        try:
            if self._sync is None:
                self._sync = Sync(self._finder, _store(self._plan), linkable=self._plan.snapshot is not None)
            self._sync.look(final, self._patience(final))
            self._problem = None
        except Interrupted:  # by the end of the ranks: the last look follows
            self._problem = None
        except OSError as error:
            self._problem = str(error)
        finally:
            os.write(self._tell, b".")

    def _patience(self, final: bool) -> Callable[[], None]:
        def ask() -> None:
            if time.monotonic() > self._deadline if final else self._final:
                raise Interrupted

        return ask


def _store(plan: WorkerPlan) -> Store:
    assert plan.outputs_to is not None
    return open_store(plan.outputs_to, plan.outputs_limit_bytes, plan.outputs_token, plan.outputs_ca)
