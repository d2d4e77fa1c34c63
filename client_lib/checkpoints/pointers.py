"""Pointers to checkpoints: links, indexes of shards, and the files in which DeepSpeed and Megatron
write the newest.
"""

import os
import posixpath
from typing import Dict, Generator, List, Tuple

from client_lib.checkpoints import sharded
from client_lib.checkpoints.listing import Folder
from client_lib.checkpoints.reading import File

_HOPS = 8
"""Links that are followed from one to the next."""
_LONGEST = 256


def pointers(root: Folder) -> Generator[None, None, Dict[str, Tuple[str, ...]]]:
    """Paths of pointers by the path that each names, whether there is something or not."""
    targets: Dict[str, str] = {}
    for folder in root.tree():
        for name, target in folder.links.items():
            inside = _inside(root, folder, target)
            if inside:
                targets[folder.path_of(name)] = inside
        for name in folder.files:
            named = _named_in(folder, name)
            if named:
                targets[folder.path_of(name)] = folder.path_of(named)
            elif sharded.INDEX.fullmatch(name):
                targets[folder.path_of(name)] = folder.path
        yield
    found: Dict[str, List[str]] = {}
    for path in sorted(targets):
        target = targets[path]
        for _ in range(_HOPS):
            target = targets.get(target, target)
        found.setdefault(target, []).append(path)
    return {path: tuple(paths) for path, paths in found.items()}


def _inside(root: Folder, folder: Folder, target: str) -> str:
    """The path that a link names, relative to the searched folder; "": it lies outside."""
    if target.startswith("/"):
        path = posixpath.relpath(posixpath.normpath(target), os.path.realpath(root.location))
    else:
        path = posixpath.normpath(posixpath.join(folder.path, target))
    return "" if path == ".." or path.startswith("../") else path


def _named_in(folder: Folder, name: str) -> str:
    """Name of the folder that a file names as the newest."""
    if name not in ("latest", "latest_checkpointed_iteration.txt"):
        return ""
    try:
        with File(folder.location_of(name)) as file:
            text = os.fsdecode(file.read(0, _LONGEST)).strip()
    except OSError:  # it is gone, or can't be read
        return ""
    if name != "latest" and text.isdigit():
        text = f"iter_{int(text):07}"
    return text if text in folder.folders else ""
