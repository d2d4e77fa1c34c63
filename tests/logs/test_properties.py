"""The log store and its follower against the plain sequence of lines, under
random cuts and restarts.
"""

import asyncio
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

from hypothesis import given, settings, strategies as st

from client_lib.launcher_protocol.record import parse
from client_lib.log_reading.reader import Params, log_entries, log_lines
from client_lib.spec.paths import parse_cursor
from server_stub.files.job_dirs import log_dir
from server_stub.logs.hub import LogHub
from server_stub.logs.query import LogQuery
from server_stub.logs.records import Block, line_filter, merge, missing_before
from server_stub.logs.render import Frames
from server_stub.logs.stream import stream
from tests.kit.examples import examples
from tests.logs.log_server import next_logs, read_job, write_job
from tests.logs.support import LogWriter

texts = st.binary(max_size=40).map(lambda raw: raw.replace(b"\n", b"")) | st.sampled_from(
    [b"", b"@end {}", b"1 2 3 + ~", "zwölf ✓".encode(), b"\r\x85\xe2\x80\xa8", b"x" * 5000]
)
write = st.tuples(
    st.just("write"), st.integers(0, 1), st.lists(st.tuples(texts, st.integers(0, 2)), max_size=8)
)
piece = st.tuples(st.just("piece"), st.integers(0, 1), st.lists(texts, min_size=2, max_size=4))
action = write | piece | st.tuples(st.just("segment"), st.integers(0, 1)) | st.just(("restart",))


class Scene:
    """A job of two workers whose log grows step by step while it is read
    through connections that break.
    """

    def __init__(self, folder: Path, actions: list[tuple], cuts: list[int]) -> None:
        self.folder = folder
        self.actions = list(actions)
        self.cuts = list(cuts)
        self.written: list[list[str]] = [[], []]
        self.loop = asyncio.new_event_loop()
        write_job(folder, n_workers=2)
        self.writers = [LogWriter(log_dir(folder, 1, worker)) for worker in range(2)]

    def act(self) -> None:
        """The next thing that happens; at the end of all, the job's."""
        if not self.actions:
            write_job(self.folder, state="SUCCEEDED", reason="Completed")
            return
        what, *how = self.actions.pop(0)
        if what == "segment":
            self.writers[how[0]].new_segment()
        elif what != "restart":
            worker, content = how
            log = self.writers[worker]
            if what == "write":
                log.append([log.record(text, rank=rank) for text, rank in content])
                self.written[worker] += [text.decode("utf-8", "replace") for text, _ in content]
            else:
                log.append(
                    [
                        *(log.record(text, kind="+") for text in content[:-1]),
                        log.record(content[-1]),
                    ]
                )
                self.written[worker].append(b"".join(content).decode("utf-8", "replace"))

    def open_stream(self, params: Params) -> Iterator[bytes]:
        """A body from a new server, cut after some bytes."""
        left = self.cuts.pop() if self.cuts else None
        asyncio.set_event_loop(self.loop)
        hub = self.loop.run_until_complete(self._hub())
        query = LogQuery(follow=True, cursor=parse_cursor(str(params.get("cursor", ""))))
        body = stream(hub, read_job(self.folder), query, Frames())
        try:
            for chunk in self._chunks(body):
                yield chunk[:left]
                if left is not None:
                    left -= len(chunk)
                    if left <= 0:
                        return
        finally:
            self.loop.run_until_complete(body.aclose())
            hub.close()

    def _chunks(self, body: AsyncGenerator[bytes, None]) -> Iterator[bytes]:
        while True:
            coming = self.loop.create_task(anext(body, None))
            while not self.loop.run_until_complete(asyncio.wait([coming], timeout=0.002))[0]:
                restart = self.actions and self.actions[0] == ("restart",)
                self.act()
                if restart:
                    coming.cancel()
                    self.loop.run_until_complete(asyncio.wait([coming]))
                    return
            chunk = coming.result()
            if chunk is None:
                return
            yield chunk

    async def _hub(self) -> LogHub:
        return LogHub(next_logs)


cuts = st.lists(st.integers(1, 3000), max_size=5)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(action, max_size=12), cuts)
def test_a_follower_gets_every_line_once_whatever_breaks(
    actions: list[tuple], cuts: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), actions, cuts)
        got = list(log_lines(scene.open_stream, {"follow": "true"}))
        scene.loop.close()
    assert sorted(got) == sorted(scene.written[0] + scene.written[1])
    for lines in scene.written:
        remaining = iter(got)
        assert all(line in remaining for line in lines), "the order of one worker's lines changed"


@settings(max_examples=examples(25), deadline=None)
@given(st.lists(action, max_size=12), cuts)
def test_the_entries_of_a_follower_count_without_holes(
    actions: list[tuple], cuts: list[int]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene(Path(folder), actions, cuts)
        entries = list(log_entries(scene.open_stream, {"follow": "true"}))
        scene.loop.close()
    for worker, log in enumerate(scene.writers):
        assert [entry.seq for entry in entries if entry.worker == worker] == list(range(log.seq))


# --- pure parts

times = st.lists(st.integers(0, 30), min_size=1, max_size=30).map(sorted)


def record(seq: int, time: int, text: str = "x") -> bytes:
    return b"%d 2026-11-21T10:00:%02d.000000Z 0 stdout %b\n" % (seq, time, text.encode())


@given(st.lists(times, min_size=1, max_size=4), st.integers(1, 7))
def test_a_merge_is_the_sorted_sequence(workers: list[list[int]], block: int) -> None:
    left = {(1, worker): times for worker, times in enumerate(workers)}
    at = dict.fromkeys(left, 0)
    ends = dict.fromkeys(left, 0)
    blocks: dict[tuple[int, int], Block] = {}
    merged: list[tuple[int, tuple[int, int]]] = []
    while True:
        for where, rest in left.items():
            if where not in blocks and at[where] < len(rest):
                chosen = range(at[where], min(len(rest), at[where] + block))
                data = b"".join(record(number, rest[number]) for number in chosen)
                blocks[where] = Block(ends[where], data)
                at[where] = chosen.stop
        if not blocks:
            break
        for position, part in merge(blocks):
            ends[position] += len(part.data)
            assert part.end == ends[position]
            merged += [(int(parse(line).time[17:19]), position) for line in part.data.splitlines()]
    assert merged == sorted((time, where) for where, rest in left.items() for time in rest)


@given(st.lists(st.lists(st.integers(0, 59), min_size=1, max_size=9), min_size=1, max_size=4))
def test_a_merge_under_a_jumping_clock_loses_nothing(workers: list[list[int]]) -> None:
    written = [b"".join(record(seq, time) for seq, time in enumerate(times)) for times in workers]
    blocks = {(1, worker): Block(0, data) for worker, data in enumerate(written)}
    got = [b""] * len(written)
    while blocks:
        for position, part in merge(blocks):
            got[position[1]] += part.data
    assert got == written


@given(st.binary(max_size=300))
def test_bytes_that_no_launcher_wrote_pass_the_server_unharmed(garbage: bytes) -> None:
    data = garbage + b"\n"
    assert missing_before(data, None) == 0
    assert missing_before(data, 0) >= 0
    assert line_filter(LogQuery())(data) == data
    line_filter(LogQuery(ranks=frozenset({1})))(data)
