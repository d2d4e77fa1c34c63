"""The exit codes of `client-lib` and the one table from errors to them. Nothing is printed here.

0    done; of `wait` and `submit -f`: the job SUCCEEDED
1    the job FAILED; of `doctor`: a check failed
2    wrong usage: an option, an argument, a field of the job
3    the job was CANCELLED
4    no server answers, or another program does
5    not found, or refused by the server
124  the time given with --timeout is over (as `timeout` of coreutils)
130  interrupted by Ctrl-C
141  the reader of the output is gone, as in `client-lib list | head -1`
"""

from __future__ import annotations

from client_lib import errors

DONE = 0
FAILED = 1
USAGE = 2
CANCELLED = 3
UNREACHABLE = 4
REFUSED = 5
TIMEOUT = 124
INTERRUPTED = 130
BROKEN_PIPE = 141

OF_ERRORS: dict[type[errors.ClientLibError], int] = {
    errors.InvalidRequest: USAGE,
    # well written, but not on this server
    errors.NeverFits: REFUSED,
    errors.NotSupported: REFUSED,
    errors.TooLarge: REFUSED,
    errors.Unauthorized: REFUSED,
    errors.Forbidden: REFUSED,
    errors.NotFound: REFUSED,
    errors.Conflict: REFUSED,
    errors.StorageFull: REFUSED,
    errors.ServerError: UNREACHABLE,
    errors.ServerUnreachable: UNREACHABLE,
    errors.BadResponse: UNREACHABLE,
    errors.JobFailed: FAILED,
    errors.JobCancelled: CANCELLED,
    errors.WaitTimeout: TIMEOUT,
    errors.ClientLibError: FAILED,
}
"""Class -> code; a class that is not here has the code of its nearest ancestor."""


def of_error(error: errors.ClientLibError) -> int:
    return next(OF_ERRORS[kind] for kind in type(error).__mro__ if kind in OF_ERRORS)
