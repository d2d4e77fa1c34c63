"""Logs from the Kubernetes API: the tail of a worker that died without a word, and, where pods can't reach this server,
all that there is.

`pods/log` loses lines (the kubelet rotates, and a follower is not told), so it is never the first choice. What is read
is the same records that a worker sends, and goes through the same door: those that are here already are passed over.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future

from server_stub.runtimes.kube.acts import Acts
from server_stub.runtimes.kube.api import Api, ApiError
from server_stub.runtimes.kube.asking import asked
from server_stub.runtimes.kube.facts import Pod
from server_stub.runtimes.kube.names import CONTAINER, AttemptKey
from server_stub.runtimes.kube.reading import Reading
from server_stub.workers import WorkerDesk

TAIL_TRIES = 4
SILENCE_S = 60.0
WAITING_BYTES = 4 * 2**20
AGAIN_S = 1.0
READ_OUT_S = 60.0
STOPPED_S = 10.0

_log = logging.getLogger(__name__)


class PodLogs:
    """Of one cluster. Event loop only; the readers are threads."""

    def __init__(self, api: Api, acts: Acts, desk: WorkerDesk) -> None:
        self._api, self._acts, self._desk = api, acts, desk
        self._followers: dict[tuple[AttemptKey, str], Follower] = {}
        self._given_up: set[tuple[AttemptKey, str]] = set()

    async def read_tail(self, key: AttemptKey, pod: Pod) -> None:
        """What is left of the log of a pod that ended, where its node can still be asked."""
        if pod.unanswered:
            return
        for number in range(TAIL_TRIES):
            try:
                records = await asked(self._acts.log_tail, pod.name)
                await self._desk.append(key.job_id, key.attempt, pod.worker, pod.uid, records)
                return
            except ApiError as error:
                _log.warning("the log of %s can't be read: %s", pod.name, error)
            await asyncio.sleep(2.0**number)

    def follow(self, key: AttemptKey, pods: Iterable[Pod]) -> None:
        """Read along with those whose container runs or ran; again and again harmless."""
        for pod in pods:
            begun = pod.main.running_since is not None or pod.main.ended is not None
            if begun and not pod.gone and (key, pod.uid) not in self._followers:
                follower = Follower(self._api, self._acts.log_path(pod.name), key, pod, self._desk)
                self._followers[key, pod.uid] = follower
                follower.start()

    async def read_out(self, key: AttemptKey, pods: Iterable[Pod]) -> None:
        """Wait until all that there is of those that are over was read: with the pods it goes. After READ_OUT_S the
        rest is given up. Nothing more comes of any of them."""
        over = {(key, pod.uid) for pod in pods if pod.over and not pod.gone and not pod.unanswered}
        reading = {known: self._followers[known] for known in over - self._given_up if known in self._followers}
        if not reading:
            return
        for follower in reading.values():
            follower.come_to_an_end()
        loop = asyncio.get_running_loop()
        until = loop.time() + READ_OUT_S
        for known, follower in reading.items():
            if not await _is_set(follower.done, until - loop.time()):
                follower.stop()
                await _is_set(follower.done, STOPPED_S)
                self._given_up.add(known)

    def forget(self, key: AttemptKey) -> None:
        for known in [known for known in self._followers if known[0] == key]:
            self._followers.pop(known).stop()
            self._given_up.discard(known)


class Follower:
    """One container's log, read in a thread until it ends."""

    def __init__(self, api: Api, path: str, key: AttemptKey, pod: Pod, desk: WorkerDesk) -> None:
        self._path, self._key, self._pod, self._desk = path, key, pod, desk
        self._loop = asyncio.get_running_loop()
        self._last_round = threading.Event()
        self.done = asyncio.Event()
        """All that there is was read."""
        self._reading = Reading(api, f"log {path}", self._run)

    def start(self) -> None:
        self._reading.start()

    def come_to_an_end(self) -> None:
        """The container writes nothing any more."""
        self._last_round.set()

    def stop(self) -> None:
        self._reading.stop()

    def _run(self) -> None:
        while not self._reading.stopping.is_set():
            if self._is_read():
                break
            self._reading.stopping.wait(AGAIN_S)
        try:
            self._loop.call_soon_threadsafe(self.done.set)
        except RuntimeError:
            pass  # the loop is closed: the server has ended

    def _is_read(self) -> bool:
        """A stream that ended may have ended for any reason: it is read again, until nothing new comes of it though
        the container ended before. False: not yet, and a pause is due."""
        while True:
            last_round = self._last_round.is_set()
            try:
                new = self._read_once()
            except ApiError as error:
                return error.not_found
            if not new:
                return last_round

    def _read_once(self) -> int:
        query = {"container": CONTAINER, "follow": "true"}
        handing = Handing(self._append, self._loop)
        for line in self._reading.open(self._path, query, SILENCE_S):
            if self._reading.stopping.is_set():
                break
            handing.add(line)
        return handing.finish()

    async def _append(self, records: bytes) -> int:
        return await self._desk.append(self._key.job_id, self._key.attempt, self._pod.worker, self._pod.uid, records)


async def _is_set(event: asyncio.Event, limit_s: float) -> bool:
    """It is, or becomes so in time."""
    try:
        await asyncio.wait_for(event.wait(), max(limit_s, 0.0))
    except asyncio.TimeoutError:
        return event.is_set()
    return True


class Handing:
    """Lines from a thread to the event loop, in order and one batch at a time: what comes while one is on its way is
    the next one. The API sends a chatty container's log line by line; a hand-over for each would be far too slow."""

    def __init__(self, append: Callable[[bytes], Coroutine[None, None, int]], loop: asyncio.AbstractEventLoop) -> None:
        self._append, self._loop = append, loop
        self._free = threading.Condition()
        self._lines: list[bytes] = []
        self._size = 0
        self._under_way = False
        self._new = 0
        self._failure: BaseException | None = None

    def add(self, line: bytes) -> None:
        """Blocks while too much waits already."""
        with self._free:
            self._lines.append(line)
            self._size += len(line)
            self._send()
            self._free.wait_for(lambda: self._size < WAITING_BYTES)

    def finish(self) -> int:
        """When all have arrived: how many were new."""
        with self._free:
            self._free.wait_for(lambda: not self._under_way)
        if self._failure is not None:
            raise self._failure
        return self._new

    def _send(self) -> None:
        if self._under_way or not self._lines:
            return
        data = b"\n".join(self._lines) + b"\n"
        self._lines, self._size, self._under_way = [], 0, True
        asyncio.run_coroutine_threadsafe(self._append(data), self._loop).add_done_callback(self._arrived)

    def _arrived(self, sent: Future[int]) -> None:
        with self._free:
            self._under_way = False
            try:
                self._new += sent.result()
            except BaseException as error:  # noqa: BLE001  # raised where the thread waits for it
                self._failure = error
                self._lines, self._size = [], 0
            self._send()
            self._free.notify_all()
