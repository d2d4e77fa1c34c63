"""Alerts that a script has sent (`client_lib.alert`), as launchers write them to the log. Pure."""

from __future__ import annotations

from typing import NamedTuple

from client_lib.launcher_protocol.record import ALERT_TEXT_MAX, ALERT_TITLE_MAX

ALERTS_MAX = 20
"""Largest number of alerts of a worker in an attempt that are kept; later ones are lines of the log
alone."""


class Alert(NamedTuple):
    """A call of `client_lib.alert`."""

    rank: int
    title: str
    text: str

    @property
    def source(self) -> str:
        """The call, as it stands for a rule. A title is told once in an attempt."""
        return f"client_lib.alert({self.title!r})"

    @property
    def sentence(self) -> str:
        """One line for people."""
        where = f" of rank {self.rank}" if self.rank else ""
        text = f": {self.text}" if self.text else ""
        return f"alert{where}: {self.title}{text}"


def parse(rank: object, item: object) -> Alert:
    """The alert in a line of the log. Raises ValueError, TypeError: a script wrote the line."""
    if not isinstance(rank, int) or not isinstance(item, list):
        raise TypeError(f"{item!r} is no alert")
    title, text = (_one_line(str(part)) for part in item)
    return Alert(rank, title[:ALERT_TITLE_MAX], text[:ALERT_TEXT_MAX])


def _one_line(text: str) -> str:
    """The text without characters that an answer or a terminal can't show."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
