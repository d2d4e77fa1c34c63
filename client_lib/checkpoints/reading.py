"""A regular file, opened without waiting and read by pieces."""

import errno
import os
import stat
from typing import Generator, Iterator, Match, Optional, Pattern

PIECE = 2**18
"""Bytes that are read, and searched or parsed, at once."""
LONGEST = 1024
"""Bytes of the longest match that `File.find` finds whole."""


class NotAFile(OSError):
    """A link, a device, a FIFO: something that is not read."""


class File:
    """An open file. `size` is from when it was opened: what is appended later is not read."""

    def __init__(self, path: str) -> None:
        """Raises OSError; NotAFile for what is not a regular file."""
        # without O_NONBLOCK, a FIFO would hold the caller until somebody writes into it
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NOCTTY
        try:
            self._descriptor = os.open(path, flags)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
                raise NotAFile(f"{path} is no regular file") from error
            raise
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            os.close(self._descriptor)
            raise NotAFile(f"{path} is no regular file")
        self.size = status.st_size

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def read(self, at: int, size: int) -> bytes:
        """The bytes from `at`: fewer than `size` only where the file ends."""
        wanted = min(size, self.size - at) if at >= 0 else 0
        parts = b""
        while len(parts) < wanted:
            part = os.pread(self._descriptor, wanted - len(parts), at + len(parts))
            if not part:  # the file has become shorter
                break
            parts += part
        return parts

    def read_pieces(self, at: int, end: int) -> Generator[None, None, bytes]:
        """The bytes from `at` to `end`; yields after each piece."""
        parts = []
        while at < min(end, self.size):
            parts.append(self.read(at, min(PIECE, end - at)))
            at += PIECE
            yield
        return b"".join(parts)

    def find(
        self, pattern: "Pattern[bytes]", at: int, end: int
    ) -> "Iterator[Optional[Match[bytes]]]":
        """All matches between `at` and `end`, none of which may be longer than LONGEST; None after
        each piece.
        """
        kept = b""
        end = min(end, self.size)
        while at < end:
            text = kept + self.read(at, min(PIECE, end - at))
            at += PIECE
            # a match that begins behind this place may go on in the next piece
            sure = len(text) if at >= end else len(text) - LONGEST
            done = 0
            for match in pattern.finditer(text):
                if match.start() >= sure:
                    break
                done = match.end()
                yield match
            kept = text[max(done, sure, 0) :]
            yield None
