"""The folder with what a job finds of those before it."""

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.output_store import DirectoryStore, Kept
from server_stub.files import outputs
from server_stub.runtimes import Source, inputs


def kept(job_dir: Path, path: str, content: bytes, *, executable: bool = False) -> Path:
    """Keep a file as an output of this job."""
    folder = outputs.folder(job_dir, 1, 0)
    store = DirectoryStore(str(folder), 2**20)
    sha256 = hashlib.sha256(content).hexdigest()
    Path(store.incoming("file")).write_bytes(content)
    store.adopt(Kept(path, len(content), sha256, 0.0, executable), store.incoming("file"))
    store.close()
    return folder / "data" / sha256


@pytest.mark.parametrize("euid", [0, 1000])
def test_files_are_links_unless_a_server_of_root_keeps_them(
    tmp_path: Path, seems_run_by: Callable[[int], None], euid: int
) -> None:
    seems_run_by(euid)
    original = kept(tmp_path / "job", "a/b.pt", b"weights", executable=True)
    result = tmp_path / "job" / "attempts" / "2" / "workers" / "0" / "results" / "0"
    result.parent.mkdir(parents=True)
    result.write_bytes(b"{}")
    for _ in range(2):  # the server was killed after the first
        inputs.make_folder([[], [Source(tmp_path / "job", 2)]], tmp_path / "inputs", 0)
    found = sorted(
        path.relative_to(tmp_path / "inputs").as_posix()
        for path in (tmp_path / "inputs").rglob("*")
    )
    assert found == ["0", "1", "1.result", "1/a", "1/a/b.pt"]
    file = tmp_path / "inputs" / "1" / "a" / "b.pt"
    assert (file.read_bytes(), file.stat().st_mode & 0o777) == (b"weights", 0o555)
    assert file.samefile(original) is (euid != 0)


def test_a_list_of_files_that_leads_out_of_the_folder_is_refused(tmp_path: Path) -> None:
    kept(tmp_path / "job", "../../etc/passwd", b"mine")
    with pytest.raises(InvalidRequest, match="is no relative path"):
        inputs.make_folder([[Source(tmp_path / "job", 1)]], tmp_path / "inputs", 0)
    assert not list(tmp_path.rglob("passwd"))


def test_a_path_that_was_a_file_and_a_folder_is_the_file(tmp_path: Path) -> None:
    for path in ("out/x", "out", "out-2"):
        kept(tmp_path / "job", path, path.encode())
    inputs.make_folder([[Source(tmp_path / "job", 1)]], tmp_path / "inputs", 0)
    assert {path.name for path in (tmp_path / "inputs" / "0").iterdir()} == {"out", "out-2"}
    assert (tmp_path / "inputs" / "0" / "out").read_bytes() == b"out"


def test_a_full_disk_is_said_before_a_file_is_copied(
    tmp_path: Path, seems_run_by: Callable[[int], None]
) -> None:
    seems_run_by(0)
    kept(tmp_path / "job", "model.pt", b"weights")
    with pytest.raises(OSError, match="must stay free"):
        inputs.make_folder([[Source(tmp_path / "job", 1)]], tmp_path / "inputs", 2**60)


def test_the_archive_holds_every_byte(tmp_path: Path) -> None:
    large = os.urandom(3 * 2**20 + 1)
    kept(tmp_path / "job", "large", large)
    kept(tmp_path / "job", "n" * 200, b"", executable=True)
    packed = b"".join(inputs.archive([[Source(tmp_path / "job", 1, "scan-0")]]))
    with tarfile.open(fileobj=io.BytesIO(packed), mode="r:gz") as archive:
        assert [member.name for member in archive] == [
            "0",
            "0/scan-0",
            "0/scan-0/large",
            f"0/scan-0/{'n' * 200}",
        ]
        read = archive.extractfile("0/scan-0/large")
        assert read is not None
        assert read.read() == large
