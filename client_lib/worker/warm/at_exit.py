"""Keeps what packages tell atexit when they are imported, so that only a process that imports them calls it at its end.

What the standard library registers stays registered: its modules are visible in every rank (hidden.py). Python >= 3.8.
"""

import atexit
import sys
from typing import Any, Callable, Dict, List, NamedTuple, Tuple

from client_lib.worker.warm import packages


class Callback(NamedTuple):
    """What atexit is told to call."""

    function: Callable[..., Any]
    arguments: Tuple[Any, ...]
    named: Dict[str, Any]

    def register(self) -> None:
        atexit.register(self.function, *self.arguments, **self.named)


class Recorder:
    """Stands in for `atexit.register` inside of `with`. A package that keeps it by that name can go on to use it."""

    def __init__(self) -> None:
        self._real = atexit.register
        self._records = False
        self._kept: List[Callback] = []

    def __enter__(self) -> "Recorder":
        self._records = True
        atexit.register = self  # type: ignore[assignment]
        return self

    def __exit__(self, *exception: object) -> None:
        self._records = False
        atexit.register = self._real

    def __call__(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Callable[..., Any]:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        if self._records and not packages.is_standard(caller):
            self._kept.append(Callback(function, arguments, named))
        else:
            self._real(function, *arguments, **named)
        return function

    def take(self) -> List[Callback]:
        """What came since the last call."""
        taken, self._kept = self._kept, []
        return taken
