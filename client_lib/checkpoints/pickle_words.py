"""The strings and whole numbers of a pickle, in the order of its opcodes. No object is built, and
nothing that the pickle names is imported or called.

Protocols 2 to 5, which PyTorch writes.
"""

import pickletools
from typing import Dict, Iterator, NamedTuple, Optional, Tuple, Union

_PAUSE = 8192
"""Bytes between two pauses."""
_LONGEST = 256
"""Bytes of the longest string that is read; longer ones are passed over."""
_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}
_FIXED = {
    ord(opcode.code): opcode.arg.n if opcode.arg else 0
    for opcode in pickletools.opcodes
    if not opcode.arg or opcode.arg.n >= 0
}
"""Bytes of the argument, of opcodes with a fixed size."""
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_COUNTED = {
    ord(opcode.code): _WIDTHS[opcode.arg.n]
    for opcode in pickletools.opcodes
    if opcode.arg and opcode.arg.n in _WIDTHS
}
"""Bytes of the length before the argument, of opcodes that have one."""
_MEMOIZE = _CODES["MEMOIZE"]
_FRAME = _CODES["FRAME"]
_GLOBAL = _CODES["GLOBAL"]
_STACK_GLOBAL = _CODES["STACK_GLOBAL"]
_PERSISTENT = _CODES["BINPERSID"]
_STOP = _CODES["STOP"]
_PASSED_OVER = frozenset(code for code, size in _FIXED.items() if not size) - {
    _MEMOIZE,
    _STACK_GLOBAL,
    _PERSISTENT,
    _STOP,
}
_GETS = frozenset((_CODES["BINGET"], _CODES["LONG_BINGET"]))
_PUTS = frozenset((_CODES["BINPUT"], _CODES["LONG_BINPUT"]))
_UNSIGNED = frozenset((_CODES["BININT1"], _CODES["BININT2"]))
_SIGNED = frozenset((_CODES["BININT"], _CODES["LONG1"]))
_STRINGS = frozenset(
    _CODES[name]
    for name in (
        "SHORT_BINUNICODE",
        "BINUNICODE",
        "BINUNICODE8",
        "SHORT_BINSTRING",
        "BINSTRING",
    )
)


class PersistentId(NamedTuple):
    """An object that is stored outside of the pickle: the words before it describe the object."""


class End(NamedTuple):
    """The end of the pickle."""

    at: int
    """Place behind it."""


Value = Union[str, int]
Word = Union[Value, PersistentId, End]


class CutOff(ValueError):
    """The bytes end before the pickle does."""


class NotAPickle(ValueError):
    """A byte is no opcode of protocols 2 to 5."""


def words(data: bytes, at: int) -> Iterator[Optional[Word]]:
    """Yield the words of the pickle that begins at a place, the last of which is its End; and None
    now and then, so that the caller can pause.

    What the pickle repeats by a reference is yielded again. A global is the word "MODULE NAME".
    Raises CutOff and NotAPickle.
    """
    memo: Dict[int, Value] = {}
    memoized = 0
    last: Optional[Value] = None
    one_before: Optional[Value] = None
    pause_at = at + _PAUSE
    while at < len(data):
        if at > pause_at:
            yield None
            pause_at = at + _PAUSE
        code = data[at]
        if code == _MEMOIZE:
            at += 1
            if last is not None:
                memo[memoized] = last
            memoized += 1
            continue
        if code in _PASSED_OVER:
            at += 1
            last = None
            continue
        begin, end = _argument(data, code, at + 1)
        if end > len(data):
            break
        at = end
        if code in _PUTS:
            if last is not None:
                memo[int.from_bytes(data[begin:end], "little")] = last
            continue
        if code == _FRAME:
            continue
        before, last = last, None
        if code in _GETS:
            last = memo.get(int.from_bytes(data[begin:end], "little"))
        elif code == _STACK_GLOBAL:
            last = f"{one_before} {before}"
        elif code == _PERSISTENT:
            yield PersistentId()
        elif code == _STOP:
            yield End(at)
            return
        elif end > begin:
            last = _value(code, data, begin, end)
        if last is not None:
            yield last
            one_before = before
    raise CutOff(f"{len(data)} bytes")


def _argument(data: bytes, code: int, at: int) -> Tuple[int, int]:
    """The places of the argument and behind it, which may lie behind the data."""
    size = _FIXED.get(code)
    if size is not None:
        return at, at + size
    width = _COUNTED.get(code)
    if width:
        begin = at + width
        return begin, begin + int.from_bytes(data[at:begin], "little")
    if code != _GLOBAL:
        raise NotAPickle(f"opcode {code} at byte {at - 1}")
    name_at = data.find(b"\n", at) + 1
    end = data.find(b"\n", name_at) + 1 if name_at else 0
    return at, end or len(data) + 1


def _value(code: int, data: bytes, begin: int, end: int) -> Optional[Value]:
    """The word that an opcode with an argument stands for."""
    if code in _UNSIGNED:
        return int.from_bytes(data[begin:end], "little")
    if code in _SIGNED:
        return int.from_bytes(data[begin:end], "little", signed=True)
    if end - begin > _LONGEST:
        return None
    if code in _STRINGS:
        return data[begin:end].decode("utf-8", "replace")
    if code == _GLOBAL:
        return data[begin : end - 1].decode("utf-8", "replace").replace("\n", " ")
    return None
