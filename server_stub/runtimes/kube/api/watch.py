"""Lists one kind of object and then watches its changes, in a thread of its own, until it is stopped.

Changes go to `take`, which is called in that thread. Rules from experience: a watch has a time limit of the API server
and, against a dead connection, one of ours; bookmarks keep the resourceVersion young; after an expired one (410) all
objects are listed again; a pause follows every round without progress.
"""

from __future__ import annotations

import json
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from server_stub.runtimes.kube.api import Api, ApiError, StreamThread

WATCH_S = 50  # time limit of one watch at the API server
SILENCE_S = 65.0  # a connection without data for longer is dead
RELIST_S = 900.0  # a new list finds changes that a watch has lost
LASTED_S = 5.0  # a watch of this length counts as progress, though nothing changed
PAGE = 500
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 20.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listed:
    """All objects that exist; known objects that are not among them are gone."""

    objects: Sequence[Any]


@dataclass(frozen=True)
class Changed:
    """One object after its creation or a change, or its last state before its deletion (`gone`)."""

    object: Any
    gone: bool = False


Change = Listed | Changed


class ObjectWatch:
    """The watch of one kind in one namespace: `path` of its collection, `query` with selectors."""

    def __init__(
        self, api: Api, path: str, query: dict[str, str], take: Callable[[Change], None], *, may_be_absent: bool = False
    ) -> None:
        """`may_be_absent`: it is no problem if the cluster has no such kind, or does not let this server see it."""
        self._api, self._path, self._query, self._take = api, path, query, take
        self._may_be_absent = may_be_absent
        self._version: str | None = None
        self._listed_at = 0.0
        self._thread = StreamThread(api, f"watch {path.rpartition('/')[2]}", self._run)
        self.problem: str | None = None
        """Reason why the watch does not work at the moment; None: it works."""

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Return at once; `take` is not called any more a moment later."""
        self._thread.stop()

    def _run(self) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._thread.stopping.is_set():
            try:
                progress = self._round()
                self.problem = None
            except ApiError as error:
                progress = False
                if error.expired:
                    self._version = None
                self._log_problem(error)
            pause_s = FIRST_PAUSE_S if progress else min(pause_s * 2, LONGEST_PAUSE_S)
            if not progress:
                self._thread.stopping.wait(pause_s * random.uniform(0.5, 1.0))

    def _log_problem(self, error: ApiError) -> None:
        if self._may_be_absent and error.status in (403, 404):
            return
        if self.problem != error.message:
            self.problem = error.message
            _log.warning("watching %s: %s", self._path, error.message)

    def _round(self) -> bool:
        """List the objects if that is due, then make one watch. Returns True if it made progress."""
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
        changes = 0
        for line in self._thread.open(self._path, query, SILENCE_S):
            if self._thread.stopping.is_set():
                break
            changes += self._take_line(line)
        return changes > 0 or time.monotonic() - begun > LASTED_S

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

    def _take_line(self, line: bytes) -> int:
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
