"""Lets the steps of all optimizers be seen, by torch's own hooks.

Nothing of the script changes: a hook reads, and an exception in a hook switches the hooks of this
rank off, with one line. While torch compiles, a hook returns at once: the compiler traces the hook,
too, and code that the compiler cannot trace would interrupt the graph.
"""

from __future__ import annotations

import os
import sys

from client_lib.worker.rank_runner.frames import HIDDEN
from client_lib.worker.rank_runner.late import load_late_modules
from client_lib.worker.rank_runner.optimizer_steps import OptimizerSteps
from client_lib.worker.rank_runner.this_rank import THIS_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

HIDDEN.append(globals())


class _Observation:
    """The hooks of this rank; it is made of the late modules at the first step."""

    steps: OptimizerSteps | None = None
    is_off = False

    def call(self, name: str, *args: Any) -> None:
        """Call a method of `OptimizerSteps`."""
        if self.is_off:
            return
        try:
            if self.steps is None:
                self._begin()
            if self.steps is not None:
                getattr(self.steps, name)(*args)
        except Exception as error:  # noqa: BLE001  (it must not reach the script)
            self.end(error)

    def end(self, error: Exception) -> None:
        """Switch the hooks off, with one line."""
        self.is_off = True
        if not _is_of_gpu(error):
            _tell(error)

    def _begin(self) -> None:
        # a warm pool registers hooks before it knows the job; a fork of the rank is no rank
        is_observed = "CLIENT_LIB_METRICS" in os.environ and os.getpid() == THIS_RANK.pid
        self.is_off = not is_observed
        if is_observed:
            load_late_modules()
            self.steps = OptimizerSteps(sys.modules["torch"])


def _is_of_gpu(error: Exception) -> bool:
    """True if an earlier operation of the script has failed on a GPU. CUDA reports such an error to
    the next call, whoever makes it, and again to each call after it: the script gets the error."""
    return str(error).startswith(("CUDA error", "HIP error"))


def _tell(error: Exception) -> None:
    text = "client_lib: the steps of this rank are not observed any more (%s: %s)\n"
    try:
        sys.stderr.write(text % (type(error).__name__, str(error).partition("\n")[0]))
    except Exception:  # noqa: BLE001  (the stream is closed)
        pass


_OBSERVATION = _Observation()


def observe_optimizers(torch: Any) -> None:
    """Register the hooks. Nothing if this torch has none, or the job is not observed."""
    try:
        _register_hooks(torch)
    except Exception as error:  # noqa: BLE001  (the script's import of torch would raise it)
        _OBSERVATION.end(error)


def _register_hooks(torch: Any) -> None:
    optimizer = sys.modules.get("torch.optim.optimizer")
    register_before = getattr(optimizer, "register_optimizer_step_pre_hook", None)
    register_after = getattr(optimizer, "register_optimizer_step_post_hook", None)
    is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", None)
    is_rank = THIS_RANK.pid == os.getpid()
    if is_rank and "CLIENT_LIB_METRICS" not in os.environ:
        return
    if register_before is None or register_after is None or is_compiling is None:
        return

    def before_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            _OBSERVATION.call("before_step", optimizer, args, kwargs)

    def after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        if not is_compiling():
            _OBSERVATION.call("after_step", optimizer, args, kwargs)

    register_before(before_step)
    register_after(after_step)
    _observe_schedulers(sys.modules.get("torch.optim.lr_scheduler"))


def _observe_schedulers(module: Any) -> None:
    """Let each new scheduler of learning rates be seen."""
    import functools

    kind = getattr(module, "LRScheduler", None)
    if kind is None:
        return
    init = kind.__init__

    @functools.wraps(init)
    def observed_init(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        _OBSERVATION.call("note_scheduler", self)

    kind.__init__ = observed_init


def send_last_steps() -> None:
    """Send the last step, at the end of the process."""
    if _OBSERVATION.steps is not None:
        _OBSERVATION.call("send_last")
