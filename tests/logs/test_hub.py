"""What followers share, and what they can count on while nothing happens."""

import asyncio
import errno
import gc
import os
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from client_lib.log_reading.reader import Records, read_frames
from server_stub.files.job_dirs import log_dir
from server_stub.logs.hub import LogHub
from server_stub.logs.query import LogQuery
from server_stub.logs.records import Block
from server_stub.logs.render import Frames
from server_stub.logs.segments import LogReader
from server_stub.logs.stream import stream
from tests.logs import log_server
from tests.logs.log_server import next_logs, read_job, write_job
from tests.logs.support import LogWriter

FOLLOW = LogQuery(follow=True)


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets of all blocks of logs that are read in the test."""
    found: list[int] = []
    read = LogReader.block

    def block(reader: LogReader, offset: int, *how: int, cached: bool = False) -> Block | None:
        got = read(reader, offset, *how, cached=cached)
        found.append(offset)
        return got

    # counts the reads, which show in no answer
    monkeypatch.setattr(LogReader, "block", block)
    return found


async def until(body: AsyncIterator[bytes], wanted: bytes) -> bytes:
    seen = b""
    while wanted not in seen:
        seen += await asyncio.wait_for(anext(body), 10)
    return seen


def test_a_silent_job_sends_heartbeats(tmp_path: Path, writer: LogWriter) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs, heartbeat_s=0.1)
        body = stream(hub, read_job(tmp_path), FOLLOW, Frames())
        for _ in range(3):
            await until(body, b"@ping\n")
        await body.aclose()
        hub.close()

    asyncio.run(scene())


def test_lines_that_a_filter_leaves_out_do_not_keep_heartbeats_back(
    tmp_path: Path, writer: LogWriter
) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs, heartbeat_s=0.2)
        body = stream(
            hub, read_job(tmp_path), LogQuery(follow=True, ranks=frozenset({1})), Frames()
        )

        async def write() -> None:
            while True:
                writer.write("of rank 0")
                await asyncio.sleep(0.01)

        writing = asyncio.ensure_future(write())
        for _ in range(3):
            await until(body, b"@ping\n")
        writing.cancel()
        await body.aclose()
        hub.close()

    asyncio.run(scene())


def test_a_server_that_stops_ends_its_streams_without_an_end(
    tmp_path: Path, writer: LogWriter
) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs)
        bodies = [stream(hub, read_job(tmp_path), FOLLOW, Frames()) for _ in range(3)]
        for body in bodies:
            await anext(body)
        rest = [asyncio.ensure_future(anext(body, b"over")) for body in bodies]
        await asyncio.sleep(0.01)
        writer.write("last words")
        hub.close()
        for body, coming in zip(bodies, rest, strict=True):
            seen = await coming
            while (more := await anext(body, b"over")) != b"over":
                seen += more
            assert b"@end" not in seen
        assert hub.followers == 0

    asyncio.run(scene())


def test_a_hub_that_is_closed_again_stays_closed(tmp_path: Path, writer: LogWriter) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs)
        hub.close()
        hub.close()
        assert b"@end" not in b"".join(
            [piece async for piece in stream(hub, read_job(tmp_path), FOLLOW, Frames())]
        )

    asyncio.run(scene())


def test_logs_that_can_t_be_read_for_a_moment_end_the_streams_without_an_end(
    tmp_path: Path, writer: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs, inotify=False)
        body = stream(hub, read_job(tmp_path), FOLLOW, Frames())
        await anext(body)

        def end(_: LogReader) -> int:
            """Patched: no file system loses a folder on time."""
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

        # no file system loses a folder on time
        monkeypatch.setattr(LogReader, "end", end)
        assert b"@end" not in await asyncio.wait_for(anext(body, b""), 5)
        hub.close()

    asyncio.run(scene())


def test_logs_that_are_found_at_once_are_followed_in_their_order(tmp_path: Path) -> None:
    async def scene() -> None:
        write_job(tmp_path, n_workers=4, attempt=3)
        places = [(attempt, worker) for attempt in (1, 2, 3) for worker in range(4)]
        logs = [LogWriter(log_dir(tmp_path, *place)) for place in places]
        hub = LogHub(next_logs)
        body = stream(hub, read_job(tmp_path), FOLLOW, Frames())
        await anext(body)
        coming = asyncio.ensure_future(until(body, b"attempt 3, worker 3"))
        await asyncio.sleep(0.1)
        for (attempt, worker), log in zip(places, logs, strict=True):
            log.write(f"attempt {attempt}, worker {worker}")
        text = await coming
        at = [text.index(b"attempt %d, worker %d" % place) for place in places]
        assert at == sorted(at)
        await body.aclose()
        hub.close()

    asyncio.run(scene())


def test_new_lines_are_read_once_for_all_followers_of_a_job(
    tmp_path: Path, writer: LogWriter, reads: list[int]
) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs)
        bodies = [stream(hub, read_job(tmp_path), FOLLOW, Frames()) for _ in range(3)]
        for body in bodies:
            await anext(body)
        coming = [asyncio.ensure_future(anext(body)) for body in bodies]
        await asyncio.sleep(0.01)
        writer.write("one line")
        frames = [await frame for frame in coming]
        assert b"one line" in frames[0]
        assert frames == frames[:1] * 3
        assert reads == [0]
        for body in bodies:
            await body.aclose()
        hub.close()

    asyncio.run(scene())


def test_what_was_followed_is_forgotten_with_its_last_follower(
    tmp_path: Path, writer: LogWriter
) -> None:
    async def scene() -> int:
        hub = LogHub(next_logs)
        files = len(os.listdir("/dev/fd"))
        for _ in range(20):
            body = stream(hub, read_job(tmp_path), FOLLOW, Frames())
            await anext(body)
            await body.aclose()
        assert hub.followers == 0
        for _ in range(10):  # cancelled tasks need a turn or two to end
            await asyncio.sleep(0)
        assert len(asyncio.all_tasks()) == 1
        left = len(os.listdir("/dev/fd")) - files
        hub.close()
        return left

    gc.collect()  # what earlier tests left
    assert asyncio.run(scene()) <= 0


def test_a_slow_reader_takes_all_lines_in_pieces_of_bounded_size(
    tmp_path: Path, writer: LogWriter
) -> None:
    async def scene() -> None:
        hub = LogHub(next_logs)
        body = stream(hub, read_job(tmp_path), FOLLOW, Frames())
        await anext(body)
        # while the reader takes nothing
        written = b"".join(
            writer.append([writer.record(f"line {n}") for n in range(100)]) for _ in range(200)
        )
        log_server.write_job(tmp_path, state="SUCCEEDED", reason="Completed")
        pieces = [piece async for piece in body]
        records = [frame.data for frame in read_frames(pieces) if isinstance(frame, Records)]
        assert b"".join(records) == written
        assert max(map(len, pieces)) < 70_000
        hub.close()

    asyncio.run(scene())


def test_history_leaves_the_event_loop_to_others(tmp_path: Path, reads: list[int]) -> None:
    write_job(tmp_path, n_workers=2)
    for worker in range(2):
        log = LogWriter(log_dir(tmp_path, 1, worker))
        for block in range(40):
            log.append([log.record("x" * 80, at=block, rank=worker) for _ in range(500)])

    async def scene() -> list[int]:
        hub = LogHub(next_logs)
        turns: list[int] = []

        async def others() -> None:
            while True:
                turns.append(len(reads))
                await asyncio.sleep(0)

        watch = asyncio.ensure_future(others())
        async for _ in stream(hub, read_job(tmp_path), LogQuery(ranks=frozenset({1})), Frames()):
            pass
        watch.cancel()
        hub.close()
        return [*turns, len(reads)]

    turns = asyncio.run(scene())
    assert len(reads) > 50
    assert max(after - before for before, after in pairwise(turns)) <= 2  # a block of each worker
