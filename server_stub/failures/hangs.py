"""Finds out who hangs, by two snapshots of the stacks of all ranks, and the ranks that do nothing.
Pure.

A job hangs if ranks wait in a collective, and every rank that is elsewhere does nothing. A rank
that computes, or that reads or writes files, is never blamed: the others wait for its evaluation,
its checkpoint or its data.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from client_lib.spec.stacks import Place, ProcessStacks, RankStacks, call, has_left, named

_COLLECTIVE = re.compile(
    r"/torch/(distributed/(distributed_c10d|rendezvous|_functional_collectives|utils)|nn/parallel/distributed"
    r"|autograd/(graph|__init__))\.py$"  # a backward pass waits for the gradients of other ranks
)
_NAMED = 8  # places that a sentence lists
_LEFT = "left the script"


class Hang(NamedTuple):
    guilty: frozenset[int]
    """Ranks that others wait for; all ranks if none differs from the others."""
    message: str


def find(
    before: Sequence[RankStacks],
    after: Sequence[RankStacks],
    quiet: Mapping[int, datetime],
    known: bool = False,
    ended: Sequence[int] = (),
) -> Hang | None:
    """The verdict; None: the job does not hang, as far as the stacks show. `before` and `after`:
    the snapshots, of all running ranks; `quiet`: the ranks that do nothing, and since when;
    `known`: the job has been found to hang; `ended`: workers that have ended, so that their ranks
    enter nothing any more."""
    first = {rank.rank: rank.processes[0] for rank in before}
    waiting: dict[int, Place] = {}
    elsewhere: dict[int, ProcessStacks] = {}
    for rank in after:
        then = first.get(rank.rank)
        now = rank.processes[0]
        # one that has answered only once has not moved, as far as is known
        if then and rank.rank in quiet:
            then, now = then if then.threads else now, now if now.threads else then
        place = _collective(now)
        if str(place) != str(then and _collective(then)):
            # The rank has entered or left a collective in between: small steps use hardly any CPU
            # time.
            return None
        if place is not None:
            waiting[rank.rank] = place
        else:
            elsewhere[rank.rank] = now
    if not waiting or not quiet.keys() >= elsewhere.keys():
        return None
    if not known and quiet.keys().isdisjoint(waiting):
        return None  # they may be at work, and in the same call twice by chance
    if elsewhere:
        return Hang(frozenset(elsewhere), f"{_waits(waiting, quiet)}; {_stands(elsewhere)}")
    return _all_wait(waiting, quiet, ended) if quiet.keys() >= waiting.keys() else None


def _collective(process: ProcessStacks) -> Place | None:
    """The collective in which the main thread is."""
    place = call(process)
    return place if place and any(_COLLECTIVE.search(frame.file) for frame in place.below) else None


def _all_wait(
    waiting: Mapping[int, Place], quiet: Mapping[int, datetime], ended: Sequence[int]
) -> Hang | None:
    """No rank is elsewhere: some have ended, or the smallest group is in another
    collective than the others.
    """
    if ended:
        who = f"{named(ended, 'worker')} {_have(ended)} ended"
        return Hang(frozenset(waiting), f"{_waits(waiting, quiet)}; {who}")
    groups = [ranks for _, ranks in reversed(_grouped(waiting))]
    if len(waiting) == 1:
        return None
    if len(groups) == 1:
        return Hang(frozenset(waiting), f"{_waits(waiting, quiet)}, and none of them goes on")
    guilty = (
        groups[0]
        if len(groups[0]) < len(groups[1])
        else [rank for group in groups for rank in group]
    )
    return Hang(frozenset(guilty), f"{_waits(waiting, quiet)}: these are different calls")


def _waits(waiting: Mapping[int, Place], quiet: Mapping[int, datetime]) -> str:
    """`ranks 0, 2-7 have waited in all_reduce (train.py:41) since 12:00:58 UTC`"""
    since = min((quiet[rank] for rank in waiting if rank in quiet), default=max(quiet.values()))
    (first, ranks), *rest = _grouped(waiting)[:_NAMED]
    others = "".join(f", {named(others)} {_are(others)} in {place}" for place, others in rest)
    return f"{named(ranks)} {_have(ranks)} waited in {first} since {since:%H:%M:%S} UTC{others}"


def _stands(elsewhere: Mapping[int, ProcessStacks]) -> str:
    """`rank 1 is in load (data.py:12) and has not entered it`"""
    places: dict[int, str] = {}
    for rank, process in elsewhere.items():
        place = call(process)
        places[rank] = _LEFT if has_left(process) else f"in {place}" if place else process.state
    groups = _grouped(places)[:_NAMED]
    told = [
        f"{named(ranks)} {(_have if place == _LEFT else _are)(ranks)} {place}"
        for place, ranks in groups
    ]
    missing = f" and {_have([*elsewhere])} not entered it" if {*places.values()} != {_LEFT} else ""
    return f"{', '.join(told)}{missing}"


def _have(ranks: Sequence[int]) -> str:
    return "has" if len(ranks) == 1 else "have"


def _are(ranks: Sequence[int]) -> str:
    return "is" if len(ranks) == 1 else "are"


def _grouped(places: Mapping[int, object]) -> list[tuple[str, list[int]]]:
    """The places and the ranks there, most ranks first."""
    groups: dict[str, list[int]] = {}
    for rank, place in sorted(places.items()):
        groups.setdefault(str(place), []).append(rank)
    return sorted(groups.items(), key=lambda group: (-len(group[1]), group[1]))
