"""Lists a kind of object and then follows its changes, for as long as it is wanted, in a thread of its own.

What the thread learns goes to `take`, which is called in it. Rules, each of them learnt: a watch has a limit of the
server's and, against a connection that died silently, one of ours; bookmarks keep the version young; an expired one
(410) is dropped and everything is listed anew; every round that achieved nothing is followed by a pause.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server_stub.runtimes.kube.api import Api, ApiError
from server_stub.runtimes.kube.reading import Reading

WATCH_S = 50  # the server's limit on one watch
SILENCE_S = 65.0  # ours: then the connection is dead
RELIST_S = 900.0  # a change that was lost on the way is found then
LASTED_S = 5.0  # a watch that stood for so long was worth it, though nothing changed
PAGE = 500
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """All there are; what was known and is not among them is gone."""

    objects: Sequence[Any]


@dataclass(frozen=True)
class Changed:
    """One object was made or changed; `gone`: or deleted, and this was the last of it."""

    object: Any
    gone: bool = False


Change = Listed | Changed


class Watch:
    """One kind in one namespace. `path`: of the collection; `query`: selectors."""

    def __init__(self, api: Api, path: str, query: dict[str, str], take: Callable[[Change], None]) -> None:
        self._api, self._path, self._query, self._take = api, path, query, take
        self._version: str | None = None
        self._listed_at = 0.0
        self._reading = Reading(api, f"watch {path.rpartition('/')[2]}", self._run)
        self.problem: str | None = None
        """Why it doesn't work at the moment; None: it does."""

    def start(self) -> None:
        self._reading.start()

    def stop(self) -> None:
        """Returns at once; nothing is taken any more a moment later."""
        self._reading.stop()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._reading.stopping.is_set():
            try:
                progress = self._round()
                self.problem = None
            except ApiError as error:
                progress = False
                if error.expired:
                    self._version = None
                self._complain(error)
            pause_s = FIRST_PAUSE_S if progress else min(pause_s * 2, LONGEST_PAUSE_S)
            if not progress:
                self._reading.stopping.wait(pause_s * random.uniform(0.5, 1.0))

    def _complain(self, error: ApiError) -> None:
        if self.problem != error.message:
            self.problem = error.message
            _log.warning("watching %s: %s", self._path, error.message)

    def _round(self) -> bool:
        """List where that is due, then one watch. Whether it was worth it."""
        begun = time.monotonic()
        if self._version is None or begun - self._listed_at > RELIST_S:
            self._version = self._list()
            self._listed_at = begun
            self.problem = None
        query = self._query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
            "resourceVersion": self._version,
        }
        learnt = 0
        for line in self._reading.open(self._path, query, SILENCE_S):
            if self._reading.stopping.is_set():
                break
            learnt += self._learn(line)
        return learnt > 0 or time.monotonic() - begun > LASTED_S

    def _list(self) -> str:
        objects: list[Any] = []
        query: dict[str, str] = self._query | {"limit": str(PAGE)}
        while True:
            page = self._api.get(self._path, query)
            objects += page.get("items") or []
            following = page["metadata"].get("continue")
            if not following:
                self._take(Listed(objects))
                return str(page["metadata"]["resourceVersion"])
            query = query | {"continue": following}

    def _learn(self, line: bytes) -> int:
        try:
            event = json.loads(line)
            kind, found = event["type"], event["object"]
        except (ValueError, KeyError, TypeError):
            return 0  # the connection broke within a line
        if kind == "ERROR":
            raise ApiError(int(found.get("code", 500)), str(found.get("message", "the watch failed")))
        self._version = str(found["metadata"]["resourceVersion"])
        if kind != "BOOKMARK":
            self._take(Changed(found, gone=kind == "DELETED"))
        return 1
