"""A script's words, by shell rules and without a shell; names of options of a job. Pure; standard library only."""

from __future__ import annotations

import re
import shlex
from functools import lru_cache

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./ -]*")


def split_script(script: str) -> list[str]:
    """The words of `script` by shell rules. A script that ends in .py and holds no quotes is tried as one path by the
    client before it is sent (an existing path wins over splitting; the client quotes it then).

    Raises:
        ValueError: unbalanced quotes, or unquoted shell syntax (one of `&|;<>$` or a back-tick), with the way out.
    """
    return list(_words(script))


@lru_cache(256)  # called several times at each submit, and shlex takes 100 times as long as `split`
def _words(script: str) -> tuple[str, ...]:
    if _PLAIN.fullmatch(script):  # nothing to interpret
        return tuple(script.split())
    wrong = _shell_syntax(script)
    if wrong:
        raise ValueError(
            f"{script!r} holds {wrong!r}, which only a shell understands and none runs here; "
            f"write bash -c {shlex.quote(script)}"
        )
    try:
        return tuple(shlex.split(script))
    except ValueError as error:
        raise ValueError(f"{script!r} can't be split into words: {error}") from error


def _shell_syntax(script: str) -> str | None:
    """The first character that a shell would act on beyond splitting and quotes, or None."""
    quote: str | None = None
    characters = iter(script)
    for character in characters:
        if character == "\\" and quote != "'":
            next(characters, None)
        elif character == quote:
            quote = None
        elif quote is None and character in "'\"":
            quote = character
        elif (character in "$`" and quote != "'") or (character in "|&;<>" and quote is None):
            return character
    return None


OPTION_NAMES: dict[str, tuple[str, ...]] = {
    # field: its options where they are not simply --the-field
    "base_image": ("--image", "--base-image"),
    "n_workers": ("-N", "--n-workers"),
    "instance_type": ("-i", "--instance-type"),
    "type": ("-t", "--type"),
    "env_variables": ("-e", "--env"),
    "secrets": ("--secret",),
    "labels": ("-l", "--label"),
    "flags": ("--flag",),
    "volumes": ("--volume",),
    "outputs": ("--outputs-glob",),  # --output is the form of what is printed
    "preflight_check": ("--preflight",),
    "requirements": ("--requirement",),
    "include_nodes": ("--include-node",),
    "exclude_nodes": ("--exclude-node",),
}


def option_names(field: str) -> tuple[str, ...]:
    """Options that set a field of the spec."""
    return OPTION_NAMES.get(field, ("--" + field.replace("_", "-"),))
