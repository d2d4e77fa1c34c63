"""Addresses of servers that have answered this user, in any process: such an address is right, and
its server is away only for a while.

An empty file for each, named by the digest of the address, in the folder `answered` beside the
configuration file. A loopback address is known to this process alone, because its port may soon
belong to another program; so is every address where the folder can't be written. Standard library
only.
"""

import hashlib
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from client_lib.durable import make_private_folders
from client_lib.spec.paths import is_loopback
from client_lib.transport.config import config_file

_noted = set[str]()
"""The addresses that have answered this process."""
_NO_FOLDER = (OSError, RuntimeError)
"""Errors of a folder that can't be used, or of an account without a home."""


def has_answered(url: str) -> bool:
    """True if `note` was called with this address."""
    if url in _noted:
        return True
    with suppress(*_NO_FOLDER):
        return not _is_local(url) and _mark(url).exists()
    return False


def note(url: str) -> None:
    """Remember the address."""
    if url in _noted:
        return
    _noted.add(url)
    if _is_local(url):
        return
    with suppress(*_NO_FOLDER):
        mark = _mark(url)
        if not mark.exists():
            make_private_folders(str(mark.parent))
            mark.touch()


def _is_local(url: str) -> bool:
    return is_loopback(urlsplit(url).hostname or "")


def _mark(url: str) -> Path:
    return config_file().parent / "answered" / hashlib.sha256(url.encode()).hexdigest()[:32]
