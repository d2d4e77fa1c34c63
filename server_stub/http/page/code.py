"""The code of jobs for pages: the files of snapshots, which are read without unpacking them, and what differs between
two jobs."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from tarfile import TarInfo
from typing import Any, NamedTuple

from client_lib.errors import ClientLibError, NotFound, NotSupported
from client_lib.reports import difference as reports
from client_lib.reports.difference import JobDiff, Ran
from client_lib.spec.metrics import JobMetrics
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.wire import JobInfo
from client_lib.worker.archive import ArchiveRefused, reading
from server_stub.http.api.context import Context
from server_stub.http.api.files import readable
from server_stub.service.values import User

_POINTS = 1000  # of a curve whose best value is compared
_COMPARED_MAX = 50  # files
_COMPARED_BYTES, _COMPARED_LINES = 64 * 1024, 5000  # of a file whose lines are compared: it takes up to 0.1 s
FILES_MAX = 20_000  # files and folders
TEXT_MAX = 256 * 1024
_BYTES_MAX = 512 * 2**20  # unpacked, as all of it is read for one page
_HEADERS_MAX = 32 * 2**20  # of these: tarfile parses 4 MB/s if they hold many attributes
_NAME_MAX = 4096
_threads = ThreadPoolExecutor(2, thread_name_prefix="code")  # an archive takes seconds; others need the shared threads


class SnapshotFile(NamedTuple):
    name: str
    size: int
    digest: str
    text: str | None
    """None: it was not asked for, is larger than TEXT_MAX, or is no text."""


async def shown(parts: Context, user: User, name: str, owner: str | None, file: str) -> dict[str, Any]:
    """The view of a job's code, with the text of one file. Raises NotFound: there is no such job or file."""
    service = parts.service
    info = JobInfo.model_validate_json((await service.get(user, name, owner)).json)
    if not isinstance(info.code, CodeSnapshot):
        ran = (await service.observer.provenance(user, name, owner)).submitted
        place = await service.find_outputs(user, name, owner)
        return {"job": info, "ran": ran, "in_place": place.in_place, "files": []}
    of_file = {file or info.code.script or ""}
    found = await _files(parts, user, info.code, of_file)
    chosen = next((each for each in found if each.name in of_file), None)
    if file and chosen is None:
        raise NotFound(f"the code of job {name} has no file {file}")
    return {"job": info, "files": found, "chosen": chosen}


async def difference(parts: Context, user: User, name: str, other: str, owner: str | None) -> JobDiff | None:
    """Changes from the job `other` to this one; without `other`, from the last success to a failed one; None: there
    is no such job. Raises NotFound; Forbidden: the user is neither the owner nor admin."""
    second = await _ran(parts, user, name, owner)
    other = other or second.provenance.last_success or ""
    if not other:
        return None
    first, more = await _ran(parts, user, other, owner), 0
    before, after = first.info.code, second.info.code
    if isinstance(before, CodeSnapshot) and isinstance(after, CodeSnapshot) and before != after:
        with suppress(ClientLibError):  # of another user, or too large: only the digests are compared
            old, new, more = await _texts(parts, user, before, after)
            first, second = first._replace(texts=old), second._replace(texts=new)
    found = await asyncio.get_running_loop().run_in_executor(_threads, reports.compare, first, second)
    one_or_more = "1 more file that differs" if more == 1 else f"{more} more files that differ"
    left_out = {"not compared": [f"{one_or_more}: a page shows {_COMPARED_MAX}"]} if more else {}
    return found._replace(parts={**found.parts, **left_out})


async def _ran(parts: Context, user: User, name: str, owner: str | None) -> Ran:
    info = JobInfo.model_validate_json((await parts.service.get(user, name, owner)).json)
    ran = Ran(info, await parts.service.observer.provenance(user, name, owner))
    with suppress(ClientLibError):  # it was submitted with observe=False
        found = await parts.service.observer.metrics(user, name, 0, _POINTS, owner)
        ran = ran._replace(metrics=JobMetrics.model_validate_json(found))
    return ran


async def _files(parts: Context, user: User, code: CodeSnapshot, wanted: Container[str] = ()) -> list[SnapshotFile]:
    archive = readable(parts, user, code.sha256)
    return await asyncio.get_running_loop().run_in_executor(_threads, files, archive, wanted)


async def _texts(
    parts: Context, user: User, before: CodeSnapshot, after: CodeSnapshot
) -> tuple[dict[str, str], dict[str, str], int]:
    """The texts of the files that differ between two snapshots, and how many more such files there are."""
    old, new = [{each.name: each for each in await _files(parts, user, code)} for code in (before, after)]
    differ = [each for each in sorted({*old, *new}) if old.get(each) != new.get(each)]
    names = differ[:_COMPARED_MAX]
    first, second = [
        {each.name: _text(each) for each in await _files(parts, user, code, names) if each.name in names}
        for code in (before, after)
    ]
    return first, second, len(differ) - len(names)


def _text(file: SnapshotFile) -> str:
    """The text of a file that is compared; for one that is no text or is too long, a sentence."""
    if file.text is None or file.size > _COMPARED_BYTES or file.text.count("\n") > _COMPARED_LINES:
        limits = f"{_COMPARED_BYTES // 1024} KiB or {_COMPARED_LINES} lines"
        why = f"longer than {limits}" if file.size > _COMPARED_BYTES or file.text else "no text"
        return f"{file.size} bytes with digest {file.digest[:12]}; lines are not compared: {why}\n"
    return file.text


def files(archive: Path, wanted: Container[str] = ()) -> list[SnapshotFile]:
    """All files by name, with the texts of those that are `wanted`; a link is a file with its target as text. Names are
    texts: `?` stands for each byte that is none.

    Raises NotSupported: they are too many or too large, or the archive is damaged.
    """
    found, end, headers = [], 0, 0
    try:
        with reading(str(archive), FILES_MAX, _BYTES_MAX) as tar:
            for count, member in enumerate(tar, 1):
                tar.members.clear()  # type: ignore[attr-defined]  # there is no public way to have it forget them
                tar.pax_headers = {}  # it copies those of the whole archive to each member
                headers, end = headers + member.offset_data - end, tar.offset
                _check(count, headers, member)
                name = member.name.encode("utf-8", "replace").decode()
                source = tar.extractfile(member) if member.isreg() else None
                if source is None and not member.issym():
                    continue
                link = f"a link to {member.linkname}\n".encode("utf-8", "replace")
                content = source.read(TEXT_MAX + 1) if source else link
                digest = hashlib.sha256(content)
                while source and (more := source.read(TEXT_MAX)):
                    digest.update(more)
                text = content.decode("utf-8", "replace") if name in wanted and b"\0" not in content else None
                short = text if len(content) <= TEXT_MAX else None
                found.append(SnapshotFile(name, member.size, digest.hexdigest(), short))
    except ArchiveRefused as refused:
        raise NotSupported(
            f"the files of this code can't be shown: {refused}", hint="client-lib code NAME FOLDER writes them"
        ) from refused
    return sorted(found)


def _check(count: int, headers: int, member: TarInfo) -> None:
    if count > FILES_MAX:
        raise ArchiveRefused(f"it holds more than {FILES_MAX} files and folders")
    if headers > _HEADERS_MAX:
        raise ArchiveRefused(f"its headers have more than {_HEADERS_MAX} bytes")
    if max(len(member.name), len(member.linkname)) > _NAME_MAX:
        raise ArchiveRefused(f"a name has more than {_NAME_MAX} characters")
    if member.issparse():  # some bytes of it stand for any number of zeros
        raise ArchiveRefused(f"{member.name!r} is sparse")
