"""Tells which value of a metric is the best: by its name, or as the user says.

Standard library only: the fast reads of the command line share it.
"""

from typing import NamedTuple

_FALLS = ("loss", "perplexity", "ppl", "error", "wer", "cer", "mse", "mae", "rmse", "nll")
_GROWS = (
    "acc",
    "f1",
    "auc",
    "bleu",
    "rouge",
    "reward",
    "iou",
    "dice",
    "recall",
    "precision",
    "psnr",
    "ssim",
    "elbo",
)


class Wanted(NamedTuple):
    """The metric by which something is the best."""

    metric: str
    is_larger: bool
    """The largest value is the best."""


def grows(name: str) -> bool | None:
    """True if the largest value of a metric of this name is the best; None: the name does not tell.
    Of several words that tell, the last one counts: `dice_loss` is a loss."""
    lower = name.lower()
    last_growing = max(map(lower.rfind, _GROWS))
    last_falling = max(map(lower.rfind, _FALLS))
    if last_growing == last_falling:  # -1: there is neither
        return None
    return last_growing > last_falling


def wanted(text: str) -> Wanted:
    """`val_loss`, `max:score` or `min:score`; without the word the name tells, else the smallest
    value is the best."""
    word, _, name = text.partition(":")
    if word in ("max", "min") and name:
        return Wanted(name, word == "max")
    return Wanted(text, bool(grows(text)))
