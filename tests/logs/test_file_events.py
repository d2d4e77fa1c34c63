"""inotify and its polling twin keep the same promises."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server_stub.logs.file_events import FileEvents, InotifyEvents, PollingEvents, open_file_events

linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is of Linux")
KINDS = [pytest.param(lambda: InotifyEvents(PollingEvents()), id="inotify", marks=linux), PollingEvents]


class Scene:
    def __init__(self, events: FileEvents, folder: Path) -> None:
        self.changed = asyncio.Event()
        self.events = events
        self.close = events.watch(folder, self.changed.set)

    async def notices(self, act: Callable[[], object]) -> bool:
        await asyncio.sleep(0.06)  # what came before is over
        self.changed.clear()
        act()
        try:
            await asyncio.wait_for(self.changed.wait(), 2)
        except asyncio.TimeoutError:
            return False
        return True


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


@pytest.mark.parametrize("kind", KINDS)
def test_every_change_in_a_folder_is_noticed(kind: Callable[[], FileEvents], tmp_path: Path):
    async def scene() -> None:
        scene = Scene(kind(), tmp_path)
        file = tmp_path / "a"
        for act in (
            lambda: append(file),
            lambda: append(file),
            lambda: file.rename(tmp_path / "b"),
            lambda: (tmp_path / "folder").mkdir(),
            lambda: (tmp_path / "b").unlink(),
        ):
            assert await scene.notices(act)
        scene.events.close()

    asyncio.run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_closed_watch_is_silent_and_leaves_others_alone(kind: Callable[[], FileEvents], tmp_path: Path):
    async def scene() -> None:
        scene = Scene(kind(), tmp_path)
        other = asyncio.Event()
        scene.events.watch(tmp_path, other.set)
        scene.close()
        scene.close()
        scene.changed.clear()
        append(tmp_path / "a")
        await asyncio.wait_for(other.wait(), 2)
        assert not scene.changed.is_set()
        scene.events.close()

    asyncio.run(scene())


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_that_is_not_there_is_said(kind: Callable[[], FileEvents], tmp_path: Path):
    async def scene() -> None:
        events = kind()
        with pytest.raises(FileNotFoundError):
            events.watch(tmp_path / "missing", lambda: None)
        events.close()

    asyncio.run(scene())


@linux
def test_linux_gets_inotify():
    async def scene() -> None:
        events = open_file_events()
        assert isinstance(events, InotifyEvents)
        events.close()

    asyncio.run(scene())


@linux
def test_folders_beyond_the_limit_of_watches_are_polled(tmp_path: Path):
    class NoneLeft(InotifyEvents):
        def _call(self, name: str, *arguments: object) -> int:
            if name == "inotify_add_watch":
                raise OSError(28, "No space left on device")  # what the kernel says at the limit
            return super()._call(name, *arguments)

    async def scene() -> None:
        scene = Scene(NoneLeft(PollingEvents()), tmp_path)
        assert await scene.notices(lambda: append(tmp_path / "a"))
        scene.events.close()

    asyncio.run(scene())
