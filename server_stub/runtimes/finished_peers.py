"""Says which ranks had ended with code 0 when another rank lost them, and where this rank waited. Pure.

A rank with less data than the others leaves its loop early, and they wait for it in the next collective.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from os.path import basename
from typing import NamedTuple

from client_lib.worker.outcome import CHAINED, SAME_MOMENT_S, Ended

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)', re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](lib|lib64)[/\\]python3|-packages[/\\]|^<frozen ")
_WRAPPERS = ("wrapper", "decorate_context", "inner")
"""Names of functions of torch that wrap the function which the script called."""
_NAMED = 3  # ranks that a message lists; if there are more, their number


def note(first: Ended, ranks: Sequence[Ended]) -> str | None:
    """A sentence for the message of the rank that failed first; None: it did not lose a rank that had succeeded."""
    limit = first.failed_at + SAME_MOMENT_S  # a rank's connections close before its process is gone
    done = [rank.rank for rank in ranks if not rank.failed and not rank.stopped_by_us and rank.ended_at <= limit]
    if not first.lost_peer or not done:
        return None
    question = "does it have less data?" if len(done) == 1 else "do they have less data?"
    return f"{_names(done)} had ended with code 0 when rank {first.rank} {_place(first.traceback or '')}: {question}"


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, sorted(ranks)))}"


class _Frame(NamedTuple):
    path: str
    line: str
    function: str


def _place(traceback: str) -> str:
    """`was in all_reduce (train.py:6)`: the last line of the user's code, and what it called."""
    frames = [_Frame(*found) for found in _FRAME.findall(_first_of_chain(traceback))]
    own = [number for number, frame in enumerate(frames) if not _LIBRARY.search(frame.path)]
    if not own:
        return "lost its connection"
    here, below = frames[own[-1]], [frame.function for frame in frames[own[-1] + 1 :]]
    line = f"{basename(here.path)}:{here.line}"
    called = next((name for name in below if name not in _WRAPPERS and not name.startswith("_")), None)
    return f"was in {called} ({line})" if called else f"was at {line}"


def _first_of_chain(traceback: str) -> str:
    """The traceback of the exception that was raised first."""
    return traceback[: min((traceback.find(marker) for marker in CHAINED if marker in traceback), default=None)]
