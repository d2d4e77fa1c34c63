"""Zip archives of `torch.save` (since 1.6), judged by their directory.

The rules are those of the reader in PyTorch (miniz 3.0, `mz_zip_reader_read_central_dir`), so that
what it loads is complete, and what it refuses is proven to be damaged. It accepts up to 64 KiB
behind the archive.
"""

import struct
from typing import Iterator, NamedTuple, Optional, Tuple, Union

from client_lib.checkpoints.checkpoint import COMPLETE, Judging, Verdict, damaged
from client_lib.checkpoints.reading import PIECE, File

MAGIC = b"PK\3\4"
_END = struct.Struct("<4s4H2IH")
_LOCATOR = struct.Struct("<4sIQI")
_END64 = struct.Struct("<4sQ2H2I4Q")
_ENTRY = struct.Struct("<4s6H3I5H2I")
_LOCAL = struct.Struct("<4s5H3I2H")
_TAIL = 2**16 + _END.size
_LARGEST = 2**24
"""Bytes of a directory that are looked at: 200 000 entries."""
_IN_ZIP64 = 2**32 - 1


class _Directory(NamedTuple):
    at: int
    size: int
    entries: int


class _Entry(NamedTuple):
    name: bytes
    at: int
    end: int
    """The least byte at which its data can end."""


def judge(file: File) -> Judging:
    """Judge a file that begins with MAGIC. None: a zip archive that `torch.save` did not write."""
    directory = _directory(file)
    yield
    if isinstance(directory, Verdict):
        name = _first_name(file)
        return directory if name is None or name.endswith(b"/data.pkl") else None
    return (yield from _judge_entries(file, directory))


def _directory(file: File) -> "Union[_Directory, Verdict]":
    """The place of the directory, or why it can't be read."""
    tail_at = max(0, file.size - _TAIL)
    tail = file.read(tail_at, _TAIL)
    end_at = tail.rfind(b"PK\5\6", 0, max(0, len(tail) - _END.size + 4))
    if end_at < 0:
        return damaged(f"cut off: {file.size} bytes, the zip directory is missing")
    _, disk, first_disk, on_disk, entries, size, at, _ = _END.unpack_from(tail, end_at)
    locator_at = tail_at + end_at - _LOCATOR.size
    locator = file.read(locator_at, _LOCATOR.size) if locator_at >= _END64.size else b""
    if locator.startswith(b"PK\6\7"):
        end64_at = _LOCATOR.unpack(locator)[2]
        end64 = file.read(end64_at, _END64.size) if end64_at < file.size else b""
        if len(end64) < _END64.size:
            return damaged("the end of the zip directory lies behind the end of the file")
        if end64.startswith(b"PK\6\6"):
            disk, first_disk, on_disk, entries, size, at = _END64.unpack(end64)[4:]
    if at + size > file.size:
        return damaged(
            f"the zip directory should end at byte {at + size}, the file has {file.size}"
        )
    if entries != on_disk or disk != first_disk or size < entries * _ENTRY.size:
        return damaged("the end of the zip directory contradicts itself")
    return _Directory(at, size, entries)


def _first_name(file: File) -> Optional[bytes]:
    """Name of the first record, which `torch.save` calls `NAME/data.pkl`; None: cut off before."""
    header = file.read(0, _LOCAL.size)
    if len(header) < _LOCAL.size:
        return None
    length = _LOCAL.unpack(header)[9]
    name = file.read(_LOCAL.size, length)
    return name if len(name) == length else None


def _judge_entries(file: File, directory: _Directory) -> Judging:
    pickle_at: Optional[int] = None
    prefix: Optional[bytes] = None
    seen = 0
    for entry in _entries(file, directory):
        if entry is None:
            yield
            continue
        seen += 1
        if entry.end > file.size:
            return damaged(
                f"the record at byte {entry.at} should end at byte {entry.end},"
                f" the file has {file.size}"
            )
        if prefix is None:
            prefix = entry.name.partition(b"/")[0]
        if entry.name == prefix + b"/data.pkl":
            pickle_at = entry.at
    if seen < directory.entries and directory.size <= _LARGEST:
        return damaged(f"the zip directory has {seen} of its {directory.entries} entries")
    if pickle_at is None:
        return None
    if file.read(pickle_at, 4) != MAGIC:
        return damaged("the record data.pkl is not where the zip directory says")
    return COMPLETE


def _entries(file: File, directory: _Directory) -> Iterator[Optional[_Entry]]:
    """Each entry as far as the directory is sound, and None after each piece of the directory."""
    text = b""
    read_to = directory.at
    end = directory.at + min(directory.size, _LARGEST)
    left = directory.entries
    while left and read_to < end:
        text += file.read(read_to, min(PIECE, end - read_to))
        read_to += PIECE
        at = 0
        while left and at + _ENTRY.size <= len(text):
            fields = _ENTRY.unpack_from(text, at)
            size = _ENTRY.size + fields[10] + fields[11] + fields[12]
            if fields[0] != b"PK\1\2":
                return
            if at + size > len(text):
                break
            yield _entry(fields, text[at + _ENTRY.size : at + size])
            at += size
            left -= 1
        text = text[at:]
        yield None


def _entry(fields: Tuple, names: bytes) -> _Entry:  # type: ignore[type-arg]
    name_size, extra_size = fields[10:12]
    packed = fields[8]
    at = fields[16]
    extra = names[name_size : name_size + extra_size]
    # the record 1 holds the values of size, packed size and offset that need more than 32 bits
    wide = iter(_zip64_values(extra))
    if fields[9] == _IN_ZIP64:
        next(wide, None)
    if packed == _IN_ZIP64:
        packed = next(wide, packed)
    if at == _IN_ZIP64:
        at = next(wide, at)
    return _Entry(names[:name_size], at, at + _LOCAL.size + packed)


def _zip64_values(extra: bytes) -> Tuple[int, ...]:
    at = 0
    while at + 4 <= len(extra):
        kind, size = struct.unpack_from("<2H", extra, at)
        if kind == 1:
            values = extra[at + 4 : at + 4 + size]
            return struct.unpack(f"<{len(values) // 8}Q", values[: len(values) // 8 * 8])
        at += 4 + size
    return ()


def ends_whole(file: File) -> bool:
    """Say whether a file of several archives, one behind the other, ends with a whole one. True as
    well for a file that does not begin with an archive.
    """
    if file.read(0, len(MAGIC)) != MAGIC:
        return file.size > 0
    return file.read(file.size - _END.size, 4) == b"PK\5\6"
