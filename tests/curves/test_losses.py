"""Which losses are lost, on which ranks, and which only look so."""

import math
from collections.abc import Sequence

import pytest

from server_stub.curves.losses import losses, sentence
from server_stub.curves.points import Axis, Points
from server_stub.curves.tracker import Key

NAN = math.nan
INF = math.inf


def curve(values: Sequence[float], axis: Axis = "step") -> Points:
    made = Points(axis, "stdout")
    for number, value in enumerate(values, 1):
        made.add(float(number), number / 10, value)
    return made


def said(curves: dict[Key, Sequence[float]], axis: Axis = "step") -> str:
    return sentence(losses({key: curve(values, axis) for key, values in curves.items()}))


FINE = [3.0, 2.0, 1.0]
LOST = [3.0, NAN, NAN]
LATER = [3.0, 2.0, NAN]


@pytest.mark.parametrize(
    ("of_ranks", "expected"),
    [
        ({0: FINE}, ""),
        ({0: LOST}, "loss was NaN from step 2"),
        ({None: LOST}, "loss was NaN from step 2"),
        ({0: FINE, 1: LOST}, "loss was NaN on rank 1 from step 2 (rank 0: finite)"),
        ({0: LATER, 1: LOST}, "loss was NaN on rank 1 from step 2 (rank 0: from step 3)"),
        ({0: LOST, 1: LOST}, "loss was NaN from step 2"),
        ({0: LOST, 1: LATER}, "loss was NaN on rank 0 from step 2"),
        ({0: FINE, 1: LOST, 2: LOST}, "loss was NaN on ranks 1-2 from step 2 (rank 0: finite)"),
        ({1: LOST}, "loss was NaN on rank 1 from step 2"),
        ({0: [1.0, INF, INF]}, "loss was infinite from step 2"),
    ],
)
def test_the_sentence_names_rank_and_step(
    of_ranks: dict[int | None, Sequence[float]], expected: str
) -> None:
    assert said({(rank, "loss"): values for rank, values in of_ranks.items()}) == expected


def test_the_axis_and_the_loss_that_was_lost_first_are_named() -> None:
    assert said({(0, "loss"): LOST}, "epoch") == "loss was NaN from epoch 2"
    assert said({(0, "loss"): LOST}, "count") == "loss was NaN from value 2"
    assert said({(0, "g_loss"): LATER, (0, "d_loss"): LOST}) == "d_loss was NaN from step 2"
    assert (
        said({(0, "aux_loss"): LOST, (0, "train_loss"): LOST}) == "train_loss was NaN from step 2"
    )


@pytest.mark.parametrize(
    "curves",
    [
        {"accuracy": LOST},
        {"grad_norm": [1.0, INF]},
        {"loss": FINE, "val_loss": LOST},
        {"loss": FINE, "eval/loss": [NAN, NAN, NAN]},
        {"loss": FINE, "best_loss": [INF, INF, INF]},
        {"loss": FINE, "loss_scale": [INF, INF]},
        {"loss": [NAN, 3.0, 2.0]},
        {"loss": [3.0, INF, 2.0, NAN, NAN, 1.0]},
    ],
)
def test_a_healthy_training_has_none(curves: dict[str, Sequence[float]]) -> None:
    assert said({(0, name): values for name, values in curves.items()}) == ""


def test_the_sentence_is_one_short_line_whatever_is_reported() -> None:
    odd = said({(0, "my\n\tloss " + "x" * 200): LOST})
    assert odd.startswith("my loss xxx")
    assert len(odd) < 100
    others: dict[Key, Sequence[float]] = {
        (rank, "loss"): LOST if rank % 2 else FINE for rank in range(200)
    }
    assert said(others) == "loss was NaN on 100 ranks, such as 1, from step 2 (rank 0: finite)"


def test_the_loss_of_an_evaluation_counts_where_there_is_no_other() -> None:
    assert said({(0, "val_loss"): LOST, (0, "acc"): FINE}) == "val_loss was NaN from step 2"
