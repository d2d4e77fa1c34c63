"""Values that are secrets: how they are told by their names, and texts without them. Pure.

Everything that is shown has its masks from here: the spec of a job with its command line, what a
record of a submit holds, and messages.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only mask load no pydantic
    from client_lib.spec.validation import Scalar

MASK = "***"

_NAME_MAX = 100
"""Longest name that is read; a longer one names no secret."""
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[A-Z]|\d+")
_ANYWHERE = frozenset(
    {
        "AUTH",
        "AUTHORIZATION",
        "COOKIE",
        "COOKIES",
        "CREDENTIAL",
        "CREDENTIALS",
        "DSN",
        "NOTIFY",
        "OAUTH",
        "PASSPHRASE",
        "PASSWD",
        "PASSWORD",
        "PASSWORDS",
        "SECRET",
        "SECRETS",
    }
)
"""Words that mark a name as the name of a secret, at any place: `DB_PASSWD_OLD`, `authHeader`.
`NOTIFY` is one, because everyone who has the address of a webhook can post to it."""
_LAST = frozenset({"KEY", "KEYS", "PASS", "PAT", "PWD", "TOKEN", "TOKENS"})
"""Words that mark a name only as its last word: `HF_TOKEN`, `api-key`, but not `token_dim`."""
_ENDINGS = ("ACCESSKEY", "APIKEY", "PASSWD", "PASSWORD", "SECRET", "SECRETKEY", "TOKEN")
"""Ends of a last word that was written as one: `mytoken`, `APIKEY`."""
_AFTER = frozenset({"ID"})
"""Words that may follow the last word, such as ID in `AWS_ACCESS_KEY_ID`."""
_OF_A_MODEL = frozenset(
    {
        *("BOS", "CLS", "EOS", "MASK", "PAD", "SEP", "UNK"),  # token
        *("BATCH", "MAX", "MIN", "N", "NEW", "NUM", "TOTAL", "TRAIN"),  # tokens
        *("AUDIO", "CAPTION", "IMAGE", "LABEL", "PRIMARY", "SORT", "TEXT"),  # key
        *("FIRST", "LAST", "NUM", "PER", "SECOND"),  # pass
    }
)
"""Words before the last one that tell a setting of a model or a table: `pad_token`, `text_key`."""
_IN_VARIABLES = frozenset({"KEY", "KEYS", "TOKEN"})
"""Words that mark a variable of the environment at any place: `HF_TOKEN_READ`, `API_KEY_PROD`. In a
command line such a name is a setting more often: `key_dim`."""

_NAMES_MAX = 2000
"""Largest number of names that are checked in the texts of one job (in 10 ms). The rest is
masked."""
_NAMED = re.compile(rf"(?<![\w.-])([\w.-]{{1,{_NAME_MAX}}})[\"' \\]{{0,4}}[=:](?!//)")
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/\s:@]{0,200}):[^/\s@]{1,500}(?=@)")


_TOKEN_IN_URL = re.compile(
    r"(?<=://)(?:(?:gh[a-z]|github_pat|glpat|hf|xox[a-z])[_-][^/\s:@]{1,500}"
    r"|(?=[^/\s:@\d]{0,500}\d)[^/\s:@]{20,500})(?=@)"
)
"""A token in the place of a user, `https://ghp_x@host`: told by its beginning, or by its length and
a digit. Names of users, as in `ssh://git@host`, are shown."""


def is_secret(name: str) -> bool:
    """True if the name of an option, a field or a variable says that its value is a secret:
    `WANDB_API_KEY`, `--password`, `hfToken`; not `PATH`, `MAX_TOKENS` or `tokenizer`."""
    words = _words(name)
    if not _ANYWHERE.isdisjoint(words):
        return True
    while words and (words[-1] in _AFTER or words[-1].isdecimal()):
        words.pop()
    if not words or (words[-1] == "PWD" and len(words) == 1):  # the working directory
        return False
    if len(words) > 1 and words[-2] in _OF_A_MODEL:
        return False
    return words[-1] in _LAST or words[-1].endswith(_ENDINGS)


def is_secret_variable(name: str) -> bool:
    """`is_secret` for a variable of the environment, whose name need not end with TOKEN or KEY."""
    return is_secret(name) or not _IN_VARIABLES.isdisjoint(_words(name))


def _words(name: str) -> list[str]:
    return [word.upper() for word in _WORD.findall(name)] if len(name) <= _NAME_MAX else []


class Masking:
    """Masks the texts of one job. The bound on names holds for all of these together."""

    def __init__(self) -> None:
        self._names_left = _NAMES_MAX

    def text(self, text: str) -> str:
        """The text with a mask in place of each password or token in a URL, and of all that stands
        behind the name of a secret and `=` or `:`."""
        text = _PASSWORD_IN_URL.sub(rf"\1:{MASK}", text)
        text = _TOKEN_IN_URL.sub(MASK, text)
        for name in _NAMED.finditer(text):
            self._names_left -= 1
            has_value = name.end() < len(text)
            if has_value and (self._names_left < 0 or is_secret(name[1])):
                return text[: name.end()] + MASK
        return text

    def words(self, words: Sequence[str]) -> list[str]:
        """The words of a command line with a mask in place of each secret: `--api-key=X`,
        `--password X`, `token=X`, `Authorization: X`, and passwords in URLs."""
        masked = []
        is_value = False
        for word in words:
            if is_value and not word.startswith("--"):
                masked.append(MASK)
            else:
                masked.append(self.text(word))
            is_value = word.startswith("-") and "=" not in word and is_secret(word)
        return masked

    def values(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Values by the names of options or fields, with a mask in place of each secret."""
        return {name: self._value(value, is_secret(name)) for name, value in values.items()}

    def variables(self, values: Mapping[str, Scalar]) -> dict[str, Scalar]:
        """Variables of the environment, with a mask in place of each secret."""
        return {
            name: self._value(value, is_secret_variable(name)) for name, value in values.items()
        }

    def _value(self, value: Scalar, secret: bool) -> Scalar:
        if secret and value is not None and not isinstance(value, bool):
            return MASK
        return self.text(value) if isinstance(value, str) else value


def unmasked_words(words: Sequence[str], stored: Sequence[str]) -> list[str]:
    """Put the stored word back in place of each mask that `Masking.words` made of `stored`. `words`
    may have changed meanwhile: a mask belongs to the stored word with the same word before it, or
    if it has a name of its own (`key=***`) to the only stored word that is shown like it."""
    shown = Masking().words(stored)
    by_place: dict[tuple[str, str], list[str]] = {}
    by_name: dict[str, list[str]] = {}
    for before, masked, word in zip(["", *shown], shown, stored, strict=False):
        if masked != word:
            by_place.setdefault((before, masked), []).append(word)
            by_name.setdefault(masked, []).append(word)
    found = []
    for before, word in zip(["", *words], words, strict=False):
        if here := by_place.get((before, word)):
            found.append(here.pop(0))
        elif word != MASK and len(by_name.get(word, ())) == 1:
            found.append(by_name[word][0])
        else:
            found.append(word)
    return found


def hidden_part(text: str, masked: str) -> str:
    """The part of a text in whose place `masked` has a mask; "": there is none."""
    before = _common_start(text, masked)
    after = _common_start(text[before:][::-1], masked[before:][::-1])
    return text[before : len(text) - after]


def _common_start(one: str, other: str) -> int:
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def is_masked(text: str) -> bool:
    """True for a text in which a mask stands for a secret."""
    return (
        text == MASK
        or text.endswith(("=" + MASK, ":" + MASK))
        or any(f"{before}{MASK}@" in text for before in (":", "://"))
    )
