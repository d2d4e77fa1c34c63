"""Which files of a job's folder the server opens."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from server_stub.files.job_dirs import opener


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another user")
def test_only_a_server_of_root_asks_who_owns_a_file(
    tmp_path: Path, seems_run_by: Callable[[int], None]
) -> None:
    file = tmp_path / "log"
    file.write_text("mapped to another owner by the file system\n")
    os.chown(file, 12345, 12345)
    with pytest.raises(FileNotFoundError):
        os.close(opener(tmp_path)(str(file), os.O_RDONLY))
    seems_run_by(1000)
    os.close(opener(tmp_path)(str(file), os.O_RDONLY))
