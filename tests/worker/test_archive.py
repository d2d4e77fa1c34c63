"""The archive reader on honest, hostile and random input."""

import errno
import gc
import gzip
import io
import os
import shutil
import stat
import tarfile
import tempfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from client_lib.launcher_protocol.archive import ArchiveRefused, unpack
from tests.kit.examples import examples
from tests.kit.small_disk import small_disk


def entry(
    name: str, kind: bytes = tarfile.REGTYPE, data: bytes = b"", link: str = "", mode: int = 0o644
) -> tuple:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, link, mode
    info.size = len(data)
    return info, data


def pack(path: Path, *entries: tuple) -> str:
    with tarfile.open(path, "w:gz") as archive:
        for info, data in entries:
            archive.addfile(info, io.BytesIO(data))
    return str(path)


def everything_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_files_folders_links_and_the_executable_bit(tmp_path: Path) -> None:
    archive = pack(
        tmp_path / "a.tar.gz",
        entry("pkg", tarfile.DIRTYPE, mode=0o777),
        entry("pkg/deep/module.py", data=b"x = 1\n"),
        entry("./run.sh", data=b"#!/bin/sh\n", mode=0o6777),
        entry("link.py", tarfile.SYMTYPE, link="pkg/deep/module.py"),
        entry("имя " + "x" * 150, data=b""),
    )
    target = tmp_path / "work"
    unpack(archive, str(target))
    assert (target / "link.py").read_text() == "x = 1\n"
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) & 0o7022 == 0
    assert os.access(target / "run.sh", os.X_OK)
    assert (target / ("имя " + "x" * 150)).exists()


@pytest.mark.parametrize(
    "entries",
    [
        [entry("/etc/passwd", data=b"x")],
        [entry("../outside", data=b"x")],
        [entry("a/../../outside", data=b"x")],
        [entry("..", tarfile.DIRTYPE)],
        [entry("link", tarfile.SYMTYPE, link="/etc/passwd")],
        [entry("link", tarfile.SYMTYPE, link="../outside")],
        [entry("link", tarfile.SYMTYPE, link="..")],
        [
            entry("a", tarfile.DIRTYPE),
            entry("a/b", tarfile.SYMTYPE, link="../.."),
            entry("c", data=b""),
        ],
        # lexically inside, in truth outside: the way leads through another link
        [
            entry("d/e/x", tarfile.SYMTYPE, link="../.."),
            entry("y", tarfile.SYMTYPE, link="d/e/x/../outside"),
        ],
        [entry("d", tarfile.SYMTYPE, link="."), entry("y", tarfile.SYMTYPE, link="d/../outside")],
        [
            entry("loop", tarfile.SYMTYPE, link="loop"),
            entry("y", tarfile.SYMTYPE, link="loop/../../outside"),
        ],
        [entry("link", tarfile.SYMTYPE, link=".."), entry("link/outside", data=b"x")],
        # inside while nothing is there; what comes later turns its way
        [entry("y", tarfile.SYMTYPE, link="d/../outside"), entry("d", tarfile.SYMTYPE, link=".")],
        [
            entry("y", tarfile.SYMTYPE, link="d/.."),
            entry("d", tarfile.SYMTYPE, link="."),
            entry("y/outside/z", tarfile.SYMTYPE, link="."),
        ],
        [entry("f", data=b"1"), entry("f", data=b"2")],
        [entry("f", data=b"1"), entry("f/g", data=b"2")],
        [entry("f", data=b"1"), entry("f", tarfile.DIRTYPE)],
        [entry("hard", tarfile.LNKTYPE, link="/etc/passwd")],
        [entry("device", tarfile.CHRTYPE)],
        [entry("disk", tarfile.BLKTYPE)],
        [entry("fifo", tarfile.FIFOTYPE)],
        [entry("", data=b"x")],
    ],
    ids=lambda entries: entries[-1][0].name or "empty",
)
def test_what_no_snapshot_holds_is_refused_and_nothing_is_written_outside(
    tmp_path: Path, entries: list
) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    archive = pack(tmp_path / "a.tar.gz", *entries)
    with pytest.raises(ArchiveRefused):
        unpack(archive, str(folder / "work"))
    outside = [name for name in everything_below(tmp_path) if not name.startswith("a/b/work")]
    assert outside == ["a", "a.tar.gz", "a/b"]


def test_a_bomb_is_refused_before_it_fills_the_disk(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz", entry("zeros", data=b"\0" * 50_000_000))
    with pytest.raises(ArchiveRefused, match="more than is allowed"):
        unpack(archive, str(tmp_path / "work"), max_bytes=1_000_000)
    assert everything_below(tmp_path) == ["a.tar.gz"]


def test_what_needs_more_than_the_free_room_is_refused_before_anything_is_written(
    tmp_path: Path,
) -> None:
    archive = pack(
        tmp_path / "a.tar.gz",
        *[entry(f"zeros-{number}", data=b"\0" * 2**20) for number in range(7)],
    )
    with small_disk(tmp_path / "disk", "size=8m") as disk:
        unpack(archive, str(disk / "fits"))
        shutil.rmtree(disk / "fits")
        with pytest.raises(
            OSError, match=r"7\.4 MB are needed .* 8\.4 MB free, of which 2\.1 MB .*disk/work"
        ) as refused:
            unpack(archive, str(disk / "work"), keep_free=2 * 2**20)
        assert refused.value.errno == errno.ENOSPC
        assert everything_below(disk) == []


def test_a_disk_that_fills_up_meanwhile_keeps_nothing_of_it(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz", *[entry(str(number), data=b"x") for number in range(30)])
    with small_disk(tmp_path / "disk", "size=8m,nr_inodes=20") as disk:
        with pytest.raises(OSError, match="No space left"):
            unpack(archive, str(disk / "work"))
        assert everything_below(disk) == []


def test_what_a_killed_launcher_left_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "work.new").mkdir()
    (tmp_path / "work.new" / "half").touch()
    unpack(pack(tmp_path / "a.tar.gz", entry("file")), str(tmp_path / "work"))
    assert everything_below(tmp_path) == ["a.tar.gz", "work", "work/file"]


def test_too_many_files_are_refused(tmp_path: Path) -> None:
    archive = pack(tmp_path / "a.tar.gz", *[entry(str(number)) for number in range(11)])
    with pytest.raises(ArchiveRefused, match="too many"):
        unpack(archive, str(tmp_path / "work"), max_files=10)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_that_would_fill_the_memory_is_refused(tmp_path: Path, kind: bytes) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = kind, 10 * 2**30
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(header.tobuf(tarfile.GNU_FORMAT))
        file.write(b"\0" * 100_000_000)
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveRefused, match="header"):
            unpack(str(path), str(tmp_path / "work"))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.fixture
def no_collection() -> Iterator[None]:
    """No garbage is collected: at the limit of recursion the callbacks of Hypothesis fail."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collection")
def test_a_chain_of_headers_without_end_is_refused(tmp_path: Path) -> None:
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, 4
    path = tmp_path / "a.tar.gz"
    with gzip.open(path, "wb") as file:
        file.write((header.tobuf(tarfile.GNU_FORMAT) + b"abc\0".ljust(512, b"\0")) * 5000)
    with pytest.raises(ArchiveRefused):
        unpack(str(path), str(tmp_path / "work"))


@pytest.mark.parametrize("cut", [0, 1, 10, 40, -30, -1])
def test_a_cut_archive_is_refused(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "a.tar.gz"
    pack(path, entry("f", data=os.urandom(5000)))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(ArchiveRefused):
        unpack(str(path), str(tmp_path / "work"))


NAMES = st.lists(
    st.sampled_from(["a", "b", "..", ".", "", "link", "/"]), min_size=1, max_size=5
).map("/".join)
KINDS = st.sampled_from(
    [
        tarfile.REGTYPE,
        tarfile.DIRTYPE,
        tarfile.SYMTYPE,
        tarfile.LNKTYPE,
        tarfile.FIFOTYPE,
        tarfile.CONTTYPE,
    ]
)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(NAMES, KINDS, NAMES), max_size=8))
def test_whatever_is_in_it_nothing_leaves_the_target(entries: list[tuple[str, bytes, str]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "x" / "y"
        folder.mkdir(parents=True)
        data = [
            entry(n, kind, b"data" if kind == tarfile.REGTYPE else b"", link)
            for n, kind, link in entries
        ]
        archive = pack(Path(name) / "a.tar.gz", *data)
        try:
            unpack(archive, str(folder / "work"))
        except ArchiveRefused:
            pass
        outside = [
            found for found in everything_below(Path(name)) if not found.startswith("x/y/work")
        ]
        assert outside == ["a.tar.gz", "x", "x/y"]
        for path in (folder / "work").rglob("*"):
            assert Path(os.path.realpath(path)).is_relative_to(folder.resolve() / "work")


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_damaged_bytes_are_refused_or_unpacked_never_anything_else(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.tar.gz"
        plain = io.BytesIO()
        with tarfile.open(
            fileobj=plain, mode="w", format=data.draw(st.sampled_from([0, 1, 2]))
        ) as archive:
            info, content = entry("f" * data.draw(st.integers(1, 100)), data=b"content")
            archive.addfile(info, io.BytesIO(content))
        raw = bytearray(plain.getvalue()[:3072])
        for _ in range(data.draw(st.integers(0, 4))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):  # a header with a right checksum gets further
            raw[148:156] = b" " * 8
            raw[148:156] = b"%06o\0 " % sum(raw[:512])
        path.write_bytes(gzip.compress(bytes(raw)) if data.draw(st.booleans()) else bytes(raw))
        try:
            unpack(str(path), str(Path(name) / "work"), max_bytes=10_000)
        except ArchiveRefused:
            pass
        assert everything_below(Path(name))[0] == "a.tar.gz"
