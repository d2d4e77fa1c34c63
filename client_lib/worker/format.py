"""The format of a log record and of a worker's log.

A record is one line of bytes:

    <seq> <time> <rank> <stream> <text>\\n
    17 2026-11-21T10:58:55.123456Z 3 stdout loss 0.25

seq     number of the record among those of one worker in one attempt, from 0; a jump is a gap of that many records. A
        segment has no gap inside: a writer that drops records begins a new segment, so readers check its start only.
time    UTC, microseconds, always 27 bytes: bytes compare as times do. One stamp per block read from a pipe.
rank    global rank, or `-` for a line of no rank (train.log, messages of the launcher).
stream  stdout, stderr, train.log or launcher; or metrics: values that readers of lines do not get, see `metric_line`.
        It is followed by a mark for the kind of line:
        (none)  a whole line
        `+`     unfinished: the line has no end yet (shown after 0.5 s, or longer than MAX_TEXT); the next record of
                this rank and stream continues it; it ends with a whole character, unless the bytes are no UTF-8
        `~`     progress: the line ended with a lone carriage return (tqdm); a later one replaces it
text    bytes of the line without its end, any but \\n; readers decode them as UTF-8 with U+FFFD.

A worker's log is a directory of segment files named by the logical offset of their first byte, 20 digits and `.log`.
Offsets count record bytes since the attempt began; after a removed segment (size limit) a reader continues at the next
one and computes the gap from seq.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import Iterable, NamedTuple

MAX_TEXT = 16 * 1024  # bytes of text in one record; a longer line is cut into unfinished records (`+`)
JOB_STREAMS = ("stdout", "stderr", "train.log")
LAUNCHER = "launcher"  # messages of the launcher about the worker
STREAMS = (*JOB_STREAMS, LAUNCHER)
METRICS = "metrics"
METRICS_MAX = 4000  # bytes of one line of it; a pipe takes it as a whole, or not at all
METRICS_PIPE = "CLIENT_LIB_METRICS"  # variable of a rank: path of the pipe for its metrics
WRITTEN = "written"  # the second value of a line of it with the times at which files of checkpoints were written
NO_RANK = "-"

LINE, GOES_ON, PROGRESS = "", "+", "~"

# regular expressions of the fields; a caller puts one in parentheses to get its value
SEQ, TIME, RANK, STREAM, MARK, TEXT = r"\d+", r"\S{27}", r"(?:-|\d+)", r"[a-z.]+", r"[+~]?", ".*"


def pattern(
    seq: str = SEQ, time: str = TIME, rank: str = RANK, stream: str = STREAM, mark: str = MARK, text: str = TEXT
) -> str:
    """Regular expression of a whole record with its newline; other fields choose records, or add groups."""
    return "%s %s %s %s%s %s\n" % (seq, time, rank, stream, mark, text)


RECORD = pattern(*("(%s)" % field for field in (SEQ, TIME, RANK, STREAM, MARK, TEXT)))
"""Groups: seq, time, rank, stream, mark, text. A scan skips bytes that no launcher wrote."""


class Record(NamedTuple):
    """One parsed record. `kind` is LINE, GOES_ON or PROGRESS; `rank` is None for a line of no rank."""

    seq: int
    time: str
    rank: "int | None"
    stream: str
    kind: str
    text: str


def parse(line: bytes) -> Record:
    """The record in `line`, with or without its newline. Raises ValueError for bytes that no launcher writes."""
    seq, time, rank, stream, text = line.rstrip(b"\n").split(b" ", 4)
    name = stream.decode("ascii")
    kind = name[-1] if name[-1] in "+~" else LINE
    return Record(
        int(seq),
        time.decode("ascii"),
        None if rank == b"-" else int(rank),
        name[:-1] if kind else name,
        kind,
        text.decode("utf-8", "replace"),
    )


def numbers(texts: "Iterable[tuple[str, object]]") -> "dict[str, float]":
    """The pairs whose text is a number."""
    found = {}
    for name, text in texts:
        with contextlib.suppress(TypeError, ValueError):
            found[name] = float(text)  # type: ignore[arg-type]
    return found


def metric_line(
    rank: "int | None", step: "float | None", values: "dict[str, float]", dropped: int = 0, *posted: object
) -> bytes:
    """A line of the stream `metrics`. `rank` None: not known; `dropped`: number of values lost before this line;
    `posted`: [percent done, seconds left] of values that a library posts now and then (metrics.py)."""
    return json.dumps([rank, step, dropped, values, *posted]).encode() + b"\n"


def metric_lines(
    rank: "int | None", step: "float | None", values: "dict[str, float]", dropped: int = 0, *posted: object
) -> "list[bytes]":
    """Lines of `metric_line` with these values, `dropped` in the first; only one with a single value may be longer than
    METRICS_MAX."""
    line = metric_line(rank, step, values, dropped, *posted)
    if len(line) <= METRICS_MAX or len(values) < 2:
        return [line]
    items = list(values.items())
    first, second = dict(items[: len(items) // 2]), dict(items[len(items) // 2 :])
    return metric_lines(rank, step, first, dropped, *posted) + metric_lines(rank, step, second, 0, *posted)


def segment_name(offset: int) -> str:
    return "%020d.log" % offset


def segments(folder: "str | os.PathLike[str]") -> "list[tuple[int, int]]":
    """(offset, bytes) of each segment in a folder, in order; [] if there is no folder."""
    try:
        names = [name for name in os.listdir(folder) if name.endswith(".log")]
    except FileNotFoundError:
        return []
    found = []
    for name in names:
        try:
            found.append((int(name[:-4]), os.stat(os.path.join(folder, name)).st_size))
        except FileNotFoundError:  # removed since the listing
            continue
    return sorted(found)
