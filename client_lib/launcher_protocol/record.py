"""The format of a log record. One record is one line of bytes:

    <seq> <time> <rank> <stream> <text>\\n
    17 2026-11-21T10:58:55.123456Z 3 stdout loss 0.25

seq     number of the record among all records of one worker in one attempt, from 0. A jump is a
        gap of that many records.
time    UTC, microseconds, always 27 bytes: bytes compare as times do. All records of one block
        that was read from a pipe have one time.
rank    global rank, or `-` for a line of no rank (train.log, messages of the launcher).
stream  stdout, stderr, train.log or launcher; or metrics: values that readers of lines do not
        get, see `metric_lines`. A mark for the kind of line follows:
        (none)  a whole line
        `+`     unfinished: the line has no end yet (shown after 0.5 s, or longer than MAX_TEXT).
                The next record of this rank and stream continues the line. The text ends with a
                whole character, unless the bytes are no UTF-8.
        `~`     progress: the line ended with a lone carriage return (tqdm); a later one replaces
                it
text    bytes of the line without its end, any but \\n; readers decode them as UTF-8 with U+FFFD.
"""

import contextlib
import json
import re
from typing import Iterable, NamedTuple

# bytes of text in one record; a longer line is cut into unfinished records (`+`)
MAX_TEXT = 16 * 1024
JOB_STREAMS = ("stdout", "stderr", "train.log")
LAUNCHER = "launcher"  # messages of the launcher about the worker
STREAMS = (*JOB_STREAMS, LAUNCHER)
METRICS = "metrics"
METRICS_MAX = 4000
"""Bytes of one line of metrics; a pipe takes such a line as a whole, or not at all."""
METRICS_PIPE = "CLIENT_LIB_METRICS"  # variable of a rank: path of the pipe for its metrics
# Second value in a line of metrics with the times at which files of checkpoints were written.
WRITTEN = "written"
# Second value in a line with an alert of a script; the third is [title, text].
ALERT = "alert"
ALERT_TITLE_MAX = 100
"""Characters of the title of an alert."""
ALERT_TEXT_MAX = 400
"""Characters of the text of an alert: with its title, a line of at most METRICS_MAX bytes."""
NO_RANK = "-"

LINE = ""
GOES_ON = "+"
PROGRESS = "~"

# regular expressions of the fields; a caller puts one in parentheses to get its value
SEQ = r"\d+"
TIME = r"\S{27}"
RANK = r"(?:-|\d+)"
STREAM = r"[a-z.]+"
MARK = r"[+~]?"
TEXT = ".*"


def pattern(
    seq: str = SEQ,
    time: str = TIME,
    rank: str = RANK,
    stream: str = STREAM,
    mark: str = MARK,
    text: str = TEXT,
) -> str:
    """Regular expression of a whole record with its newline; other fields
    choose records, or add groups.
    """
    return "%s %s %s %s%s %s\n" % (seq, time, rank, stream, mark, text)


RECORD = pattern(*("(%s)" % field for field in (SEQ, TIME, RANK, STREAM, MARK, TEXT)))
"""Groups: seq, time, rank, stream, mark, text. A scan skips bytes that no launcher wrote."""


class Record(NamedTuple):
    """One parsed record. `kind` is LINE, GOES_ON or PROGRESS; `rank` is
    None for a line of no rank.
    """

    seq: int
    time: str
    rank: "int | None"
    stream: str
    kind: str
    text: str


def parse(line: bytes) -> Record:
    """The record in `line`, with or without its newline. Raises ValueError for
    bytes that no launcher writes.
    """
    found = re.fullmatch(RECORD.encode(), line.rstrip(b"\n") + b"\n")
    if found is None:
        raise ValueError("%r is no record" % line[:80])
    seq, time, rank, stream, kind, text = (
        field.decode("utf-8", "replace") for field in found.groups()
    )
    return Record(int(seq), time, None if rank == NO_RANK else int(rank), stream, kind, text)


def numbers(texts: "Iterable[tuple[str, object]]") -> "dict[str, float]":
    """The pairs whose text is a number."""
    found = {}
    for name, text in texts:
        with contextlib.suppress(TypeError, ValueError):
            found[name] = float(text)  # type: ignore[arg-type]
    return found


def metric_lines(
    rank: "int | None",
    step: "float | None",
    values: "dict[str, float]",
    dropped: int = 0,
    *posted: object,
) -> "list[bytes]":
    """Lines of the stream `metrics`; only one with a single value may be longer than METRICS_MAX.
    `rank` None: not known; `dropped`: number of values lost before the first line; `posted`:
    [percent done, seconds left] of values that a library posts now and then (metrics.py)."""
    line = json.dumps([rank, step, dropped, values, *posted]).encode() + b"\n"
    if len(line) <= METRICS_MAX or len(values) < 2:
        return [line]
    items = list(values.items())
    first = dict(items[: len(items) // 2])
    second = dict(items[len(items) // 2 :])
    return metric_lines(rank, step, first, dropped, *posted) + metric_lines(
        rank, step, second, 0, *posted
    )
