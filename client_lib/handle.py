"""A job of a server as an object: what can be asked of it and ordered for it. Only `job` uses this: its Job, the class
that users have, describes a job and submits it besides.
"""

from __future__ import annotations

import html
import os
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from functools import partial
from pathlib import Path
from typing import Any

from client_lib import display, explanation, failure_report, log_reader
from client_lib import download as downloads
from client_lib.api import LONG_POLL_S, Api, configured
from client_lib.cell_output import in_cell_or_terminal
from client_lib.errors import ClientLibError, Conflict, JobFailed, WaitTimeout
from client_lib.functions.results import Outcome
from client_lib.log_output import LogOutput, TextOut
from client_lib.log_reader import LogEntry
from client_lib.spec import mlspace
from client_lib.spec.explanation import Explanation
from client_lib.spec.states import State
from client_lib.spec.wire import Event, JobInfo

Ranks = int | Sequence[int] | None
Streams = str | Sequence[str] | None

_SHOWN_LINES = 5  # in a notebook's table of a job
_PATIENCE_S = 2.0  # with a server that is asked for them


class Handle:
    """Every call asks the server."""

    def __init__(self, client: Api | None, last: JobInfo | None) -> None:
        """`client` None: the configured one. `last`: the job when it was last asked; None: it is not submitted yet."""
        self._client, self._last = client, last
        self._noticed: set[str] = set()

    @property
    def job_name(self) -> str | None:
        """The platform's word: the name once the job is submitted, None before and after a failed submit."""
        return self._last.name if self._last else None

    # --- the platform's verbs

    def status(self) -> str:
        """The platform's sentence: `Job status=Running` (Pending, Running, Completed, Failed, Deleted).

        Its users take what stands behind the last `=`.
        """
        return f"Job status={mlspace.shown_status(self.info().state)}"

    def logs(
        self,
        tail: int | None = None,
        verbose: bool | None = None,
        *,
        follow: bool | None = None,
        since: str | None = None,
        rank: Ranks = None,
        stream: Streams = None,
        timestamps: bool = False,
        attempt: int | None = None,
        collapse: bool = False,
        file: TextOut | None = None,
    ) -> None:
        """Print the job's lines, and follow while it isn't final; on stderr its notices and, while it waits, why.

        `tail`: only so many last lines. `since`: `10m`, `2h` or a time. `rank`, `stream`: one or several. `attempt`:
        None is all, in order. What the launcher says about the job goes to stderr, unless `stream` names it.
        `collapse`: identical lines that several ranks print within 0.3 s are one line, `[0-3] loading`.
        `verbose`: the platform's word for `timestamps`. `follow=False` prints what there is, of a pending job the
        platform's sentence. Ctrl-C ends the look, never the job. `file` None: sys.stdout; in a notebook's cell the
        state and progress bars stand above the lines, and of a long log only the first and last lines are shown.
        """
        info = self.info()
        if follow is False and info.state is State.PENDING:
            (sys.stdout if file is None else file).write(f"{mlspace.in_queue(info.name)}\n")
            return
        params = log_reader.log_params(
            follow=follow is not False, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt
        )
        prefix = not isinstance(rank, int) and display.may_have_several_ranks(info.spec)
        self._print(info, params, file, prefix=prefix, timestamps=timestamps or bool(verbose), collapse=collapse)

    def kill(self) -> str:
        """Cancel the job; the platform's sentence. Its logs stay."""
        return mlspace.deleted(self.cancel().name)

    # --- typed

    def info(self) -> JobInfo:
        """Everything about the job, as it is now. Raises NotFound if it was deleted."""
        self._last = self._api.job_info(self._submitted)
        return self._last

    @property
    def state(self) -> State:
        """As it is now; asks the server."""
        return self.info().state

    def wait(self, timeout: float | None = None, *, follow: bool = False) -> JobInfo:
        """Block until the job is final; return its last info if it SUCCEEDED. The server pushes the change.

        `follow`: print the logs meanwhile.

        Raises:
            JobFailed: with the report: the first failing rank, its exit code and what that means, its last lines.
            JobCancelled: it was cancelled.
            WaitTimeout: it is not final after `timeout` seconds; says the state it is in.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        info = self.info()
        if follow:
            prefix = display.may_have_several_ranks(info.spec)
            self._print(info, log_reader.log_params(follow=True), prefix=prefix, deadline=deadline)
            info = self.info()
        while not info.state.final:
            info = self._changed(info, deadline)
        if info.state is not State.SUCCEEDED:
            raise failure_report.ended(info)
        return info

    def result(self, rank: int = 0, timeout: float | None = None, *, trust: bool = False) -> Any:
        """What the job's function returned in this rank, as soon as the job has ended.

        It is unpickled here, which runs code of who submitted the job: another owner's needs `trust=True`.

        Raises:
            what the function raised, from a JobFailed with the remote traceback; RemoteError: the same, but of a class
            that can't be rebuilt here.
            NoResult: the function returned nothing that can be read (or this is no job of a function); says why.
            NotFound: the job has no such rank; says which there are.
            JobFailed, JobCancelled, WaitTimeout: as `wait`.
        """
        return self._outcome(timeout, trust).value(rank)

    def results(self, timeout: float | None = None, *, trust: bool = False) -> list[Any]:
        """What the function returned, one value per rank in their order. Raises as `result` does."""
        return self._outcome(timeout, trust).values()

    def _outcome(self, timeout: float | None, trust: bool) -> Outcome:
        """The end of the job, waited for. Raises what it raised."""
        try:
            info = self.wait(timeout)
        except JobFailed as failed:
            raised = Outcome(self._api, failed.info, trust).failure(failed)
            raise raised from raised.__cause__
        return Outcome(self._api, info, trust)

    def download(
        self,
        folder: str | os.PathLike[str] | None = None,
        pattern: str | None = None,
        *,
        on_download: downloads.OnDownload | None = None,
    ) -> list[Path]:
        """Fetch what the ranks have left (`outputs`) into `folder`, and give the paths; also while the job runs.

        `folder` None: one of the job's name, here. `pattern`: a glob such as `*.pt` or `out/**`; None: all. What is
        there already is not fetched again, and a download that was cut goes on. `on_download`: called with its
        progress. Of a job in place nothing is fetched but what it was told to keep: a warning says where its files are.

        Raises:
            InvalidRequest: a link or something else in `folder` is in the way.
            NotFound: a running job writes a file anew again and again.
        """
        info = self.info()
        return downloads.download(self._api, info, Path(info.name if folder is None else folder), pattern, on_download)

    def log_lines(
        self,
        *,
        follow: bool = True,
        tail: int | None = None,
        since: str | None = None,
        rank: Ranks = None,
        stream: Streams = None,
        attempt: int | None = None,
    ) -> Iterator[str]:
        """The job's own lines without their ends, as they come; filters as in `logs`. Of a progress bar the last state.

        What the launcher says about the job is not among them; `stream="launcher"` asks for it.
        """
        params = log_reader.log_params(follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt)
        return log_reader.log_lines(
            partial(self._api.open_logs, self._submitted), params, retry_s=self._api.config.retry_s
        )

    def log_entries(
        self,
        *,
        follow: bool = True,
        tail: int | None = None,
        since: str | None = None,
        rank: Ranks = None,
        stream: Streams = None,
        attempt: int | None = None,
    ) -> Iterator[LogEntry]:
        """The lines with all that is known of them (time, worker, rank, stream, ...); filters as in `logs`.

        All streams are among them, also `launcher`: what the launcher says about the job.
        """
        params = log_reader.log_params(follow=follow, tail=tail, since=since, rank=rank, stream=stream, attempt=attempt)
        return log_reader.log_entries(
            partial(self._api.open_logs, self._submitted), params, retry_s=self._api.config.retry_s
        )

    def cancel(self) -> JobInfo:
        """Order the end of the job, also while it waits; the end itself arrives later (`wait`). Final: nothing."""
        self._last = self._api.cancel_job(self._submitted)
        return self._last

    def delete(self, *, force: bool = False) -> str:
        """Remove the job with its logs; a sentence. `force`: also while it runs, which stops it first.

        Raises Conflict: it is not final and `force` is False.
        """
        return self._api.delete_job(self._submitted, force=force)

    def events(self) -> list[Event]:
        """What happened to the job, oldest first; every change of its state is one."""
        return self._api.job_events(self._submitted)

    def explain(self) -> str:
        """Why the job waits, or why it failed, on some lines: the reason, the events behind it, and the next step."""
        return explanation.explain(self.info(), self.events(), datetime.now(timezone.utc))

    def explanation(self) -> Explanation:
        """The same as `explain`, as data: for programs. `docs/explanation.schema.json` describes it."""
        return explanation.explained(self.info(), self.events(), datetime.now(timezone.utc))

    def _repr_html_(self) -> str:
        """For notebooks: the job as it is now, or where the server doesn't answer at once, as it was."""
        if self._last is None:
            return f"<code>{html.escape(repr(self))}</code>"
        try:
            self._last = self._api.job_info(self._last.name, retry_s=0)
        except ClientLibError as problem:
            return display.as_html(self._last, note=problem.message)
        return display.as_html(self._last, lines=self._last_lines(self._last))

    def _last_lines(self, info: JobInfo) -> Sequence[str]:
        """Of the failing rank, else of all of the job's. As the table is shown anew with every look, none is waited for
        long."""
        if info.failure is not None and info.failure.last_lines:
            return info.failure.last_lines[-_SHOWN_LINES:]
        params = log_reader.log_params(tail=_SHOWN_LINES)
        stream = partial(self._api.open_logs, info.name, deadline=time.monotonic() + _PATIENCE_S)
        try:
            return list(log_reader.log_lines(stream, params, retry_s=0))[-_SHOWN_LINES:]
        except ClientLibError:  # the table is worth showing without
            return ()

    # ---

    @property
    def client(self) -> Api:
        """The server that it is on, or would go to."""
        return self._api

    @property
    def _api(self) -> Api:
        return self._client or configured()

    @property
    def _submitted(self) -> str:
        """The name. Raises Conflict before the submit."""
        if self._last is None:
            raise Conflict(f"{self!r} is no job of a server yet", hint="call submit() first")
        return self._last.name

    def _changed(self, info: JobInfo, deadline: float | None) -> JobInfo:
        """The job after its next change, or some time later. Raises WaitTimeout at the deadline."""
        left = LONG_POLL_S if deadline is None else deadline - time.monotonic()
        if left <= 0:
            why = f": {info.message}" if info.message else ""
            raise WaitTimeout(f"job {info.name} is not final yet, but {info.state} ({info.reason}){why}")
        self._last = self._api.job_info(info.name, after_version=info.version, wait_s=min(left, LONG_POLL_S))
        return self._last

    def _print(
        self, info: JobInfo, params: Mapping[str, str | list[str]], file: TextOut | None = None, **look: Any
    ) -> None:
        """`file` None: where this process prints, which may be a notebook's cell. `look`: see LogOutput.

        The job's notices, what the server reads otherwise than it was asked for, are said once per object.
        """
        new = [notice for notice in info.notices if notice not in self._noticed]
        self._noticed.update(new)
        with in_cell_or_terminal(info, file) as cell:
            out = cell or (sys.stdout if file is None else file)
            output = LogOutput(info.name, out, retry_s=self._api.config.retry_s, beside=cell, **look)
            for notice in new:
                output.say(f"{notice}\n")
            output.write(partial(self._api.open_logs, info.name), params)
            if cell:
                cell.end(self.info())
