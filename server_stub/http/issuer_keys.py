"""Fetches the keys of an OpenID Connect issuer, in a process that is killed after LIMIT_S.

A time-out of `requests` is of each read: an issuer that sends a byte a second, in the head or in
the body, would hold a thread of the server for days. The process bounds the look-up of the name and
the redirects, too.
"""

import json
import os
import signal
import subprocess
import sys
from math import ceil
from typing import Any

import requests

from client_lib.errors import Unavailable
from client_lib.spec import paths

LIMIT_S = 10.0
"""Longest time for both documents of an issuer, its metadata and its keys."""
BYTES_MAX = 256 * 1024
"""Largest size of a document; the largest known ones have 30 kB."""
_SILENCE_S = 5.0
_PIECE = 16 * 1024


def fetch(issuer: str) -> dict[str, Any]:
    """The key set (JWKS) of an issuer, as it was sent. Blocks. Raises Unavailable."""
    try:
        process = subprocess.run(
            [sys.executable, "-c", f"from {__name__} import main; main()", issuer],
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            timeout=LIMIT_S,
            check=False,
        )
        why = process.stdout.decode() if process.returncode else ""
    except subprocess.TimeoutExpired:
        why = f"not within {LIMIT_S:g} s"
    if why:
        raise Unavailable(f"the issuer {issuer} gives no keys: {why}")
    found: dict[str, Any] = json.loads(process.stdout)
    return found


def main() -> None:
    """Write the key set of the issuer in the arguments to stdout; exit
    with 1 and the reason in its place."""
    signal.alarm(ceil(LIMIT_S))  # a server that is killed leaves no process behind
    try:
        answer = json.dumps(_key_set(sys.argv[1]))
    except (requests.RequestException, ValueError, KeyError, TypeError, RecursionError) as error:
        sys.stdout.write(f"{type(error).__name__}: {error}")
        sys.exit(1)
    sys.stdout.write(answer)


def _key_set(issuer: str) -> Any:
    metadata = _document(issuer.rstrip("/") + paths.DISCOVERY)
    if metadata["issuer"] != issuer:
        raise ValueError(
            f"its metadata name {metadata['issuer']!r}; `issuer` of the users file has to be the "
            "same text"
        )
    return _document(metadata["jwks_uri"])


def _document(url: str) -> Any:
    found = bytearray()
    with requests.get(url, timeout=_SILENCE_S, stream=True) as response:
        response.raise_for_status()
        for piece in response.iter_content(_PIECE):
            found += piece
            if len(found) > BYTES_MAX:
                raise ValueError(f"{url} is larger than {BYTES_MAX} bytes")
    return json.loads(found)
