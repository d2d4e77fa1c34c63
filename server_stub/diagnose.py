"""Why an attempt failed, in words: rank reports and spec in, a Failure out. Pure; the service asks once per attempt.

`exit_meaning` says what an exit code or a signal means; the table of known causes with a way out is in `hints`.
"""

from __future__ import annotations

import re
import signal as signals
from collections.abc import Sequence
from datetime import datetime, timezone

from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.wire import Failure, RankReport
from server_stub.hints import Facts, hint_for

_LATEST = datetime.max.replace(tzinfo=timezone.utc)

# What ranks say that died because another one did: they are not the cause, though they may end first.
_CONSEQUENCE = re.compile(
    r"Connection closed by peer|Connection reset by peer|Broken pipe|remote process exited|"
    r"Socket Timeout|recvValue failed|NCCL communicator was aborted|failed to recv, got 0 bytes"
)

_CODES = {
    1: "an error in the script",
    2: "wrong usage: most often arguments that the script refused",
    120: "its output could not be written at its end",
    124: "a timeout inside the script",
    126: "the command was found but can't be executed",
    127: "command not found",
}
_SIGNALS = {
    1: "hung up",
    2: "interrupted",
    3: "quit",
    4: "illegal instruction: a library built for another processor",
    6: "aborted: a library gave up (its last lines say why)",
    7: "bus error: most often /dev/shm is full",
    8: "arithmetic error",
    9: "killed, most often out of memory",
    11: "segmentation fault",
    13: "wrote to a closed pipe",
    15: "terminated",
    24: "CPU time limit exceeded",
    25: "file size limit exceeded",
}


def exit_meaning(exit_code: int | None, signal: int | None) -> str | None:
    """What this end means, in words; None for success or an exit code with no known meaning."""
    if signal is None and exit_code is not None and exit_code > 128:
        signal = exit_code - 128  # a shell or container between us and the process reports its signal like this
    if signal is not None:
        return _SIGNALS.get(signal) or _signal_name(signal)
    return _CODES.get(exit_code) if exit_code is not None else None


def diagnose(ranks: Sequence[RankReport], spec: JobSpec, facts: Facts) -> Failure | None:
    """The failure of the first failing rank over all workers; None: no rank failed by itself.

    `exit_code` is 128 + signal where a signal ended the rank, as shells count.
    """
    rank = first_failing(ranks)
    if rank is None:
        return None
    return Failure(
        worker=_worker_of(rank.rank, len(ranks), spec),
        rank=rank.rank,
        exit_code=rank.exit_code if rank.signal is None else 128 + rank.signal,
        signal=rank.signal,
        meaning=exit_meaning(rank.exit_code, rank.signal),
        exception=rank.exception,
        traceback=rank.traceback,
        last_lines=rank.last_lines,
        hint=hint_for(rank, facts),
    )


def sentence(failure: Failure) -> str:
    """The failure in one line: `rank 3 of worker 1 ended with exit code 137 (killed, most often out of memory)`."""
    who = f"rank {failure.rank}" + (f" of worker {failure.worker}" if failure.worker is not None else "")
    how = f"exit code {failure.exit_code}" + (f" ({failure.meaning})" if failure.meaning else "")
    return f"{who} ended with {how}" + (f": {failure.exception}" if failure.exception else "")


def first_failing(ranks: Sequence[RankReport]) -> RankReport | None:
    """The rank that failed first, by itself: not stopped by us, and not one that only lost its peer."""
    failed = [rank for rank in ranks if not rank.stopped_by_us and (rank.exit_code or rank.signal)]
    return min(failed, key=_blame, default=None)


def _blame(rank: RankReport) -> tuple[bool, datetime, int]:
    said = rank.exception or "\n".join(rank.last_lines)
    return bool(_CONSEQUENCE.search(said)), rank.ended_at or _LATEST, rank.rank


def _worker_of(rank: int, reports: int, spec: JobSpec) -> int | None:
    """RANK = worker x processes_per_worker + LOCAL_RANK, always, but below elastic agents, which number the ranks by
    themselves. None: reports are missing and the spec doesn't say."""
    if spec.n_workers == 1:
        return 0
    if spec.type is JobType.PYTORCH_ELASTIC:
        return None
    if isinstance(spec.processes_per_worker, int):
        return rank // spec.processes_per_worker
    each, rest = divmod(reports, spec.n_workers)
    return rank // each if each and not rest else None


def _signal_name(signal: int) -> str | None:
    try:
        return f"ended by {signals.Signals(signal).name}"
    except ValueError:
        return None
