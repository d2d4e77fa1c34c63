"""The log of one worker on disk: segment files, each named by the logical offset of its first byte,
20 digits and `.log`.

Offsets count record bytes since the attempt began. After a removed segment (size limit) a reader
continues at the next one, and computes the gap from the numbers of the records. A segment has no
gap inside: a writer that drops records begins a new segment.
"""

import contextlib
import os

from client_lib.durable import make_private_folders
from client_lib.launcher_protocol.record import MAX_TEXT

_TAIL_BYTES = 4 * MAX_TEXT  # of a segment; contains its last record


# --- the segments of a log


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
        with contextlib.suppress(FileNotFoundError):  # removed since the listing
            found.append((int(name[:-4]), os.stat(os.path.join(folder, name)).st_size))
    return sorted(found)


def end_of(path: str) -> "tuple[int, int]":
    """(bytes of whole records, seq of the last) of a segment whose writer is dead; cuts
    off the rest. (0, -1): none.
    """
    with open(path, "rb+") as file:
        size = file.seek(0, os.SEEK_END)
        begin = max(0, size - _TAIL_BYTES)
        file.seek(begin)
        whole, newline, _ = file.read().rpartition(b"\n")
        end = begin + len(whole) + 1 if newline else 0
        if end < size:  # otherwise the file keeps its time, which the watchdog reads
            file.truncate(end)
    return end, int(whole.rpartition(b"\n")[2].split(b" ", 1)[0]) if newline else -1


class Segments:
    """The segments of one log directory, for its only writer. A log over
    its limit loses its middle.
    """

    def __init__(
        self, path: str, limit_bytes: int, segment_bytes: int, begin: "tuple[int, int]" = (0, 0)
    ) -> None:
        """`begin`: (offset, seq) of the first record of an empty log."""
        self.path = path
        self.offset, self.next_seq = begin
        """Bytes of records written since the attempt began, removed ones
        included; seq of the next record.
        """
        self.removed_bytes = 0
        self._limit = limit_bytes
        # small enough that a middle can be removed
        self._segment = max(1, min(segment_bytes, limit_bytes // 8))
        self._sizes: "dict[int, int]" = {}  # of the segments that exist, by their offsets, in order

    def resume(self) -> None:
        """Continue after the last whole record of an earlier writer; an
        incomplete one is cut off.
        """
        self._sizes = dict(segments(self.path))
        for last in reversed(list(self._sizes)):
            size, seq = end_of(self._file(last))
            if size:
                self._sizes[last] = size
                self.offset = last + size
                self.next_seq = seq + 1
                self.removed_bytes = self.offset - min(self._sizes) - sum(self._sizes.values())
                return
            del self._sizes[last]
            os.unlink(self._file(last))

    def _begin(self, offset: int) -> int:
        """Begin a segment, and return its descriptor. The log keeps the first half of its limit,
        and of the newest records as many as fit together with this segment."""
        fd = os.open(self._file(offset), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._sizes[offset] = 0
        too_many = sum(self._sizes.values()) + self._segment - self._limit
        for start in list(self._sizes)[:-1]:
            if too_many > 0 and start >= self._limit // 2:
                size = self._sizes.pop(start)
                too_many -= size
                self.removed_bytes += size
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._file(start))
        return fd

    def _file(self, start: int) -> str:
        return os.path.join(self.path, segment_name(start))


class SegmentWriter(Segments):
    """Writes the log of a launcher. `add` collects, `flush` writes; what a full disk
    does not take waits here.
    """

    def __init__(
        self, path: str, limit_bytes: int, segment_bytes: int, begin: "tuple[int, int]" = (0, 0)
    ) -> None:
        super().__init__(path, limit_bytes, segment_bytes, begin)
        self._waiting = bytearray()
        # they begin within a record, which must not be the beginning of a segment
        self._is_cut = False
        self._lives = False  # some records are of the ranks
        self._fd: "int | None" = None
        self._room = 0
        make_private_folders(path)
        self.resume()

    def add(self, records: bytes, *, lives: bool = True) -> None:
        """`lives` False: the records are no sign of life of the ranks, and leave the file's time as
        it is.
        """
        self._waiting += records
        self._lives = self._lives or lives

    def flush(self) -> bool:
        """Write everything; False: the disk is full, call again later."""
        fd = None if self._lives or not self._waiting else self._fd
        written_at = os.fstat(fd).st_mtime_ns if fd else 0
        try:
            while self._waiting:
                if self._room <= 0 and not self._is_cut:
                    begun = self._begin(self.offset)
                    self.close()
                    self._fd = begun
                    self._room = self._segment
                assert self._fd is not None
                written = os.write(self._fd, self._waiting)
                self._sizes[max(self._sizes)] += written
                self.offset += written
                self._room -= written
                del self._waiting[:written]
                self._is_cut = bool(self._waiting)
        except OSError:
            return False
        if fd and fd == self._fd:
            os.utime(fd, ns=(written_at, written_at))
        self._lives = False
        return True

    def sign_of_life(self) -> None:
        """Touch the file after bytes of the ranks that made no record: the
        watchdog reads the file's time.
        """
        if self._fd is not None:
            os.utime(self._fd)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
