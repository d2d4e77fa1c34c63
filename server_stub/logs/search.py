"""Searches the lines that a job has printed for a regular expression, in a process of its own: the
expression of a user may take any time, and `re` lets no other thread run meanwhile. After LIMIT_S
the process is killed."""

from __future__ import annotations

import asyncio
import pickle
import re
import sys
from collections import defaultdict, deque
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from client_lib.errors import InvalidRequest, Unavailable
from client_lib.launcher_protocol.record import RECORD, STREAMS
from client_lib.spec.paths import Position
from server_stub.logs import expressions
from server_stub.logs.records import LoggedJob, time_of
from server_stub.logs.render import Renderer
from server_stub.logs.segments import LogReader

if TYPE_CHECKING:  # takes longer to load than most searches
    from server_stub.logs.query import LogQuery

LIMIT_S = 20.0
LINES_MAX = 100_000
"""Largest number of lines that one search finds."""
BYTES_MAX = 64 * 2**20
"""Largest size of the lines that one search finds."""
_NARROWER = "search fewer lines (rank, since, attempt), or for a simpler expression"
_record = re.compile(RECORD.encode())
Hit = tuple[Position, bytes]  # records to show, with their log


class _Wanted(NamedTuple):
    """The fields of a LogQuery that say what is searched for, and the bounds."""

    grep: str
    context: int
    tail: int | None
    since: str | None
    ranks: frozenset[int]
    streams: frozenset[str]
    lines_max: int
    bytes_max: int


async def search(logs: Mapping[Position, Path], query: LogQuery) -> list[Hit]:
    """The matching records of these log directories with their context, by time.
    Raises InvalidRequest: `query.grep` is no regular expression or takes too long to compile; the
    search takes longer than LIMIT_S, or finds more than LINES_MAX or BYTES_MAX.
    """
    asked = query.model_dump(include=set(_Wanted._fields))
    wanted = _Wanted(**asked, lines_max=LINES_MAX, bytes_max=BYTES_MAX)
    process = await expressions.start(f"from {__name__} import main; main()")
    try:
        question = pickle.dumps((logs, wanted))
        answer = await expressions.answer_within(process, question, LIMIT_S)
    except asyncio.TimeoutError:
        took = f"the search for {query.grep!r} took longer than {LIMIT_S:g} s"
        raise InvalidRequest(took, hint=_NARROWER) from None
    what = f"grep={wanted.grep[:100]!r}"
    expressions.refuse_slow(what, process.returncode)
    if process.returncode == expressions.WRONG:
        raise InvalidRequest(f"{what} is not a regular expression: {answer.decode()}")
    if process.returncode:
        raise Unavailable("the search ended with an error", hint="the server's log has it")
    found: list[Hit] | None = await asyncio.to_thread(pickle.loads, answer)
    if found is None:
        most = f"{LINES_MAX} lines or {BYTES_MAX >> 20} MiB"
        raise InvalidRequest(f"{query.grep!r} finds more than {most}", hint=_NARROWER)
    return found


async def answer_of(
    job: LoggedJob, found: Iterable[Hit], renderer: Renderer
) -> AsyncGenerator[bytes, None]:
    """The body of the answer with what `search` found."""
    yield renderer.state(job, {})
    for position, records in found:
        yield renderer.records(position, 0, records)
    yield renderer.end(job)


def hits_in(
    logs: Mapping[Position, Path], wanted: _Wanted, expression: re.Pattern[str]
) -> list[Hit] | None:
    """Find the lines for `search`; None: there are too many."""
    found = list[Hit]()
    tail = wanted.tail
    for position, directory in logs.items():
        last: deque[Hit] = deque(maxlen=tail)
        size = sum(len(record) for _, record in found)
        for record in _records_of(LogReader(directory), wanted, expression):
            size += len(record) - (len(last[0][1]) if len(last) == tail and last else 0)
            last.append((position, record))
            if len(found) + len(last) > wanted.lines_max or size > wanted.bytes_max:
                return None
        found = sorted([*found, *last], key=lambda hit: (hit[0][0], time_of(hit[1])))
        found = found if tail is None else found[len(found) - min(tail, len(found)) :]
    return found


def _records_of(reader: LogReader, wanted: _Wanted, expression: re.Pattern[str]) -> Iterator[bytes]:
    since = (wanted.since or "").encode()
    ranks = {b"%d" % rank for rank in wanted.ranks}
    streams = {name.encode() for name in wanted.streams or STREAMS}
    before: defaultdict[bytes, deque[bytes]] = defaultdict(lambda: deque(maxlen=wanted.context))
    after: defaultdict[bytes, int] = defaultdict(int)
    offset = 0
    while block := reader.block(offset):
        offset = block.end
        for record in _record.finditer(block.data):
            _, time, rank, stream, _, text = record.groups()
            if time < since or stream not in streams or (ranks and rank not in ranks):
                continue
            if expression.search(text.decode("utf-8", "replace")):
                yield from before.pop(rank, ())
                yield record[0]
                after[rank] = wanted.context
            elif after[rank]:
                after[rank] -= 1
                yield record[0]
            else:
                before[rank].append(record[0])


def main() -> None:
    """Answer a pickled request of `search`."""
    logs, wanted = pickle.load(sys.stdin.buffer)
    with expressions.bounds_of_compiling():
        try:
            expression = re.compile(wanted.grep)
        except (re.error, OverflowError, RecursionError) as error:
            sys.stdout.buffer.write(str(error).encode(errors="backslashreplace"))
            sys.exit(expressions.WRONG)
    hits = hits_in(logs, wanted, expression)
    together = groupby(hits or (), key=itemgetter(0))
    found = [(position, b"".join(record for _, record in group)) for position, group in together]
    sys.stdout.buffer.write(pickle.dumps(None if hits is None else found))
