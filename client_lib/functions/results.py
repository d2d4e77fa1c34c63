"""The values that the function of a job returned, and the exception that it raised.

Reading a value runs code of its author."""

import json
import pickle
from contextlib import suppress
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

import cloudpickle

from client_lib.errors import (
    BadResponse,
    Forbidden,
    JobFailed,
    NoResult,
    RemoteError,
)
from client_lib.spec.wire import JobInfo
from client_lib.transport.api import Api
from client_lib.worker.function_runner import RAISED, REFUSED, VALUE, difference, here

_TRACEBACKS = (
    "Traceback (most recent call last):",
    "  + Exception Group Traceback (most recent call last):",
)
_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """The results of a job that has ended: of each rank a value, or the
    exception that it raised.
    """

    api: Api
    info: JobInfo
    trust: bool
    """They are read also where the job is another owner's."""

    def value(self, rank: int) -> Any:
        """Raises NoResult, with the reason why there is none; Forbidden."""
        return self._value(*self._read(rank))

    def values(self) -> list[Any]:
        first = self._read(0)
        others = (self._read(rank) for rank in range(1, first[0].get("world_size", 1)))
        return [self._value(*each) for each in (first, *others)]

    def failure(self, ended: JobFailed) -> BaseException:
        """The exception for a failed job: the exception of the function in the first failing rank,
        with `ended` as its cause.
        """
        failure = self.info.failure
        if failure is None or failure.rank is None or self.info.function is None:
            return ended
        rank = failure.rank
        try:
            header, pickled = self._read(rank)
        except NoResult:  # the rank was killed, or ended by os._exit
            return ended
        if header["outcome"] == REFUSED:
            return JobFailed(f"job {self.info.name} FAILED: {header['text']}", info=self.info)
        if header["outcome"] != RAISED:
            return ended
        message = f"rank {rank} of job {self.info.name} raised\n\n{header['text'].rstrip()}"
        before = [*takewhile(lambda line: line not in _TRACEBACKS, failure.last_lines)][-_LINES:]
        if before:
            message += "\n\nIts last lines before that:\n" + "\n".join(
                f"    {line}" for line in before
            )
        error = None
        with suppress(NoResult):
            error = self._load(header, pickled)
        kind = JobFailed if isinstance(error, BaseException) else RemoteError
        told = kind(message, hint=ended.hint, info=self.info)
        told.card = ended.card
        if not isinstance(error, BaseException):
            return told
        error.__cause__ = told
        return error

    def _read(self, rank: int) -> tuple[dict[str, Any], bytes]:
        """The header of a rank's result, see
        `client_lib.worker.function_runner`, and the pickle after it.
        """
        info = self.info
        if not self.trust and self.api.server_info().user != info.owner:
            raise Forbidden(
                f"the results of job {info.name} were written by code of {info.owner}, and "
                "reading them runs such code",
                hint="read them with trust=True if you trust it",
            )
        first, _, pickled = self.api.job_result(info.name, rank, owner=info.owner).partition(b"\n")
        try:
            header = json.loads(first)
            # raises if one is missing
            needed = {name: header[name] for name in ("rank", "outcome", "text")}
            return {**header, **needed}, pickled
        except (ValueError, KeyError, TypeError) as error:
            raise BadResponse("what the server sent is no result of a function") from error

    def _value(self, header: dict[str, Any], pickled: bytes) -> Any:
        if header["outcome"] == VALUE:
            return self._load(header, pickled)
        why = header["text"]
        if header["outcome"] == RAISED:
            why = f"rank {header['rank']} raised {why.rstrip().splitlines()[-1]}"
        raise NoResult(f"job {self.info.name}: {why}")

    def _load(self, header: dict[str, Any], pickled: bytes) -> Any:
        unreadable = f"job {self.info.name}: the result of rank {header['rank']} can't be read here"
        if differs := difference(header, here(cloudpickle.__version__)):
            raise NoResult(f"{unreadable}: {differs}")
        try:
            return pickle.loads(pickled)
        except Exception as error:  # whatever the classes in it raise
            raise NoResult(f"{unreadable}: {type(error).__name__}: {error}") from error
