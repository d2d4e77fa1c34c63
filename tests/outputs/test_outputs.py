"""Outputs of real jobs on a real server, through the SDK."""

import os
from pathlib import Path

import pytest

from client_lib import Job, JobFailed
from client_lib.client import Client
from client_lib.errors import NotFound
from client_lib.transport.download import Progress
from tests.kit.waiting import until

PATIENCE_S = 60.0


def tree(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def ended(folder: Path, script: str, **fields: object) -> Job:
    (folder / "train.py").write_text(script)
    job = Job(script="train.py", code="snapshot", log_file=None, **fields)  # type: ignore[arg-type]
    job.submit()
    try:
        job.wait(PATIENCE_S)
    except JobFailed:
        pass
    return job


SCRIPT = """
import os
rank = os.environ["RANK"]
os.makedirs("out", exist_ok=True)
open("out/rank%s.txt" % rank, "w").write(rank)
open("same.txt", "w").write("same")
open("log.txt", "w").write("of rank " + rank)
os.symlink("/etc/passwd", "secret")
open("naïve name #1?.txt", "w").write("%41")
"""


def test_what_the_workers_left_is_downloaded_kept_apart_and_said(
    folder: Path, tmp_path: Path
) -> None:
    job = ended(folder, SCRIPT, n_workers=2)
    seen: list[Progress] = []
    paths = job.download(tmp_path / "here", on_download=seen.append)
    assert tree(tmp_path / "here") == {
        "out/rank0.txt": "0",
        "out/rank1.txt": "1",
        "same.txt": "same",
        "log.txt": "of rank 0",
        "worker-1/log.txt": "of rank 1",
        "naïve name #1?.txt": "%41",
    }
    assert {path.relative_to(tmp_path / "here").as_posix() for path in paths} == set(
        tree(tmp_path / "here")
    )
    assert seen[-1] == Progress(6, 6, 27, 27)
    said = [event.message for event in job.events()]
    assert (
        "workers wrote different outputs of one name; they are kept apart, as worker-1/log.txt"
        in said
    )
    left = (
        "output secret of worker {} (0.0 MB) is not kept: it is a link out of the working directory"
    )
    assert {left.format(0), left.format(1)} <= {
        line.replace(size, "(0.0 MB)") for line in said for size in ["(0.0 MB)"]
    }
    assert not (folder / "out").exists()


def test_a_pattern_chooses_and_the_folder_is_the_jobs_name_by_default(folder: Path) -> None:
    job = ended(folder, SCRIPT)
    job.download(pattern="out/**")
    assert tree(folder / str(job.name)) == {"out/rank0.txt": "0"}


def test_a_failed_jobs_outputs_are_there(folder: Path, tmp_path: Path) -> None:
    job = ended(folder, "open('last.pt', 'w').write('saved'); raise SystemExit(1)")
    job.download(tmp_path / "here")
    assert tree(tmp_path / "here") == {"last.pt": "saved"}


def test_outputs_of_nothing_are_none(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = ended(folder, "open('last.pt', 'w').write('saved')", outputs=[])
    assert job.download(tmp_path / "here") == []
    assert "keeps no outputs (outputs=[])" in caplog.text
    assert not (tmp_path / "here").exists()


def test_a_job_in_place_says_where_its_files_are(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "train.py").write_text("open('model.bin', 'w').write('1')")
    job = Job(script="train.py", log_file=None)
    job.submit()
    job.wait(PATIENCE_S)
    assert job.download(tmp_path / "here") == []
    assert f"job {job.name} runs in place: what it writes is found in {folder}" in caplog.text
    assert (folder / "model.bin").exists()


def test_a_job_in_place_keeps_what_it_is_told_to_keep(folder: Path, tmp_path: Path) -> None:
    (folder / "train.py").write_text("import os; open('model.bin', 'w').write(os.environ['RANK'])")
    (folder / "old.bin").write_text("there before")
    job = Job(script="train.py", outputs=["*.bin"], n_workers=2, log_file=None)
    job.submit()
    job.wait(PATIENCE_S)
    (folder / "model.bin").write_text("of a later run")
    job.download(tmp_path / "here")
    assert list(tree(tmp_path / "here")) == ["model.bin"]
    assert tree(tmp_path / "here")["model.bin"] in ("0", "1")


def test_a_retry_keeps_what_the_attempt_before_left(folder: Path, tmp_path: Path) -> None:
    script = """
import os, sys
attempt = os.environ["CLIENT_LIB_ATTEMPT"]
open("of%s" % attempt, "w").write(attempt)
open("both", "w").write(attempt)
sys.exit(attempt == "1")
"""
    job = ended(folder, script, max_retry=1)
    job.download(tmp_path / "here")
    assert tree(tmp_path / "here") == {"of1": "1", "of2": "2", "both": "2"}


def test_deleting_the_job_removes_its_outputs(
    folder: Path, client: Client, local_server: Path
) -> None:
    job = ended(folder, "open('model.bin', 'w').write('1')")
    assert client.job_outputs(str(job.name)).files
    kept = local_server / "data" / "jobs" / job.info().id / "outputs"
    assert kept.is_dir()
    job.delete()
    with pytest.raises(NotFound):
        client.job_outputs(str(job.name))
    until(lambda: not kept.exists())


def test_a_download_goes_on_where_it_was_cut_and_replaces_what_differs(
    folder: Path, tmp_path: Path, client: Client
) -> None:
    job = ended(folder, "open('big', 'wb').write(bytes(range(256)) * 8000)")
    (file,) = client.job_outputs(str(job.name)).files
    whole = bytes(range(256)) * 8000
    here = tmp_path / "here"
    here.mkdir()
    part = here / f".big.{file.sha256[:12]}.part"
    part.write_bytes(whole[:1_000_000])
    (here / "big").write_text("another one")
    seen: list[Progress] = []
    job.download(here, on_download=seen.append)
    assert seen[0].size == 1_000_000
    assert (here / "big").read_bytes() == whole
    assert [path.name for path in here.iterdir()] == ["big"]
    before = (here / "big").stat()
    job.download(here)
    assert (here / "big").stat().st_ino == before.st_ino


def test_a_part_of_other_bytes_is_found_by_its_digest(
    folder: Path, tmp_path: Path, client: Client
) -> None:
    from client_lib.errors import BadResponse

    job = ended(folder, "open('a', 'w').write('right')")
    (file,) = client.job_outputs(str(job.name)).files
    (tmp_path / f".a.{file.sha256[:12]}.part").write_text("wro")
    with pytest.raises(BadResponse, match="what came as a has the digest"):
        job.download(tmp_path)
    job.download(tmp_path)
    assert (tmp_path / "a").read_text() == "right"


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_no_link_in_the_folder_is_written_through(
    folder: Path, tmp_path: Path, client: Client
) -> None:
    from client_lib.errors import InvalidRequest

    job = ended(
        folder, "import os; os.mkdir('d'); open('d/f', 'w').write('1'); open('a', 'w').write('2')"
    )
    outside, here = tmp_path / "outside", tmp_path / "here"
    outside.mkdir()
    here.mkdir()
    (outside / "a").write_text("mine")
    (here / "d").symlink_to(outside)
    (here / "a").symlink_to(outside / "a")
    (file,) = (one for one in client.job_outputs(str(job.name)).files if one.path == "a")
    (here / f".a.{file.sha256[:12]}.part").symlink_to(outside / "made")
    with pytest.raises(InvalidRequest, match="d is a link"):
        job.download(here)
    assert tree(outside) == {"a": "mine"}
    assert (here / "a").read_text() == "2"
    assert not (here / "a").is_symlink()
