"""A thread that reads one stream of the API after another and can be stopped at any moment, also while it waits for a
silent one. What is read, and what follows from it, is of `watch` and `pod_log`."""

from __future__ import annotations

import threading
from collections.abc import Callable

from server_stub.runtimes.kube.api import Api, Stream


class Reading:
    """`run` is called in the thread; it returns soon after `stopping` is set."""

    def __init__(self, api: Api, name: str, run: Callable[[], None]) -> None:
        self._api = api
        self._stream: Stream | None = None
        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self.stopping = threading.Event()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns at once; the stream that is read ends."""
        self.stopping.set()
        if self._stream is not None:
            self._stream.abort()

    def open(self, path: str, query: dict[str, str], silence_s: float) -> Stream:
        """For `run`. Raises ApiError."""
        self._stream = self._api.stream(path, query, silence_s)
        if self.stopping.is_set():  # `stop` found no stream to abort
            self._stream.abort()
        return self._stream
