"""Reads metrics and counters in one printed line. Pure.

A line is read as one of: a dict or a line of JSON, a tqdm bar with its postfix, or text with
numbers beside names. A number counts only if its name is a usual one of training (`loss`), or if
the line also has a step or an epoch; and never if its name is one of a machine (`port`), or if it
is a version, a path, an address, or has a unit.
"""

import re
from functools import lru_cache
from typing import Dict, FrozenSet, Iterable, Iterator, List, NamedTuple, Optional, Tuple

LONGEST = 4000  # characters; longer lines are data, not metrics
_NUMBER = r"(?:[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[+-]?inf(?:inity)?|nan)"
_NAME = r"[a-z_][\w/.@-]*"
_PART = (
    "train|training|val|valid|validation|test|eval|evaluation|dev|avg|average|mean|learning|running"
)
_END = r"(?=[\s,;|)\]}]|\.?$|\.\s)"
_ESCAPE = re.compile("\x1b\\[[0-9;?]*[A-Za-z]")
_PAIR = re.compile(
    rf"(?<![\w./@:\\-])(?:({_PART}) )?({_NAME})(\s?=\s?|:\s{{0,4}}|\s{{1,4}})({_NUMBER})(%?){_END}"
)
_ITEM = re.compile(
    rf"""(["'])([^"']{{1,100}})\1\s?:\s?(["']?)({_NUMBER})\3\s?(?=[,}}])""", re.IGNORECASE
)
_UNIT = re.compile(
    r"\s(?:[kmgtμµn]?i?b|bytes?|[mnuµμ]?s|secs?|seconds?|min|minutes?|hours?|h|[a-z]+/s)\b"
)
_COUNT = r"(\d{1,15}(?:\.\d{1,9})?)"
_TOTAL = r"(?:\s?(?:/|of)\s{0,4}(\d{1,15})(?![\d/.]))?"
_OF = rf"[\s:=#]{{0,3}}[\[(]?\s?{_COUNT}{_TOTAL}(?![\w/]|\.\d)"
_STEP = re.compile(rf"(?<![\w/.-])(?:global[ _])?(?:step|iter|iteration|batch)s?{_OF}")
_EPOCH = re.compile(rf"(?<![\w/.-])epochs?{_OF}")
_N_OF = re.compile(r"(?:^\s*|[\[(]\s*)(\d{1,15})/(\d{1,15})(?=\s?[\])\[]|\s\()")
_BAR = re.compile(
    r"^(.{0,200}?):?\s{0,4}\d{1,3}%\|[^|]{0,500}\|\s{0,4}(\d{1,15})/(\d{1,15}) \[([^\[]*)"
)
_OPEN_BAR = re.compile(r"^(.{0,200}?):?\s{0,4}(\d{1,15})it \[(\d[^\[]*)")
_BYTES = re.compile(r"\d[kKMGT]?i?B/s")
_NO_LINE = re.compile(r'\s*File "|\w*(?:Error|Exception|Warning)\b|.{0,300}\w(?:Error|Warning): ')
_STEPS = ("step", "global_step", "iteration", "iter", "steps", "batch")
_EPOCHS = ("epoch", "epochs")
_COUNTERS = (*_STEPS, *_EPOCHS)


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


_OTHER = _words(
    "attempt batch bytes code count cpu created cuda date device duration elapsed eta exit "
    "gid gpu host id level line lineno max mem memory min n node num pid port ppid rank ranks "
    "retry runtime seed size status threads tid time timestamp total ts uid v version worker "
    "workers world"
)
"""Words in the names of numbers that are no metrics."""
_USUAL = _words(
    "acc acc1 acc5 accuracy auc auroc bleu bpb bpc cer dice elbo entropy f1 fid iou kl loss "
    "lr mae miou mse nll perplexity ppl psnr recall reward rmse rouge ssim top1 top5 wer"
)
"""Words in the names of metrics."""
_USUAL_NAMES = ("grad_norm", "learning_rate")
_HINTS = ("step", "epoch", "loss", "iter", "batch", "%|", "it [", *_USUAL_NAMES, *_USUAL)
_TOKENS = re.compile(r"[a-z]+\d*|\d+")


class LineReading(NamedTuple):
    """The content of one line."""

    values: Dict[str, float]
    step: Optional[float] = None
    steps: Optional[int] = None
    """All steps: of an epoch, if the line has the epoch."""
    epoch: Optional[float] = None
    epochs: Optional[int] = None
    bar: Optional[str] = None
    """Text before a bar, without digits; None: this is no bar."""


def read(line: str) -> Optional[LineReading]:
    """The metrics and counters of a line without its end; None: it has none."""
    if len(line) > LONGEST:
        return None
    text = _ESCAPE.sub("", line) if "\x1b" in line else line
    lower = text.lower()
    if not any(map(lower.__contains__, _HINTS)) and not ("/" in text and _N_OF.search(text)):
        return None
    if _NO_LINE.match(text):
        return None
    if "{" in text and text.rstrip().endswith("}"):
        return _of_items(text[text.index("{") :])
    if "%|" in text or "it [" in text:
        return _of_bar(text)
    return _of_text(lower)


def _of_items(text: str) -> Optional[LineReading]:
    found = {match[2]: float(match[4]) for match in _ITEM.finditer(text)}
    step, epoch = (
        next((found[name] for name in names if name in found), None) for names in (_STEPS, _EPOCHS)
    )
    if step is None and epoch is None and not any(map(_is_usual, found)):
        return None
    values = {
        name: value
        for name, value in found.items()
        if not (name in _COUNTERS or _is_other_item(name))
    }
    return LineReading(values, step, epoch=epoch) if values else None


def _of_bar(text: str) -> Optional[LineReading]:
    if _BYTES.search(text):
        return None  # a download
    if match := _BAR.match(text):
        name = match[1]
        step = float(match[2])
        steps = int(match[3])
        rest = match[4]
    elif match := _OPEN_BAR.match(text):
        name = match[1]
        step = float(match[2])
        steps = None
        rest = match[3]
    else:
        return None
    epoch, epochs = _counter(_EPOCH, name.lower())
    values = dict(_pairs(rest.lower(), counted=True))
    return LineReading(values, step, steps, epoch, epochs, re.sub(r"\d+", "", name).strip())


def _of_text(text: str) -> Optional[LineReading]:
    step, steps = _counter(_STEP, text)
    epoch, epochs = _counter(_EPOCH, text)
    if step is None and (match := _N_OF.search(text)):
        step = float(match[1])
        steps = int(match[2])
    if steps is not None and (step is None or step > steps):
        step = steps = None
    values = dict(_pairs(text, counted=step is not None or epoch is not None))
    if not values and steps is None and epochs is None:
        return None
    return LineReading(values, step, steps, epoch, epochs)


def _counter(pattern: "re.Pattern[str]", text: str) -> Tuple[Optional[float], Optional[int]]:
    match = pattern.search(text)
    return (float(match[1]), int(match[2]) if match[2] else None) if match else (None, None)


def _pairs(text: str, *, counted: bool) -> Iterator[Tuple[str, float]]:
    """The numbers beside names, in a text of small letters. `counted`: any names will do,
    as beside a step or a bar.
    """
    for match in _PAIR.finditer(text):
        part, name, between, number, percent = match.groups()
        whole = f"{part}_{name}" if part else name
        # `loss 0.5`, `loss:0.5`: only for usual names, as `python:3.11`
        plain = between.isspace() or between == ":"
        if (
            name in _COUNTERS
            or _is_other(whole)
            or not (_is_usual(whole) or (counted and not plain))
        ):
            continue
        if not percent and _UNIT.match(text, match.end()):
            continue
        yield whole, float(number)


def _tokens(name: str) -> List[str]:
    return _TOKENS.findall(name.lower())


@lru_cache(1024)
def _is_usual(name: str) -> bool:
    return not _USUAL.isdisjoint(_tokens(name)) or name.lower() in _USUAL_NAMES


@lru_cache(1024)
def _is_other(name: str) -> bool:
    return not _OTHER.isdisjoint(_tokens(name)) and not _is_usual(name)


@lru_cache(1024)
def _is_other_item(name: str) -> bool:
    """The name of an item, which a program has chosen as a whole, tells by its last word what it
    counts: `num_tokens` are tokens. `eval_runtime` belongs to the record of transformers' Trainer.
    """
    *before, last = _tokens(name) or [""]
    return last in _OTHER and not _is_usual(name) and not (before and last == "runtime")


def by_weight(names: Iterable[str]) -> List[str]:
    """The names, the most important first: the losses of training, then other losses."""
    return sorted(
        names, key=lambda name: (name not in ("loss", "train_loss"), "loss" not in _tokens(name))
    )
