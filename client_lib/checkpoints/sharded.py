"""Files of weights that belong together: an index in JSON names them, or their names count them
(`model-00001-of-00003.safetensors`).
"""

import re
from typing import Generator, Set

from client_lib.checkpoints.checkpoint import COMPLETE, Judging, Verdict, damaged
from client_lib.checkpoints.listing import Folder
from client_lib.checkpoints.reading import LONGEST, File

INDEX = re.compile(r".+\.(?:safetensors|bin)\.index\.json")
_NUMBERED = re.compile(r"(.+)-([0-9]{5})-of-([0-9]{5})\.(safetensors|bin)")
_NAMED = re.compile(rb'"weight_map"|:[ \t\r\n]{0,99}"([^"\\]{1,255}\.(?:safetensors|bin))"')
_LARGEST = 2**28
"""Bytes of an index that are searched."""
_MOST = 10_000
"""Files of an index that are looked for."""


def fits(folder: Folder) -> bool:
    """Say whether there is an index, or files that are counted."""
    # most names of a large folder are told apart sooner by their suffix than by an expression
    return any(
        INDEX.fullmatch(name) or _NUMBERED.fullmatch(name)
        for name in folder.names
        if name.endswith((".json", ".safetensors", ".bin"))
    )


def judge(folder: Folder) -> Judging:
    """Judge by names: each file of an index is there, and each that is counted."""
    there = folder.names
    indexes = sorted(name for name in folder.files if INDEX.fullmatch(name))
    for index in indexes:
        with File(folder.location_of(index)) as file:
            if not ends_with_brace(file):
                return damaged(f"{index} is cut off: {file.size} bytes")
            named = yield from _named(file)
        if len(named) > _MOST:
            return Verdict(f"{index} names more than {_MOST} files")
        outside = sorted(name for name in named if "/" in name)
        absent = sorted(named - there - set(outside))
        if absent:
            more = f", and {len(absent) - 1} more are" if absent[1:] else ", is"
            return damaged(f"{absent[0]}, which {index} names{more} missing")
        if outside:
            return Verdict(f"{index} names {outside[0]}, which lies in another folder")
    yield
    return COMPLETE if any(INDEX.fullmatch(name) for name in there) else _by_count(there)


def ends_with_brace(file: File) -> bool:
    """Say whether an object in JSON is whole: if it is cut off, its last brace is missing."""
    last = max(0, file.size - LONGEST)
    return file.read(last, LONGEST).rstrip().endswith(b"}")


def _named(index: File) -> Generator[None, None, Set[str]]:
    """The names of files in an index; what stands before its map is not of interest."""
    found: Set[str] = set()
    in_map = False
    for match in index.find(_NAMED, 0, _LARGEST):
        if match is None:
            yield
        elif match.group(1) is None:
            in_map = True
        elif in_map and len(found) <= _MOST:
            found.add(match.group(1).decode("utf-8", "surrogateescape"))
    return found


def _by_count(names: Set[str]) -> Verdict:
    """The verdict about shards without an index, which is written behind them."""
    for match in filter(None, map(_NUMBERED.fullmatch, sorted(names))):
        stem, _, count, suffix = match.groups()
        for number in range(1, int(count) + 1):
            shard = f"{stem}-{number:05}-of-{count}.{suffix}"
            if shard not in names:
                return damaged(f"{shard} is missing")
        # some loaders read all files of a folder, without an index
        return Verdict(f"{stem}.{suffix}.index.json is missing, which is written last")
    return COMPLETE
