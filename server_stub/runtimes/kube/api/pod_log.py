"""Logs from the Kubernetes API: the tail of a worker that died without a report, and all logs if pods can't reach this
server.

`pods/log` loses lines when the kubelet rotates the file, so it is only the fallback. It contains the same records that
a worker sends. They go to the same WorkerRegistry, which skips records that it has.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future

from server_stub.runtimes.kube.api import Api, ApiError, StreamThread, call_in_thread
from server_stub.runtimes.kube.api.objects_api import ObjectsApi
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe.parse import WorkerPod
from server_stub.runtimes.tasks import is_set_within
from server_stub.worker_gateway import WorkerRegistry

TAIL_TRIES = 4
SILENCE_S = 60.0
WAITING_BYTES = 4 * 2**20
AGAIN_S = 1.0
READ_OUT_S = 60.0
STOPPED_S = 10.0

_log = logging.getLogger(__name__)


class PodLogs:
    """The logs of one cluster. Its methods run on the event loop; its readers are threads."""

    def __init__(self, api: Api, objects: ObjectsApi, registry: WorkerRegistry) -> None:
        self._api, self._objects, self._registry = api, objects, registry
        self._readers: dict[tuple[AttemptKey, str], PodLogReader] = {}
        self._given_up: set[tuple[AttemptKey, str]] = set()

    async def read_tail(self, key: AttemptKey, pod: WorkerPod) -> None:
        """Read the end of the log of a pod that ended, if its node still answers."""
        if pod.unanswered:
            return
        for number in range(TAIL_TRIES):
            try:
                records = await call_in_thread(self._objects.log_tail, pod.name, pod.main.name)
                if attempt := self._registry.find(*key):
                    await attempt.append(pod.worker, pod.uid, records)
                return
            except ApiError as error:
                _log.warning("the log of %s can't be read: %s", pod.name, error)
            await asyncio.sleep(2.0**number)

    def follow(self, key: AttemptKey, pods: Iterable[WorkerPod]) -> None:
        """Start reading the log of each pod whose container runs or ran. Calling it again does no harm."""
        for pod in pods:
            begun = pod.main.running_since is not None or pod.main.ended is not None
            if begun and not pod.gone and (key, pod.uid) not in self._readers:
                request = self._objects.log_request(pod.name, pod.main.name)
                reader = PodLogReader(self._api, *request, key, pod, self._registry)
                self._readers[key, pod.uid] = reader
                reader.start()

    async def read_out(self, key: AttemptKey, pods: Iterable[WorkerPod]) -> None:
        """Wait until the logs of the pods that have ended are read to their end, before the pods are deleted.

        After READ_OUT_S the rest is given up. No more records of these pods arrive after it returns.
        """
        over = {(key, pod.uid) for pod in pods if pod.over and not pod.gone and not pod.unanswered}
        reading = {known: self._readers[known] for known in over - self._given_up if known in self._readers}
        if not reading:
            return
        for reader in reading.values():
            reader.finish()
        loop = asyncio.get_running_loop()
        until = loop.time() + READ_OUT_S
        for known, reader in reading.items():
            if not await is_set_within(reader.done, until - loop.time()):
                reader.stop()
                await is_set_within(reader.done, STOPPED_S)
                self._given_up.add(known)

    def forget(self, key: AttemptKey) -> None:
        for known in [known for known in self._readers if known[0] == key]:
            self._readers.pop(known).stop()
            self._given_up.discard(known)


class PodLogReader:
    """Reads the log of one container in a thread until it ends."""

    def __init__(
        self, api: Api, path: str, query: dict[str, str], key: AttemptKey, pod: WorkerPod, registry: WorkerRegistry
    ) -> None:
        self._path, self._query, self._key, self._pod, self._registry = path, query, key, pod, registry
        self._loop = asyncio.get_running_loop()
        self._last_round = threading.Event()
        self.done = asyncio.Event()
        """Set when the log was read to its end."""
        self._thread = StreamThread(api, f"log {path}", self._run)

    def start(self) -> None:
        self._thread.start()

    def finish(self) -> None:
        """End after the next round without new records, for the container has ended."""
        self._last_round.set()

    def stop(self) -> None:
        self._thread.stop()

    def _run(self) -> None:
        while not self._thread.stopping.is_set():
            if self._is_read():
                break
            self._thread.stopping.wait(AGAIN_S)
        try:
            self._loop.call_soon_threadsafe(self.done.set)
        except RuntimeError:
            pass  # the loop is closed: the server is stopping

    def _is_read(self) -> bool:
        """Read streams until one brings nothing new. Returns True if the log is complete, False if a pause is due.

        A stream may end for any reason; the log is complete only if the container had ended before the last stream.
        """
        while True:
            last_round = self._last_round.is_set()
            try:
                new = self._read_once()
            except ApiError as error:
                return error.not_found
            if not new:
                return last_round

    def _read_once(self) -> int:
        handover = LogHandover(self._append, self._loop)
        for line in self._thread.open(self._path, self._query, SILENCE_S):
            if self._thread.stopping.is_set():
                break
            handover.add(line)
        return handover.finish()

    async def _append(self, records: bytes) -> int:
        attempt = self._registry.find(*self._key)
        return await attempt.append(self._pod.worker, self._pod.uid, records) if attempt else 0


class LogHandover:
    """Hands lines from a thread to the event loop, in order and one batch at a time.

    Lines that arrive while a batch is on its way form the next batch. The API sends the log of a busy container line by
    line, and a call of the event loop for each line would be far too slow.
    """

    def __init__(self, append: Callable[[bytes], Coroutine[None, None, int]], loop: asyncio.AbstractEventLoop) -> None:
        self._append, self._loop = append, loop
        self._free = threading.Condition()
        self._lines: list[bytes] = []
        self._size = 0
        self._under_way = False
        self._new = 0
        self._failure: BaseException | None = None

    def add(self, line: bytes) -> None:
        """Add a line; blocks while WAITING_BYTES wait."""
        with self._free:
            self._lines.append(line)
            self._size += len(line)
            self._send()
            self._free.wait_for(lambda: self._size < WAITING_BYTES)

    def finish(self) -> int:
        """Wait until all lines have arrived, and return how many records were new."""
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
            except BaseException as error:  # noqa: BLE001  # raised again in `finish`
                self._failure = error
                self._lines, self._size = [], 0
            self._send()
            self._free.notify_all()
