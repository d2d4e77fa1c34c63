"""Finds the known cause (`causes.toml`) that ended a rank. Pure.

The output of a rank names much that did not end it: an optional package that is not there, an error
that the script has handled, a try that was repeated. So the text is chosen first (`evidence`), and
only then compared with the causes, narrow ones first.
"""

import re
from importlib.resources import files
from typing import Annotated, NamedTuple

from pydantic import BaseModel, BeforeValidator, TypeAdapter

from client_lib.spec.command_line import parse_toml
from client_lib.spec.wire import Failure


class Cause(BaseModel):
    """An entry of `causes.toml`, which describes the fields."""

    symptom: str
    hint: str
    shows: Annotated[re.Pattern[str] | None, BeforeValidator("|".join)] = None
    signal: int | None = None
    general: bool = False


CAUSES = TypeAdapter(list[Cause]).validate_python(
    parse_toml(files(__package__).joinpath("causes.toml").read_text("utf-8"), "causes.toml")[
        "causes"
    ]
)
"""Causes, narrow ones first."""


class FoundCause(NamedTuple):
    cause: Cause
    named: dict[str, str]
    """Words of the text, by the groups of the cause's expression."""


class Evidence(NamedTuple):
    """The texts that can tell what ended a rank."""

    exception: str
    """The exception that ended the rank, with its traceback; "": there was none."""
    lines: str
    """The last lines of the rank; "": the exception tells all."""


_OF_ANOTHER = re.compile(
    r"DataLoader worker \(pid|ProcessExitedException|process \d+ terminated"
    r"|[/\\]multiprocessing[/\\](?:popen_|connection\.py)"
    r"|CalledProcessError|ChildFailedError|Error building extension"
    r"|NCCL error|DistBackendError|nccl\w+Error"
)
"""Exceptions that say only that another process, or a library, has failed: the cause was printed
before."""


def evidence(failure: Failure) -> Evidence:
    """The exception, and the lines only if the exception is not of the program itself: what such a
    rank printed before did not end it."""
    exception = "\n".join(filter(None, (failure.exception, failure.traceback)))
    tells_all = exception and not _OF_ANOTHER.search(exception)
    return Evidence(exception, "" if tells_all else "\n".join(failure.last_lines))


def first_cause(failure: Failure) -> FoundCause | None:
    """The cause of a failed rank; None: it is no known one. A signal comes first, because the
    process that it ends can't tell why, then the exception, then what was printed."""
    for cause in CAUSES:
        if cause.signal is not None and failure.exit_code == 128 + cause.signal:
            return FoundCause(cause, {})
    seen = evidence(failure)
    specific = [cause for cause in CAUSES if not cause.general]
    general = [cause for cause in CAUSES if cause.general]
    return (
        _first(specific, seen.exception)
        or _first(specific, seen.lines)
        or _first(general, "\n".join(seen))
    )


def _first(causes: list[Cause], text: str) -> FoundCause | None:
    for cause in causes:
        found = cause.shows.search(text) if cause.shows else None
        if found:
            return FoundCause(cause, found.groupdict())
    return None
