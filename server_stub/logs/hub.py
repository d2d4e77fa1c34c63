"""Wakes the followers of jobs: one feed per followed job and one tail per worker's log, shared by
all its followers.

A follower is an event; `stream` keeps its positions, and nothing is queued for it. When a log
grows, its tail notes the new end and the feed sets the events; the new bytes are read once, for the
first follower, and the other followers get them, too. A feed exists while it has followers.
Everything runs on the event loop.
"""

import asyncio
import ctypes
import os
import struct
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from client_lib.errors import ClientLibError
from client_lib.spec.paths import HEARTBEAT_S, Position
from server_stub.files.job_dirs import log_dir
from server_stub.logs.records import Block, LoggedJob
from server_stub.logs.segments import BLOCK, LogReader

COALESCE_S = 0.02
"""Least time between two wakes of the followers: each wake costs a write per follower."""
_LOOK_S = 0.02
"""First pause before a feed looks for new logs, and for changes that nothing reports."""
_LOOK_MAX_S = 0.25
"""Longest of these pauses."""
# of sys/inotify.h: modified, moved, created, deleted; the directory itself deleted or moved
_MASK = 0x2 | 0xC0 | 0x100 | 0x200 | 0x400 | 0x800
_EVENT = struct.Struct("iIII")
_OVERFLOW = -1

NextLogs = Callable[[LoggedJob], Awaitable[LoggedJob]]
"""Waits until the version of the given job has grown, and returns the job. Raises NotFound: the job
is deleted.
"""


class Inotify:
    """Reports changes in directories (Linux), on the running event loop."""

    def __init__(self) -> None:
        """Raises OSError: none is left for the user (fs.inotify.max_user_instances);
        AttributeError: another system.
        """
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._callbacks: dict[int, list[Callable[[], None]]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    def watch(self, directory: Path, changed: Callable[[], None]) -> Callable[[], None]:
        """Call `changed` soon after an entry of the directory was made, written, renamed or
        removed; calls may be spurious, several changes may be one call. Returns a function that
        ends it. Raises OSError: there is no such directory, or no watch is left for this user."""
        # one directory has one number, however often it is asked for
        number = self._call("inotify_add_watch", self._descriptor, os.fsencode(directory), _MASK)
        self._callbacks.setdefault(number, []).append(changed)
        return partial(self._forget, number, changed)

    def close(self) -> None:
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1

    def _call(self, name: str, *arguments: object) -> int:
        result = int(getattr(self._libc, name)(*arguments))
        if result < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        return result

    def _forget(self, number: int, changed: Callable[[], None]) -> None:
        self._callbacks[number].remove(changed)
        if not self._callbacks[number]:
            del self._callbacks[number]
            # fails, harmlessly, for a directory that is gone
            self._libc.inotify_rm_watch(self._descriptor, number)

    def _read(self) -> None:
        data = os.read(self._descriptor, 64 * 1024)
        at = 0
        numbers = set[int]()
        while at < len(data):
            number, _, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            numbers.add(number)
        if _OVERFLOW in numbers:
            numbers = set(self._callbacks)
        for changed in [
            changed for number in numbers for changed in self._callbacks.get(number, ())
        ]:
            changed()


class Tail:
    """The growing end of one worker's log."""

    def __init__(self, position: Position, directory: Path) -> None:
        """Call `look` first."""
        self.position = position
        self.end = 0
        self.watched = False
        """Changes are reported: nobody else needs to look."""
        self._reader = LogReader(directory)
        self._newest: Block | None = None

    def look(self) -> bool:
        """Note the end of the log; returns True if it has grown."""
        before = self.end
        self.end = self._reader.end()
        return self.end > before

    def close(self) -> None:
        self._reader.close()

    def newest_at(self, offset: int) -> Block | None:
        """The newest records, if they begin at `offset`; the first call
        reads them for all followers.
        """
        start = self._newest.start if self._newest else -1
        if offset > start and self.end - offset <= BLOCK:
            block = self._reader.block(offset)
            if block is None or block.start != offset:
                return None
            self._newest = block
        return self._newest if self._newest and self._newest.start == offset else None


class Feed:
    """The state that all followers of one job share."""

    def __init__(
        self, job: LoggedJob, next_logs: NextLogs, inotify: Inotify | None, tick_s: float
    ) -> None:
        self.job = job
        self.tails: dict[Position, Tail] = {}
        self.over = False
        """True after the job was deleted or the server began to stop.
        Streams end without `@end`.
        """
        self.followers: set[asyncio.Event] = set()
        """One event per follower, set when there is news."""
        self._next_logs = next_logs
        self._inotify = inotify
        self._tick_s = tick_s
        self._unwatch: list[Callable[[], None]] = []
        self._loop = asyncio.get_running_loop()
        self._woken_at = 0.0
        self._wake_later: asyncio.TimerHandle | None = None
        self._find_logs(1)
        self._tasks = [
            self._loop.create_task(self._run(part)) for part in (self._watch_job, self._look)
        ]

    def close(self) -> None:
        self.over = True
        for task in self._tasks:
            task.cancel()
        while self._unwatch:
            self._unwatch.pop()()
        for tail in self.tails.values():
            tail.close()
        self._wake_now()

    async def _run(self, part: Callable[[], Awaitable[None]]) -> None:
        """Run `_watch_job` or `_look`. If it fails, the streams end, and their readers resume."""
        # deleted (NotFound), or the database fails: the next request gets the error
        with suppress(ClientLibError):
            try:
                await part()
            except BaseException:
                self.over = True
                self._wake_now()
                raise

    async def _watch_job(self) -> None:
        """Follow the states of the job and wake the followers at each."""
        while not self.job.state.final:
            attempt = self.job.attempt
            # State and ends change in one step: a follower that sees a final state sees the true
            # ends too.
            self.job = await self._next_logs(self.job)
            self._find_logs(attempt)
            for tail in self.tails.values():
                tail.look()
            self._wake_now()

    async def _look(self) -> None:
        """Look for new logs, and for changes that inotify does not report, less often while there
        are none; wake the followers for heartbeats."""
        pause_s = _LOOK_S
        while not self.job.state.final:
            await asyncio.sleep(pause_s)
            found = self._find_logs(self.job.attempt)
            grown = [tail for tail in self.tails.values() if not tail.watched and tail.look()]
            if found or grown:
                pause_s = _LOOK_S
                self._wake()
            else:
                pause_s = min(pause_s * 1.2, _LOOK_MAX_S, self._tick_s)
                if self._loop.time() - self._woken_at >= self._tick_s:
                    self._wake_now()

    def _find_logs(self, oldest: int) -> bool:
        """Open the logs of the attempts from `oldest` on, where there are any; returns
        True if there was a new one.
        """
        attempts = range(oldest, self.job.attempt + 1)
        workers = range(self.job.n_workers)
        unknown = {
            (attempt, worker) for attempt in attempts for worker in workers
        } - self.tails.keys()
        # followers read them in this order
        return any([self._open_log(position) for position in sorted(unknown)])

    def _open_log(self, position: Position) -> bool:
        """Open a log; returns False if there is none."""
        directory = log_dir(self.job.job_dir, *position)
        if not directory.is_dir():
            return False
        tail = self.tails[position] = Tail(position, directory)

        def changed() -> None:
            try:
                tail.look()
            except OSError:
                tail.watched = False  # `_look` tries again, and ends the streams if that fails, too
            self._wake()

        if self._inotify:
            with suppress(OSError):  # no watch is left
                self._unwatch.append(self._inotify.watch(directory, changed))
                tail.watched = True
        tail.look()  # after the watch began, so that no change is missed
        return True

    def _wake(self) -> None:
        """Wake the followers: now, or a moment later if they were just woken."""
        if not self._wake_later:
            self._wake_later = self._loop.call_at(self._woken_at + COALESCE_S, self._wake_now)

    def _wake_now(self) -> None:
        if self._wake_later:
            self._wake_later.cancel()
            self._wake_later = None
        self._woken_at = self._loop.time()
        for news in self.followers:
            news.set()


class LogHub:
    """One per server process. Make it on the event loop."""

    def __init__(
        self, next_logs: NextLogs, *, inotify: bool = True, heartbeat_s: float = HEARTBEAT_S
    ) -> None:
        """Without `inotify` logs are looked at in intervals, as on systems that lack it."""
        self.tick_s = heartbeat_s / 5
        """Seconds after which sleeping followers are woken for a heartbeat."""
        self.silence_s = heartbeat_s - 2 * self.tick_s  # a check is late by one interval at most
        """A reader that got nothing for so many seconds gets a heartbeat when it is woken."""
        self._next_logs = next_logs
        self._inotify: Inotify | None = None
        if inotify:
            with suppress(OSError, AttributeError):
                self._inotify = Inotify()
        self._feeds: dict[str, Feed] = {}
        self._closed = False

    @property
    def followers(self) -> int:
        """The number of open streams; for `/metrics`."""
        return sum(len(feed.followers) for feed in self._feeds.values())

    @contextmanager
    def follow(self, job: LoggedJob) -> Iterator[tuple[Feed, asyncio.Event]]:
        """Follow `job` during the block; yields the feed and the event of this follower."""
        feed = self._feeds.get(job.job_id)
        if feed is None or feed.over:
            feed = self._feeds[job.job_id] = Feed(job, self._next_logs, self._inotify, self.tick_s)
        feed.over = feed.over or self._closed
        news = asyncio.Event()
        feed.followers.add(news)
        try:
            yield feed, news
        finally:
            feed.followers.discard(news)
            if not feed.followers:
                if self._feeds.get(job.job_id) is feed:
                    del self._feeds[job.job_id]
                feed.close()

    def close(self) -> None:
        """End every followed stream without `@end`, so that its reader resumes at the next server.
        Call it when the server begins to stop, before it waits for open answers. Another call does
        nothing."""
        self._closed = True
        for feed in list(self._feeds.values()):
            feed.close()
        if self._inotify:
            self._inotify.close()
            self._inotify = None
