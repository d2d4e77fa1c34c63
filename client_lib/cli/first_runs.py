"""Advice is for beginners: it is printed until the user has submitted ADVISED jobs by the command line."""

from __future__ import annotations

import os
from pathlib import Path

from client_lib.cli import printer
from client_lib.transport.config import config_file

ADVISED = 10


def advise(text: str) -> None:
    """Print the advice on stderr if it is one of the first runs."""
    if _count() <= ADVISED:
        printer.hint(text)


def count() -> None:
    if _count() > ADVISED:
        return
    try:
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a") as file:
            file.write(".")
    except OSError:  # a home that cannot be written to: the advice stays
        return


def _count() -> int:
    try:
        return os.stat(_file()).st_size
    except OSError:
        return 0


def _file() -> Path:
    """A file beside the configuration with a character per run."""
    return config_file().with_name(f".{config_file().name}.runs")
