"""Metrics that a script logs itself, with the names of wandb:
`client_lib.log({"loss": 0.3, "val/acc": 0.9}, step=7)`.

A call of `log` takes 10 to 20 µs, never blocks and never raises. Outside a job it does nothing. If
the pipe to the launcher is full, values are dropped and counted. Standard library only.
"""

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from client_lib.launcher_protocol.record import (
    ALERT,
    ALERT_TEXT_MAX,
    ALERT_TITLE_MAX,
    METRICS_MAX,
    METRICS_PIPE,
    metric_lines,
)

_ALERTS_MAX = 20
"""Alerts of a process that leave it; more are lines of its log alone."""

config: dict[str, Any] = {}
"""The values given to `init`; the script may read and change them."""


class _Pipe:
    def __init__(self) -> None:
        self.step = -1.0
        self.dropped = 0
        self.alerts = 0
        self.rank = int(os.environ["RANK"]) if os.environ.get("RANK", "").isdecimal() else 0
        self.fd: int | None = None
        with suppress(KeyError, OSError):  # outside a job, or its launcher has ended
            self.fd = os.open(os.environ[METRICS_PIPE], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def write(self, values: dict[str, float]) -> None:
        if self.fd is None:
            return
        dropped = self.dropped
        self.dropped = 0
        for line in metric_lines(self.rank, self.step, values, dropped):
            try:
                if len(line) > METRICS_MAX:
                    raise BlockingIOError
                os.write(self.fd, line)
            except OSError:
                _, _, before, lost = json.loads(line)
                self.dropped += before + len(lost)

    def alert(self, title: str, text: str) -> None:
        if self.fd is None or self.alerts == _ALERTS_MAX:
            return
        self.alerts += 1
        item = [title[:ALERT_TITLE_MAX], text[:ALERT_TEXT_MAX]]
        os.write(self.fd, json.dumps([self.rank, ALERT, item]).encode() + b"\n")


_pipe: _Pipe | None = None


def init(*_: object, config: object = None, **__: object) -> ModuleType:
    """Note the configuration: a mapping or an object with attributes, such as argparse.Namespace;
    all else is ignored. The call may be left out. Returns an object with `log`, `finish`, `config`
    and `alert`."""
    this = sys.modules[__name__]
    with suppress(Exception):
        this.config.update(config if isinstance(config, Mapping) else vars(config))
    return this


def log(data: Mapping[str, object], step: float | None = None, **_: object) -> None:
    """Add values to the curves of this rank; values that are no numbers are left out. `step`
    None: the step of the call before, plus one."""
    global _pipe
    with suppress(Exception):  # a training must not end for a metric
        _pipe = pipe = _pipe or _Pipe()
        pipe.step = pipe.step + 1 if step is None else float(step)
        if pipe.fd is not None:
            pipe.write(
                {
                    str(name): value
                    for name, given in data.items()
                    if (value := _number(given)) is not None
                }
            )


def finish(*_: object, **__: object) -> None:
    """Send the number of dropped values. The call may be left out."""
    if _pipe is not None and _pipe.dropped:
        _pipe.write({})


def alert(title: str, text: str = "", **_: object) -> None:
    """Tell people of something in the training: a line of stderr, an event of the job, its
    `attention`, and its webhook (`notify`).

    The server learns of an alert within 10 s where the job has `notify` or `alarm`, else at the end
    of the attempt. A title is told once in an attempt. Titles are cut at 100 characters, texts at
    400. Of each process the first 20 alerts are told.
    """
    global _pipe
    with suppress(Exception):
        sys.stderr.write(f"ALERT {title}: {text}\n" if text else f"ALERT {title}\n")
        sys.stderr.flush()
    with suppress(Exception):
        _pipe = pipe = _pipe or _Pipe()
        pipe.alert(str(title), str(text))


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, str) else float(value)
    except (TypeError, ValueError, RuntimeError):
        return None
