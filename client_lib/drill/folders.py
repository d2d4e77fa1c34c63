"""The copies of the code in which the runs of a drill take place, and what a script writes
elsewhere.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from client_lib.durable import make_private_folders
from client_lib.errors import InvalidRequest
from client_lib.launcher_protocol.archive import unpack
from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec
from client_lib.submit.snapshot import packed
from client_lib.submit.source import place_in_root, resolve, snapshot_root

_PREFIX = "client-lib-drill-"
_OUTPUT = re.compile(
    r"--?(?:[\w.-]*[-_.])?(out|output|save|ckpt|checkpoint|checkpoints|results?|runs?|exp)"
    r"(?:[-_.](dir|path|folder|root|to|file))?",
    re.IGNORECASE,
)
"""Options that name the place of outputs."""
_NOT_THE_USERS = re.compile(
    r"^/(dev|proc|sys)/|/(__pycache__|site-packages|dist-packages|torchinductor_\w+)/|"
    r"/\.(cache|config/matplotlib|triton|nv|keras|matplotlib|ipython)/"
)
"""Caches of libraries, devices, and files of the kernel."""


class RunPlace(NamedTuple):
    """The folder of one fault: both of its runs take place in it."""

    folder: Path
    working_dir: Path
    script: str
    """The field of the job."""
    checkpoints: Path
    records: Path
    """Outside of `folder`, which may be a full disk."""


class Ground:
    """The code of a script, packed once, and the folder below which its runs take place."""

    def __init__(
        self, base: Path, archive: Path, words: Sequence[str], inside: tuple[str | None, str]
    ) -> None:
        self.base = base
        self._archive = archive
        self._words = words
        self._script, self._working_dir = inside

    def place(self, name: str) -> RunPlace:
        """Unpack the code into a new folder, or into an empty one of this name. The records have a
        new folder each time."""
        folder = self.base / name
        code = folder / "code"
        unpack(str(self._archive), str(code))
        words = list(self._words)
        if self._script is not None:
            words[0] = str(code / self._script)
        checkpoints = folder / "checkpoints"
        checkpoints.mkdir()
        return RunPlace(
            folder,
            code / self._working_dir,
            shlex.join(words),
            checkpoints,
            Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.base / "records")),
        )


@contextmanager
def ground(spec: JobSpec, script: str) -> Iterator[Ground]:
    """Pack the code of a script as a snapshot does. The folder stays if the block leaves a run in
    it, and does not fail.

    Raises InvalidRequest: there is no such script, or its folder can't be packed.
    """
    source = resolve(script, spec.type, Path.cwd(), spec.conda_env is not None)
    root = snapshot_root(source.folder, Path.home())
    inside = place_in_root(source, spec, root)
    words = split_script(source.text)
    check_arguments([*words[1:], *spec.command()[1:]])
    base = Path(tempfile.mkdtemp(prefix=_PREFIX))
    try:
        with packed(root) as archive:
            make_private_folders(str(base / "records"))
            yield Ground(base, archive.path, words, inside)
    except BaseException:
        shutil.rmtree(base, ignore_errors=True)
        raise
    if {entry.name for entry in base.iterdir()} <= {"records"}:
        shutil.rmtree(base, ignore_errors=True)


def check_arguments(words: Sequence[str]) -> None:
    """Raises InvalidRequest for an option that names a place of outputs outside of the working
    directory: the runs of a drill would write there."""
    for option, value in _options(words):
        if _OUTPUT.fullmatch(option) and (os.path.isabs(value) or ".." in Path(value).parts):
            raise InvalidRequest(
                f"{option} {value} is outside of the working directory: the runs of a drill would "
                "write into it",
                hint="give a relative path; each run has a working directory of its own",
            )


def _options(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    for number, word in enumerate(words):
        option, equals, value = word.partition("=")
        if equals:
            yield option if option.startswith("-") else f"--{option}", value
        elif word.startswith("-") and number + 1 < len(words):
            yield word, words[number + 1]


def outside(written: Iterable[str], base: Path) -> list[str]:
    """The paths that belong to the user: neither below `base` nor of a cache."""
    return sorted(
        path
        for path in set(written)
        if not _is_below(path, base) and not _NOT_THE_USERS.search(path)
    )


def is_temporary(path: str) -> bool:
    """True if the path is in the folder of temporary files."""
    return _is_below(path, Path(tempfile.gettempdir()))


def _is_below(path: str, folder: Path) -> bool:
    return os.path.realpath(path).startswith(os.path.join(os.path.realpath(folder), ""))
