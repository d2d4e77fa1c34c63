"""Values that are secrets: how they are told by their names, and texts without them. Pure.

Everything that is shown has its masks from here: the spec of a job with its command line, what a
record of a submit holds, and messages.
"""

import re
from collections.abc import Mapping, Sequence

MASK = "***"
Scalar = str | int | float | bool | None

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
        "PASSPHRASE",
        "PASSWD",
        "PASSWORD",
        "PASSWORDS",
        "PAT",
        "SECRET",
        "SECRETS",
    }
)
"""Words that mark a name as the name of a secret, at any place: `DB_PASSWD_OLD`, `authHeader`.
`NOTIFY` is one, because everyone who has the address of a webhook can post to it."""
_LAST = frozenset({"KEY", "KEYS", "TOKEN"})
"""Words that mark a name only as its last word: `HF_TOKEN`, `api-key`, but not `token_dim`."""
_ENDINGS = ("KEY", "PASSWD", "PASSWORD", "SECRET", "TOKEN")
"""Ends of a last word that was written as one: `mytoken`, `APIKEY`."""
_AFTER = frozenset({"ID"})
"""Words that may follow the last word, such as ID in `AWS_ACCESS_KEY_ID`."""

_NAMES_MAX = 10_000
"""Largest number of names that are checked in a command line (in 50 ms). The rest is masked."""
_NAMED = re.compile(rf"(?<![\w.-])([\w.-]{{1,{_NAME_MAX}}})[\"' \\]{{0,4}}[=:](?!//)")
_PASSWORD_IN_URL = re.compile(r"(?<=://)([^/\s:@]{0,200}):[^/\s@]{1,500}(?=@)")


def is_secret(name: str) -> bool:
    """True if the name of a variable, an option or a field says that its value is a secret:
    `WANDB_API_KEY`, `--password`, `hfToken`; not `PATH`, `MAX_TOKENS` or `tokenizer`."""
    if len(name) > _NAME_MAX:
        return False
    words = [word.upper() for word in _WORD.findall(name)]
    if not _ANYWHERE.isdisjoint(words):
        return True
    while words and (words[-1] in _AFTER or words[-1].isdecimal()):
        words.pop()
    return bool(words) and (words[-1] in _LAST or words[-1].endswith(_ENDINGS))


def masked_text(text: str) -> str:
    """The text with a mask in place of each password in a URL, and of all that stands behind the
    name of a secret and `=` or `:`."""
    return _Masking().of(text)


def masked_words(words: Sequence[str]) -> list[str]:
    """The words of a command line with a mask in place of each secret: `--api-key=X`,
    `--password X`, `token=X`, `Authorization: X`, and passwords in URLs."""
    masking = _Masking()
    masked = []
    is_value = False
    for word in words:
        if is_value and not word.startswith("--"):
            masked.append(MASK)
        else:
            masked.append(masking.of(word))
        is_value = word.startswith("-") and "=" not in word and is_secret(word)
    return masked


class _Masking:
    """The masking of the texts of one command line, within the bound on names."""

    def __init__(self) -> None:
        self._names_left = _NAMES_MAX

    def of(self, text: str) -> str:
        text = _PASSWORD_IN_URL.sub(rf"\1:{MASK}", text)
        for name in _NAMED.finditer(text):
            self._names_left -= 1
            has_value = name.end() < len(text)
            if has_value and (self._names_left < 0 or is_secret(name[1])):
                return text[: name.end()] + MASK
        return text


def masked_values(values: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """Values by name, with a mask in place of each secret."""
    return {name: _masked_value(name, value) for name, value in values.items()}


def _masked_value(name: str, value: Scalar) -> Scalar:
    if value is not None and is_secret(name):
        return MASK
    return masked_text(value) if isinstance(value, str) else value


def unmasked_words(words: Sequence[str], stored: Sequence[str]) -> list[str]:
    """Put the stored word back in place of each mask that `masked_words` made of `stored`. `words`
    may have changed meanwhile: a mask belongs to the stored word with the same word before it."""
    shown = masked_words(stored)
    originals = {
        (before, masked): word
        for before, masked, word in zip(["", *shown], shown, stored, strict=False)
        if masked != word
    }
    return [
        originals.get((before, word), word)
        for before, word in zip(["", *words], words, strict=False)
    ]


def is_masked(text: str) -> bool:
    """True for a text in which a mask stands for a secret."""
    return text == MASK or text.endswith(("=" + MASK, ":" + MASK)) or f":{MASK}@" in text
