"""An append-only log of the submit requests, outside the database and readable by the server's user
alone, as they hold the environment, unmasked variables and values of secrets.

Records are appended to segment files that are filled with zeros in advance, like the journal of a
database: one fdatasync makes a group of submits durable, in less time than a new file each (0.25 ms
against 0.6). The row of a job has the place of its record, and is committed after it: no row lacks
its record.
"""

import json
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter

from client_lib.durable import make_private_folders, sync, write_all, write_file

DATA_ID = "id"  # the file that ties the folder to its database
SEGMENT_BYTES = 4 * 2**20
_flush = getattr(os, "fdatasync", os.fsync)  # macOS has none


class Place(NamedTuple):
    segment: int
    offset: int
    length: int


class Heading(NamedTuple):
    """The values of a job's row that its request does not contain. Both together are
    enough to rebuild a lost row.
    """

    id: str
    owner: str
    name: str
    created_at: str
    """ISO 8601."""
    length: int = 0
    """Bytes of the request."""
    key: str = ""
    """Its idempotency key; "": it has none."""
    fingerprint: str = ""
    group: Any = None
    """`info` (GroupInfo) and `place` (Membership) of a member, and the id of the member that it
    `replaces`: a mapping, which may be damaged."""

    def above(self, request: bytes) -> bytes:
        """The record of a request."""
        heading = self._replace(length=len(request) + 1)._asdict()
        if self.group is None:  # an earlier version refuses a field that it does not know
            del heading["group"]
        return b"%s%s\n%s\n" % (_MARK, json.dumps(heading).encode(), request)


_PARSER = TypeAdapter(Heading)
_MARK = b"#job "  # no line of a JSON text begins with it
_HEADING = re.compile(rb"(?<![^\0\n])" + _MARK + rb"([^\0\n]*)\n")

UNWRITTEN = Place(0, 0, 0)
"""The place of a record that was not appended yet; segments are counted from 1."""


class RequestLog:
    """The records of one data directory. One server process at a time."""

    def __init__(self, folder: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.folder = folder
        self._segment_bytes = segment_bytes
        self._file: int | None = None
        self._segment = 0
        self._end = 0
        self._size = 0

    def open(self) -> None:
        """Find the end of the last record. Raises OSError."""
        make_private_folders(str(self.folder))
        self._segment = max(self._segments(), default=0)
        if self._segment:
            self._file = os.open(self._path(self._segment), os.O_RDWR)
            content = self._path(self._segment).read_bytes()
            written = content.rstrip(b"\0")
            # by a power loss; a zero then separates the next record from it
            cut = written[-1:] not in (b"", b"\n")
            self._size = len(content)
            self._end = len(written) + cut

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    @property
    def has_records(self) -> bool:
        """True if something was ever appended."""
        return self._segment > 0

    @property
    def data_id(self) -> str | None:
        """The id that ties these records to their database, which has the same id; None: no id was
        given yet."""
        try:
            return (self.folder / DATA_ID).read_text().strip()
        except FileNotFoundError:
            return None

    def set_data_id(self, new: str) -> None:
        """Write the id; it is durable when this returns."""
        write_file(str(self.folder / DATA_ID), f"{new}\n".encode(), durable=True)
        sync(self.folder)

    def append(self, *records: bytes) -> list[Place]:
        """Write records (`Heading.above`) that hold no NUL byte, as JSON doesn't. They are durable
        when this returns. Runs in the store's writer thread. Raises OSError: the disk is full or
        fails; none of the records is stored."""
        size = sum(map(len, records))
        if self._file is None or self._end + size > self._size:
            self._next_segment(max(self._segment_bytes, size))
        assert self._file is not None
        ends = accumulate(map(len, records), initial=self._end)
        places = [
            Place(self._segment, at, len(record)) for at, record in zip(ends, records, strict=False)
        ]
        rest = memoryview(records[0] if len(records) == 1 else b"".join(records))
        try:
            while rest:  # a disk that fills up may write a part; the next write then raises
                written = os.pwrite(self._file, rest, self._end)
                rest = rest[written:]
                self._end = self._end + written
            _flush(self._file)
        except OSError:
            # the kernel drops data that it could not write, and the next fdatasync may still
            # succeed
            self.close()
            raise
        return places

    def read(self, place: Place) -> bytes:
        """The request, without its heading."""
        with self._path(place.segment).open("rb") as file:
            file.seek(place.offset)
            record = file.read(place.length)
        return record.partition(b"\n")[2] if record.startswith(_MARK) else record

    def headings(self) -> Iterator[tuple[Heading, Place]]:
        """Every record with a heading, oldest first. An earlier version wrote none."""
        for segment in sorted(self._segments()):
            content = self._path(segment).read_bytes()
            for found in _HEADING.finditer(content):
                try:
                    heading = _PARSER.validate_json(found.group(1), strict=True)
                except ValueError:
                    continue
                end = found.end() + heading.length
                if found.end() <= end <= len(content) and b"\0" not in content[found.end() : end]:
                    yield heading, Place(segment, found.start(), end - found.start())

    def erase(self, place: Place) -> None:
        """Overwrite the record with zeros, if its segment still exists. A place that holds no
        record, or several, comes from a damaged row, and nothing is overwritten."""
        with (
            suppress(FileNotFoundError),
            self._path(place.segment).open("r+b", buffering=0) as opened,
        ):
            file = opened.fileno()
            if place.length > 0 and 0 <= place.offset <= os.fstat(file).st_size - place.length:
                record = os.pread(file, place.length, place.offset)
                lines = 2 if record.startswith(_MARK) else 1
                if record.endswith(b"\n") and record.count(b"\n") == lines:
                    os.pwrite(file, bytes(place.length), place.offset)

    def drop_unused(self, in_use: Collection[int]) -> None:
        """Remove the segments that no job refers to, except the newest."""
        for segment in self._segments():
            if segment not in in_use and segment != self._segment:
                self._path(segment).unlink(missing_ok=True)

    def _next_segment(self, size: int) -> None:
        self.close()
        path = self._path(self._segment + 1)
        path.unlink(missing_ok=True)  # left by a full disk
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            write_all(file, bytes(size))
            os.fsync(file)
            sync(self.folder)
        except OSError:
            os.close(file)
            path.unlink(missing_ok=True)
            raise
        self._segment = self._segment + 1
        self._file = file
        self._end = 0
        self._size = size

    def _segments(self) -> list[int]:
        return [int(path.stem) for path in self.folder.glob("*.jsonl")]

    def _path(self, segment: int) -> Path:
        return self.folder / f"{segment:08d}.jsonl"
