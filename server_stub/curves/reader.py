"""Reads the curves and the progress of jobs out of their logs: each byte once. Blocking; any
thread.

The curves of a log are kept in memory for the newest readers, and in a file of the job's directory
that is removed with it. The file holds what was read up to an offset of the log; without it, or if
it is damaged, the log is read again.
"""

import json
import re
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Literal, NamedTuple

from client_lib.durable import write_file
from client_lib.launcher_protocol.checkpoint_lines import SeenCheckpoint
from client_lib.launcher_protocol.printed_metrics import LONGEST
from client_lib.launcher_protocol.record import (
    LAUNCHER,
    MARK,
    METRICS,
    NO_RANK,
    STREAM,
    TEXT,
    pattern,
)
from client_lib.spec.checkpoints import JobCheckpoint
from client_lib.spec.replace import replaced
from client_lib.spec.wire import JobProgress
from server_stub.curves.alarms import Alarms, Finding
from server_stub.curves.alerts import ALERTS_MAX, Alert
from server_stub.curves.bars import Bars
from server_stub.curves.checkpoints import Told, listed
from server_stub.curves.goodput import Marks
from server_stub.curves.lag import Entries, Straggler, Window, slow_rank, steps
from server_stub.curves.losses import Loss
from server_stub.curves.points import Points
from server_stub.curves.tracker import PROGRESS_OF, Key, Tracker
from server_stub.files.job_dirs import log_dir, worker_dir
from server_stub.logs.records import LoggedJob
from server_stub.logs.segments import LogReader
from server_stub.worker_gateway.log_file import read_clock

FOLDER = "curves"  # in the directory of the job
_VERSION = 4  # of the grammar and of the file: others are made again
_OPEN = 1024
"""Largest number of logs whose curves stay in memory."""
_POINTS = 4_000_000
"""Largest number of points of all curves in memory."""
_BLOCK = 2**16  # the time is checked after each
_SAVE_BYTES = 16 * 2**20  # of log; as much is read again after a crash
_STAMP = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6})Z"
# a job may write to its log itself: what is no record is skipped, in linear time
_FORM = pattern(
    time=_STAMP, rank=r"(-|\d{1,9})", stream=f"({STREAM})", mark=f"({MARK})", text=f"({TEXT})"
)
_RECORD = re.compile(f"^{_FORM}".encode(), re.MULTILINE)
_LAUNCHER = LAUNCHER.encode()
_METRICS = METRICS.encode()
_NO_RANK = NO_RANK.encode()
Whose = int | Literal["all", "workers"]  # a rank, all ranks, or what the workers used


class Curves(NamedTuple):
    curves: dict[Key, Points]
    complete: bool
    """False: a part of the log was not read yet."""
    dropped: int
    """Values that the script could not hand over."""


class _Log:
    """The part of one log that was read, and its curves. Used by the holder of `lock` only."""

    def __init__(self, file: Path, most: int) -> None:
        self.lock = Lock()
        self.offset = 0
        self.tracker = Tracker(most)
        self._file = file
        self._saved: int | None = None

    def load(self) -> None:
        """Continue from the file at the first call; if it can't be used,
        read the log from its begin.
        """
        if self._saved is None:
            self._saved = 0
            with (
                suppress(OSError, ValueError, KeyError, TypeError, EOFError),
                self._file.open("rb") as source,
            ):
                head = json.loads(source.readline())
                if head["version"] == _VERSION:
                    bars = {
                        rank: Bars(saved)
                        for rank, saved in zip(PROGRESS_OF, head["bars"], strict=True)
                    }
                    curves = {}
                    for rank, name, axis, stream, thinned, count in head["curves"]:
                        curves[rank, name] = Points(axis, stream, thinned=thinned)
                        for column in curves[rank, name].columns:
                            column.fromfile(source, count)
                    seen = head["checkpoints"]
                    self.tracker = Tracker(
                        self.tracker.most,
                        curves,
                        head["dropped"],
                        bars,
                        Entries(head["entries"]),
                        head["written"],
                        None if seen is None else {each[0]: SeenCheckpoint(*each) for each in seen},
                        head["warnings"],
                        [Alert(*each) for each in head["alerts"]],
                    )
                    self.offset = self._saved = head["offset"]

    def save(self, least: int = 1) -> None:
        """Write the file if `least` bytes of log were read since the last time. If it can't be
        written, as there is no room or no job, the log is read again later."""
        if self._saved is None or self.offset - self._saved < least:
            return
        with suppress(OSError):
            tracker = self.tracker
            points = self.tracker.points.items()
            head = {
                "version": _VERSION,
                "offset": self.offset,
                "dropped": tracker.dropped,
                "bars": [tracker.bars[rank].saved() for rank in PROGRESS_OF],
                "entries": tracker.entries.saved(),
                "written": tracker.written,
                "checkpoints": None
                if tracker.checkpoints is None
                else list(tracker.checkpoints.values()),
                "warnings": tracker.warnings,
                "alerts": tracker.alerts,
                "curves": [
                    [*key, curve.axis, curve.source, curve.thinned, len(curve)]
                    for key, curve in points
                ],
            }
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            columns = [column.tobytes() for _, curve in points for column in curve.columns]
            write_file(str(self._file), b"".join([json.dumps(head).encode(), b"\n", *columns]))
            self._saved = self.offset

    def advance(self, directory: Path, until: float) -> bool:
        """Read what is new; False: the time is over before its end."""
        with closing(LogReader(directory)) as log:
            while block := log.block(self.offset, _BLOCK):
                for record in _records(block.data):
                    self.tracker.add(*record)
                self.offset = block.end
                self.save(_SAVE_BYTES)
                if time.monotonic() > until:
                    return False
        return True


class CurveReader:
    """One per server. `most`: points that are kept of the log of one worker
    (see `Points.thinned_to`).
    """

    def __init__(self, most: int = 1_000_000) -> None:
        self._most = most
        self._logs: OrderedDict[Path, _Log] = OrderedDict()
        self._lock = Lock()

    def progress(self, job: LoggedJob, now: float, until: float) -> JobProgress | None:
        """The progress of the newest attempt by the first rank that tells any, with what is seen of
        the optimizers of rank 0; None: its log could not be read up to its end `until` then
        (monotonic seconds), or has none."""
        with self._read(job, job.attempt, 0, until) as (tracker, complete):
            found = [tracker.progress(rank, now) for rank in PROGRESS_OF] if complete else []
            observed = tracker.observed(now) if complete else JobProgress()
        told = next((each for each in found if each.done is not None or each.metrics), None)
        if told is None:
            return observed if observed.metrics else None
        by = observed if told.done is None else told
        return replaced(by, metrics={**told.metrics, **observed.metrics})

    def step(self, job: LoggedJob, until: float) -> float | None:
        """Return the last step in the log of the newest attempt, as far as the log is read at
        `until`; None: the log shows no step.
        """
        with self._read(job, job.attempt, 0, until) as (tracker, _):
            return tracker.step()

    def losses(self, job: LoggedJob, until: float) -> list[Loss]:
        """The losses of all ranks in the newest attempt, as far as the logs are read at `until`."""
        found = []
        for worker in range(job.n_workers):
            with self._read(job, job.attempt, worker, until) as (tracker, _):
                found += tracker.losses()
        return found

    def alarms(self, job: LoggedJob, alarms: Alarms, until: float) -> list[Finding]:
        """The rules that have become true in the newest attempt, as far as its logs are read at
        `until`. `alarms`: an object of this attempt."""
        for worker in range(job.n_workers):
            with self._read(job, job.attempt, worker, until) as (tracker, _):
                while not alarms.look(worker, tracker.curves(), tracker.used()):
                    if time.monotonic() > until:
                        break
        return alarms.found()

    def alerts(self, job: LoggedJob, until: float) -> list[Alert]:
        """The alerts of the scripts in the newest attempt, one for each title, as far as its logs
        are read at `until`."""
        found: dict[str, Alert] = {}
        for worker in range(job.n_workers):
            with self._read(job, job.attempt, worker, until) as (tracker, _):
                for alert in tracker.alerts:
                    found.setdefault(alert.title, alert)
        return list(found.values())[:ALERTS_MAX]

    def slow(self, job: LoggedJob, until: float) -> tuple[list[str], Straggler | None]:
        """The sentences of the preflight of the newest attempt about slow workers, and its slow
        rank; None: there is none, or it is not known. It is looked for again when a rank has sent
        new entries."""
        workers = []
        trackers = []
        for worker in range(job.n_workers):
            with self._read(job, job.attempt, worker, until) as (tracker, _):
                workers.append(_windows(tracker))
                trackers.append(tracker)
        newest = [{rank: windows[-1] for rank, windows in each.items()} for each in workers]
        known = trackers[0].slow
        if known is None or known[0] != newest:
            known = trackers[0].slow = newest, slow_rank(workers, _ahead(job, job.attempt))
        return list(trackers[0].warnings), known[1]

    def marks(self, job: LoggedJob, attempt: int, until: float) -> Marks:
        """The facts that an attempt has shown in the part of its logs that
        can be read `until` then.
        """
        entries = []
        printed = []
        written = []
        for worker in range(job.n_workers):
            with self._read(job, attempt, worker, until) as (tracker, _):
                entries.append(_windows(tracker))
                printed += tracker.reached() if worker == 0 else []
                written += tracker.written
        return Marks(steps(entries, _ahead(job, attempt)), printed, written)

    def checkpoints(self, job: LoggedJob, until: float) -> tuple[list[JobCheckpoint], bool]:
        """The checkpoints of a job by what worker 0 of each attempt has told; False: a log was not
        read up to its end `until` then.
        """
        attempts = []
        all_complete = True
        for attempt in range(1, job.attempt + 1):
            with self._read(job, attempt, 0, until) as (tracker, complete):
                seen = None if tracker.checkpoints is None else dict(tracker.checkpoints)
                ended = attempt < job.attempt or job.state.final
                attempts.append(Told(seen, tracker.printed(), ended))
                all_complete &= complete
        return listed(attempts), all_complete

    def first_steps(self, job: LoggedJob, until: float) -> str:
        """See `Tracker.first_steps`, of worker 0 in the newest attempt."""
        with self._read(job, job.attempt, 0, until) as (tracker, _):
            return tracker.first_steps()

    def curves(self, job: LoggedJob, rank: Whose, until: float) -> Curves:
        """Return curves: of one rank and of no rank, of all ranks, or of what the workers used,
        with the worker's number in place of the rank. Later attempts continue the curves of earlier
        ones. Nothing is read after `until` (monotonic seconds); the next call reads on."""
        found: dict[Key, Points] = {}
        all_complete = True
        dropped = 0
        for attempt in range(1, job.attempt + 1):
            for worker in range(1 if rank == 0 else job.n_workers):
                with self._read(job, attempt, worker, until) as (tracker, complete):
                    all_complete &= complete
                    dropped += tracker.dropped
                    used = {(worker, name): points for name, points in tracker.used().items()}
                    for key, points in (used if rank == "workers" else tracker.curves()).items():
                        if isinstance(rank, str) or key[0] in (rank, None):
                            found[key] = found.get(key, Points(points.axis, points.source)).joined(
                                points
                            )
        return Curves(found, all_complete, dropped)

    @contextmanager
    def _read(
        self, job: LoggedJob, attempt: int, worker: int, until: float
    ) -> Iterator[tuple[Tracker, bool]]:
        """Read a log; False: not up to its end. Without any curves if another
        thread reads it `until` then.
        """
        log = self._log(job.job_dir / FOLDER / f"{attempt}-{worker}")
        if not log.lock.acquire(timeout=max(0.0, until - time.monotonic())):
            yield Tracker(0), False
            return
        try:
            log.load()
            complete = log.advance(log_dir(job.job_dir, attempt, worker), until)
            if job.state.final:
                log.save()
            yield log.tracker, complete
        finally:
            log.lock.release()

    def _log(self, file: Path) -> _Log:
        """Return the log of this file, and make it the newest of `_logs`. The oldest logs are
        dropped if there are too many, or if they are too large.
        """
        removed = []
        with self._lock:
            log = self._logs.pop(file, None) or _Log(file, self._most)
            points = sum(each.tracker.size for each in self._logs.values())
            while self._logs and (len(self._logs) >= _OPEN or points > _POINTS):
                _, oldest = self._logs.popitem(last=False)
                points -= oldest.tracker.size
                removed.append(oldest)
            self._logs[file] = log
        for oldest in removed:
            # else another thread reads it, and its values are read again later
            if oldest.lock.acquire(blocking=False):
                try:
                    oldest.save()
                finally:
                    oldest.lock.release()
        return log


def _windows(tracker: Tracker) -> dict[int, list[Window]]:
    """A copy, for the time after the lock."""
    return {rank: list(windows) for rank, windows in tracker.entries.of_rank.items()}


def _ahead(job: LoggedJob, attempt: int) -> list[float]:
    """Return by how many seconds the clock of each worker is ahead of worker 0's clock; 0.0: it is
    not ahead, or nothing is known.
    """
    clocks = [
        read_clock(worker_dir(job.job_dir, attempt, worker)) for worker in range(job.n_workers)
    ]
    first = clocks[0]
    return [clock.ahead_of(first) if clock and first else 0.0 for clock in clocks]


def _records(data: bytes) -> Iterator[tuple[float, int | None, str, str, str]]:
    """(time, rank, stream, kind, text) of the records of job streams."""
    for stamp, rank, stream, mark, text in _RECORD.findall(data):
        if stream == _LAUNCHER or (len(text) > LONGEST and stream != _METRICS):
            continue
        try:
            at = datetime.fromisoformat(f"{stamp.decode()}+00:00").timestamp()
        except ValueError:  # no such time
            continue
        of = None if rank == _NO_RANK else int(rank)
        yield at, of, stream.decode(), mark.decode(), text.decode("utf-8", "replace")
