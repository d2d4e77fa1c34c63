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
_JOINS = re.compile(r"/torch/distributed/rendezvous\.py$")
"""A rank is there until all ranks of its process group have come."""
_NAMED = 8
"""Most places that a sentence lists."""
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
            if not then.threads:
                then = now
            elif not now.threads:
                now = then
        place = _collective(now)
        if str(place) != str(then and _collective(then)):
            # The rank has entered or left a collective in between: small steps use hardly any CPU
            # time.
            return None
        if place is not None:
            waiting[rank.rank] = place
        else:
            elsewhere[rank.rank] = now
    others_do_nothing = quiet.keys() >= elsewhere.keys()
    if not waiting or not others_do_nothing:
        return None
    if not known and quiet.keys().isdisjoint(waiting):
        return None  # they may be at work, and in the same call twice by chance
    if elsewhere:
        return Hang(frozenset(elsewhere), f"{_waits(waiting, quiet)}; {_stands(elsewhere)}")
    if not quiet.keys() >= waiting.keys():
        return None
    return _all_wait(waiting, quiet, ended)


def _collective(process: ProcessStacks) -> Place | None:
    """The collective in which the main thread is."""
    place = call(process)
    if place and any(_COLLECTIVE.search(frame.file) for frame in place.below):
        return place
    return None


def _all_wait(
    waiting: Mapping[int, Place], quiet: Mapping[int, datetime], ended: Sequence[int]
) -> Hang | None:
    """No rank is elsewhere: some have ended, or the smallest group is in another
    collective than the others.
    """
    if ended:
        who = f"{named(ended, 'worker')} {_have(ended)} ended"
        return Hang(frozenset(waiting), f"{_waits(waiting, quiet)}; {who}")
    if len(waiting) == 1:
        return _waits_for_nobody(waiting, quiet)
    smallest, *others = [ranks for _, ranks in reversed(_grouped(waiting))]
    if not others:
        return Hang(frozenset(waiting), f"{_waits(waiting, quiet)}, and none of them goes on")
    guilty = smallest if len(smallest) < len(others[0]) else waiting
    return Hang(frozenset(guilty), f"{_waits(waiting, quiet)}: these are different calls")


def _waits_for_nobody(waiting: Mapping[int, Place], quiet: Mapping[int, datetime]) -> Hang | None:
    """The only running rank waits for others to join, which nobody starts."""
    place = next(iter(waiting.values()))
    if not any(_JOINS.search(frame.file) for frame in place.below):
        return None
    return Hang(
        frozenset(waiting),
        f"{_waits(waiting, quiet)}, and no other rank runs: the script waits for more ranks than "
        "the job starts (n_workers, processes_per_worker)",
    )


def _waits(waiting: Mapping[int, Place], quiet: Mapping[int, datetime]) -> str:
    """`ranks 0, 2-7 have waited in all_reduce (train.py:41) since 12:00:58 UTC`"""
    since = min((quiet[rank] for rank in waiting if rank in quiet), default=max(quiet.values()))
    (first, ranks), *rest = _grouped(waiting)[:_NAMED]
    others = "".join(f", {named(others)} {_are(others)} in {place}" for place, others in rest)
    return f"{named(ranks)} {_have(ranks)} waited in {first} since {since:%H:%M:%S} UTC{others}"


def _stands(elsewhere: Mapping[int, ProcessStacks]) -> str:
    """`rank 1 is in load (data.py:12) and has not entered it`"""
    places = {rank: _where(process) for rank, process in elsewhere.items()}
    told = []
    for place, ranks in _grouped(places)[:_NAMED]:
        verb = _have(ranks) if place == _LEFT else _are(ranks)
        told.append(f"{named(ranks)} {verb} {place}")
    said = ", ".join(told)
    if set(places.values()) == {_LEFT}:
        return said
    return f"{said} and {_have([*elsewhere])} not entered it"


def _where(process: ProcessStacks) -> str:
    if has_left(process):
        return _LEFT
    place = call(process)
    return f"in {place}" if place else process.state


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
