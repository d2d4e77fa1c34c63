"""Rules for repeating a call: exponential back-off with full jitter, the server's Retry-After, one bound in seconds.

    pause after try n = max(Retry-After, random between 0 and min(0.05 x 2^(n-1), 5) seconds)

The ranges are 0 .. 0.05, 0 .. 0.1, ... 0 .. 5 s: about 16 tries within the default bound of 30 s. A pause that would
end after the bound is not begun. The caller passes only calls that are safe to repeat; a POST is, because it carries an
Idempotency-Key.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from client_lib.errors import ClientLibError

if TYPE_CHECKING:
    import tenacity

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
    try:
        return attempt()
    except Transient as first:
        if bound_s <= 0:
            raise first.error from first.__cause__
        return _again(attempt, first, bound_s)


def _again(attempt: Callable[[], T], first: Transient, bound_s: float) -> T:
    import tenacity  # 60 ms to load, and a call that succeeds at once does not need it

    pending = [first]
    jitter = tenacity.wait_random_exponential(FIRST_PAUSE_S, LONGEST_PAUSE_S)

    def next_try() -> T:
        if pending:  # the first try was made by call(); tenacity takes over with its failure
            raise pending.pop()
        return attempt()

    retrying = tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(Transient),
        wait=lambda state: max(_failure(state).retry_after_s, jitter(state)),
        stop=tenacity.stop_before_delay(bound_s),
        before_sleep=_say_once(bound_s),
        reraise=True,
    )
    try:
        return retrying(next_try)
    except Transient as last:
        last.error.message += f" (tried for {retrying.statistics['delay_since_first_attempt']:.1f} s)"
        raise last.error from last.__cause__


def _say_once(bound_s: float) -> Callable[[tenacity.RetryCallState], None]:
    """Log one warning when the retries take long enough for a user to wonder."""
    said: list[bool] = []

    def before_sleep(state: tenacity.RetryCallState) -> None:
        if not said and (state.seconds_since_start or 0) > WARN_AFTER_S:
            said.append(True)
            _log.warning("%s; trying again for up to %.0f s", _failure(state).error.message, bound_s)

    return before_sleep


def _failure(state: tenacity.RetryCallState) -> Transient:
    problem = state.outcome.exception() if state.outcome else None
    assert isinstance(problem, Transient)  # nothing else is retried
    return problem
