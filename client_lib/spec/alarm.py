"""The rules of the field `alarm`, as in `loss > 10 for 50 steps -> retry`: their grammar, and the
records that are read from them. Pure and standard library only: client and server check one text.

    rule       CONDITION -> ACTION
    CONDITION  nan                      a loss of the training, in 3 values in a row
               nan for SPAN
               METRIC nan [for SPAN]
               METRIC > NUMBER [for SPAN]          also >=, < and <=
               METRIC spike
               METRIC rises for SPAN
               METRIC stands still for SPAN
               idle for TIME
    ACTION     notify, stop or retry
    SPAN       NUMBER steps, or TIME
    TIME       NUMBER s, NUMBER min or NUMBER h
    METRIC     letters, digits, and any of _ . / @ -; it begins with a letter or _
"""

# without `from __future__ import annotations`, as in `client_lib.spec.job`

import re
from difflib import get_close_matches
from math import isfinite
from typing import Literal, NamedTuple, NoReturn, cast

RULES_MAX = 20
"""Largest number of rules of a job."""
_LONGEST = 200
"""Characters of a rule."""
TREND_STEPS_MIN = 20
"""Least steps of a span that is judged for a trend."""
_STEPS_MAX = 10**9
_SECONDS_MAX = 30 * 24 * 3600
_EXAMPLE = "loss > 10 for 50 steps -> notify"

Action = Literal["notify", "stop", "retry"]
Comparison = Literal[">", ">=", "<", "<="]
_ACTIONS = ("notify", "stop", "retry")
_COMPARISONS = (">", ">=", "<", "<=")
_AFTER_METRIC = (*_COMPARISONS, "nan", "spike", "rises", "stands")
_UNITS = {
    "step": ("steps", 1),
    "steps": ("steps", 1),
    "s": ("s", 1),
    "min": ("s", 60),
    "h": ("s", 3600),
}
"""Words behind a number -> the unit of the span, and the number of these units."""
_TOKEN = re.compile(
    r"->|[<>]=?|[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|[a-z_](?:[\w./@]|-(?!>))*|\S",
    re.IGNORECASE,
)
_NAME = re.compile(r"[a-z_].*", re.IGNORECASE)


class Span(NamedTuple):
    """A length of a training."""

    amount: float
    unit: Literal["steps", "s", "values"]
    """`values`: values of the metric, in a span that the user did not give."""


class NotFinite(NamedTuple):
    """A metric is NaN or infinite."""

    metric: str
    """ "": each loss of the training."""
    span: Span


class Beyond(NamedTuple):
    """A metric is on one side of a limit."""

    metric: str
    comparison: Comparison
    limit: float
    span: Span


class Spike(NamedTuple):
    """A value of a metric is far above the values before it."""

    metric: str


class Rises(NamedTuple):
    """A metric rises."""

    metric: str
    span: Span


class StandsStill(NamedTuple):
    """A metric neither falls nor rises."""

    metric: str
    span: Span


class Idle(NamedTuple):
    """The GPUs of the job, or without GPUs its cores, do nothing."""

    span: Span


Condition = NotFinite | Beyond | Spike | Rises | StandsStill | Idle
ONCE = Span(1, "values")
THRICE = Span(3, "values")


class Rule(NamedTuple):
    """A rule as the user wrote it, and what it means."""

    text: str
    """The rule with single spaces between its words."""
    condition: Condition
    action: Action


class _Token(NamedTuple):
    text: str
    at: int
    """Index of its first character in the rule."""


def parse(text: str) -> Rule:
    """Read a rule. Raises ValueError: a sentence with the column, what stands there, and what may
    stand there."""
    if len(text) > _LONGEST:
        raise ValueError(f"has {len(text)} characters; a rule has at most {_LONGEST}")
    return _Parser(text).rule()


def check(text: str) -> None:
    """Raises ValueError, as `parse` does."""
    parse(text)


def action_of(text: str) -> str:
    """The last word of a rule, which a newer version may have written."""
    return text.rpartition("->")[2].strip().lower()


class _Parser:
    """Reads one rule from left to right."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = [_Token(found.group(), found.start()) for found in _TOKEN.finditer(text)]
        self._next = 0

    def rule(self) -> Rule:
        condition = self._condition()
        self._word(["->"] if self._is_complete(condition) else ["->", "for"])
        action = cast(Action, self._word(_ACTIONS))
        if self._here() is not None:
            self._refuse("the end of the rule")
        return Rule(" ".join(self._text.split()), condition, action)

    # --- conditions

    def _condition(self) -> Condition:
        first = self._here()
        second = self._tokens[1].text.lower() if len(self._tokens) > 1 else ""
        if first is None or not _NAME.fullmatch(first.text):
            self._refuse("the name of a metric, `nan` or `idle`")
        self._next += 1
        if second not in _AFTER_METRIC:
            if first.text.lower() == "nan":
                return NotFinite("", self._span_or(THRICE))
            if first.text.lower() == "idle":
                return Idle(self._span(["s", "min", "h"]))
        return self._of_metric(first.text)

    def _of_metric(self, metric: str) -> Condition:
        word = self._word(_AFTER_METRIC, "a comparison or a condition of the metric")
        if word == "nan":
            return NotFinite(metric, self._span_or(THRICE))
        if word == "spike":
            return Spike(metric)
        if word == "rises":
            return Rises(metric, self._span(steps_min=TREND_STEPS_MIN))
        if word == "stands":
            self._word(["still"])
            return StandsStill(metric, self._span(steps_min=TREND_STEPS_MIN))
        limit = self._number("a number to compare with")
        return Beyond(metric, cast(Comparison, word), limit, self._span_or(ONCE))

    @staticmethod
    def _is_complete(condition: Condition) -> bool:
        """True if no span may follow."""
        span = getattr(condition, "span", None)
        return span is None or span.unit != "values"

    # --- spans

    def _span_or(self, default: Span) -> Span:
        here = self._here()
        return self._span() if here and here.text.lower() == "for" else default

    def _span(self, units: "list[str] | None" = None, steps_min: int = 1) -> Span:
        self._word(["for"], "`for` and a span, as in `for 50 steps` or `for 10 min`")
        number = self._here()
        amount = self._number("a number of steps, s, min or h")
        unit, factor = _UNITS[self._word(units or list(_UNITS))]
        amount *= factor
        is_steps = unit == "steps"
        least, most = (steps_min, _STEPS_MAX) if is_steps else (1, _SECONDS_MAX)
        if not least <= amount <= most or (is_steps and amount != int(amount)):
            least_and_most = f"{least} to {most} steps" if is_steps else "1 s to 30 days (720 h)"
            self._next = self._tokens.index(cast(_Token, number))
            self._refuse(f"a span from {least_and_most}")
        return Span(amount, cast(Literal["steps", "s"], unit))

    # --- tokens

    def _here(self) -> "_Token | None":
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _word(self, words: "list[str] | tuple[str, ...]", wanted: str = "") -> str:
        """Read one of these words."""
        here = self._here()
        if here is None or here.text.lower() not in words:
            self._refuse(wanted or _one_of(words), words)
        self._next += 1
        return here.text.lower()

    def _number(self, wanted: str) -> float:
        here = self._here()
        try:
            number = float(here.text) if here else float("nan")
        except ValueError:
            number = float("nan")
        if not isfinite(number):
            self._refuse(wanted)
        self._next += 1
        return number

    def _refuse(self, wanted: str, words: "list[str] | tuple[str, ...]" = ()) -> NoReturn:
        """Raises ValueError: another thing than `wanted` stands here."""
        here = self._here()
        if here is None:
            raise ValueError(
                f"column {len(self._text.rstrip()) + 1}: the rule ends where {wanted} is "
                f"missing, as in `{_EXAMPLE}`"
            )
        near = get_close_matches(here.text.lower(), words, n=1)
        meant = f"did you mean `{near[0]}`?" if near else f"as in `{_EXAMPLE}`"
        before = self._text[: here.at].rstrip()
        behind = f" behind {before!r}" if before else ""
        raise ValueError(
            f"column {here.at + 1}: {here.text!r} stands{behind} in place of {wanted}; {meant}"
        )


def _one_of(words: "list[str] | tuple[str, ...]") -> str:
    *others, last = [f"`{word}`" for word in words]
    return f"{', '.join(others)} or {last}" if others else last
