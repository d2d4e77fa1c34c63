"""Counts the steps of the optimizers of a script, and sends them to the launcher with their time,
the learning rates and the norms."""

from __future__ import annotations

import _thread
import os
import sys
import time

from client_lib.worker.rank_runner.device_values import DeviceValues
from client_lib.worker.rank_runner.norms import Norms
from client_lib.worker.rank_runner.planned_steps import planned_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

STEPS_KIND = "optimizer"
"""Second value of a line of the pipe for metrics, as in `server_stub.curves.tracker`."""
_FIRST_PAUSE_S = 0.2
"""Shortest time between two lines ..."""
_OLDER = 60.0
"""... which grows with the time since the first step, divided by this number ..."""
_LAST_PAUSE_S = 16.0
"""... up to this time."""
_TIMES_MAX = 1000
"""Largest number of steps whose times make one value."""
_RATES_MAX = 8
"""Largest number of learning rates: one for each group of parameters."""


def pause_s(age_s: float) -> float:
    """Time from a line to the next one, `age_s` after the first step."""
    return min(_LAST_PAUSE_S, max(_FIRST_PAUSE_S, age_s / _OLDER))


class OptimizerSteps:
    """The steps of all optimizers of this rank.

    A script may have several optimizers: one for each of two networks, or for each parameter, so
    that the backward pass steps them. All steps until one of the optimizers steps again are one
    iteration, and iterations are counted. An optimizer is known by its first parameter: DeepSpeed
    steps one optimizer several times, each time for other parameters.

    A step that GradScaler skips is not counted. A step inside the step of another optimizer, such
    as ZeroRedundancyOptimizer, is a part of that step.
    """

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._pid = os.getpid()
        self._rank = int(os.environ.get("RANK") or 0)
        self._values = DeviceValues(torch)
        self._norms = Norms(torch)
        self._outer = 0
        """Identity of the optimizer that steps now, or whose step has raised; 0: none does."""
        self._thread = 0
        """The thread of that step."""
        self._stepped: set[int] = set()
        """The optimizers that have stepped in this iteration."""
        self._width = 1
        """Number of optimizers in the iteration before."""
        self._is_first = False
        """The optimizer that steps now is the first one of its iteration."""
        self._count = 0
        self._skipped: Any = None
        """Number of steps in `_count` that were skipped on a GPU, as a tensor."""
        self._skips = 0
        """The part of `_skipped` that is known."""
        self._before: int | None = None
        """Steps before this process, from the state of an optimizer; None: not known yet."""
        self._is_asked = False
        """A GPU is asked for `_before`."""
        self._began = time.perf_counter()
        self._at = self._began
        """Time of the last step."""
        self._times: list[float] = []
        self._due = 0.0
        self._collects = False
        """The values of this iteration are sent."""
        self._rates: list[Any] = []
        self._shown: set[int] = set()
        """Numbers of the learning rates that were sent."""
        self._sent = 0
        """The last step that was sent."""
        self._scheduler: Any = None
        """A weak reference to the scheduler of learning rates that was made last."""

    def before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer begins a step."""
        if (self._outer and self._is_stepping()) or self._is_captured():
            return
        if self._outer:  # its step has raised: what this iteration has collected is not whole
            self._collects = False
        self._outer = id(optimizer)
        self._thread = _thread.get_ident()
        self._is_first = not self._stepped or _key(optimizer) in self._stepped
        if self._is_first:
            self._end_iteration()
        if self._collects and not _has_closure(args, kwargs):
            self._norms.add(optimizer)

    def after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """An optimizer has ended its step."""
        if self._outer != id(optimizer):
            return
        self._outer = 0
        if self._is_skipped(getattr(optimizer, "found_inf", None)):
            return
        self._stepped.add(_key(optimizer))
        if self._is_first:
            self._note_step(optimizer)
        if self._collects:
            if _has_closure(args, kwargs):
                self._add_norms_after(optimizer)
            self._rates += [group.get("lr") for group in optimizer.param_groups]
            if len(self._stepped) >= self._width:
                self._send()
        self._values.poll()

    def note_scheduler(self, scheduler: Any) -> None:
        """A scheduler of learning rates was made."""
        import weakref

        self._scheduler = weakref.ref(scheduler)

    def send_last(self) -> None:
        """Send the last step, at the end of the process."""
        if self._count > self._sent:
            self._send_values(self._count, {}, self._step_time())

    def _add_norms_after(self, optimizer: Any) -> None:
        """Compute the norms after the step: gradients that a closure makes are not there before."""
        if optimizer.defaults.get("nesterov"):  # the momentum has changed the gradients
            self._norms.close()
        else:
            self._norms.add(optimizer)

    def _is_stepping(self) -> bool:
        """True while the outer step is on the stack of its thread, under the step that begins. No
        hook tells of a step that raises."""
        own = 1 if self._thread == _thread.get_ident() else 0
        return _steps_on_stack(sys._current_frames().get(self._thread)) > own

    def _is_captured(self) -> bool:
        """True while a CUDA graph is recorded, which must have nothing of ours."""
        cuda = self._torch.cuda
        return bool(cuda.is_initialized() and cuda.is_current_stream_capturing())

    def _is_skipped(self, found_inf: Any) -> bool:
        """True if GradScaler lets this step do nothing. A fused optimizer skips the step in its
        own kernel; on a GPU, such a step is counted and subtracted later."""
        if found_inf is None:
            return False
        if not found_inf.is_cuda:
            return bool(found_inf)
        if self._is_first:
            skipped = found_inf.detach() != 0
            self._skipped = skipped.float() if self._skipped is None else self._skipped + skipped
        return False

    def _note_step(self, optimizer: Any) -> None:
        now = time.perf_counter()
        if self._count and len(self._times) < _TIMES_MAX:
            self._times.append(now - self._at)
        self._at = now
        self._count += 1
        if self._before is None:
            self._find_steps_before(optimizer)

    def _find_steps_before(self, optimizer: Any) -> None:
        """Read the number of steps from the state of the optimizer, as a checkpoint has it."""
        state: Any = next(iter(optimizer.state.values()), {})
        step = state.get("step", 1) if isinstance(state, dict) else 1
        if isinstance(step, self._torch.Tensor):
            if not self._is_asked:
                self._is_asked = True
                self._values.read([step], self._take_steps_before)
        else:
            self._take_steps_before([step])

    def _take_steps_before(self, steps: list[float]) -> None:
        self._before = max(0, int(steps[0]) - 1)

    def _end_iteration(self) -> None:
        """Send what the iteration has shown, if an optimizer did not step in it; begin another."""
        if self._stepped:
            if self._collects:
                self._send()
            self._width = len(self._stepped)
            self._stepped.clear()
        self._collects = time.perf_counter() >= self._due
        self._rates = []
        if self._collects:
            self._norms.begin()

    def _send(self) -> None:
        self._collects = False
        values = {**self._named_rates(), **self._norms.finish()}
        if self._before is None:
            return
        if self._skipped is not None:
            self._values.read([self._skipped], self._take_skips)
        self._send_values(self._count, values, self._step_time())
        now = time.perf_counter()
        self._due = now + pause_s(now - self._began)

    def _take_skips(self, counts: list[float]) -> None:
        self._skips = int(counts[0])

    def _named_rates(self) -> dict[str, Any]:
        """The learning rates by their names: the first one, and those that ever were different."""
        rates = [rate for rate in self._rates[:_RATES_MAX] if hasattr(rate, "__float__")]
        first = rates[0] if rates else None
        if isinstance(first, (int, float)):
            different = (number for number, rate in enumerate(rates) if not _is_same(rate, first))
            self._shown.update(different)
        return {
            "optim/lr_%d" % number if number else "optim/lr": rate
            for number, rate in enumerate(rates)
            if number == 0 or number in self._shown
        }

    def _step_time(self) -> dict[str, float]:
        """The median of the steps since the last line, which an evaluation between two steps does
        not change."""
        times = sorted(self._times)
        self._times = []
        return {"train/step_time": times[len(times) // 2]} if times else {}

    def _send_values(self, count: int, values: dict[str, Any], known: dict[str, float]) -> None:
        """Send values of a step; values that a GPU computes in a later line."""
        self._sent = count
        step = (self._before or 0) + count - self._skips
        computed = {}
        for name, value in values.items():
            if isinstance(value, self._torch.Tensor) and value.is_cuda:
                computed[name] = value
            else:
                known[name] = float(value)
        self._write(step, {"train/step": step, **known}, self._planned(step))
        if computed:
            names = list(computed)
            self._values.read(
                list(computed.values()),
                lambda numbers: self._write(step, dict(zip(names, numbers))),  # noqa: B905 (Python 3.8)
            )

    def _planned(self, step: int) -> int | None:
        scheduler = self._scheduler() if self._scheduler is not None else None
        return None if scheduler is None else planned_steps(scheduler, step)

    def _write(self, step: int, values: dict[str, float], planned: int | None = None) -> None:
        import json

        if os.getpid() != self._pid:  # a fork of the rank, which has the same number
            return
        item = [self._rank, STEPS_KIND, step, values, *([planned] if planned else [])]
        line = json.dumps(item).encode() + b"\n"
        # opened for each line: a file that stays open would change the numbers of the script's
        try:
            fd = os.open(os.environ["CLIENT_LIB_METRICS"], os.O_WRONLY | os.O_NONBLOCK)
        except OSError:  # the launcher is gone
            return
        try:
            os.write(fd, line)
        except BlockingIOError:  # the launcher is busy: the next line has newer values
            pass
        finally:
            os.close(fd)


def _steps_on_stack(frame: Any) -> int:
    """Number of optimizers' steps in the calls up to `frame`. torch wraps each method `step` in a
    function that calls the hooks and the method."""
    names = vars(sys.modules["torch.optim.optimizer"])
    count = 0
    while frame is not None:
        if frame.f_globals is names and frame.f_code.co_name == "wrapper":
            count += 1
        frame = frame.f_back
    return count


def _key(optimizer: Any) -> int:
    for group in optimizer.param_groups:
        if group["params"]:
            return id(group["params"][0])
    return id(optimizer)


def _has_closure(args: Any, kwargs: Any) -> bool:
    """`args`: the optimizer and its arguments."""
    return any(each is not None for each in (*args[1:], kwargs.get("closure")))


def _is_same(rate: Any, first: float) -> bool:
    return isinstance(rate, (int, float)) and rate == first
