"""The files that a worker keeps of its ranks' working directory."""

import contextlib
import errno
import hashlib
import os
import signal
import tarfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from client_lib.launcher_protocol.output_globs import Patterns
from client_lib.launcher_protocol.output_store import (
    INDEX,
    BeingWritten,
    DirectoryStore,
    NotKept,
    SourceFile,
    data_path,
    read_index,
)
from client_lib.worker.outputs.collector import FileFinder, LookInterrupted, Sync
from tests.kit.small_disk import fill, free, small_disk
from tests.kit.waiting import until
from tests.worker.conftest import DEADLINE_S, Worker

MakeWorker = Callable[..., Worker]


@pytest.mark.parametrize(
    ("glob", "meant"),
    [
        ("**", ["a.pt", "b/c.pt", "b/d/e.txt"]),
        ("*.pt", ["a.pt"]),
        ("**/*.pt", ["a.pt", "b/c.pt"]),
        ("b", ["b/c.pt", "b/d/e.txt"]),
        ("b/", ["b/c.pt", "b/d/e.txt"]),
        ("b/*/e.t?t", ["b/d/e.txt"]),
        ("b/**/e.txt", ["b/d/e.txt"]),
        ("[ab].pt", ["a.pt"]),
        ("./a.pt", ["a.pt"]),
        ("c.pt", []),
    ],
)
def test_globs_mean_paths_as_in_a_shell_and_a_folder_means_all_in_it(
    glob: str, meant: list[str]
) -> None:
    assert list(filter(Patterns([glob]).match, ["a.pt", "b/c.pt", "b/d/e.txt"])) == meant


def job_of_a_snapshot(make: MakeWorker, folder: Path, script: str, **fields: Any) -> Worker:
    """Its code: train.py and data.txt; it keeps everything."""
    (folder / "code").mkdir()
    (folder / "code" / "train.py").write_text(script)
    (folder / "code" / "data.txt").write_text("data\n")
    with tarfile.open(folder / "code.tar.gz", "w:gz") as archive:
        archive.add(folder / "code", ".")
    given = {"outputs": ["**"], "outputs_to": str(folder / "outputs" / "1.0")} | fields
    return make(
        "", command=["train.py"], snapshot=str(folder / "code.tar.gz"), working_dir=".", **given
    )


def kept(folder: Path, name: str = "1.0") -> dict[str, str]:
    """Path -> text, of what is kept; each checked against its digest."""
    texts = {}
    for path, entry in read_index(str(folder / "outputs" / name)).kept.items():
        data = Path(data_path(str(folder / "outputs" / name), entry.sha256)).read_bytes()
        assert hashlib.sha256(data).hexdigest() == entry.sha256
        assert len(data) == entry.size
        texts[path] = data.decode()
    return texts


def left_out(folder: Path, name: str = "1.0") -> dict[str, str]:
    return {
        path: left.why for path, left in read_index(str(folder / "outputs" / name)).left_out.items()
    }


def test_what_the_ranks_created_or_changed_is_kept_and_nothing_else(
    worker: MakeWorker, tmp_path: Path
) -> None:
    script = """
import os
os.makedirs("out/deep")
open("out/deep/model.bin", "w").write("weights")
open("data.txt", "a").write("more")
os.makedirs("__pycache__"); open("__pycache__/x.pyc", "w")
os.symlink("out/deep/model.bin", "latest")
os.symlink("/etc/hostname", "elsewhere")
os.symlink("nowhere", "dangling")
os.mkfifo("pipe")
open("half", "w"); os.remove("half")
"""
    report = job_of_a_snapshot(worker, tmp_path, script).run()
    assert kept(tmp_path) == {
        "out/deep/model.bin": "weights",
        "data.txt": "data\nmore",
        "latest": "weights",
    }
    assert left_out(tmp_path) == {
        "elsewhere": "it is a link out of the working directory",
        "pipe": "it is no file but a pipe, a socket or a device",
    }
    assert (report["outputs"]["kept"], report["outputs"]["bytes"]) == (3, 7 + 9 + 7)
    assert [left["path"] for left in report["outputs"]["left_out"]] == ["elsewhere", "pipe"]


def test_only_what_the_globs_mean_is_kept(worker: MakeWorker, tmp_path: Path) -> None:
    script = "for name in ('a.pt', 'b.txt', 'c.pt'): open(name, 'w').write(name)"
    job_of_a_snapshot(worker, tmp_path, script, outputs=["a.*"]).run()
    assert kept(tmp_path) == {"a.pt": "a.pt"}


def test_a_failed_rank_leaves_its_outputs(worker: MakeWorker, tmp_path: Path) -> None:
    report = job_of_a_snapshot(
        worker, tmp_path, "open('a', 'w').write('1'); raise SystemExit(3)"
    ).run()
    assert (report["exit_code"], kept(tmp_path)) == (3, {"a": "1"})


def test_a_cancelled_worker_keeps_what_its_ranks_wrote_while_they_ended(
    worker: MakeWorker, tmp_path: Path
) -> None:
    script = """
import signal, sys, time
def end(*_):
    open("last.pt", "w").write("saved")
    sys.exit(1)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(600)
"""
    job = job_of_a_snapshot(worker, tmp_path, script).start().go()
    job.waits_for("ready")
    job.stop(30.0)
    assert job.report()["reason"] == "Cancelled"
    assert kept(tmp_path) == {"last.pt": "saved"}


def test_a_killed_launcher_loses_nothing_that_was_synced(
    worker: MakeWorker, tmp_path: Path
) -> None:
    script = """
import os, time
open("first.pt", "w").write("1"); os.utime("first.pt", (1, 1))
open("gone.pt", "w").write("x"); os.utime("gone.pt", (1, 1))
while not os.path.exists("go"): time.sleep(0.01)
os.remove("gone.pt")
time.sleep(600)
"""
    job = job_of_a_snapshot(worker, tmp_path, script, outputs_every_s=0.05).start().go()
    until(lambda: kept(tmp_path) == {"first.pt": "1", "gone.pt": "x"}, "the first sync")
    Path(job.directory.work, "go").touch()
    until(
        lambda: "gone.pt" not in read_index(str(tmp_path / "outputs" / "1.0")).kept,
        "the removed file is forgotten",
    )
    assert job.process
    job.process.send_signal(signal.SIGKILL)
    job.process.wait(DEADLINE_S)
    assert kept(tmp_path)["first.pt"] == "1"


def test_a_file_that_is_being_written_waits_for_the_end(worker: MakeWorker, tmp_path: Path) -> None:
    script = """
import os, time
open("done.pt", "w").write("1"); os.utime("done.pt", (1, 1))
with open("growing", "w") as file:
    while not os.path.exists("go"):
        print("line", file=file, flush=True)
        time.sleep(0.01)
"""
    job = job_of_a_snapshot(worker, tmp_path, script, outputs_every_s=0.05).start().go()
    until(lambda: "done.pt" in kept(tmp_path), "the first sync")
    assert "growing" not in kept(tmp_path)
    Path(job.directory.work, "go").touch()
    job.report()
    assert kept(tmp_path)["growing"].startswith("line\n")


def test_a_link_that_is_removed_while_it_is_looked_at_does_not_end_the_scan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    finder = FileFinder(str(tmp_path / "work"), ["**"], str(tmp_path / "memory"))
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "model").write_text("1")
    (tmp_path / "work" / "latest").symlink_to("model")

    def gone(path: str) -> str:  # between two calls of the finder, which no script does on time
        raise FileNotFoundError(path)

    # no script removes a link between two calls of the finder
    monkeypatch.setattr(os, "readlink", gone)
    assert "model" in [found.path for found in finder.look()]


def test_a_link_that_is_removed_before_it_is_kept_leaves_out_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work").mkdir()
    finder = FileFinder(str(tmp_path / "work"), ["**"], str(tmp_path / "memory"))
    (tmp_path / "work" / "model").write_text("1")
    (tmp_path / "work" / "latest").symlink_to("model")

    def gone(path: str) -> str:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

    # as above, behind the look and before the copy
    sync = Sync(finder, store(tmp_path), False, lambda: monkeypatch.setattr(os, "readlink", gone))
    sync.look(True)
    assert kept(tmp_path) == {"model": "1"}
    assert left_out(tmp_path) == {"latest": os.strerror(errno.ENOENT)}


def test_what_there_was_no_time_for_is_said(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    finder = FileFinder(str(tmp_path / "work"), ["**"], str(tmp_path / "memory"))
    for name in "abc":
        (tmp_path / "work" / name).write_text(name)

    def check_time() -> None:
        if "a" in kept(tmp_path):
            raise LookInterrupted

    sync = Sync(finder, store(tmp_path), False, check_time)
    sync.look(True)
    assert kept(tmp_path) == {"a": "a"}
    assert left_out(tmp_path) == dict.fromkeys("bc", "the time to keep it was over (grace_s)")
    late = [{"path": name, "size": 1, "why": left_out(tmp_path)[name]} for name in "bc"]
    assert sync.report() == {"kept": 1, "bytes": 1, "left_out": late, "left_out_count": 2}


def test_an_interrupted_last_scan_says_what_is_missing_and_nothing_else(tmp_path: Path) -> None:
    class Silent(DirectoryStore):
        def forget(self, path: str) -> None:
            raise LookInterrupted  # as HttpStore does if its server does not answer

    work = tmp_path / "work"
    work.mkdir()
    finder = FileFinder(str(work), ["**"], str(tmp_path / "memory"))
    for name in ("removed", "same"):
        (work / name).write_text(name)
        os.utime(work / name, (1e9, 1e9))
    sync = Sync(finder, Silent(str(tmp_path / "outputs" / "1.0"), 100), False, lambda: None)
    sync.look(False)
    assert kept(tmp_path) == {"removed": "removed", "same": "same"}
    (work / "removed").unlink()
    (work / "model").write_text("new")
    sync.look(True)
    late = {"path": "model", "size": 3, "why": "the time to keep it was over (grace_s)"}
    assert sync.report()["left_out"] == [late]


@pytest.mark.parametrize("folder", ["", "below"])
def test_files_in_a_folder_that_can_not_be_read_for_a_moment_are_not_taken_for_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    work = tmp_path / "work"
    work.mkdir()
    finder = FileFinder(str(work), ["**"], str(tmp_path / "memory"))
    (work / "below").mkdir()
    for name in ("a", "below/b"):
        (work / name).write_text(name)
        os.utime(work / name, (1e9, 1e9))
    sync = Sync(finder, store(tmp_path), False, lambda: None)
    sync.look(False)
    real = os.scandir

    def scandir(path: str) -> Any:
        if path == os.path.join(finder.root, folder):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(path)

    with monkeypatch.context() as patch, contextlib.suppress(OSError):
        # no disk fails on time
        patch.setattr(os, "scandir", scandir)
        sync.look(True)
    assert kept(tmp_path) == {"a": "a", "below/b": "below/b"}
    (work / "below" / "b").unlink()
    sync.look(True)
    assert kept(tmp_path) == {"a": "a"}


def test_a_file_that_has_another_name_outside_is_kept_as_it_was(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    finder = FileFinder(str(work), ["**"], str(tmp_path / "memory"))
    (work / "own").write_text("own")
    (tmp_path / "base").write_text("base")
    os.link(tmp_path / "base", work / "model")
    Sync(finder, store(tmp_path), True, lambda: None).look(True)
    (tmp_path / "base").write_text("later")
    assert kept(tmp_path) == {"model": "base", "own": "own"}
    assert (work / "own").stat().st_nlink == 2


def store(folder: Path, name: str = "1.0", limit: int = 100) -> DirectoryStore:
    return DirectoryStore(str(folder / "outputs" / name), limit)


def put(into: DirectoryStore, folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    fd = os.open(folder / name, os.O_RDONLY)
    try:
        into.keep(SourceFile(name, fd, False, lambda: None))
    finally:
        os.close(fd)


def test_a_job_keeps_no_more_than_its_limit_and_the_same_bytes_once(tmp_path: Path) -> None:
    first, second = store(tmp_path, "1.0"), store(tmp_path, "1.1")
    put(first, tmp_path, "a", "x" * 40)
    put(first, tmp_path, "same", "x" * 40)
    put(second, tmp_path, "b", "y" * 60)
    with pytest.raises(NotKept, match=r"the job keeps 0\.0 MB without it, and may keep 0\.0 MB"):
        put(first, tmp_path, "a", "z")
    second.forget("b")
    put(first, tmp_path, "a", "z" * 60)  # "same" is still there
    assert kept(tmp_path) == {"a": "z" * 60, "same": "x" * 40}


def test_a_file_that_could_not_be_kept_takes_no_room(tmp_path: Path) -> None:
    path = tmp_path / "growing"
    path.write_text("x" * 90)

    def grow() -> None:
        with path.open("a") as file:
            file.write("x")

    with path.open("rb") as file, pytest.raises(BeingWritten):
        store(tmp_path).keep(SourceFile("growing", file.fileno(), False, grow))
    put(store(tmp_path, "1.1"), tmp_path, "b", "y" * 60)


def test_a_copy_leaves_free_what_must_stay_free(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=4m") as disk:
        one = DirectoryStore(str(disk / "outputs" / "1.0"), 2**30, keep_free=2**21)
        put(one, tmp_path, "small", "x" * 2**20)
        with pytest.raises(OSError, match=r"2\.1 MB are needed .* of which 2\.1 MB must stay free"):
            put(one, tmp_path, "large", "x" * 2**21)
        assert free(disk) > 2**21
        assert not list((disk / "outputs" / "1.0" / "incoming").iterdir())


def test_a_rotating_checkpoint_needs_room_once(tmp_path: Path) -> None:
    one = store(tmp_path)
    for text in "abc":
        put(one, tmp_path, "last.pt", text * 90)
    assert kept(tmp_path) == {"last.pt": "c" * 90}
    assert len(list((tmp_path / "outputs" / "1.0" / "data").iterdir())) == 1


def test_what_earlier_attempts_left_makes_room_for_the_newest(tmp_path: Path) -> None:
    put(store(tmp_path, "1.0"), tmp_path, "a", "x" * 60)
    put(store(tmp_path, "2.0"), tmp_path, "b", "y" * 60)
    put(store(tmp_path, "3.0"), tmp_path, "c", "z" * 30)
    assert not (tmp_path / "outputs" / "1.0").exists()
    assert (kept(tmp_path, "2.0"), kept(tmp_path, "3.0")) == ({"b": "y" * 60}, {"c": "z" * 30})


def test_workers_that_keep_at_the_same_time_stay_below_the_limit(tmp_path: Path) -> None:
    stores = [store(tmp_path, f"1.{number}", limit=1000) for number in range(4)]

    def fill(number: int) -> None:
        (tmp_path / str(number)).mkdir()
        for each in range(20):
            try:
                put(stores[number], tmp_path / str(number), str(each), f"{number}.{each:02d}" * 10)
            except NotKept:
                return

    threads = [threading.Thread(target=fill, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sizes = [len(text) for number in range(4) for text in kept(tmp_path, f"1.{number}").values()]
    assert 900 < sum(sizes) <= 1000


def test_a_line_that_a_crash_cut_counts_as_not_written(tmp_path: Path) -> None:
    put(store(tmp_path), tmp_path, "a", "1")
    file = tmp_path / "outputs" / "1.0" / INDEX
    whole = file.read_bytes()
    file.write_bytes(whole + b'{"path": "b", "si')
    assert kept(tmp_path) == {"a": "1"}
    put(store(tmp_path), tmp_path, "c", "3")
    assert kept(tmp_path) == {"a": "1", "c": "3"}


def test_a_long_list_is_written_anew_when_most_of_it_is_old(tmp_path: Path) -> None:
    one = store(tmp_path)
    put(one, tmp_path, "a", "1")
    for number in range(2000):
        one.leave_out("b", number, "why")
    before = (tmp_path / "outputs" / "1.0" / INDEX).stat().st_size
    store(tmp_path).close()
    assert (tmp_path / "outputs" / "1.0" / INDEX).stat().st_size < before / 100
    assert (kept(tmp_path), left_out(tmp_path)) == ({"a": "1"}, {"b": "why"})


def test_a_store_is_opened_on_a_full_disk_though_its_list_could_be_shorter(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "size=2m") as disk:
        one = store(disk, limit=2**30)
        put(one, tmp_path, "a", "x" * 2**20)
        for size in (1, 2):
            one.leave_out("b", size, "why")
        one.close()
        with open(disk / "outputs" / "1.0" / INDEX, "ab") as file:
            file.write(b'{"path": "c", "si')
        fill(disk)
        store(disk, limit=2**30).forget("a")
        assert free(disk) >= 2**20
        assert (kept(disk), left_out(disk)) == ({}, {"b": "why"})


def test_what_a_full_disk_kept_out_of_the_list_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, data = store(tmp_path), tmp_path / "outputs" / "1.0" / "data"

    def refused(act: Callable[[], None]) -> None:
        def full(_: bytes) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patch:
            # no disk is full on time, between a file and its line
            patch.setattr(one, "_append", full)
            with pytest.raises(OSError, match="No space left"):
                act()

    for act in (
        lambda: put(one, tmp_path, "a", "1"),
        lambda: one.leave_out("b", 2, "why"),
        lambda: one.forget("a"),
    ):
        before = (kept(tmp_path), left_out(tmp_path), list(data.iterdir()))
        refused(act)
        assert (kept(tmp_path), left_out(tmp_path), list(data.iterdir())) == before
        act()
        assert (kept(tmp_path), left_out(tmp_path), list(data.iterdir())) != before
    assert (kept(tmp_path), left_out(tmp_path), list(data.iterdir())) == ({}, {"b": "why"}, [])


def test_two_thousand_files_that_were_there_are_looked_through_in_little_time(
    tmp_path: Path,
) -> None:
    for number in range(2000):
        (tmp_path / f"{number}.py").write_text("x")
    FileFinder(str(tmp_path), ["*.py", "new"], str(tmp_path / "memory"))
    (tmp_path / "7.py").write_text("y!")
    (tmp_path / "new").write_text("z")
    # of a launcher that goes on: nothing new has to be remembered
    finder = FileFinder(str(tmp_path), ["*.py", "new"], str(tmp_path / "memory"))
    began = time.monotonic()
    assert [found.path for found in finder.look()] == ["7.py", "new"]
    assert time.monotonic() - began < 5.0  # 10 ms on an idle machine
