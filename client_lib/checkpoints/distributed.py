"""Folders of `torch.distributed.checkpoint`: shards `__RANK_NUMBER.distcp`, and `.metadata`, which
is renamed into place when all shards are written.

`.metadata` is a pickle, which is never loaded. Its words tell the place of each tensor in a shard;
if it is too large for that, it is searched for the names of shards, and a shard must end with a
whole archive of `torch.save`.
"""

import re
from typing import Dict, Generator, List, Optional, Set

from client_lib.checkpoints import pickle_words, zip_archive
from client_lib.checkpoints.checkpoint import COMPLETE, Judging, damaged
from client_lib.checkpoints.listing import Folder
from client_lib.checkpoints.reading import File

_SHARD_IN_METADATA = re.compile(rb"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_METADATA = re.compile(r"(?:__[0-9]+)?\.metadata")
_LARGEST = 2**28
"""Bytes of metadata that are searched for names."""
_LARGEST_READ = 2**21
"""Bytes of metadata of which all words are read."""


def fits(folder: Folder) -> bool:
    """Say whether there are shards."""
    return any(name.endswith(".distcp") for name in folder.names)


def judge(folder: Folder) -> Judging:
    """Judge the shards by what the metadata say."""
    metadata = [name for name in folder.files if _METADATA.fullmatch(name)]
    if not metadata:
        return damaged(".metadata is missing, which is written last")
    there = folder.names
    for name in sorted(metadata):
        with File(folder.location_of(name)) as file:
            if file.read(file.size - 1, 1) != b".":
                return damaged(f"{name} is cut off: {file.size} bytes")
            named = yield from _shards(file)
            sizes = yield from _sizes(file)
        absent = sorted(named - there)
        if absent:
            return damaged(_is_missing(absent))
        for shard in sorted(named & set(folder.files)):
            with File(folder.location_of(shard)) as file:
                if file.size < sizes.get(shard, 0):
                    return damaged(f"shard {shard} is cut off: {file.size} bytes of {sizes[shard]}")
                if shard not in sizes and not zip_archive.ends_whole(file):
                    return damaged(f"shard {shard} is cut off: {file.size} bytes")
            yield
    return COMPLETE


def _shards(metadata: File) -> Generator[None, None, Set[str]]:
    found = set()
    for match in metadata.find(_SHARD_IN_METADATA, 0, _LARGEST):
        if match is None:
            yield
        else:
            found.add(match.group().decode())
    return found


def _sizes(metadata: File) -> Generator[None, None, Dict[str, int]]:
    """The bytes that each shard needs; none if the metadata are too large or of another kind."""
    sizes: Dict[str, int] = {}
    if metadata.size > _LARGEST_READ:
        return sizes
    data = yield from metadata.read_pieces(0, _LARGEST_READ)
    # attributes of a `_StorageInfo` in their order: the name of a shard, a place in it, a length
    before: Optional[pickle_words.Word] = None
    shard = ""
    offset = 0
    try:
        for word in pickle_words.words(data, 0):
            if word is None:
                yield
                continue
            if before == "relative_path" and isinstance(word, str):
                shard = word
            elif before == "offset" and isinstance(word, int):
                offset = word
            elif before == "length" and isinstance(word, int):
                sizes[shard] = max(sizes.get(shard, 0), offset + word)
            before = word
    except (pickle_words.CutOff, pickle_words.NotAPickle):
        return {}
    return sizes


def _is_missing(names: List[str]) -> str:
    if len(names) == 1:
        return f"shard {names[0]} is missing"
    return f"shard {names[0]} and {len(names) - 1} more are missing"
