"""Files of safetensors: eight bytes with the size of the header, the header, the tensors.

The header is JSON, of up to 100 MB. It is searched for the places of tensors instead of parsed, so
that neither its depth nor its size matters.
"""

import re

from client_lib.checkpoints.checkpoint import COMPLETE, Judging, damaged
from client_lib.checkpoints.reading import LONGEST, File

_SIZE = 8
_LARGEST = 100_000_000
"""Bytes of a header that the library accepts."""
_SPACE = rb"[ \t\r\n]{0,99}"
_OFFSETS = re.compile(
    _SPACE.join(
        [rb'"data_offsets"', rb":", rb"\[", rb"[0-9]{1,19}", rb",", rb"([0-9]{1,19})", rb"\]"]
    )
)


def judge(file: File) -> Judging:
    """Judge a file with the suffix of the library."""
    begin = file.read(0, _SIZE + 1)
    yield
    header = int.from_bytes(begin[:_SIZE], "little")
    if len(begin) <= _SIZE:
        return damaged(f"cut off: {file.size} bytes, the header is missing")
    if header > _LARGEST or begin[_SIZE:] != b"{":
        return damaged("it does not begin with a header of safetensors")
    end = _SIZE + header
    if end > file.size:
        return damaged(f"cut off: the header should end at byte {end}, the file has {file.size}")
    last = max(_SIZE, end - LONGEST)
    if not file.read(last, end - last).rstrip().endswith(b"}"):
        return damaged("its header has no end")
    tensors = 0
    for match in file.find(_OFFSETS, _SIZE, end):
        if match is None:
            yield
        else:
            tensors = max(tensors, int(match.group(1)))
    if file.size != end + tensors:
        return damaged(
            f"the header says {tensors} bytes of tensors, the file has {file.size - end}"
        )
    return COMPLETE
