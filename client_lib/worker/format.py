"""The one definition of a log record, from the launcher to the follower. Standard library only, Python >= 3.8.

A record is one line of bytes:

    <seq> <time> <rank> <stream> <text>\\n
    17 2026-11-21T10:58:55.123456Z 3 stdout loss 0.25

seq     counts records of one worker in one attempt from 0, without holes: a jump is a gap, and says its size. Inside a
        segment there is none: whoever loses records begins a new one, and a reader looks only there.
time    UTC, microseconds, 27 bytes always, so that bytes compare as times do. One stamp per block read from a pipe.
rank    global rank, or `-` for a line that belongs to no rank (train.log; the launcher's own words).
stream  stdout, stderr, train.log or launcher; a mark behind it says what kind of line this is:
        (none)  a whole line
        `+`     goes on: the line has no end yet (shown after 0.5 s, or longer than MAX_TEXT); the next record of this
                rank and stream is its continuation
        `~`     progress: the line ended with a lone carriage return (tqdm); a later one replaces it
text    the line's own bytes without its end, any bytes but \\n; decoded by the reader as UTF-8 with U+FFFD.

A worker's log is a directory of segment files named by the logical offset of their first byte, 20 digits and `.log`.
Offsets count record bytes since the attempt began; where a segment was removed (size limit) a reader goes on at the
next one and learns the gap from seq.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_TEXT = 16 * 1024  # bytes of text in one record; a longer line is cut into records that go on (`+`)
JOB_STREAMS = ("stdout", "stderr", "train.log")
LAUNCHER = "launcher"  # what the launcher has to say about the worker: nothing that the script wrote
STREAMS = (*JOB_STREAMS, LAUNCHER)
NO_RANK = "-"

LINE, GOES_ON, PROGRESS = "", "+", "~"


class Record(NamedTuple):
    """One parsed record. `kind` is LINE, GOES_ON or PROGRESS; `rank` is None where the line belongs to no rank."""

    seq: int
    time: str
    rank: "int | None"
    stream: str
    kind: str
    text: str


def parse(line: bytes) -> Record:
    """The record in `line` (its newline may be there or not).

    Raises ValueError for bytes that no launcher writes.
    """
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


def segment_name(offset: int) -> str:
    return "%020d.log" % offset
