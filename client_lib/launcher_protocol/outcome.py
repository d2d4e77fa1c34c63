"""Decides which rank failed first and how a worker ended. This is the only place with that rule.
Pure.

A launcher applies the rule to the ranks of its worker, the server (`server_stub.runtimes.verdict`)
to the ranks of all workers. Every message, report and exit code follows from the rank that it
chooses.
"""

import re
from typing import List, NamedTuple, Optional, Sequence

from client_lib.launcher_protocol.exceptions import CHAINED, headline
from client_lib.launcher_protocol.reasons import (
    CANCELLED,
    COMPLETED,
    EXIT_CODE,
    OUT_OF_MEMORY,
    SIGNAL,
)
from client_lib.launcher_protocol.script_end import ScriptEnd

OUT_OF_MEMORY_BELOW = "a process of its worker was killed because the memory limit was reached"
LAST_LINES = 50
SAME_MOMENT_S = 2.0
PEERS_END_S = 1.0
"""Time in which the other ranks may end by themselves, after a rank has failed because it lost a
peer: the guilty rank may be among them. Shorter than SAME_MOMENT_S, because a later error would not
count."""
_ABORTED = 6

# regular expressions, compiled when a rank has failed: most launchers never need them
_PEER_LOST = (
    # sockets, also below gloo and TCPStore
    r"Connection (closed by peer|reset by peer|refused|was likely closed)",
    r"Broken pipe|No route to host|Software caused connection abort",
    # gloo
    r"Timed out waiting \d+ ?ms for (recv|send|unbound)",
    r"Application timeout caused pair closure|connectFullMesh failed",
    r"Connect timeout \[|timed out connecting",
    r"monitoredBarrier",
    # c10d: TCPStore and its clients. A store that can't listen is the cause, and no pattern matches
    # its error.
    r"DistStoreError|failed to recv, got 0 bytes|Socket Timeout",
    r"(recvValue|sendBytes|recvBytes|sendValue) failed",
    r"client socket has (timed out|failed to connect)|network addresses of .* cannot be retrieved",
    r"Stop_waiting response is expected|store->get\(|wait timeout after \d+ ?ms",
    # NCCL, without the errors of its own caller (wrong arguments, a failed CUDA call)
    r"NCCL error(?!.*(invalid usage|invalid argument|unhandled cuda error))",
    r"remote process exited|nccl(Remote|System)Error",
    r"communicator (was|is|has been) aborted|ncclCommAbort",
    r"Watchdog caught collective operation timeout|watchdog thread terminated",
    # agents of torchrun, torch.distributed.rpc, Horovod
    r"Rendezvous\w*Error|originated at tensorpipe|Horovod has been shut down",
)
"""Errors of a rank that died because a peer had died."""
# characters of an error: the search takes 10 ms, and is repeated while other ranks end
_SEARCHED_MAX = 16 * 1024


class Ended(NamedTuple):
    """The end of one rank. Times are seconds since 1970, UTC."""

    rank: int
    exit_code: Optional[int]
    signal: Optional[int]
    started_at: float
    ended_at: float
    """The time at which the process was gone."""
    failed_at: float
    """The time at which it raised its exception, if known; else `ended_at`. The
    process may take long to end.
    """
    stopped_by_us: bool
    """The launcher ended the rank while it was at work. Such a rank is never the cause."""
    lost_peer: bool
    """The death of a peer causes errors like this rank's."""
    exception: Optional[str]
    traceback: Optional[str]
    last_lines: List[str]
    script_end: Optional[ScriptEnd] = None
    """The end of its script, as the rank has told it; None: it has told nothing."""

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    @property
    def code(self) -> int:
        """The exit code that a shell would report: 128 + signal for a killed process."""
        return 128 + self.signal if self.signal is not None else self.exit_code or 0


class WorkerOutcome(NamedTuple):
    exit_code: int
    reason: str
    message: str
    first: Optional[Ended]
    """The first failing rank."""


def of_ranks(
    ranks: Sequence[Ended], cancelled: bool, oom_kills: int, group_kills: int = 0
) -> WorkerOutcome:
    """The end of a worker. `cancelled`: it was stopped from outside before a rank failed.
    `oom_kills`: processes that the kernel killed since the ranks started; `group_kills`: processes
    that the kernel killed at the memory limit of the container."""
    first = first_failure(ranks)
    if first is None:
        if cancelled or any(rank.failed for rank in ranks):
            return WorkerOutcome(
                next((rank.code for rank in ranks if rank.failed), 0), CANCELLED, "stopped", None
            )
        return WorkerOutcome(0, COMPLETED, "every rank ended with exit code 0", None)
    if first.signal == 9 and oom_kills:
        message = "rank %d was killed: the machine or its cgroup ran out of memory" % first.rank
        return WorkerOutcome(first.code, OUT_OF_MEMORY, message, first)
    reason = SIGNAL
    message = "rank %d was killed by signal %s" % (first.rank, first.signal)
    if first.signal is None:
        because = ": " + headline(first.exception) if first.exception else ""
        reason = EXIT_CODE
        message = "rank %d ended with exit code %d%s" % (first.rank, first.code, because)
    if group_kills:  # a child of a rank was killed, such as a data loader
        message += "; " + OUT_OF_MEMORY_BELOW
        reason = OUT_OF_MEMORY if first.signal is None else reason
    return WorkerOutcome(first.code, reason, message, first)


def first_failure(ranks: Sequence[Ended]) -> Optional[Ended]:
    """The rank that caused the failure. None: each rank succeeded or was stopped.

    The peers of a dead rank fail within milliseconds, and may be gone before it is. So among the
    ranks that failed within SAME_MOMENT_S of the earliest, a rank with an error of its own comes
    before one that lost a peer; among equals the earlier `failed_at` decides, then the lower rank.
    """
    failed = [rank for rank in ranks if rank.failed and not rank.stopped_by_us]
    earliest = min((rank.failed_at for rank in failed), default=0.0)
    moment = [rank for rank in failed if rank.failed_at <= earliest + SAME_MOMENT_S]
    return min(moment, key=lambda rank: (rank.lost_peer, rank.failed_at, rank.rank), default=None)


def is_peer_loss(
    signal: Optional[int], exception: Optional[str], trace: Optional[str], lines: Sequence[str]
) -> bool:
    """True if a rank that ended like this died because a peer had died, by the table of such
    errors. The first exception of a chain counts: a rank whose cleanup fails after an error of its
    own is the cause, and a rank that wraps the loss of a peer into an exception of its own is not.
    """
    if exception:
        chain = trace or ""
        ends = [chain.find(marker) for marker in CHAINED if marker in chain]
        first = chain[: min(ends, default=0)].splitlines()
        frames = [number for number, line in enumerate(first) if line.startswith("  ")]
        text = "\n".join(first[frames[-1] + 1 :] if frames else first) or exception
    elif signal is not None:
        # the output of an uncaught C++ exception; earlier lines may hold warnings about retried
        # connections
        starts = [number for number, line in enumerate(lines) if "terminate called" in line]
        text = "\n".join(lines[starts[-1] :]) if starts and signal == _ABORTED else ""
    else:
        text = lines[-1] if lines else ""
    return (
        re.search("|".join(_PEER_LOST), text[:_SEARCHED_MAX], re.IGNORECASE | re.DOTALL) is not None
    )
