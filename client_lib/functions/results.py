"""The result of a rank's call: its value, or the exception that it raised. Reading one runs code of its author."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from client_lib.errors import BadResponse, Forbidden, JobEnded, JobFailed, NoResult, RemoteError
from client_lib.spec.wire import JobInfo
from client_lib.transport.api import Api
from client_lib.worker import function_runner
from client_lib.worker.function_runner import RAISED, REFUSED, VALUE

_TRACEBACK = "Traceback (most recent call last):"
_LINES = 20


@dataclass(frozen=True)
class Outcome:
    """The results of a job that has ended."""

    api: Api
    info: JobInfo
    trust: bool
    """They are read also where the job is another owner's."""

    def value(self, rank: int) -> Any:
        """Raises NoResult, Forbidden."""
        return self._of(rank).value(self.info.name)

    def values(self) -> list[Any]:
        first = self._of(0)
        others = (self._of(rank) for rank in range(1, first.header.get("world_size", 1)))
        return [result.value(self.info.name) for result in (first, *others)]

    def failure(self, ended: JobFailed) -> BaseException:
        """The exception for a failed job: the function's own of the first failing rank, or `ended`."""
        rank = self.info.failure.rank if self.info.failure else None
        if self.info.function is None or rank is None:
            return ended
        try:
            return self._of(rank).failure(ended)
        except NoResult:  # the rank was killed, or ended by os._exit
            return ended

    def _of(self, rank: int) -> Result:
        info = self.info
        if not self.trust and self.api.server_info().user != info.owner:
            raise Forbidden(
                f"the results of job {info.name} were written by code of {info.owner}, and reading them runs such code",
                hint="read them with trust=True if you trust it",
            )
        return parse(self.api.job_result(info.name, rank, owner=info.owner))


@dataclass(frozen=True)
class Result:
    """The bytes that the server keeps."""

    rank: int
    outcome: str
    """See `client_lib.worker.function_runner`."""
    text: str
    """The traceback, or a sentence."""
    header: dict[str, Any]
    pickled: bytes

    def value(self, job: str) -> Any:
        """The value of the function. Raises NoResult with the reason why there is none."""
        if self.outcome != VALUE:
            raised = f"rank {self.rank} raised {self.text.rstrip().splitlines()[-1]}" if self.outcome == RAISED else ""
            raise NoResult(f"job {job}: {raised or self.text}")
        return self._load(job)

    def failure(self, ended: JobEnded) -> BaseException:
        """The exception for a job that failed at this rank: the function's own, with `ended` as its cause."""
        if self.outcome == REFUSED:
            return JobFailed(f"job {ended.info.name} FAILED: {self.text}", info=ended.info)
        if self.outcome != RAISED:
            return ended
        message = f"rank {self.rank} of job {ended.info.name} raised\n\n{self.text.rstrip()}{_before(ended)}"
        try:
            error = self._load(ended.info.name) if self.pickled else None
        except NoResult:
            error = None
        kind = JobFailed if isinstance(error, BaseException) else RemoteError
        told = kind(message, hint=ended.hint, info=ended.info)
        told.card = ended.card
        if not isinstance(error, BaseException):
            return told
        error.__cause__ = told
        return error

    def _load(self, job: str) -> Any:
        import cloudpickle

        differs = function_runner.difference(self.header, function_runner.here(cloudpickle.__version__))
        if differs:
            raise NoResult(f"job {job}: the result of rank {self.rank} can't be read here: {differs}")
        try:
            return pickle.loads(self.pickled)
        except Exception as error:  # whatever the classes in it raise
            raise NoResult(
                f"job {job}: the result of rank {self.rank} can't be read here: {type(error).__name__}: {error}"
            ) from error


def _before(ended: JobEnded) -> str:
    last_lines = ended.info.failure.last_lines if ended.info.failure else []
    lines = list(takewhile(lambda line: line != _TRACEBACK, last_lines))[-_LINES:]
    return "\n\nIts last lines before that:\n" + "\n".join(f"    {line}" for line in lines) if lines else ""


def parse(body: bytes) -> Result:
    """Raises BadResponse: that is no result."""
    first, _, pickled = body.partition(b"\n")
    try:
        header = json.loads(first)
        return Result(header["rank"], header["outcome"], header["text"], header, pickled)
    except (ValueError, KeyError, TypeError) as error:
        raise BadResponse("what the server sent is no result of a function") from error
