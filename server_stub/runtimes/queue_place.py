"""Says the place of a job in a queue."""

from __future__ import annotations


def place(number: int, of: int | str) -> str:
    """A place in a queue: `1st of 2`, `12th of more than 20`."""
    ending = "th" if number // 10 % 10 == 1 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending} of {of}"
