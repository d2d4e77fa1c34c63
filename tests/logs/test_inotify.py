"""Changes that inotify reports, and followers where it is out of watches."""

import asyncio
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from server_stub.files.job_dirs import log_dir
from server_stub.logs.hub import Inotify, LogHub
from server_stub.logs.query import LogQuery
from server_stub.logs.render import Frames
from server_stub.logs.stream import stream
from tests.logs.log_server import next_logs, read_job, write_job
from tests.logs.support import LogWriter
from tests.logs.test_hub import until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is of Linux")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def test_every_change_in_a_folder_is_noticed(tmp_path: Path) -> None:
    file = tmp_path / "a"
    changes: list[Callable[[], object]] = [
        lambda: append(file),
        lambda: append(file),
        lambda: file.rename(tmp_path / "b"),
        lambda: (tmp_path / "folder").mkdir(),
        lambda: (tmp_path / "b").unlink(),
    ]

    async def scene() -> None:
        inotify, changed = Inotify(), asyncio.Event()
        inotify.watch(tmp_path, changed.set)
        for act in changes:
            await asyncio.sleep(0.06)  # earlier events have been taken
            changed.clear()
            act()
            await asyncio.wait_for(changed.wait(), 2)
        inotify.close()

    asyncio.run(scene())


def test_a_closed_watch_is_silent_and_leaves_others_alone(tmp_path: Path) -> None:
    async def scene() -> None:
        inotify, first, second = Inotify(), asyncio.Event(), asyncio.Event()
        close = inotify.watch(tmp_path, first.set)
        inotify.watch(tmp_path, second.set)
        close()
        append(tmp_path / "a")
        await asyncio.wait_for(second.wait(), 2)
        assert not first.is_set()
        inotify.close()

    asyncio.run(scene())


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    async def scene() -> None:
        inotify = Inotify()
        with pytest.raises(FileNotFoundError):
            inotify.watch(tmp_path / "missing", lambda: None)
        inotify.close()

    asyncio.run(scene())


def test_logs_beyond_the_limit_of_watches_are_followed(
    tmp_path: Path, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(*_: object) -> None:
        raise OSError(28, "No space left on device")  # the error of the kernel at its limit

    # the limit of the kernel is the whole machine's
    monkeypatch.setattr(Inotify, "watch", watch)

    async def scene() -> None:
        hub = LogHub(next_logs)
        body = stream(hub, read_job(tmp_path), LogQuery(follow=True), Frames())
        await anext(body)
        coming = asyncio.ensure_future(until(body, b"one line"))
        await asyncio.sleep(0.1)
        writer.write("one line")
        assert b"one line" in await coming
        await body.aclose()
        hub.close()

    asyncio.run(scene())


def test_a_log_that_can_t_be_read_ends_its_own_streams_and_keeps_no_other_one_back(
    tmp_path: Path,
) -> None:
    async def scene() -> None:
        hub, jobs = LogHub(next_logs), [tmp_path / name for name in ("broken", "whole")]
        logs = [LogWriter(log_dir(job_dir, 1, 0)) for job_dir in jobs]
        for job_dir in jobs:
            write_job(job_dir, job_id=job_dir.name)
        bodies = [
            stream(hub, read_job(job_dir), LogQuery(follow=True), Frames()) for job_dir in jobs
        ]
        for body in bodies:
            await anext(body)
        coming = [asyncio.ensure_future(anext(body, b"over")) for body in bodies]
        await asyncio.sleep(0.1)
        logs[0].directory.rename(tmp_path / "moved")  # inotify reports both changes at once
        logs[0].directory.symlink_to(logs[0].directory)  # a loop, which can't be listed
        logs[1].write("one line")
        assert b"one line" in await asyncio.wait_for(coming[1], 5)
        assert await asyncio.wait_for(coming[0], 5) == b"over"
        await bodies[1].aclose()
        hub.close()

    asyncio.run(scene())
