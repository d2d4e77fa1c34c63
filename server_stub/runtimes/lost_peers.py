"""Says why a rank lost peers that had ended with code 0. Pure.

The exception of such a rank is a consequence, and its cause is in what the ranks did before. A
collective under a condition such as `if rank == 0` is made by some ranks only; a rank leaves its
loop by an exit, as at a signal; or a rank has less data than the others, so that these wait for it
in the next collective.
"""

import re
from collections.abc import Sequence
from os.path import basename

from client_lib.launcher_protocol import exceptions, outcome
from client_lib.launcher_protocol.termination import shortened

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (\S+)', re.MULTILINE)
_LIBRARY = re.compile(
    r"[/\\](lib|lib64)[/\\]python3|-packages[/\\]|^<frozen |[/\\]rank_runner(\.py$|[/\\])"
)
_WRAPPERS = ("wrapper", "decorate_context", "inner")
"""Names of functions of torch that wrap the function which the script called."""
_OF_LIBRARY = re.compile(r"(?:\[rank\d+\]: ?)?\[[WE]\d{4} |.*Warning: |  warnings\.warn\(")
"""Lines on stderr that a library prints at the end of a process."""
_LINE_SHOWN = 100
"""Longest last line of a rank that a message shows, in characters."""
_NAMED = 3  # ranks that a message lists; if there are more, their number


def finished_peers(first: outcome.Ended, ranks: Sequence[outcome.Ended]) -> str | None:
    """A sentence for the message of the rank that failed first; None: it did not lose
    a rank that had succeeded.
    """
    # a rank's connections close before its process is gone
    limit = first.failed_at + outcome.SAME_MOMENT_S
    done = [
        rank
        for rank in ranks
        if not rank.failed and not rank.stopped_by_us and rank.ended_at <= limit
    ]
    if not first.lost_peer or not done:
        return None
    ended = (
        f"{_names([rank.rank for rank in done])} had ended with code 0 when rank {first.rank} "
        f"{_place(first.traceback or '')}"
    )
    extra = _extra_collectives(first, done, ranks)
    if extra is not None:
        return f"{extra}; {ended}"
    earliest = min(done, key=lambda rank: (rank.ended_at, rank.rank))
    words = _last_words(earliest, is_one_of_several=len(done) > 1)
    if earliest.script_end and earliest.script_end.exited_at:
        at = earliest.script_end.exited_at
        return f"{ended}: rank {earliest.rank} left a loop by an exit ({at}).{words}"
    question = "does it have less data?" if len(done) == 1 else "do they have less data?"
    return f"{ended}: {question}{words}"


def _extra_collectives(
    first: outcome.Ended, done: Sequence[outcome.Ended], ranks: Sequence[outcome.Ended]
) -> str | None:
    """`rank 0 made 8 collectives, ranks 1, 2 made 7: the extra one is barrier in save (train.py:4),
    which only rank 0 entered`; None: the places of the collectives do not show it."""
    own = first.script_end
    if own is None:
        return None
    known = {
        rank.rank: rank.script_end
        for rank in ranks
        if rank.script_end and rank.script_end.group == own.group
    }
    fewer = {rank.rank: known[rank.rank] for rank in done if rank.rank in known}
    counts = {end.collectives for end in fewer.values()}
    if len(fewer) < len(done) or len(counts) != 1:
        return None
    missing = own.collectives - counts.pop()
    everywhere = set().union(*(end.places for end in fewer.values()))
    extra = {place: count for place, count in own.places.items() if place not in everywhere}
    if missing < 1 or sum(extra.values()) != missing:
        return None
    entered = [rank for rank, end in known.items() if extra.keys() <= end.places.keys()]
    are = "the extra one is" if missing == 1 else f"the {missing} extra ones are"
    few = next(iter(fewer.values())).collectives
    return (
        f"{_names(entered)} made {own.collectives} collectives, {_names([*fewer])} made {few}: "
        f"{are} {' and '.join(extra)}, which only {_names(entered)} entered"
    )


def _last_words(rank: outcome.Ended, is_one_of_several: bool) -> str:
    """The last line that a rank has printed; it may say why the rank has left."""
    lines = [line.strip() for line in rank.last_lines if not _OF_LIBRARY.match(line)]
    line = next((line for line in reversed(lines) if line), None)
    if line is None:
        return ""
    whose = f"The last line of rank {rank.rank}" if is_one_of_several else "Its last line"
    return f" {whose}: {shortened(line, _LINE_SHOWN)!r}"


def _names(ranks: Sequence[int]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        return f"{len(ranks)} ranks"
    return f"ranks {', '.join(map(str, sorted(ranks)))}"


def _place(traceback: str) -> str:
    """Describe a stack as `was in all_reduce (train.py:6)`: the last line of the user's code, and
    the function that this line called."""
    chained = [traceback.find(marker) for marker in exceptions.CHAINED if marker in traceback]
    # of the exception that was raised first
    frames = _FRAME.findall(traceback[: min(chained, default=None)])
    own = [number for number, (path, _, _) in enumerate(frames) if not _LIBRARY.search(path)]
    if not own:
        return "lost its connection"
    path, line, _ = frames[own[-1]]
    here = f"{basename(path)}:{line}"
    below = [function for _, _, function in frames[own[-1] + 1 :]]
    called = next(
        (name for name in below if name not in _WRAPPERS and not name.startswith("_")), None
    )
    return f"was in {called} ({here})" if called else f"was at {here}"
