"""Lines that a thread reads faster, or slower, than the event loop takes them."""

import asyncio
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from client_lib.errors import StorageFull
from server_stub.runtimes.kube import pod_log
from server_stub.runtimes.kube.pod_log import LogHandover, PodLogReader
from tests.kit.bounds import Bounds
from tests.kit.waiting import until


class Taker:
    """Takes batches on the loop, each as slowly as the test says."""

    def __init__(self, pause_s: float = 0.0) -> None:
        self.batches: list[bytes] = []
        self._pause_s = pause_s

    async def append(self, data: bytes) -> int:
        await asyncio.sleep(self._pause_s)
        self.batches.append(data)
        return data.count(b"\n")


def handed(taker: Taker, lines: list[bytes], after_each: Callable[[], None] = lambda: None) -> int:
    """From a thread of its own, to this loop."""

    async def main() -> int:
        handing = LogHandover(taker.append, asyncio.get_running_loop())

        def read() -> int:
            for line in lines:
                handing.add(line)
                after_each()
            return handing.finish()

        return await asyncio.to_thread(read)

    return asyncio.run(main())


def test_all_lines_arrive_once_and_in_order_in_few_batches() -> None:
    taker, lines = Taker(0.01), [b"%d" % number for number in range(50_000)]
    assert handed(taker, lines) == len(lines)
    assert b"".join(taker.batches).splitlines() == lines
    assert len(taker.batches) < 1000


def test_a_line_does_not_wait_for_the_next_one() -> None:
    taker = Taker()
    seen: list[bytes] = []

    def arrived() -> None:
        until(lambda: len(taker.batches) > len(seen))
        seen.append(taker.batches[-1])

    assert handed(taker, [b"a", b"b", b"c"], arrived) == 3
    assert seen == [b"a\n", b"b\n", b"c\n"]


def test_a_reader_waits_where_too_much_lies_about(bounds: Bounds) -> None:
    bounds(pod_log, WAITING_BYTES=1000)
    taker = Taker(0.01)
    assert handed(taker, [b"x" * 100] * 200) == 200
    assert max(map(len, taker.batches)) < 1500


def test_a_batch_that_is_refused_is_the_readers_error() -> None:
    async def refuse(data: bytes) -> int:
        raise OSError("the disk is full")

    async def main() -> None:
        handing = LogHandover(refuse, asyncio.get_running_loop())

        def read() -> None:
            handing.add(b"a")
            handing.finish()

        with pytest.raises(OSError, match="the disk is full"):
            await asyncio.to_thread(read)

    asyncio.run(main())


def test_a_log_is_read_again_after_the_disk_was_full(bounds: Bounds) -> None:
    bounds(pod_log, DISK_PAUSE_S=0.01)
    streams: list[str] = []
    stored: list[bytes] = []

    def stream(path: str, *more: object) -> Iterator[bytes]:
        streams.append(path)
        yield b"a"
        for _ in range(2000 if len(streams) == 1 else 0):  # the container goes on for a long time
            time.sleep(0.01)
            yield b""
        yield b"b"

    async def append(records: bytes) -> int:
        if len(streams) == 1:
            raise StorageFull("the server's disk is full")
        new = [line for line in records.splitlines() if line not in stored]
        stored.extend(new)
        return len(new)

    async def main() -> None:
        pod: Any = SimpleNamespace(name="train-master-0", main=SimpleNamespace(name="pytorch"))
        api: Any = SimpleNamespace(stream=stream)
        reader = PodLogReader(api, "/log", pod, append)
        reader.last_round.set()
        reader.start()
        await asyncio.wait_for(reader.done.wait(), 10.0)

    asyncio.run(main())
    assert (stored, len(streams)) == ([b"a", b"b"], 3)
