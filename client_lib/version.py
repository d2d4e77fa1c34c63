"""The commit of this code, and the texts that tell it together with the version.

A version under development is the same for many commits, so a report of a bug needs both. A build
writes the commit into the file `COMMIT` of this package; a checkout asks the files of git, because
a start of git would cost each command some milliseconds. Not part of `client_lib` itself, so that
`import client_lib` reads no file.
"""

import os
import re
from contextlib import suppress
from functools import cache

from client_lib import __version__

FILE = "COMMIT"
"""File of the package that holds the commit; releases and images have one, a checkout has none."""

_HERE = os.path.dirname(os.path.abspath(__file__))
_COMMIT = re.compile(r"[0-9a-f]{40,64}")
_SHOWN = 12  # digits: enough for git to find one commit among millions


@cache
def commit() -> str | None:
    """The commit of this code, 40 or 64 hexadecimal digits; None: neither a build nor a checkout
    names one. Changes that are not committed are not seen.
    """
    written = _line(os.path.join(_HERE, FILE))
    if written is None:
        return commit_of(os.path.dirname(_HERE))
    return _checked(written)


def commit_of(checkout: str) -> str | None:
    """The commit that is checked out in a folder, read from the files of git; None: the folder is
    no checkout, or one whose files this function does not understand.
    """
    directory = os.path.join(checkout, ".git")
    if link := _line(directory):  # a worktree or a submodule
        directory = os.path.join(checkout, link.removeprefix("gitdir: "))
    head = _line(os.path.join(directory, "HEAD")) or ""
    if not head.startswith("ref: "):
        return _checked(head)
    branch = head.removeprefix("ref: ")
    # worktrees share the branches of the repository that made them
    shared = os.path.join(directory, _line(os.path.join(directory, "commondir")) or "")
    found = _line(os.path.join(shared, branch))
    return _checked(found or _packed(os.path.join(shared, "packed-refs"), branch))


def described(version: str, commit: str | None) -> str:
    """A version with its commit, for people: `0.2.0 (commit 0123456789ab)`."""
    return f"{version} (commit {commit[:_SHOWN]})" if commit else version


def this_version() -> str:
    """The version of this code with its commit, for people."""
    return described(__version__, commit())


def user_agent(program: str) -> str:
    """The User-Agent of a program of this project: `client-lib/0.2.0 (commit 0123456789ab)`."""
    return f"{program}/{this_version()}"


def _packed(file: str, branch: str) -> str:
    with suppress(OSError), open(file, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            value, _, name = line.rstrip("\n").partition(" ")
            if name == branch:
                return value
    return ""


def _line(file: str) -> str | None:
    """The first line of a file; None: there is no such file."""
    with suppress(OSError), open(file, encoding="utf-8", errors="replace") as lines:
        return lines.readline().strip()
    return None


def _checked(text: str) -> str | None:
    return text if _COMMIT.fullmatch(text) else None
