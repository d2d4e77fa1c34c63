"""Reads the files that are in an archive of code, for pages."""

import hashlib
from collections.abc import Container
from pathlib import Path
from typing import NamedTuple

from client_lib.errors import NotSupported
from client_lib.launcher_protocol.archive import ArchiveRefused, reading

FILES_MAX = 20_000  # files and folders of an archive that is read
TEXT_MAX = 256 * 1024
_BYTES_MAX = 512 * 2**20
"""Largest size of an unpacked archive, which is read as a whole for one page."""
_HEADERS_MAX = 32 * 2**20
"""Largest size of its headers: tarfile parses 4 MB/s if headers hold many attributes."""
_NAME_MAX = 4096


class SnapshotFile(NamedTuple):
    """A file of an archive."""

    name: str
    size: int
    digest: str
    text: str | None
    """None: it was not asked for, is larger than TEXT_MAX, or is no text."""


def read_files(archive: Path, wanted: Container[str] = ()) -> list[SnapshotFile]:
    """All files by name, with the texts of those that are `wanted`; a link is a file with its
    target as text. Names are texts: `?` stands for each byte that is none.

    Raises NotSupported: they are too many or too large, or the archive is damaged.
    """
    found = []
    end = 0
    headers = 0
    try:
        with reading(str(archive), FILES_MAX, _BYTES_MAX) as tar:
            for count, member in enumerate(tar, 1):
                # There is no public way to make tarfile forget the members.
                tar.members.clear()  # type: ignore[attr-defined]
                # tarfile copies the headers of the whole archive to each member.
                tar.pax_headers = {}
                headers = headers + member.offset_data - end
                end = tar.offset
                if count > FILES_MAX:
                    raise ArchiveRefused(f"it holds more than {FILES_MAX} files and folders")
                if headers > _HEADERS_MAX:
                    raise ArchiveRefused(f"its headers have more than {_HEADERS_MAX} bytes")
                if max(len(member.name), len(member.linkname)) > _NAME_MAX:
                    raise ArchiveRefused(f"a name has more than {_NAME_MAX} characters")
                if member.issparse():  # some bytes of a sparse file stand for any number of zeros
                    raise ArchiveRefused(f"{member.name!r} is sparse")
                name = member.name.encode("utf-8", "replace").decode()
                source = tar.extractfile(member) if member.isreg() else None
                if source is None and not member.issym():
                    continue
                link = f"a link to {member.linkname}\n".encode("utf-8", "replace")
                content = source.read(TEXT_MAX + 1) if source else link
                digest = hashlib.sha256(content)
                while source and (more := source.read(TEXT_MAX)):
                    digest.update(more)
                text = (
                    content.decode("utf-8", "replace")
                    if name in wanted and b"\0" not in content
                    else None
                )
                short = text if len(content) <= TEXT_MAX else None
                found.append(SnapshotFile(name, member.size, digest.hexdigest(), short))
    except ArchiveRefused as refused:
        raise NotSupported(
            f"the files of this code can't be shown: {refused}",
            hint="client-lib code NAME FOLDER writes them",
        ) from refused
    return sorted(found)
