"""Logs from the Kubernetes API: the tail of a worker that died without a report, and all logs if
pods can't reach this server.

`pods/log` loses lines when the kubelet rotates the file, so it is only the fallback. It contains
the same records that a worker sends. They go to the same WorkerRegistry, which skips records that
it has.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from functools import partial

from client_lib.errors import ClientLibError
from server_stub.runtimes.kube.api import Api, ApiError, Query, StreamThread, call_in_thread
from server_stub.runtimes.kube.names import AttemptKey
from server_stub.runtimes.kube.observe.inventory import WorkerPod
from server_stub.runtimes.tasks import is_set_within
from server_stub.worker_gateway.attempt import WorkerRegistry

TAIL_TRIES = 4
TAIL_LINES = 5000
TAIL_BYTES = 8 * 2**20
SILENCE_S = 60.0
WAITING_BYTES = 4 * 2**20
AGAIN_S = 1.0
DISK_PAUSE_S = 5.0
READ_OUT_S = 60.0
STOPPED_S = 10.0
Append = Callable[[bytes], Coroutine[None, None, int]]
"""Stores records of a worker, and returns how many were new."""

_log = logging.getLogger(__name__)


class PodLogs:
    """The logs of one namespace. Its methods run on the event loop; its readers are threads."""

    def __init__(self, api: Api, namespace: str, registry: WorkerRegistry) -> None:
        self._api = api
        self._namespace = namespace
        self._registry = registry
        self._readers: dict[tuple[AttemptKey, str], PodLogReader] = {}

    def _path(self, pod: WorkerPod) -> str:
        return f"/api/v1/namespaces/{self._namespace}/pods/{pod.name}/log"

    async def read_tail(self, key: AttemptKey, pod: WorkerPod, missing: int = 0) -> None:
        """Read the end of the log of a pod that ended, if its node still answers. `missing`: the
        number of records that the worker is known to have written since the last one that it
        sent."""
        if pod.unanswered:
            return
        query: Query = {
            "container": pod.main.name,
            "tailLines": TAIL_LINES + missing,  # among them are lines of the agent
            "limitBytes": TAIL_BYTES,
        }
        for number in range(TAIL_TRIES):
            try:
                await self._append(
                    key, pod, await call_in_thread(self._api.text, self._path(pod), query)
                )
                return
            except ApiError as error:
                if error.status in (400, 404):  # there is none
                    return
                _log.warning("the log of %s can't be read: %s", pod.name, error)
            await asyncio.sleep(2.0**number)

    def follow(self, key: AttemptKey, pods: Iterable[WorkerPod]) -> None:
        """Start reading the log of each pod whose container runs or ran.
        Calling it again does no harm.
        """
        for pod in pods:
            begun = pod.main.running_since is not None or pod.main.ended is not None
            if begun and not pod.gone and (key, pod.uid) not in self._readers:
                append = partial(self._append, key, pod)
                self._readers[key, pod.uid] = PodLogReader(self._api, self._path(pod), pod, append)
                self._readers[key, pod.uid].start()

    async def _append(self, key: AttemptKey, pod: WorkerPod, records: bytes) -> int:
        attempt = self._registry.find(*key)
        return await attempt.append(pod.worker, pod.uid, records) if attempt else 0

    async def read_out(self, key: AttemptKey, pods: Iterable[WorkerPod]) -> None:
        """Wait until the logs of the pods that have ended are read to their end, before the pods
        are deleted.

        After READ_OUT_S the rest is given up. No more records of these pods arrive after it
        returns.
        """
        over = [pod.uid for pod in pods if pod.over and not pod.gone and not pod.unanswered]
        readers = [self._readers[key, uid] for uid in over if (key, uid) in self._readers]
        reading = [reader for reader in readers if not reader.stopping.is_set()]
        for reader in reading:
            reader.last_round.set()
        loop = asyncio.get_running_loop()
        until = loop.time() + READ_OUT_S
        for reader in reading:
            if not await is_set_within(reader.done, until - loop.time()):
                reader.stop()
                await is_set_within(reader.done, STOPPED_S)

    def forget(self, key: AttemptKey) -> None:
        for known in [known for known in self._readers if known[0] == key]:
            self._readers.pop(known).stop()


class PodLogReader(StreamThread):
    """Reads the log of one container in a thread until it ends."""

    def __init__(self, api: Api, path: str, pod: WorkerPod, append: Append) -> None:
        super().__init__(api, f"log {path}")
        self._path = path
        self._pod = pod
        self._append = append
        self.last_round = threading.Event()
        """The container has ended: the log is complete after the next round without new records."""
        self.done = asyncio.Event()
        """Set when the log was read to its end."""

    def run(self) -> None:
        while not self.stopping.is_set() and not self._is_read():
            self.stopping.wait(AGAIN_S)
        self._call_on_loop(self.done.set)

    def _is_read(self) -> bool:
        """Read streams until one brings nothing new. Returns True if the log is complete, False if
        a pause is due.

        A stream may end for any reason; the log is complete only if the container had ended before
        the last stream.
        """
        while True:
            last_round = self.last_round.is_set()
            handover = LogHandover(self._append, self._loop)
            try:
                for line in self._lines(
                    self._path, {"container": self._pod.main.name, "follow": "true"}, SILENCE_S
                ):
                    handover.add(line)
                new = handover.finish()
            except ApiError as error:
                return error.status == 404
            except (
                ClientLibError,
                OSError,
            ) as error:  # the disk is full; what was stored is skipped the next time
                _log.warning(
                    "the log of %s can't be stored, and is read again: %s", self._pod.name, error
                )
                self.stopping.wait(DISK_PAUSE_S)
                return False
            if not new:
                return last_round


class LogHandover:
    """Hands lines from a thread to the event loop, in order and one batch at a time.

    Lines that arrive while a batch is on its way form the next batch. The API sends the log of a
    busy container line by line, and a call of the event loop for each line would be far too slow.
    """

    def __init__(self, append: Append, loop: asyncio.AbstractEventLoop) -> None:
        self._append = append
        self._loop = loop
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._size = self._new = 0
        self._sending: Future[None] | None = None

    def add(self, line: bytes) -> None:
        """Add a line; blocks while WAITING_BYTES wait. Raises what `append` raised."""
        with self._lock:
            self._lines.append(line)
            self._size += len(line)
            if self._sending is None:
                self._sending = asyncio.run_coroutine_threadsafe(self._send(), self._loop)
            has_failed = self._sending.done()  # one that succeeded is forgotten
            is_full = self._size >= WAITING_BYTES
        if is_full or has_failed:
            self.finish()

    def finish(self) -> int:
        """Wait until all lines have arrived, and return how many records were new.
        Raises what `append` raised.
        """
        if sending := self._sending:
            sending.result()
        return self._new

    async def _send(self) -> None:
        while True:
            with self._lock:
                lines = self._lines
                self._lines = []
                self._size = 0
                if not lines:
                    self._sending = None
                    return
            self._new += await self._append(b"\n".join(lines) + b"\n")
