"""Fetches the code that a job ran into a folder. Snapshots are unpacked safely: nothing is written
outside of the folder.
"""

import os
from pathlib import Path
from tempfile import TemporaryDirectory

from client_lib.durable import sha256_of
from client_lib.errors import BadResponse, InvalidRequest, NotFound
from client_lib.launcher_protocol.archive import ArchiveRefused, unpack
from client_lib.spec.request import CodeSnapshot
from client_lib.spec.wire import JobInfo, JobProvenance
from client_lib.transport.api import Api

_TEXT_MAX = 64 * 1024  # bytes of a file of code that is compared line by line


def fetch_code(api: Api, info: JobInfo, provenance: JobProvenance, folder: Path) -> str:
    """Write the code of a job into a new or empty folder: the files of a snapshot, or the patch of
    a job in place. Returns a sentence with the place or commit. Raises InvalidRequest: the folder
    is not empty; NotFound: the code was not kept."""
    if os.path.lexists(folder) and not (folder.is_dir() and not any(folder.iterdir())):
        raise InvalidRequest(f"{folder} exists and is not an empty folder", hint="name a new one")
    folder.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(info.code, CodeSnapshot):
        is_new = not folder.exists()
        with TemporaryDirectory(
            prefix=".client-lib-", dir=folder.parent if is_new else folder
        ) as beside:
            code = _unpack(api, info.code, Path(beside))
            # a folder that exists may be one in which we are
            for entry in [code] if is_new else [*code.iterdir()]:
                entry.replace(folder if is_new else folder / entry.name)
        return f"{folder} has the {info.code.files} files of {info.code.root}"
    ran = provenance.submitted
    if ran is None or ran.commit is None:
        kept = (
            f"the digest of {info.spec.python_script}: {info.code.sha256}"
            if info.code.sha256
            else "its command"
        )
        raise NotFound(
            f"job {info.name} ran in place and its git commit is not known; only {kept} was kept",
            hint="with code='snapshot' the server keeps the code of a job",
        )
    file = folder / "changes.diff"
    if ran.diff:
        folder.mkdir(exist_ok=True)
        file.write_text(ran.diff, encoding="utf-8", newline="")
    source = " of ".join(filter(None, [f"commit {ran.commit}", ran.branch, ran.remote]))
    changes = f" with the changes in {file} (`git apply`)" if ran.diff else ""
    return f"job {info.name} ran {source}{changes}" + (f"; {ran.missing}" if ran.missing else "")


def texts_of_code(api: Api, code: CodeSnapshot) -> dict[str, str]:
    """The texts of the files of a snapshot by their names. Raises NotFound: this
    user has no such snapshot.
    """
    with TemporaryDirectory(prefix="client-lib-") as folder:
        root = _unpack(api, code, Path(folder))
        return {
            path.relative_to(root).as_posix(): _text(path)
            for path in root.rglob("*")
            if not path.is_dir()
        }


def _unpack(api: Api, code: CodeSnapshot, beside: Path) -> Path:
    archive = beside / "archive"
    folder = beside / "code"
    api.download_snapshot(code.sha256, archive)
    try:
        if sha256_of(archive) != code.sha256:
            raise ArchiveRefused("it is another one")
        unpack(str(archive), str(folder))
    except ArchiveRefused as refused:
        raise BadResponse(
            f"the snapshot {code.sha256[:12]} of the server can't be unpacked: {refused}"
        ) from refused
    return folder


def _text(path: Path) -> str:
    if path.is_symlink():
        return f"a link to {path.readlink()}\n"
    content = path.read_bytes() if path.stat().st_size <= _TEXT_MAX else b"\0"
    return (
        content.decode("utf-8", "replace")
        if b"\0" not in content
        else f"bytes with digest {sha256_of(path)}\n"
    )
