"""The code of jobs for pages: files of snapshots, changes of jobs in place, and what differs between two jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from client_lib.errors import ClientLibError, NotFound
from client_lib.reports import difference as reports
from client_lib.reports.difference import JobDiff, Ran
from client_lib.spec.metrics import JobMetrics
from client_lib.spec.wire import CodeSnapshot, JobInfo
from server_stub.files.snapshot_files import SnapshotFile, files
from server_stub.http.api.context import Context
from server_stub.http.api.snapshots import readable
from server_stub.service.values import User

_POINTS = 1000  # of a curve whose best value is compared
_COMPARED_MAX = 50  # files
_COMPARED_BYTES, _COMPARED_LINES = 64 * 1024, 5000  # of a file whose lines are compared: it takes up to 0.1 s
_threads = ThreadPoolExecutor(2, thread_name_prefix="code")  # an archive takes seconds; others need the shared threads


async def shown(parts: Context, user: User, name: str, owner: str | None, file: str) -> dict[str, Any]:
    """The view of a job's code, with the text of one file. Raises NotFound: there is no such job or file."""
    service = parts.service
    info = JobInfo.model_validate_json((await service.get(user, name, owner)).json)
    if not isinstance(info.code, CodeSnapshot):
        ran = (await service.provenance(user, name, owner)).submitted
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
    left_out = {"not compared": [f"{more} more files that differ: a page shows {_COMPARED_MAX}"]} if more else {}
    return found._replace(parts={**found.parts, **left_out})


async def _ran(parts: Context, user: User, name: str, owner: str | None) -> Ran:
    info = JobInfo.model_validate_json((await parts.service.get(user, name, owner)).json)
    ran = Ran(info, await parts.service.provenance(user, name, owner))
    with suppress(ClientLibError):  # it was submitted with observe=False
        found = await parts.service.metrics(user, name, 0, _POINTS, owner)
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
