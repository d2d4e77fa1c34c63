"""Sends the launcher the times at which this rank enters collectives, and a sign of life."""

from __future__ import annotations

import os
import sys
import time

from client_lib.worker.rank_runner.this_rank import own_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ENTRIES_MAX = 128
"""Collectives in one line of the pipe for metrics."""
_OFTEN_S = 1.0
"""Time between two lines in the beginning."""
_OFTEN_FOR_S = 60.0
"""Length of the beginning."""
_SELDOM_S = 16.0
"""Time between two lines later."""
_TOUCHES = 64
"""Number of touches between two lines, at most one in each second. The launcher sees by the
touched file that the rank enters collectives."""
_PAUSE_MAX_S = 4.0
"""Longest time between two touches: less than half of the time after which the launcher calls a
rank quiet."""
_ENTRIES_SHARE = 0.005
"""Largest part of the time that lines and touches may take."""


class EntrySender:
    """Sends the launcher the times at which this rank enters collectives, and touches a file in
    each second, or four, in which it has entered or ended some, as a sign of life. Nothing if this
    PyTorch has no recorder."""

    def __init__(self) -> None:
        """Raises OSError."""
        import json  # noqa: F401  # for the thread, whose own import could delay one of the script
        import pickle  # noqa: F401

        self._sent: dict[str, int] = {}
        self._seen: list[Any] = []
        self._touched = own_file("entered-")
        os.close(os.open(self._touched, os.O_WRONLY | os.O_CREAT, 0o600))
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        self._fd = os.open(os.environ["CLIENT_LIB_METRICS"], flags)

    def run(self) -> None:
        """Send the newest entries at the same moments in all ranks, as these then
        send the same collectives.
        """
        begin = time.time()
        interval = _OFTEN_S
        try:
            while True:
                now = time.time()
                used = time.thread_time()
                interval = max(interval, _OFTEN_S if now - begin < _OFTEN_FOR_S else _SELDOM_S)
                due = now - now % interval + interval
                pause = min(max(_OFTEN_S, interval / _TOUCHES), _PAUSE_MAX_S)
                while 0 < due - now <= interval:  # it is more if the clock was set back
                    time.sleep(pause - now % pause)
                    now = time.time()
                    self._touch()
                self.send()
                while time.thread_time() - used > _ENTRIES_SHARE * interval:
                    interval *= 2
        # the recorder's functions are private: another torch may have others
        except Exception:  # noqa: BLE001
            pass

    def _touch(self) -> None:
        counts = [dump.get("pg_status") for dump in _recorder(False)]
        if counts != self._seen:
            self._seen = counts
            os.utime(self._touched)

    def send(self) -> None:
        """Send the entries that are not sent yet."""
        import json

        found = _newest_entries(self._sent)
        if found:
            line = json.dumps([int(os.environ["RANK"]), "collectives", found]).encode() + b"\n"
            try:
                os.write(self._fd, line)
            except BlockingIOError:  # the launcher is busy: the next line has newer entries
                pass


_sender: EntrySender | None = None


def begin_entries() -> None:
    """Start the thread that sends the entries, without the module `threading`: that lists
    only the threads of the script.
    """
    global _sender
    is_alone = os.environ.get("WORLD_SIZE", "1") == "1"
    if _sender or is_alone or "CLIENT_LIB_METRICS" not in os.environ:
        return
    try:
        import _thread

        _sender = EntrySender()
        _thread.start_new_thread(_sender.run, ())
    except (OSError, RuntimeError):  # the launcher is gone, or there can be no more threads
        pass


def is_sending() -> bool:
    """True in a rank that trains with others."""
    return _sender is not None


def send_last_entries() -> None:
    """Send the entries that are not sent yet, at the end of the process."""
    try:
        if _sender:
            _sender.send()
    except Exception:  # noqa: BLE001  (see EntrySender.run)
        pass


def _newest_entries(sent: dict[str, int]) -> list[Any] | None:
    """[group, number of the first collective, collectives in a step (0: not known), time of the
    first collective in seconds since 1970, and the time from each collective to the next one, in
    0.1 ms]; None: nothing new. `sent`: the last number of each group that was sent."""
    groups: dict[str, dict[int, Any]] = {}
    for entry in [each for dump in _recorder(True) for each in dump.get("entries", ())]:
        if not entry.get("is_p2p"):
            backend = entry["profiling_name"].partition(":")[0]
            of_group = groups.setdefault("%s:%s" % (backend, entry["process_group"][0]), {})
            of_group.setdefault(entry["collective_seq_id"], entry)
    group = max(groups, key=lambda name: len(groups[name]), default="")
    numbers = sorted(groups.get(group, ()))
    if not numbers or numbers[-1] <= sent.get(group, -1):
        return None
    last = numbers[-1]
    first = max(sent.get(group, -1) + 1, last - ENTRIES_MAX + 1, numbers[0])
    if last - numbers[0] >= len(
        numbers
    ):  # some are missing: take the collectives after the last gap
        neighbours = zip(numbers, numbers[1:])  # noqa: B905 (Python 3.8)
        first = max([first] + [after for before, after in neighbours if after > before + 1])
    sent[group] = last
    entries = groups[group]
    kinds = [(entries[n]["profiling_name"], entries[n].get("input_sizes")) for n in numbers]
    times = [round(entries[n]["time_created_ns"] / 1e5) for n in range(first, last + 1)]
    deltas = [after - before for before, after in zip(times, times[1:])]  # noqa: B905
    return [group, first, _period(kinds), times[0] / 1e4, deltas]


def _recorder(with_entries: bool) -> list[Any]:
    """Read PyTorch's flight recorder, and NCCL's: the state of each group, and
    the newest collectives.
    """
    import pickle

    torch = sys.modules["torch._C._distributed_c10d"]
    dumps = [getattr(torch, name, None) for name in ("_dump_fr_trace", "_dump_nccl_trace")]
    return [pickle.loads(dump(with_entries, False)) for dump in dumps if dump]


def _period(kinds: list[Any]) -> int:
    """The smallest number of collectives after which the newest ones repeat; 0: none."""
    for period in range(1, len(kinds) // 2 + 1):
        same = 0
        while same + period < len(kinds) and kinds[-1 - same] == kinds[-1 - same - period]:
            same += 1
        if same >= max(2 * period, len(kinds) // 2):
            return period
    return 0
