"""Other accounts can read nothing that the local server and its jobs keep, under any umask."""

import os
import re
import stat
import sys
from pathlib import Path

import pytest

from client_lib import Client, Job, JobEnded
from tests.end_to_end.conftest import LocalServer

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform == "win32", reason="jobs don't run on Windows itself"),
]
SCRIPT = """
import os, pathlib, sys
pathlib.Path(os.environ["CLIENT_LIB_CHECKPOINT_DIR"], "last.txt").write_text("x")
pathlib.Path("out.txt").write_text("x")
print("loss=0.5 step=1", flush=True)
if sys.argv[1:]:
    raise ValueError(sys.argv[1])
"""
OF_SCRIPTS = re.compile(r".*/(checkpoints|work|inputs/\d+|outputs/[\d.]+/data)")
"""Folders whose content has the modes that a script or its archive gives."""


def add(one: int, other: int) -> int:
    return one + other


@pytest.mark.parametrize("umask", [0o022, 0o000])
def test_nothing_below_the_state_directory_is_open_to_other_accounts(
    own_server: LocalServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)
    before = os.umask(umask)
    try:
        run_jobs()
    finally:
        os.umask(before)
    wide = open_to_others(own_server.state_dir)
    assert wide == [], "\n".join(wide)


def run_jobs() -> None:
    """Jobs of each kind that leaves files."""
    client = Client()
    first = Job(script="train.py", n_workers=2, name="first", client=client)
    first.submit()
    jobs = [
        Job(
            script="train.py",
            after=["first"],
            checkpoint_from="first",
            name="second",
            client=client,
        ),
        Job(script="train.py", args=["no"], name="failed", client=client),
        Job(
            script="train.py", code="snapshot", outputs=["out*"], name="with-outputs", client=client
        ),
        Job(script=add, args=(1, 2), name="function", client=client),
    ]
    for job in jobs:
        job.submit()
    for job in (first, *jobs):
        try:
            job.wait(timeout=120)
        except JobEnded:
            assert job.name == "failed"
    late = Job(script="train.py", after=["with-outputs"], name="late", client=client)
    late.submit()
    late.wait(timeout=120)


def open_to_others(root: Path) -> list[str]:
    """Files and folders with a bit for other accounts, by mode and path."""
    found = []
    for folder, folders, files in os.walk(root):
        if OF_SCRIPTS.fullmatch(folder):
            folders.clear()
            continue
        for name in (*folders, *files):
            there = os.lstat(os.path.join(folder, name))
            if not stat.S_ISLNK(there.st_mode) and there.st_mode & 0o077:
                path = Path(folder, name).relative_to(root)
                found.append(f"{stat.filemode(there.st_mode)} {path}")
    return sorted(found)
