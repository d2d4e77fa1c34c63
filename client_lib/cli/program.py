"""The program as a shell sees it: its name, its variable for completion, its exit codes."""

from __future__ import annotations

from enum import IntEnum

from client_lib import errors

PROGRAM = "client-lib"

COMPLETION_VARIABLE = "_CLIENT_LIB_COMPLETE"
"""Set by the lines of `client-lib completion`, and named as click and typer name theirs."""


class ExitCode(IntEnum):
    """The exit codes of `client-lib`.

    0    done; of `wait` and `submit -f`: the job SUCCEEDED
    1    the job FAILED; of `doctor`: a check failed; a file of this machine can't be read or
         written
    2    wrong usage: an option, an argument, a field of the job
    3    the job was CANCELLED
    4    no server answers, or another program does
    5    not found, or refused by the server
    124  the time given with --timeout is over (as `timeout` of coreutils)
    130  interrupted by Ctrl-C
    141  the reader of the output is gone, as in `client-lib list | head -1`
    """

    DONE = 0
    FAILED = 1
    USAGE = 2
    CANCELLED = 3
    UNREACHABLE = 4
    REFUSED = 5
    TIMEOUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = 141

    @classmethod
    def of_error(cls, error: errors.ClientLibError) -> ExitCode:
        """The code of the error's class, or of its nearest ancestor here."""
        of_classes: dict[type, ExitCode] = {
            errors.InvalidRequest: cls.USAGE,
            # well written, but not on this server
            **dict.fromkeys((errors.NeverFits, errors.NotSupported, errors.TooLarge), cls.REFUSED),
            **dict.fromkeys((errors.Unauthorized, errors.Forbidden, errors.NotFound), cls.REFUSED),
            **dict.fromkeys((errors.Conflict, errors.StorageFull), cls.REFUSED),
            **dict.fromkeys(
                (errors.ServerError, errors.ServerUnreachable, errors.BadResponse), cls.UNREACHABLE
            ),
            errors.JobCancelled: cls.CANCELLED,
            errors.WaitTimeout: cls.TIMEOUT,
            errors.ClientLibError: cls.FAILED,
        }
        return next(of_classes[kind] for kind in type(error).__mro__ if kind in of_classes)
