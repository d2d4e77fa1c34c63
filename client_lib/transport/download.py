"""Fetches the outputs of a job into a folder.

Outputs are resumed after a cut, and each file is checked against its digest. A file that is there
with the same bytes is not fetched again; a file with other bytes is replaced when the new file is
complete. Nothing is written outside of the folder, whatever a server calls its files and wherever
links in the folder lead.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, NamedTuple

from client_lib.durable import sha256_of
from client_lib.errors import BadResponse, InvalidRequest, NotFound
from client_lib.launcher_protocol.output_globs import Patterns
from client_lib.spec.wire import JobInfo, OutputFile, OutputList
from client_lib.transport.api import Api
from client_lib.transport.failures import Transient

_log = logging.getLogger("client_lib")
_BLOCK = 1024 * 1024
_TRIES = 5  # lists of a running job
_RESERVED = frozenset(':*?"<>|\\')  # in names on Windows, where a colon also names a drive


class Progress(NamedTuple):
    files: int  # complete
    all_files: int
    size: int  # bytes that are here
    all_size: int


OnDownload = Callable[[Progress], None]


def download(
    api: Api,
    info: JobInfo,
    folder: Path,
    pattern: str | None,
    on_download: OnDownload | None = None,
) -> list[Path]:
    """Fetch the outputs that a glob means into the folder, which is made.

    Raises:
        InvalidRequest: something in the folder is in the way.
        NotFound: a file was replaced or removed since it was listed.
        BadResponse: the data that came has another digest.
        ServerUnreachable and others of `client_lib.errors`: the same call continues.
    """
    for tries in range(_TRIES, 0, -1):
        listed = api.job_outputs(info.name, owner=info.owner)
        files = chosen(listed, pattern)
        if not files:
            break
        folder.mkdir(parents=True, exist_ok=True)
        meter = _Meter(files, on_download)
        try:
            return [_fetch(api, info, file, folder, meter) for file in files]
        except NotFound:  # the running job has replaced a file
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
        return f"job {info.name} left no outputs" + (
            f"; left out: {listed.left_out[0].why}" if listed.left_out else ""
        )
    return (
        f"job {info.name} is {info.state} and keeps no outputs yet: they are looked for every "
        "minute, and at its end"
    )


def chosen(listed: OutputList, pattern: str | None) -> list[OutputFile]:
    """The files that a glob means; None: all.
    Raises BadResponse: the path of one would lead out of a folder, or can't exist on this system.
    """
    for file in listed.files:
        parts = file.path.split("/")
        hostile = "\0" in file.path or any(part in ("", ".", "..") for part in parts)
        if hostile or (
            os.name == "nt"
            and any(_RESERVED & set(part) or part.endswith((".", " ")) for part in parts)
        ):
            raise BadResponse(
                f"the server calls an output {file.path!r}, which is no file below a folder; "
                "nothing was written"
            )
    matches = Patterns([pattern]).match if pattern else bool
    return [file for file in listed.files if matches(file.path)]


class _Meter:
    def __init__(self, files: Sequence[OutputFile], on_download: OnDownload | None) -> None:
        self._on_download = on_download
        self._now = Progress(0, len(files), 0, sum(file.size for file in files))

    def add(self, size: int, files: int = 0) -> None:
        self._now = self._now._replace(size=self._now.size + size, files=self._now.files + files)
        if self._on_download:
            self._on_download(self._now)


def _fetch(api: Api, info: JobInfo, file: OutputFile, folder: Path, meter: _Meter) -> Path:
    target = _place(folder, file.path)
    if _is_there(target, file):
        meter.add(file.size, files=1)
        return target
    name = target.name.encode()[:200].decode(errors="ignore")  # file systems take 255 bytes
    part = target.with_name(f".{name}.{file.sha256[:12]}.part")
    if part.is_symlink():
        part.unlink()
    extra = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    with open(
        part, "r+b", opener=lambda name, flags: os.open(name, flags | extra, 0o600)
    ) as opened:
        digest = _collect(api, info, file, opened, meter)
    if digest != file.sha256:
        part.unlink()
        raise BadResponse(
            f"what came as {file.path} has the digest {digest}, not {file.sha256}", hint="try again"
        )
    if target.is_dir() and not target.is_symlink():
        raise InvalidRequest(
            f"{target} is a folder, and the job has a file of this name",
            hint="choose another folder",
        )
    try:
        os.chmod(part, 0o755 if file.executable else 0o644)
        os.utime(part, (file.modified_at.timestamp(),) * 2)
        # this replaces a link of that name, and not the file to which the link leads
        os.replace(part, target)
    except FileNotFoundError:
        if not _is_there(target, file):  # another download of this file has ended first
            raise
    meter.add(0, files=1)
    return target


def _is_there(path: Path, file: OutputFile) -> bool:
    is_file = path.is_file() and not path.is_symlink()
    return is_file and path.stat().st_size == file.size and sha256_of(path) == file.sha256


def _collect(api: Api, info: JobInfo, file: OutputFile, part: IO[bytes], meter: _Meter) -> str:
    """Fetch the rest of a partly fetched file; return the digest of the whole file."""
    if os.fstat(part.fileno()).st_size > file.size:
        part.truncate(0)
    digest = hashlib.sha256()
    have = 0
    while block := part.read(_BLOCK):  # bytes of an earlier download
        digest.update(block)
        have += len(block)
    meter.add(have)
    while have < file.size:
        before = have
        try:
            for block in api.open_output(
                info.name, file.path, sha256=file.sha256, start=have, owner=info.owner
            ):
                part.write(block)
                digest.update(block)
                have += len(block)
                meter.add(len(block))
        except (
            Transient
        ) as cut:  # `api` has tried again where nothing answered; here an answer broke off
            if have == before:
                raise cut.error from cut.__cause__
        else:
            break
    return digest.hexdigest()


def _place(folder: Path, path: str) -> Path:
    """Path of the file in the folder; missing folders are created. Raises InvalidRequest: a link or
    a file is in the way."""
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
