"""Calls back when something changed in a directory: inotify on Linux, polling elsewhere. Event loop only.

`open_file_events` chooses one. A callback does not get the change: its function reads the directory.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
import struct
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Protocol

Changed = Callable[[], None]
Close = Callable[[], None]
"""Ends a watch; another call does nothing."""


class FileEvents(Protocol):
    def watch(self, directory: Path, changed: Changed) -> Close:
        """Call `changed` soon after an entry of `directory` was made, written, renamed or removed, or the directory
        itself was; calls may be spurious, several changes may be one call. Raises FileNotFoundError."""
        ...

    def close(self) -> None: ...


def open_file_events() -> FileEvents:
    """The best one for this machine. Call it on the event loop."""
    polling = PollingEvents()
    if not sys.platform.startswith("linux"):
        return polling
    try:
        return InotifyEvents(polling)
    except OSError:  # no instance is left for this user (fs.inotify.max_user_instances), or a kernel without it
        return polling


# --- inotify

_IN_MODIFY, _IN_MOVED, _IN_CREATE, _IN_DELETE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x2, 0xC0, 0x100, 0x200, 0x400, 0x800
_IN_IGNORED = 0x8000
_IN_ONLYDIR = 0x01000000
_MASK = _IN_MODIFY | _IN_MOVED | _IN_CREATE | _IN_DELETE | _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ONLYDIR
_EVENT = struct.Struct("iIII")
_OVERFLOW = -1


class InotifyEvents:
    """One inotify instance on the running loop. Directories beyond the user's limit of watches go to `fallback`."""

    def __init__(self, fallback: FileEvents) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._call("inotify_init1", os.O_NONBLOCK | os.O_CLOEXEC)
        self._fallback = fallback
        self._callbacks: dict[int, list[Changed]] = {}
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._descriptor, self._read)

    def watch(self, directory: Path, changed: Changed) -> Close:
        try:
            # one directory has one number, however often it is asked for
            number = self._call("inotify_add_watch", self._descriptor, os.fsencode(directory), _MASK)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                raise
            return self._fallback.watch(directory, changed)
        self._callbacks.setdefault(number, []).append(changed)
        return partial(self._forget, number, changed)

    def close(self) -> None:
        if self._descriptor >= 0:
            self._loop.remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
        self._callbacks.clear()
        self._fallback.close()

    def _call(self, name: str, *arguments: object) -> int:
        result = int(getattr(self._libc, name)(*arguments))
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def _forget(self, number: int, changed: Changed) -> None:
        callbacks = self._callbacks.get(number, [])
        if changed in callbacks:
            callbacks.remove(changed)
        if not callbacks and self._callbacks.pop(number, None) is not None and self._descriptor >= 0:
            self._libc.inotify_rm_watch(self._descriptor, number)  # fails, harmlessly, for a directory that is gone

    def _read(self) -> None:
        try:
            data = os.read(self._descriptor, 64 * 1024)
        except BlockingIOError:
            return
        numbers, ignored, at = set(), set(), 0
        while at < len(data):
            number, mask, _, length = _EVENT.unpack_from(data, at)
            at += _EVENT.size + length
            numbers.add(number)
            if mask & _IN_IGNORED:
                ignored.add(number)
        if _OVERFLOW in numbers:
            numbers = set(self._callbacks)
        called = [callback for number in numbers for callback in self._callbacks.get(number, ())]
        for number in ignored:
            self._callbacks.pop(number, None)
        for callback in called:
            callback()


# --- polling

_SHORTEST_S, _LONGEST_S = 0.02, 0.25


class PollingEvents:
    """Reads every watched directory each 20 ms while it changes, and down to each 250 ms while it does not."""

    def __init__(self) -> None:
        self._watched: list[_Polled] = []
        self._pause_s = _SHORTEST_S
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, directory: Path, changed: Changed) -> Close:
        if not directory.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(directory))
        polled = _Polled(directory, changed)
        self._watched.append(polled)
        self._pause_s = _SHORTEST_S
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look)
        return partial(self._forget, polled)

    def _forget(self, polled: _Polled) -> None:
        if polled in self._watched:  # else all of them were closed
            self._watched.remove(polled)

    def close(self) -> None:
        self._watched.clear()
        if self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        changed = [polled for polled in self._watched if polled.look()]
        self._pause_s = _SHORTEST_S if changed else min(self._pause_s * 1.2, _LONGEST_S)
        self._timer = asyncio.get_running_loop().call_later(self._pause_s, self._look) if self._watched else None
        for polled in changed:
            polled.changed()


class _Polled:
    def __init__(self, directory: Path, changed: Changed) -> None:
        self.changed = changed
        self._directory = directory
        self._seen = self._picture()

    def look(self) -> bool:
        seen, self._seen = self._seen, self._picture()
        return seen != self._seen

    def _picture(self) -> set[tuple[str, int, int]] | None:
        try:
            with os.scandir(self._directory) as entries:
                stats = [(entry.name, entry.stat(follow_symlinks=False)) for entry in entries]
        except FileNotFoundError:  # the directory, or an entry just now: the next look finds another change
            return None
        return {(name, stat.st_size, stat.st_mtime_ns) for name, stat in stats}
