"""Folders as they are found in the wild, packed and unpacked again by the worker's own reader."""

import hashlib
import os
import secrets
import shutil
import socket
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from client_lib.errors import InvalidRequest, TooLarge
from client_lib.launcher_protocol.archive import unpack
from client_lib.submit import snapshot
from client_lib.submit.snapshot import list_files, packed
from tests.kit.bounds import Bounds
from tests.kit.examples import examples
from tests.kit.rights import file_modes_hold
from tests.kit.small_disk import no_file_grows_over


def write(root: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def names(root: Path) -> set[str]:
    return {entry.name for entry in list_files(root)[0] if stat.S_ISREG(entry.mode)}


def round_trip(root: Path, target: Path) -> tuple[str, ...]:
    with packed(root) as archive:
        assert hashlib.sha256(archive.path.read_bytes()).hexdigest() == archive.sha256
        assert archive.path.stat().st_size == archive.size
        unpack(str(archive.path), str(target))
    assert not archive.path.exists()
    return archive.skipped


def test_what_was_packed_is_unpacked_by_the_worker(folder: Path, tmp_path: Path) -> None:
    write(
        folder,
        {"train.py": "pass", "src/deep/mödel.py": "x = 1", "run.sh": "echo", "with space/a b": "c"},
    )
    (folder / "run.sh").chmod(0o755)
    (folder / "empty").mkdir()
    (folder / "link.py").symlink_to("train.py")
    assert round_trip(folder, tmp_path / "out") == ()
    out = tmp_path / "out"
    assert (out / "src/deep/mödel.py").read_text() == "x = 1"
    assert (out / "with space/a b").read_text() == "c"
    assert (out / "empty").is_dir()
    assert (out / "link.py").read_text() == "pass"
    assert os.access(out / "run.sh", os.X_OK)
    assert not os.access(out / "train.py", os.X_OK)


def test_the_same_code_has_the_same_digest_wherever_and_whenever_it_lies(tmp_path: Path) -> None:
    files = {f"{n}.py": str(n) for n in range(20)} | {"sub/x.py": "x"}
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, files)
    write(two, dict(reversed(files.items())))
    os.utime(two / "1.py", (0, 0))
    (two / "2.py").chmod(0o600)
    with packed(one) as first, packed(two) as second:
        assert first.sha256 == second.sha256
    write(two, {"1.py": "other"})
    with packed(two) as third:
        assert third.sha256 != first.sha256


def test_what_never_is_code_is_left_out(folder: Path) -> None:
    never = {
        ".git/config",
        "a/__pycache__/a.pyc",
        "b.pyc",
        ".env",
        ".env.local",
        ".venv/x",
        "node_modules/m.js",
    }
    never |= {
        "myenv/pyvenv.cfg",
        "myenv/lib/a.py",
        "conda/conda-meta/history",
        "conda/bin/python",
        ".mypy_cache/x",
    }
    write(folder, dict.fromkeys({"train.py", ".hidden", "environment.yml"} | never, ""))
    assert names(folder) == {"train.py", ".hidden", "environment.yml"}


def test_ignore_files_work_as_git_s(folder: Path) -> None:
    write(
        folder,
        {
            ".gitignore": "*.bin\n/data/\n!keep.bin\n# comment\nout/*\n!out/README\n",
            "sub/.gitignore": "!mine.bin\nlocal.py\n",
            ".clientlibignore": "notes.md\n",
            **dict.fromkeys(
                ["a.bin", "keep.bin", "data/x.py", "sub/data/y.py", "out/log", "out/README"], ""
            ),
            **dict.fromkeys(
                ["sub/mine.bin", "sub/b.bin", "sub/local.py", "local.py", "notes.md"], ""
            ),
        },
    )
    ignore_files = {".gitignore", ".clientlibignore", "sub/.gitignore"}
    assert names(folder) - ignore_files == {
        "keep.bin",
        "sub/data/y.py",
        "out/README",
        "sub/mine.bin",
        "local.py",
    }


def test_clientlibignore_takes_back_what_gitignore_leaves_out(folder: Path) -> None:
    write(
        folder,
        {
            ".gitignore": "*.json",
            ".clientlibignore": "!config.json",
            "config.json": "",
            "other.json": "",
        },
    )
    assert "config.json" in names(folder)
    assert "other.json" not in names(folder)


def test_links_in_a_loop_links_out_and_links_to_nowhere(folder: Path, tmp_path: Path) -> None:
    write(folder, {"train.py": "", "sub/x.py": ""})
    write(tmp_path, {"secret": "s"})
    (folder / "sub" / "loop").symlink_to("..")
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "dangling").symlink_to("nothing")
    (folder / "absolute").symlink_to(folder / "train.py")
    skipped = round_trip(folder, tmp_path / "unpacked")
    assert len(skipped) == 4
    assert any("out was left out: a link out of the folder" in sentence for sentence in skipped)
    assert any("dangling" in sentence for sentence in skipped)
    assert os.readlink(tmp_path / "unpacked" / "absolute") == "train.py"
    assert not (tmp_path / "unpacked" / "out").exists()


def test_sockets_and_pipes_are_left_out_and_said(folder: Path, tmp_path: Path) -> None:
    write(folder, {"train.py": ""})
    os.mkfifo(folder / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        os.chdir(folder)  # the path of a socket is short; the fixture takes us back
        listener.bind("sock")
        skipped = round_trip(folder, tmp_path / "out")
    assert sorted(skipped) == [
        "pipe was left out: a named pipe can't be packed",
        "sock was left out: a socket can't be packed",
    ]


def test_an_unreadable_file_is_named(folder: Path) -> None:
    write(folder, {"secret.txt": "x"})
    (folder / "secret.txt").chmod(0)
    with (
        file_modes_hold(),
        pytest.raises(InvalidRequest, match=r"secret\.txt can't be packed"),
        packed(folder),
    ):
        pass


def test_an_ignore_file_that_can_t_be_read_is_named(folder: Path) -> None:
    (folder / ".gitignore").mkdir()
    with pytest.raises(InvalidRequest, match=r"\.gitignore can't be read"):
        list_files(folder)


def test_over_the_limit_the_largest_files_are_named(folder: Path) -> None:
    write(folder, {"train.py": "x", "data/big.bin": "b" * 3_000_000, "middle.bin": "m" * 2_000_000})
    with pytest.raises(TooLarge) as caught, packed(folder, limit_bytes=4_000_000):
        pass
    assert "5.0 MB in 3 files; 4.0 MB are allowed" in caught.value.message
    assert caught.value.message.index("data/big.bin") < caught.value.message.index("middle.bin")
    assert ".clientlibignore" in (caught.value.hint or "")


def test_a_file_that_is_rewritten_all_the_time_is_named(folder: Path) -> None:
    # long enough for the other thread to get its turn
    write(folder, {"data.bin": "x" * 30_000_000})
    stop = threading.Event()

    def rewrite() -> None:
        with (folder / "data.bin").open("r+b") as file:
            while not stop.is_set():
                file.seek(0)
                file.write(b"y")
                file.flush()

    thread = threading.Thread(target=rewrite)
    thread.start()
    try:
        with pytest.raises(InvalidRequest, match=r"data\.bin is changed while"), packed(folder):
            pass
    finally:
        stop.set()
        thread.join()


def test_a_log_that_grows_is_taken_as_far_as_it_went(folder: Path, tmp_path: Path) -> None:
    write(folder, {"train.log": "line\n" * 5_000_000})
    stop = threading.Event()

    def append() -> None:
        with (folder / "train.log").open("ab", buffering=0) as file:
            while not stop.is_set():
                file.write(b"more\n")

    thread = threading.Thread(target=append)
    thread.start()
    try:
        skipped = round_trip(folder, tmp_path / "out")
    finally:
        stop.set()
        thread.join()
    assert len(skipped) == 1
    assert skipped[0].startswith("train.log grew while it was packed")
    assert (tmp_path / "out" / "train.log").read_text().startswith("line\n" * 5_000_000)


def test_a_file_that_changes_once_is_read_again(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"a.py": "old" * 10})
    add = snapshot._add_file
    left = ["shrink it once"]

    def shrinking(*args: object) -> list[str]:
        """Patched: the moment between the size and the content can't be hit from outside."""
        result = add(*args)  # type: ignore[arg-type]
        if left:
            left.pop()
            raise snapshot._Changed("a.py")
        return result

    # the moment between the size and the content can't be hit from outside
    monkeypatch.setattr(snapshot, "_add_file", shrinking)
    round_trip(folder, tmp_path / "out")
    assert (tmp_path / "out" / "a.py").read_text() == "old" * 10


def test_a_folder_that_is_removed_meanwhile_is_left_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, {"train.py": "", "checkpoint-1/model.bin": ""})

    def never(name: str) -> bool:
        """Patched: the moment between the list of a folder and the next one
        can't be hit from outside.
        """
        shutil.rmtree(folder / "checkpoint-1", ignore_errors=True)
        return False

    # the moment between two folders can't be hit from outside
    monkeypatch.setattr(snapshot, "never", never)
    assert names(folder) == {"train.py"}


def test_a_full_disk_is_not_blamed_on_a_file_of_the_code(folder: Path) -> None:
    write(folder, {"train.py": secrets.token_hex(1_500_000)})
    with (
        no_file_grows_over(10),
        pytest.raises(InvalidRequest, match="no room for a snapshot"),
        packed(folder),
    ):
        pass


@pytest.mark.parametrize("folders", [10, pytest.param(100, marks=pytest.mark.long)])
def test_a_hundred_thousand_files_take_seconds(tmp_path: Path, folders: int) -> None:
    root = tmp_path / "many"
    for d in range(folders):
        directory = root / f"d{d}"
        directory.mkdir(parents=True)
        for f in range(1000):
            os.close(os.open(directory / f"{f}.py", os.O_CREAT | os.O_WRONLY))
    (root / ".gitignore").write_text("*.bin\n*.pt\nout/\n")
    begin = time.process_time()  # of this process alone: the machine may be busy
    with packed(root) as archive:
        assert len(archive.names) == folders * 1000 + 1
    assert time.process_time() - begin < folders * 0.25


def test_more_files_than_a_worker_unpacks_are_too_many(folder: Path, bounds: Bounds) -> None:
    bounds(snapshot, LIMIT_FILES=3)
    write(folder, dict.fromkeys("abcd", ""))
    with pytest.raises(TooLarge, match="4 files; 3 are allowed"), packed(folder):
        pass


PIECE = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=20
).filter(lambda name: name not in (".", "..") and len(name.encode()) < 200)


@settings(
    max_examples=examples(40),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
    deadline=None,
)
@given(files=st.dictionaries(PIECE, st.binary(max_size=3000), max_size=8))
def test_any_names_and_bytes_come_back_as_they_were(
    files: dict[str, bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    root = tmp_path_factory.mktemp("any")
    (root / "in").mkdir()
    for name, data in files.items():
        (root / "in" / name).write_bytes(data)
    expected = names(root / "in")
    round_trip(root / "in", root / "out")
    assert {path.name: path.read_bytes() for path in (root / "out").iterdir()} == {
        name: data for name, data in files.items() if name in expected
    }
