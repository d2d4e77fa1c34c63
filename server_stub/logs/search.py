"""Searches the lines that a job has printed for a regular expression, in a process of its own: the expression of a user
may take any time, and `re` lets no other thread run meanwhile. After LIMIT_S the process is killed.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import re
import resource
import sys
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from client_lib.errors import InvalidRequest, Unavailable
from client_lib.spec.paths import Position
from client_lib.worker.format import RECORD
from server_stub.logs.records import LoggedJob, LogQuery, line_filter, time_of
from server_stub.logs.render import Renderer
from server_stub.logs.segments import LogReader

LIMIT_S = 20.0
LINES_MAX, BYTES_MAX = 100_000, 64 * 2**20
"""Bounds of what one search finds."""
_NARROWER = "search fewer lines (rank, since, attempt), or for a simpler expression"
_at_once = asyncio.Semaphore(2)
_record = re.compile(RECORD.encode())
Hit = tuple[Position, bytes]
"""Records to show, with their log."""


async def search(logs: Mapping[Position, Path], query: LogQuery) -> list[Hit]:
    """The matching records of these log directories with their context, by time.

    Raises InvalidRequest: it takes longer than LIMIT_S, or finds more than LINES_MAX or BYTES_MAX.
    """
    async with _at_once:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", f"from {__name__} import main; main()"),
            cwd="/",
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        try:
            answer, _ = await asyncio.wait_for(
                process.communicate(pickle.dumps((logs, query, LINES_MAX, BYTES_MAX))), LIMIT_S
            )
        except asyncio.TimeoutError:
            took = f"the search for {query.grep!r} took longer than {LIMIT_S:g} s"
            raise InvalidRequest(took, hint=_NARROWER) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
    if process.returncode:
        raise Unavailable("the search ended with an error", hint="the server's log has it")
    found: list[Hit] | None = await asyncio.to_thread(pickle.loads, answer)
    if found is None:
        most = f"{LINES_MAX} lines or {BYTES_MAX >> 20} MiB"
        raise InvalidRequest(f"{query.grep!r} finds more than {most}", hint=_NARROWER)
    return found


async def answer_of(job: LoggedJob, found: Iterable[Hit], renderer: Renderer) -> AsyncGenerator[bytes, None]:
    """The body of the answer with what `search` found."""
    yield renderer.state(job, {})
    for position, records in found:
        yield renderer.records(position, 0, records)
    yield renderer.end(job)


def hits_in(logs: Mapping[Position, Path], query: LogQuery, lines_max: int, bytes_max: int) -> list[Hit] | None:
    """Find the lines for `search`; None: there are more of them."""
    found: list[Hit] = []
    for position, directory in logs.items():
        last: deque[Hit] = deque(maxlen=query.tail)
        size = sum(len(record) for _, record in found)
        for record in _records_of(LogReader(directory), query):
            size += len(record) - (len(last[0][1]) if len(last) == query.tail and last else 0)
            last.append((position, record))
            if len(found) + len(last) > lines_max or size > bytes_max:
                return None
        found = sorted([*found, *last], key=lambda hit: (hit[0][0], time_of(hit[1])))
        found = found if query.tail is None else found[len(found) - min(query.tail, len(found)) :]
    return found


def _records_of(reader: LogReader, query: LogQuery) -> Iterator[bytes]:
    wanted, chosen = re.compile(query.grep or ""), line_filter(query)
    before: defaultdict[bytes, deque[bytes]] = defaultdict(lambda: deque(maxlen=query.context))
    after: defaultdict[bytes, int] = defaultdict(int)
    offset, since = 0, (query.since or "").encode()
    while block := reader.block(offset):
        offset = block.end
        for record in _record.finditer(chosen(block.data)):
            _, time, rank, _, _, text = record.groups()
            if time < since:
                continue
            if wanted.search(text.decode("utf-8", "replace")):
                yield from before.pop(rank, ())
                yield record[0]
                after[rank] = query.context
            elif after[rank]:
                after[rank] -= 1
                yield record[0]
            else:
                before[rank].append(record[0])


def main() -> None:
    """Search in a process of its own, which ends by itself if its server is killed."""
    resource.setrlimit(resource.RLIMIT_CPU, (int(LIMIT_S), int(LIMIT_S) + 1))
    hits = hits_in(*pickle.load(sys.stdin.buffer))
    together = groupby(hits or (), key=itemgetter(0))
    found = [(position, b"".join(record for _, record in group)) for position, group in together]
    sys.stdout.buffer.write(pickle.dumps(None if hits is None else found))
