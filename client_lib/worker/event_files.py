"""Reads an event file of TensorBoard: TFRecords with protobuf messages."""

import struct
from typing import Any, Callable, Dict, Iterator, Tuple

_BLOCK = 2**20
"""Bytes that are read at once."""
Values = Tuple[float, Dict[str, float]]
"""A step, and its scalars by their tags."""


class EventFile:
    """An event file: TFRecords, each an Event of tensorflow/core/util/event.proto."""

    def __init__(self, path: str, run: str, opener: Callable[[str, int], int]) -> None:
        """The names of values begin with `run`. `opener` raises OSError for a file that must not be
        read."""
        self.position = 0
        self._path = path
        self._run = run
        self._opener = opener

    def read(self) -> Iterator[Values]:
        with open(self._path, "rb", opener=self._opener) as file:
            file.seek(self.position)
            data = file.read(_BLOCK)
        at = 0
        while at + 12 <= len(data):
            (size,) = struct.unpack_from("<Q", data, at)
            end = at + 12 + size + 4  # length and its checksum, the event and its checksum
            if size > _BLOCK - 16:  # an image or a graph that a block does not hold
                self.position += 16 + size
                return
            if end > len(data):
                break
            step, values = _event(data[at + 12 : end - 4])
            yield step, {self._run + tag: value for tag, value in values.items()}
            at = end
            self.position += 16 + size


def _event(data: bytes) -> Values:
    """The step of an Event, and the scalars of its Summary: `simple_value`, or a
    tensor with one `float_val`.
    """
    step = 0
    values: Dict[str, float] = {}
    for number, summary in _fields(data):
        if number == 2:
            step = summary
        for field, value in _fields(summary) if number == 5 else ():
            parts = dict(_fields(value)) if field == 1 else {}
            scalar = dict(_fields(parts[8])).get(5) if 8 in parts else parts.get(2)
            if isinstance(scalar, bytes) and len(scalar) == 4:
                values[parts[1].decode("utf-8", "replace")] = struct.unpack("<f", scalar)[0]
    return step, values


def _fields(data: bytes) -> Iterator[Tuple[int, Any]]:
    """Number and value of the fields of a protobuf message: integers, and all others as bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        kind = key & 7
        if kind in (0, 2):
            number, at = _varint(data, at)
        else:
            number = {1: 8, 5: 4}[kind]
        if kind == 0:
            yield key >> 3, number
        else:  # `number` is the size of the bytes that follow
            yield key >> 3, data[at : at + number]
            at += number


def _varint(data: bytes, at: int) -> Tuple[int, int]:
    """The number that begins at this place, and the place behind the number. Raises ValueError: the
    number does not end."""
    value = 0
    for place, byte in enumerate(data[at : at + 10]):
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError("no number has more than 10 bytes")
