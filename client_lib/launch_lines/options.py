"""Splits a launcher's words into its options and what it starts, as argparse would. Pure.

By hand, as argparse calls `--nproc` ambiguous between the two spellings of one option. `_` and `-` are one in names.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from client_lib.errors import InvalidRequest


@dataclass(frozen=True)
class Table:
    """The options that a launcher knows, without their dashes, written with `-`."""

    launcher: str
    flags: frozenset[str]
    valued: frozenset[str]
    families: tuple[str, ...] = ()
    """Options that begin so take a value, too."""
    short: Mapping[str, str] = field(default_factory=dict)
    """One letter -> the option that it stands for."""
    misspelt: Mapping[str, str] = field(default_factory=dict)
    abbreviations: bool = True

    def find(self, name: str, written: str) -> str:
        """Raises InvalidRequest: none or several are meant."""
        name = self.misspelt.get(name, name)
        known = self.flags | self.valued
        if name in known or name.startswith(self.families or ("\0",)):
            return name
        near = sorted(option for option in known if self.abbreviations and option.startswith(name))
        if len(near) == 1:
            return near[0]
        if near:
            raise InvalidRequest(f"{self.launcher}: {written} may be --{' or --'.join(near)}", hint="write more of it")
        like = difflib.get_close_matches(name, known, n=1)
        raise InvalidRequest(
            f"{self.launcher} has no option {written}",
            hint=f"did you mean --{like[0]}?" if like else "options of client-lib stand before the launcher's name",
        )


@dataclass(frozen=True)
class Line:
    """A launcher's line. Of an option that is given twice the last counts."""

    given: Mapping[str, str]
    """Option -> its value; of a flag ''."""
    misspelt: tuple[str, ...]
    rest: Sequence[str]
    """What it starts: the script and its arguments."""


def split(words: Sequence[str], table: Table) -> Line:
    """Raises InvalidRequest: an unknown option, a value that is missing or that a flag does not take."""
    given: dict[str, str] = {}
    misspelt: list[str] = []
    at = 0
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        word, at = words[at], at + 1
        if word == "--":
            break
        written, value = _parted(word)
        name = _name(written, table)
        if written.lstrip("-").replace("_", "-") in table.misspelt:
            misspelt.append(written)
        if name in table.flags:
            if value is not None:
                raise InvalidRequest(f"{table.launcher}: {written} takes no value, and {value!r} is given")
            value = ""
        elif value is None:
            value, at = _next(words, at, f"{table.launcher}: {written}"), at + 1
        given[name] = value
    return Line(given, tuple(misspelt), words[at:])


def _parted(word: str) -> tuple[str, str | None]:
    """`--name=value`, `-t3`, `-t=3` -> (the option as written, its value)."""
    if not word.startswith("--"):
        return word[:2], word[2:].removeprefix("=") or None
    written, equals, value = word.partition("=")
    return written, value if equals else None


def _name(written: str, table: Table) -> str:
    if written.startswith("--"):
        return table.find(written[2:].replace("_", "-"), written)
    if written[1:] in table.short:
        return table.short[written[1:]]
    raise InvalidRequest(f"{table.launcher} has no option {written}")


def _next(words: Sequence[str], at: int, option: str) -> str:
    if at == len(words) or (words[at].startswith("-") and not words[at][1:].isdigit()):
        raise InvalidRequest(f"{option} needs a value")
    return words[at]
