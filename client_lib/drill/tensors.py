"""Compares two checkpoints, tensor by tensor: `python tensors.py ONE OTHER` prints JSON.

A child process of a drill, with limits on time and memory, in the interpreter of the job: it alone
has the libraries. Nothing is unpickled but what `weights_only` allows; the storages of other files
are compared by their checksums. Standard library and torch, Python 3.8.
"""

import json
import math
import os
import re
import sys
import zipfile
from typing import Any, Dict, Iterator, List, Optional, Tuple

_CPU_S = 120
_MEMORY = 16 * 2**30
"""Bytes of address space, beside four times the sizes of the files."""
_TORCH = (".pt", ".pth", ".bin", ".ckpt")
_KINDS = (*_TORCH, ".safetensors", ".distcp")
_CHANCE = re.compile("rng|random", re.IGNORECASE)
"""Names of what may differ without consequence: generators that nobody uses any more."""
_DEPTH = 20
_MOST = 20
"""Largest number of differences that are told."""


class _Comparison:
    def __init__(self) -> None:
        self.compared = 0
        self.differ: List[Tuple[str, float]] = []
        self.raw: List[str] = []

    def missing(self, name: str) -> None:
        """Count a file that only one checkpoint has; what is no checkpoint is left out."""
        if name.endswith(_KINDS) and not _CHANCE.search(name):
            self.compared += 1
            self.differ.append((name, math.inf))

    def file(self, one: str, other: str, name: str) -> None:
        """Compare two files of the same name; what is no checkpoint is left out."""
        if _CHANCE.search(name):
            return
        if name.endswith(_TORCH):
            self._torch(one, other, name)
        elif name.endswith(".safetensors"):
            self._safetensors(one, other, name)
        elif name.endswith(".distcp"):
            self.raw.append("%s (a shard of torch.distributed)" % name)
            self._bytes(one, other, name)

    def _torch(self, one: str, other: str, name: str) -> None:
        import torch

        try:
            states = [
                torch.load(path, map_location="cpu", weights_only=True) for path in (one, other)
            ]
        except Exception as error:  # noqa: BLE001  (a foreign file may raise anything)
            if self._storages(one, other, name):
                self.raw.append("%s (weights_only refuses it: %s)" % (name, _brief(error)))
            return
        self._states(states[0], states[1], name)

    def _safetensors(self, one: str, other: str, name: str) -> None:
        try:
            from safetensors.torch import load_file  # type: ignore[import-not-found,unused-ignore]

            states = [load_file(path) for path in (one, other)]
        except Exception as error:  # noqa: BLE001  (a foreign file may raise anything)
            self.raw.append("%s (%s)" % (name, _brief(error)))
            self._bytes(one, other, name)
            return
        self._states(states[0], states[1], name)

    def _states(self, one: Any, other: Any, name: str) -> None:
        firsts = dict(_tensors(one, name))
        seconds = dict(_tensors(other, name))
        # the tensors of both checkpoints, each once
        for path in {**firsts, **seconds}:
            self.compared += 1
            by = _apart(firsts.get(path), seconds.get(path))
            if by:
                self.differ.append((path, by))

    def _storages(self, one: str, other: str, name: str) -> bool:
        """Compare what weights_only refuses; False: there is no tensor in it."""
        try:
            sums = [_checksums(path) for path in (one, other)]
        except (OSError, zipfile.BadZipFile):
            self._bytes(one, other, name)
            return True
        for storage, checksum in sums[0].items():
            self.compared += 1
            if sums[1].get(storage) != checksum:
                self.differ.append(("%s %s" % (name, storage), math.inf))
        return bool(sums[0])

    def _bytes(self, one: str, other: str, name: str) -> None:
        self.compared += 1
        with open(one, "rb") as first, open(other, "rb") as second:
            while True:
                blocks = (first.read(2**20), second.read(2**20))
                if blocks[0] != blocks[1]:
                    self.differ.append((name, math.inf))
                    return
                if not blocks[0]:
                    return


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:80]


def _checksums(path: str) -> Dict[str, int]:
    """The checksum of each storage in a file of torch.save."""
    with zipfile.ZipFile(path) as archive:
        found = {entry.filename.partition("/")[2]: entry.CRC for entry in archive.infolist()}
    return {name: checksum for name, checksum in found.items() if name.startswith("data/")}


def _tensors(value: Any, path: str, depth: int = 0) -> Iterator[Tuple[str, Any]]:
    if depth > _DEPTH or _CHANCE.search(path):
        return
    if hasattr(value, "untyped_storage") or hasattr(value, "storage"):
        yield path, value
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from _tensors(each, "%s.%s" % (path, key), depth + 1)
    elif isinstance(value, (list, tuple)):
        for number, each in enumerate(value):
            yield from _tensors(each, "%s.%d" % (path, number), depth + 1)


def _apart(one: Optional[Any], other: Optional[Any]) -> float:
    """The largest difference of two tensors. Infinite: one is None or has another form, or a value
    is NaN or infinite in one of them alone."""
    if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    if not one.numel():
        return 0.0
    one, other = one.detach().to_dense(), other.detach().to_dense()
    if one.equal(other):
        return 0.0
    one, other = one.double(), other.double()
    is_same = one.eq(other) | (one.isnan() & other.isnan())
    by = (one - other).abs().nan_to_num(nan=math.inf, posinf=math.inf)
    return float(by.masked_fill(is_same, 0.0).max())


def _files(path: str) -> List[str]:
    """The files of a checkpoint, relative to it; of a file "" alone."""
    if not os.path.isdir(path):
        return [""]
    found = [
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
    ]
    return sorted(found)


def _below(path: str, name: str) -> str:
    return os.path.join(path, name) if name else path


def _limit(paths: List[str]) -> None:
    import resource

    files = [_below(path, name) for path in paths for name in _files(path)]
    size = sum(map(os.path.getsize, files))
    for kind, most in (
        (resource.RLIMIT_CPU, _CPU_S),
        (resource.RLIMIT_AS, _MEMORY + 4 * size),
        (resource.RLIMIT_FSIZE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard < 0 else min(most, hard), hard))


def main(one: str, other: str) -> None:
    _limit([one, other])
    comparison = _Comparison()
    firsts, seconds = set(_files(one)), set(_files(other))
    for name in sorted(firsts & seconds):
        shown = name or os.path.basename(one)
        comparison.file(_below(one, name), _below(other, name), shown)
    for name in sorted(firsts ^ seconds):
        comparison.missing(name)
    comparison.differ.sort(key=lambda each: -each[1])
    found = {
        "compared": comparison.compared,
        "differ": len(comparison.differ),
        "largest": comparison.differ[:_MOST],
        "raw": comparison.raw,
    }
    sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:3])
