"""Executes the modules that the joined file has as a text: ranks that do not need them do not
compile them."""

from __future__ import annotations


def load_late_modules() -> None:
    """Define the names of these modules. In the package, imports have defined them."""
    text = globals().pop("LATE", None)
    if text is not None:
        exec(compile(text, __file__, "exec"), globals())
