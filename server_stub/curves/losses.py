"""Finds the losses of a job that are lost: NaN or infinite, without a way back. Pure.

A loss of the training counts, on any rank: a rank whose loss is NaN poisons what all ranks sum up.
The loss of an evaluation counts only where the rank prints no other, because scripts print NaN for
it in steps that evaluate nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple

from client_lib.spec.wording import spans
from server_stub.curves.points import Points

_TOKENS = re.compile(r"[a-z]+|\d+")
_LOSSES = frozenset({"loss", "nll"})
_NO_LOSSES = frozenset({"best", "min", "scale", "weight", "coef"})
"""Words in the names of what is kept beside a loss; the best loss is infinite at first."""
_EVALUATED = frozenset({"val", "valid", "validation", "test", "eval", "evaluation", "dev"})


_NAME_MAX = 60
"""Characters of a name in a sentence: a library may report any name."""
_RANKS_MAX = 40
"""Characters of a list of ranks in a sentence."""


class Loss(NamedTuple):
    """The loss of one rank."""

    rank: int | None
    """None: a line of no rank."""
    name: str
    lost: tuple[str, float] | None
    """`step`, `epoch` or `value`, and its number, from which on it is not finite; None: it is
    finite."""
    word: str = ""
    """`NaN` or `infinite`, as the first of these values is."""


def losses(curves: Mapping[tuple[int | None, str], Points]) -> list[Loss]:
    """The losses among the curves of a worker."""
    of_rank: dict[int | None, list[str]] = {}
    for rank, name in curves:
        if _is_loss(name):
            of_rank.setdefault(rank, []).append(name)
    return [
        _loss(rank, name, curves[rank, name])
        for rank, names in of_rank.items()
        for name in of_training(names)
    ]


def of_training(names: Iterable[str]) -> list[str]:
    """The losses of the training among the metrics of a rank; without one, its other losses."""
    found = [name for name in names if _is_loss(name)]
    return [name for name in found if not _is_evaluated(name)] or found


def _loss(rank: int | None, name: str, curve: Points) -> Loss:
    at = curve.lost_from()
    if at is None:
        return Loss(rank, name, None)
    axis = "value" if curve.axis == "count" else curve.axis
    value = curve.values[at]
    return Loss(rank, name, (axis, curve.steps[at]), "NaN" if value != value else "infinite")


def sentence(found: Iterable[Loss]) -> str:
    """`loss was NaN on rank 1 from step 5 (rank 0: finite)`, of the loss that was lost first;
    "": all are finite.
    """
    all_losses = list(found)
    lost = [each for each in all_losses if each.lost]
    if not lost:
        return ""
    first = min(lost, key=_order)
    same_name = [each for each in all_losses if each.name == first.name]
    same = [each for each in same_name if each.lost == first.lost]
    name = " ".join(first.name.split())[:_NAME_MAX]
    return f"{name} was {first.word}{_on(same, same_name)} from {_place(first)}" + _of_rank_0(
        same, same_name
    )


def _order(loss: Loss) -> tuple[float, bool, int]:
    step = loss.lost[1] if loss.lost else 0.0
    return step, loss.name not in ("loss", "train_loss"), -1 if loss.rank is None else loss.rank


def _on(same: Sequence[Loss], all_ranks: Sequence[Loss]) -> str:
    """The ranks, unless it was lost on all at once, or on rank 0 and no other prints it."""
    ranks = [each.rank for each in same if each.rank is not None]
    if not ranks or (len(same) == len(all_ranks) and 0 in ranks):
        return ""
    named = spans(ranks)
    if len(named) > _RANKS_MAX:
        return f" on {len(ranks)} ranks, such as {min(ranks)},"
    return f" on rank{'s' if len(ranks) > 1 else ''} {named}"


def _place(loss: Loss) -> str:
    return f"{loss.lost[0]} {loss.lost[1]:.15g}" if loss.lost else ""


def _of_rank_0(same: Sequence[Loss], all_ranks: Sequence[Loss]) -> str:
    """The loss of rank 0, at which people look, if it was not among the first."""
    of_first = next((each for each in all_ranks if each.rank == 0 and each not in same), None)
    if of_first is None:
        return ""
    return f" (rank 0: {f'from {_place(of_first)}' if of_first.lost else 'finite'})"


@lru_cache(1024)
def _is_loss(name: str) -> bool:
    words = _TOKENS.findall(name.lower())
    return not _LOSSES.isdisjoint(words) and _NO_LOSSES.isdisjoint(words)


@lru_cache(1024)
def _is_evaluated(name: str) -> bool:
    return not _EVALUATED.isdisjoint(_TOKENS.findall(name.lower()))
