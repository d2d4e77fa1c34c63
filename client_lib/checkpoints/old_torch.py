"""Files of `torch.save` before 1.6, or with `_use_new_zipfile_serialization=False`.

Five pickles (magic number, version, system, the object, the keys of its storages), then the
storages in the order of their keys, each behind the number of its elements. Object and keys tell
how large the file has to be.
"""

from collections import deque
from typing import Callable, Deque, Dict, Generator, List, Optional, Union

from client_lib.checkpoints import pickle_words
from client_lib.checkpoints.checkpoint import COMPLETE, Judging, Verdict, damaged
from client_lib.checkpoints.reading import File

MAGIC = b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
MAGIC_AT_0 = b"\x80\x02" + MAGIC
MAGIC_WITHIN = 32
"""Later protocols of pickle have a frame before the number."""
_LIMITS = (2**16, 2**20, 2**23)
"""Bytes that are read, one after the other, until all pickles are among them: the last is enough
for a hundred thousand tensors.
"""
_BEFORE_OBJECT = 3
"""Pickles before the object."""
_BYTES_OF_COUNT = 8
_BYTES_OF_ELEMENT = {
    "BFloat16Storage": 2,
    "BoolStorage": 1,
    "ByteStorage": 1,
    "CharStorage": 1,
    "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8,
    "DoubleStorage": 8,
    "FloatStorage": 4,
    "HalfStorage": 2,
    "IntStorage": 4,
    "LongStorage": 8,
    "QInt32Storage": 4,
    "QInt8Storage": 1,
    "QUInt8Storage": 1,
    "ShortStorage": 2,
    "UntypedStorage": 1,
}
_Word = Union[pickle_words.Value, pickle_words.PersistentId]


def judge(file: File) -> Judging:
    """Judge a file that begins with MAGIC."""
    for limit in _LIMITS:
        data = yield from file.read_pieces(0, limit)
        try:
            size = yield from _size(data)
        except pickle_words.CutOff:
            if len(data) == file.size:
                return damaged(f"cut off: {file.size} bytes, the storages are missing")
            continue  # the pickles are longer
        except pickle_words.NotAPickle:
            break
        if size is None:
            break
        return damaged(f"cut off: {file.size} bytes of {size}") if size > file.size else COMPLETE
    return Verdict(f"{file.size} bytes in the old format: its end can't be judged")


def _size(data: bytes) -> Generator[None, None, Optional[int]]:
    """The bytes that the file needs; None: a storage is of an unknown kind."""
    at = 0
    for _ in range(_BEFORE_OBJECT):
        at = yield from _read(data, at, _pass_over)
    storages = _Storages()
    at = yield from _read(data, at, storages.take)
    keys: List[_Word] = []
    at = yield from _read(data, at, keys.append)
    for key in keys:
        size = storages.sizes.get(key)
        if size is None:
            return None
        at += _BYTES_OF_COUNT + size
    return at


class _Storages:
    """The bytes of each storage by its key, from the pickle of the object."""

    def __init__(self) -> None:
        self.sizes: Dict[_Word, int] = {}
        # kind, key, device and number of elements stand before the id that they are
        self._latest: Deque[_Word] = deque(maxlen=4)

    def take(self, word: _Word) -> None:
        if not isinstance(word, pickle_words.PersistentId):
            self._latest.append(word)
        elif len(self._latest) == self._latest.maxlen:
            kind, key, _, elements = self._latest
            size = _BYTES_OF_ELEMENT.get(str(kind).rpartition(" ")[2])
            if size is not None and isinstance(elements, int):
                self.sizes[key] = elements * size


def _pass_over(_: _Word) -> None:
    pass


def _read(data: bytes, at: int, take: Callable[[_Word], None]) -> Generator[None, None, int]:
    """Call `take` with each word of the pickle at a place; returns the place behind it."""
    for word in pickle_words.words(data, at):
        if word is None:
            yield
        elif isinstance(word, pickle_words.End):
            at = word.at
        else:
            take(word)
    return at
