"""The files of a snapshot are read without much memory or time, whatever
an archive says of itself.
"""

import gzip
import io
import tarfile
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from client_lib.errors import NotSupported
from server_stub.files import snapshot_files
from server_stub.files.snapshot_files import read_files
from tests.kit.bounds import Bounds

MANY = 101


def header(name: str, kind: bytes = tarfile.REGTYPE, size: int = 0, linkname: str = "") -> bytes:
    member = tarfile.TarInfo(name)
    member.type, member.size, member.linkname = kind, size, linkname
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def attribute(size: int) -> bytes:
    """A block with one attribute."""
    block = f"{size} name=".encode().ljust(size - 1, b"x") + b"\n"
    return header("", tarfile.XHDTYPE, size=len(block)) + block + bytes(-len(block) % 512)


def sparse(size: int) -> bytes:
    """A file of zeros that takes no byte of the archive."""
    block = bytearray(header("zeros", tarfile.GNUTYPE_SPARSE))
    block[386:410] = b"00000000000\0" * 2  # its only piece
    block[483:495] = b"\x80" + size.to_bytes(11, "big")
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


def written(folder: Path, blocks: Iterable[bytes]) -> Path:
    path = folder / "archive"
    with gzip.open(path, "wb", compresslevel=1) as archive:
        for block in blocks:
            archive.write(block)
        archive.write(bytes(1024))
    return path


def folders(count: int) -> Iterator[bytes]:
    return (header(f"folder-{number}", tarfile.DIRTYPE) for number in range(count))


@pytest.mark.parametrize(
    ("blocks", "why"),
    [
        (folders(MANY), "more than 100 files and folders"),
        ((header(f"file-{number}") for number in range(MANY)), "more than 100 files and folders"),
        (
            (header(f"x-{number}", tarfile.FIFOTYPE) for number in range(MANY)),
            "more than 100 files and folders",
        ),
        ([header("n" * 4097)], "a name has more than 4096 characters"),
        (
            [header("link", tarfile.SYMTYPE, linkname="n" * 4097)],
            "a name has more than 4096 characters",
        ),
        ([attribute(60_000), header("a")] * 20, "its headers have more than 1048576 bytes"),
        ([attribute(100_000), header("a")], "a header of 100000 bytes"),
        ([sparse(2**60)], "'zeros' is sparse"),
    ],
    ids=["folders", "files", "others", "name", "link", "headers", "header", "sparse"],
)
def test_an_archive_that_would_take_long_is_refused(
    tmp_path: Path, bounds: Bounds, blocks: Iterable[bytes], why: str
) -> None:
    # constants, and large ones
    bounds(snapshot_files, FILES_MAX=MANY - 1, _HEADERS_MAX=2**20)
    with pytest.raises(NotSupported, match=why):
        read_files(written(tmp_path, blocks))


def test_headers_are_not_kept(tmp_path: Path) -> None:
    archive = written(tmp_path, folders(2000))
    tracemalloc.start()
    try:
        assert read_files(archive) == []
        assert tracemalloc.get_traced_memory()[1] < 600_000  # twice as much if they are
    finally:
        tracemalloc.stop()


def test_a_name_that_is_no_text_can_be_asked_for(tmp_path: Path) -> None:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for name in ("caf\udce9.py", "café.py"):
            member = tarfile.TarInfo(name)
            member.size = 1
            tar.addfile(member, io.BytesIO(b"x"))
    archive = written(tmp_path, [packed.getvalue()])
    assert [file.name for file in read_files(archive)] == ["caf?.py", "café.py"]
    assert [file.text for file in read_files(archive, {"caf?.py"})] == ["x", None]
