"""File systems of a few megabytes, which a test may fill, and a bound on the size of files."""

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """A file system at `folder`; `options` of mount, such as `size=1m`. Skips the
    test if it may not mount.
    """
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True
    )
    if done.returncode:
        pytest.skip("only root may mount a small file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    """Fill the disk of a folder to its last byte; the file that did it."""
    ballast = folder / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        for block in (2**20, 2**12, 1):
            try:
                while file.write(bytes(block)) == block:
                    pass
            except OSError:
                continue
    return ballast


def free(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@contextmanager
def no_file_grows_over(size: int) -> Iterator[None]:
    """Let each write behind `size` fail; Python ignores the signal that comes with it."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
