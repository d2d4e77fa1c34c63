"""Fetches the outputs of a job into a folder: resumed after a cut, each file checked against its digest.

A file that is there with the same bytes is not fetched again; one with others is replaced when the new one is complete.
Nothing is written outside of the folder, whatever a server calls its files and wherever links in the folder lead.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from client_lib.errors import BadResponse, InvalidRequest, NotFound
from client_lib.spec.wire import JobInfo, OutputFile, OutputList
from client_lib.transport.api import Api
from client_lib.transport.failures import Transient
from client_lib.worker.directory import sha256_of
from client_lib.worker.outputs.patterns import Patterns

_log = logging.getLogger("client_lib")
_BLOCK = 1024 * 1024
_TRIES = 5  # lists of a running job
_RESERVED = frozenset(':*?"<>|\\')  # in names on Windows, where a colon also names a drive


class Progress(NamedTuple):
    files: int
    """Complete."""
    all_files: int
    size: int
    """Bytes that are here."""
    all_size: int


OnDownload = Callable[[Progress], None]


def download(
    api: Api, info: JobInfo, folder: Path, pattern: str | None, on_download: OnDownload | None = None
) -> list[Path]:
    for tries in range(_TRIES, 0, -1):
        listed = api.job_outputs(info.name, owner=info.owner)
        files = chosen(listed, pattern)
        if not files:
            break
        try:
            return fetch(api, info.name, info.owner, files, folder, on_download)
        except NotFound:  # the running job has replaced one of them
            if listed.final or tries == 1:
                raise
    _log.warning("%s", why_none(info, listed, pattern))
    return []


def why_none(info: JobInfo, listed: OutputList, pattern: str | None) -> str:
    """The warning for a job without files to fetch."""
    if listed.files:
        return f"none of the {len(listed.files)} outputs of job {info.name} matches {pattern!r}"
    if listed.in_place is not None:
        return f"job {info.name} runs in place: what it writes is found in {listed.in_place}"
    if info.spec.outputs == []:
        return f"job {info.name} keeps no outputs (outputs=[])"
    if listed.final:
        return f"job {info.name} left no outputs" + (f"; left out: {listed.left_out[0].why}" if listed.left_out else "")
    return f"job {info.name} is {info.state} and keeps no outputs yet: they are looked for every minute, and at its end"


def chosen(listed: OutputList, pattern: str | None) -> list[OutputFile]:
    """The files that a glob means; None: all.

    Raises BadResponse: the server calls a file what can only be meant to be written elsewhere.
    """
    for file in listed.files:
        _check(file.path)
    patterns = Patterns([pattern]) if pattern else None
    return [file for file in listed.files if patterns is None or patterns.match(file.path)]


def fetch(
    api: Api, name: str, owner: str, files: Sequence[OutputFile], folder: Path, on_download: OnDownload | None
) -> list[Path]:
    """The files, below the folder, which is made.

    Raises:
        InvalidRequest: something in the folder is in the way.
        NotFound: a file was replaced or removed since it was listed.
        BadResponse: what came has another digest; ServerUnreachable ...: it can be called again and goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    meter = _Meter(files, on_download)
    fetched = []
    for file in files:
        fetched.append(_fetch(api, name, owner, file, folder, meter))
        meter.end_file()
    return fetched


class _Meter:
    def __init__(self, files: Sequence[OutputFile], on_download: OnDownload | None) -> None:
        self._on_download = on_download
        self._now = Progress(0, len(files), 0, sum(file.size for file in files))

    def add(self, size: int) -> None:
        self._tell(self._now._replace(size=self._now.size + size))

    def end_file(self) -> None:
        self._tell(self._now._replace(files=self._now.files + 1))

    def _tell(self, now: Progress) -> None:
        self._now = now
        if self._on_download:
            self._on_download(now)


def _fetch(api: Api, name: str, owner: str, file: OutputFile, folder: Path, meter: _Meter) -> Path:
    target = _place(folder, file.path)
    if _is_there(target, file):
        meter.add(file.size)
        return target
    part = target.with_name(f".{target.name[:200]}.{file.sha256[:12]}.part")
    with _open_part(part) as opened:
        digest = _collect(api, name, owner, file, opened, meter)
    if digest != file.sha256:
        part.unlink()
        raise BadResponse(f"what came as {file.path} has the digest {digest}, not {file.sha256}", hint="try again")
    os.chmod(part, 0o755 if file.executable else 0o644)
    os.utime(part, (file.modified_at.timestamp(),) * 2)
    _replace(part, target)
    return target


def _collect(api: Api, name: str, owner: str, file: OutputFile, part: IO[bytes], meter: _Meter) -> str:
    """Fill the part from where it ends; the digest of all of it."""
    digest, have = hashlib.sha256(), 0
    while block := part.read(_BLOCK):  # bytes of an earlier download
        digest.update(block)
        have += len(block)
    if have > file.size:
        part.seek(0)
        part.truncate()
        digest, have = hashlib.sha256(), 0
    meter.add(have)
    while have < file.size:
        before = have
        try:
            for block in api.open_output(name, file.path, sha256=file.sha256, start=have, owner=owner):
                part.write(block)
                digest.update(block)
                have += len(block)
                meter.add(len(block))
        except Transient as cut:  # `api` has tried again where nothing answered; here an answer broke off
            if have == before:
                raise cut.error from cut.__cause__
    return digest.hexdigest()


def _open_part(path: Path) -> IO[bytes]:
    """Open the part of a file to read and write it; never through a link."""
    if path.is_symlink():
        path.unlink()
    extra = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    return open(path, "r+b", opener=lambda name, flags: os.open(name, flags | extra, 0o600))


def _check(path: str) -> None:
    parts = path.split("/")
    hostile = "\0" in path or any(part in ("", ".", "..") for part in parts)
    if hostile or (os.name == "nt" and any(_RESERVED & set(part) or part.endswith((".", " ")) for part in parts)):
        raise BadResponse(f"the server calls an output {path!r}, which is no file below a folder; nothing was written")


def _place(folder: Path, path: str) -> Path:
    """Path of the file in the folder; missing folders are created. Raises InvalidRequest: a link or a file is in the
    way."""
    *parents, name = path.split("/")
    place = folder
    for parent in parents:
        place /= parent
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InvalidRequest(
                f"{path} can't be written: {place} is a {'link' if place.is_symlink() else 'file'}",
                hint="remove it, or choose another folder",
            )
        place.mkdir(exist_ok=True)
    return place / name


def _replace(part: Path, target: Path) -> None:
    if target.is_dir() and not target.is_symlink():
        raise InvalidRequest(f"{target} is a folder, and the job has a file of this name", hint="choose another folder")
    os.replace(part, target)  # a link of that name goes, not what it leads to


def _is_there(target: Path, file: OutputFile) -> bool:
    same_size = not target.is_symlink() and target.is_file() and target.stat().st_size == file.size
    return same_size and sha256_of(target) == file.sha256
