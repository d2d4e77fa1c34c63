"""Reports and explanations of a job, for a terminal or a pipe. Commands load it when there is one to print."""

from __future__ import annotations

import re
import shlex
import textwrap
from collections.abc import Iterable
from typing import TextIO

from client_lib.reports.explanation import SHELL, Part, advice, failure_report
from client_lib.reports.table import harmless, without_colours
from client_lib.spec.command_line import option_names
from client_lib.spec.job import JobSpec
from client_lib.spec.wire import JobInfo

STYLES = {"summary": "bold red", "exception": "bold", "hint": "yellow", "next": "dim"}
_FIELD = re.compile(r"\b(?P<field>[a-z_]+)=(?:\['(?P<items>[^\]]*)'\]|'(?P<text>[^']*)'|(?P<number>\d+\b))")


def write(parts: Iterable[Part], file: TextIO, before: str = "") -> None:
    """Print a report. On a terminal it has colours (unless NO_COLOR is set), and advice is wrapped between words.

    `before`: text in front of the first line.
    """
    spelled = [
        Part(part.kind, _FIELD.sub(_option, part.text)) if part.kind in ("hint", "next") else part for part in parts
    ]
    if file.isatty():
        _draw(spelled, file, before)
        return
    text = before + "\n".join(map(str, spelled))
    file.write("".join(f"{harmless(without_colours(line))}\n" for line in text.splitlines()))
    file.flush()


def write_failure(info: JobInfo, file: TextIO, before: str = "", *, printed: bool = False) -> None:
    """Print the report of a failed job, with commands as next steps. `printed`: see `failure_report`."""
    write([*failure_report(info, printed=printed), *advice(info, SHELL)], file, before)


def _draw(parts: Iterable[Part], file: TextIO, before: str) -> None:
    from rich.console import Console
    from rich.text import Text

    console = Console(file=file, highlight=False)
    for part in parts:
        lines = f"{before}{part}".splitlines()
        before = ""
        if part.kind in ("hint", "next"):
            lines = textwrap.wrap(
                " ".join(lines),
                max(20, console.width - 1),
                subsequent_indent="      ",
                break_long_words=False,
                break_on_hyphens=False,
            )
        for line in lines:
            shown = harmless(without_colours(line))
            console.print(Text(shown, style=STYLES.get(part.kind, "")), soft_wrap=True)


def _option(found: re.Match[str]) -> str:
    """`requirements=['x']` -> `--requirement x`: the server spells the fields of its hints as Python does."""
    field, items, value, number = found.group("field", "items", "text", "number")
    if field not in JobSpec.model_fields:
        return found.group()
    name = option_names(field)[-1]
    values = items.split("', '") if items is not None else [value if number is None else number]
    return " ".join(f"{name} {shlex.quote(each)}" for each in values)
