"""Folders that were made to hold up, mislead or end a search."""

import json
import os
import socket
import struct
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import safetensors.torch
import torch

from client_lib.checkpoints import Checkpoint, listing, search
from tests.checkpoints.kit import found, only

PIECES = 20_000
"""Pieces of work after which a search is held to go on for ever."""


def pieces(folder: Path) -> list[Checkpoint | None]:
    done: list[Checkpoint | None] = []
    for piece in search(str(folder)):
        done.append(piece)
        assert len(done) < PIECES
    return done


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder that others may list, with a file and folders that they can't read."""
    with tempfile.TemporaryDirectory() as name:  # pytest's own is closed to others
        folder = Path(name)
        folder.chmod(0o755)
        whole(folder / "a.pt")
        (folder / "a.pt").chmod(0)
        for below in ("checkpoint-5", "global_step5", "data"):
            (folder / below).mkdir(mode=0)
        yield folder


@pytest.fixture
def nobody() -> Iterator[None]:
    """Run as a user whom permissions bind."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def whole(path: Path) -> bytes:
    torch.save({"a": torch.ones(10)}, path)
    return path.read_bytes()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> int:
    """Names of a folder that are listed."""
    # to make more files than are listed takes seconds; benchmarks/checkpoints.py makes 100 000
    monkeypatch.setattr(listing, "ENTRIES_OF_FOLDER", 1000)
    return listing.ENTRIES_OF_FOLDER


def test_a_folder_of_many_files_does_not_hide_the_folders_beside_it(
    tmp_path: Path, few: int
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for number in range(few + 200):
        os.close(os.open(data / f"{number}.txt", os.O_CREAT))
    for name in ("a", "z"):
        (tmp_path / name).mkdir()
        torch.save({"a": 1}, tmp_path / name / "step_1.pt")
    done = pieces(tmp_path)
    assert {each.path for each in done if each} == {"a/step_1.pt", "z/step_1.pt"}
    assert len(done) > few / 300, "a piece lists a few hundred names"


def test_a_checkpoint_of_more_files_than_are_listed_is_in_doubt(tmp_path: Path, few: int) -> None:
    folder = tmp_path / "global_step1"
    folder.mkdir()
    for rank in range(few + 2):
        name = f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        os.close(os.open(folder / name, os.O_CREAT))
    assert only(tmp_path)[5:7] == ("it can't be read: it has too many files", False)


def test_what_lies_deeper_than_four_folders_is_left_out(tmp_path: Path) -> None:
    folder = tmp_path
    for _ in range(6):
        whole(folder / "a.pt")
        folder = folder / "b"
        folder.mkdir()
    assert set(found(tmp_path)) == {"a.pt", "b/a.pt", "b/b/a.pt", "b/b/b/a.pt", "b/b/b/b/a.pt"}


def test_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    outside.mkdir()
    inside.mkdir()
    whole(outside / "a.pt")
    (inside / "folder").symlink_to(outside)
    (inside / "b.pt").symlink_to(outside / "a.pt")
    (inside / "c.pt").symlink_to("../outside/a.pt")
    (inside / "loop").symlink_to(".")
    (inside / "self.pt").symlink_to("self.pt")
    (inside / "one.pt").symlink_to("two.pt")
    (inside / "two.pt").symlink_to("one.pt")
    (inside / "latest").symlink_to("../..")
    assert found(inside) == {}
    assert set(found(inside / "folder")) == {"a.pt"}, "the searched folder itself may be a link"


def test_an_absolute_link_that_stays_inside_is_a_pointer(tmp_path: Path) -> None:
    whole(tmp_path / "a.pt")
    (tmp_path / "last.pt").symlink_to(tmp_path / "a.pt")
    assert only(tmp_path).pointers == ("last.pt",)


@pytest.mark.parametrize(
    "name", [b"step_1\n\x1b[2J.pt", b"step_1\xff\xfe.pt", b'step_1".pt', b"a b.pt"]
)
def test_a_strange_name_survives_json(tmp_path: Path, name: bytes) -> None:
    content = whole(tmp_path / "a.pt")
    (tmp_path / "a.pt").unlink()
    Path(os.fsdecode(bytes(tmp_path) + b"/" + name)).write_bytes(content)
    checkpoint = Checkpoint(*json.loads(json.dumps(only(tmp_path))))
    assert os.fsencode(checkpoint.path) == name
    assert not checkpoint.missing


def test_what_permissions_forbid_to_read_says_so(closed: Path, nobody: None) -> None:
    checkpoints = found(closed)
    assert set(checkpoints) == {"a.pt", "checkpoint-5", "global_step5"}
    for each in checkpoints.values():
        assert each[5:7] == ("it can't be read: Permission denied", False)


def test_a_file_that_could_not_be_read_is_looked_at_again(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    whole(path)
    sure = only(tmp_path)
    doubt = sure._replace(missing="it can't be read: Permission denied")
    assert [each for each in search(str(tmp_path), known={"a.pt": doubt}) if each] == [sure]


def test_fifos_sockets_and_devices_do_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.pt")
    with socket.socket(socket.AF_UNIX) as listener:
        here = os.getcwd()
        os.chdir(tmp_path)  # the path of a socket is short
        try:
            listener.bind("b.pt")
        finally:
            os.chdir(here)
        if os.geteuid() == 0:
            try:
                os.mknod(tmp_path / "c.pt", 0o20666, os.makedev(1, 5))  # /dev/zero
            except PermissionError:  # a container without the right
                pass
        assert found(tmp_path) == {}


@pytest.mark.timeout(10)
def test_a_fifo_or_a_link_in_the_place_of_a_listed_file_is_not_read(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    path = inside / "a.pt"
    whole(tmp_path / "outside.pt")
    whole(path)
    steps = len(pieces(inside))
    for make in (os.mkfifo, lambda path: os.symlink(tmp_path / "outside.pt", path)):
        # the last pieces come after the file was opened
        for after in range(steps - 5):
            path.unlink()
            whole(path)
            walk = search(str(inside))
            for _ in range(after):
                next(walk)
            path.unlink()
            make(path)
            assert not any(walk), after


@pytest.mark.parametrize("after", range(12))
def test_what_vanishes_during_the_search_is_not_listed(tmp_path: Path, after: int) -> None:
    for name in ("checkpoint-1", "global_step2", "other"):
        (tmp_path / name).mkdir()
        whole(tmp_path / name / "mp_rank_00_model_states.pt")
    whole(tmp_path / "a.pt")
    walk = search(str(tmp_path))
    early = [each for each, _ in zip(walk, range(after), strict=False) if each]
    assert not any(each.is_proof for each in early)
    for path in sorted(tmp_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    late = [each for each in walk if each]
    assert not any(each.is_proof for each in late), late


def test_a_file_that_becomes_shorter_while_it_is_read_raises_nothing(tmp_path: Path) -> None:
    content = whole(tmp_path / "a.pt")
    steps = len(pieces(tmp_path))
    for after in range(steps):
        (tmp_path / "a.pt").write_bytes(content)
        walk = search(str(tmp_path))
        for _ in range(after):
            next(walk)
        os.truncate(tmp_path / "a.pt", 10)
        list(walk)


def test_a_file_that_grows_for_ever_is_judged_once(tmp_path: Path) -> None:
    path = tmp_path / "a.pt"
    path.write_bytes(LOCAL + bytes(2**20))
    done = 0
    with path.open("ab") as file:
        for piece in search(str(tmp_path)):
            file.write(bytes(2**20))
            file.flush()
            done += piece is not None
    assert done == 1


@pytest.mark.parametrize("folder", ["missing", "a.pt", "nul\0", "", "x" * 5000])
def test_a_folder_that_is_none_has_no_checkpoints(tmp_path: Path, folder: str) -> None:
    whole(tmp_path / "a.pt")
    assert not any(search(f"{tmp_path}/{folder}" if folder else ""))


def zip_end(entries: int, size: int, at: int) -> bytes:
    return struct.pack("<4s4H2IH", b"PK\5\6", 0, 0, entries, entries, size, at, 0)


def zip64_end(entries: int, size: int, at: int, end_at: int) -> bytes:
    record = struct.pack("<4sQ2H2I4Q", b"PK\6\6", 44, 45, 45, 0, 0, entries, entries, size, at)
    locator = struct.pack("<4sIQI", b"PK\6\7", 0, end_at, 1)
    return record + locator + zip_end(0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)


LOCAL = struct.pack("<4s5H3I2H", b"PK\3\4", 20, 0, 0, 0, 0, 0, 0, 0, 10, 0) + b"a/data.pkl"


@pytest.mark.parametrize(
    "end",
    [
        zip_end(1, 46, 2**32 - 10),
        zip_end(65535, 2**32 - 1, 0),
        zip_end(65535, 10, 0),
        zip64_end(1, 46, 0, 2**64 - 1),
        zip64_end(1, 46, 0, 2**63),
        zip64_end(2**64 - 1, 2**64 - 1, 2**64 - 1, len(LOCAL)),
        zip64_end(2**64 - 1, 0, 0, len(LOCAL)),
        zip64_end(10**6, 40, 0, len(LOCAL)),
        b"PK\5\6",
    ],
)
def test_a_zip_that_lies_about_its_directory_is_damaged(tmp_path: Path, end: bytes) -> None:
    (tmp_path / "a.pt").write_bytes(LOCAL + end)
    assert only(tmp_path).is_proof


def entry(name: bytes, at: int, packed: int, extra: bytes = b"") -> bytes:
    return (
        struct.pack(
            "<4s6H3I5H2I",
            *(b"PK\1\2", 45, 45, 0, 0, 0, 0, 0, packed, packed),
            *(len(name), len(extra), 0, 0, 0, 0, at),
        )
        + name
        + extra
    )


@pytest.mark.parametrize(
    "listed",
    [
        entry(b"a/data.pkl", 2**31, 0),
        entry(b"a/data.pkl", 0, 2**31),
        entry(b"a/data.pkl", 0xFFFFFFFF, 0, struct.pack("<2HQ", 1, 8, 2**64 - 1)),
        entry(b"a/data.pkl", 0, 0xFFFFFFFF, struct.pack("<2H2Q", 1, 16, 2**64 - 1, 2**64 - 1)),
        entry(b"a/data.pkl", 0, 0xFFFFFFFF, struct.pack("<2H", 1, 65535)),
        entry(b"a/data.pkl", 5, 0),
    ],
)
def test_a_zip_that_lies_about_a_record_is_damaged(tmp_path: Path, listed: bytes) -> None:
    end = zip_end(1, len(listed), len(LOCAL))
    (tmp_path / "a.pt").write_bytes(LOCAL + listed + end)
    assert only(tmp_path).is_proof


def test_a_zip_of_many_entries_takes_small_pieces(tmp_path: Path) -> None:
    listed = entry(b"a/data.pkl", 0, 0) + entry(b"a/b", 0, 0) * 299_999
    end_at = len(LOCAL) + len(listed)
    with (tmp_path / "a.pt").open("wb") as file:
        file.write(LOCAL + listed + zip64_end(300_000, len(listed), len(LOCAL), end_at))
    done = pieces(tmp_path)
    assert len(done) > 60
    assert [each.missing for each in done if each] == [""]


def test_a_file_of_comments_is_no_zip(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as archive:
        archive.comment = b"PK\5\6" * 10_000
        archive.writestr("a/data.pkl", b".")
    list(pieces(tmp_path))


@pytest.mark.parametrize(
    ("begin", "missing"),
    [
        (struct.pack("<Q", 10**12) + b"{", "it does not begin with a header of safetensors"),
        (struct.pack("<Q", 2**64 - 1) + b"{", "it does not begin with a header of safetensors"),
        (struct.pack("<Q", 99_999_999) + b"{", "cut off: the header should end"),
        (struct.pack("<Q", 10) + b"\0" * 10, "it does not begin with a header of safetensors"),
        (struct.pack("<Q", 10) + b"{" + b"\0" * 9, "its header has no end"),
        (b"\0" * 100, "it does not begin with a header of safetensors"),
        (b"", "cut off: 0 bytes, the header is missing"),
    ],
)
def test_a_safetensors_file_with_a_false_header_is_damaged(
    tmp_path: Path, begin: bytes, missing: str
) -> None:
    (tmp_path / "a.safetensors").write_bytes(begin)
    checkpoint = only(tmp_path)
    assert checkpoint.missing.startswith(missing)
    assert checkpoint.is_proof
    with pytest.raises(safetensors.SafetensorError):
        safetensors.torch.load_file(tmp_path / "a.safetensors")


def test_json_of_any_depth_and_size_is_searched_in_small_pieces(tmp_path: Path) -> None:
    deep = b'{"a":' * 100_000 + b"1" + b"}" * 100_000
    assert len(deep) > sys.getrecursionlimit()
    (tmp_path / "a.safetensors").write_bytes(struct.pack("<Q", len(deep)) + deep)
    many = tmp_path / "many"
    many.mkdir()
    names = ",".join(f'"w{n}":"m{n}.safetensors"' for n in range(300_000))
    (many / "model.safetensors.index.json").write_text('{"weight_map":{' + names + "}}")
    deeper = tmp_path / "checkpoint-1"
    deeper.mkdir()
    for name in ("trainer_state.json", "model.safetensors.index.json", "config.json"):
        (deeper / name).write_bytes(deep)
    started = time.process_time()
    done = pieces(tmp_path)
    assert time.process_time() - started < 20
    checkpoints = {each.path: each for each in done if each}
    assert len(done) > 30
    assert checkpoints["many"].missing == (
        "model.safetensors.index.json names more than 10000 files"
    )


@pytest.mark.parametrize("name", ["../a.safetensors", "/etc/a.safetensors", "b/a.safetensors"])
def test_an_index_names_no_file_of_another_folder(tmp_path: Path, name: str) -> None:
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"w": name}}))
    assert only(tmp_path)[5:7] == (
        f"{index.name} names {name}, which lies in another folder",
        False,
    )


def test_a_metadata_file_that_is_no_pickle_raises_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    shard = folder / "__0_0.distcp"
    shard.write_bytes(b"x")
    for content in (
        b"",
        b".",
        b"\0" * 1000,
        os.urandom(5000) + b".",
        b"(" * 200_000 + b".",
        b"\x8c\xff.",
        b"\x8d" + b"\xff" * 8 + b".",
        b"c__9_9.distcp.",
    ):
        (folder / ".metadata").write_bytes(content)
        pieces(tmp_path)
    assert only(tmp_path).missing == "shard __9_9.distcp is missing"


def test_a_trainers_step_of_many_digits_is_not_known(tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    safetensors.torch.save_file({"a": torch.ones(1)}, folder / "model.safetensors")
    for text, step in (("500", 500), ("1" * 30, None), ("-5", None), ("1e9", None)):
        (folder / "trainer_state.json").write_text('{"global_step": ' + text + "}")
        assert only(tmp_path).step == step
