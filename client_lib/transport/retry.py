"""Rules for repeating a call: exponential back-off with full jitter, the server's Retry-After, one bound in seconds.

    pause after try n = max(Retry-After, random between 0 and min(0.05 x 2^(n-1), 5) seconds)

The ranges are 0 .. 0.05, 0 .. 0.1, ... 0 .. 5 s: about 16 tries within the default bound of 30 s. A pause that would
end after the bound is not begun. The caller passes only calls that are safe to repeat; a POST is, because it carries an
Idempotency-Key.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from typing import TypeVar

from client_lib.errors import ClientLibError

T = TypeVar("T")

FIRST_PAUSE_S = 0.05
LONGEST_PAUSE_S = 5.0
WARN_AFTER_S = 2.0  # a server that is back sooner is not worth a warning

_log = logging.getLogger("client_lib")


class Transient(Exception):
    """A failure that may be gone at the next try. `error` is what the user sees when it isn't."""

    def __init__(self, error: ClientLibError, retry_after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


def call(attempt: Callable[[], T], bound_s: float) -> T:
    """Return the value of `attempt()`, repeated while it raises Transient and `bound_s` seconds are not over.

    Raises the error inside the last Transient; its message names the time of the tries.
    """
    began, longest_s, is_said = time.monotonic(), FIRST_PAUSE_S, False
    while True:
        try:
            return attempt()
        except Transient as failed:
            passed_s = time.monotonic() - began
            pause_s = max(failed.retry_after_s, random.uniform(0, longest_s))
            if passed_s + pause_s >= bound_s:
                if bound_s > 0:
                    failed.error.message += f" (tried for {passed_s:.1f} s)"
                raise failed.error from failed.__cause__
            if passed_s > WARN_AFTER_S and not is_said:
                is_said = True
                _log.warning("%s; trying again for up to %.0f s", failed.error.message, bound_s)
        time.sleep(pause_s)
        longest_s = min(2 * longest_s, LONGEST_PAUSE_S)
