"""Removes the runner's frames from a traceback."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import TracebackType
    from typing import Any

HIDDEN: list[dict[str, Any]] = []
"""Globals of the modules whose frames are removed. In the joined file all modules have the same
globals."""
HIDDEN_FILES: list[str] = []
"""Files whose frames are removed, too."""


def remove_our_frames(error: BaseException | None, seen: set[int]) -> None:
    """Remove the runner's frames from the traceback of the exception, and of each exception in its
    chain. `seen`: identities of the exceptions that are done."""
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        if not _is_hidden(entry):
            trace.append(entry)
        else:
            while trace and trace[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
                trace.pop()  # Python removes these frames itself, but not if ours is between them
        entry = entry.tb_next
    for place, entry in enumerate(trace):
        entry.tb_next = trace[place + 1] if place + 1 < len(trace) else None
    error.__traceback__ = trace[0] if trace else None
    remove_our_frames(error.__cause__, seen)
    remove_our_frames(error.__context__, seen)


def _is_hidden(entry: TracebackType) -> bool:
    frame = entry.tb_frame
    is_file = frame.f_code.co_filename in HIDDEN_FILES
    return is_file or any(frame.f_globals is names for names in HIDDEN)
