"""The git repository of a script: commit, remote, uncommitted changes as a patch."""

import os
import re
import shlex
import sys
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread
from typing import NamedTuple

from client_lib.spec.request import DIFF_MAX, Provenance
from client_lib.spec.secrets import Masking
from client_lib.spec.validation import PATH_MAX
from client_lib.submit.ignore import PROOF_PREFIX, may_travel

PATIENCE_S = 0.3
"""Longest wait for git: of a small repository it has ended long before, and under load the start of
a process alone takes more than 10 ms."""
# else git runs a program that the configuration names
_GIT = "git -c core.fsmonitor=false -c core.quotePath=false"
# The clean filters of the configuration do run, as with each `git diff`: git-lfs keeps its contents
# out by one.
_DIFF = f"{_GIT} diff --no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/"
_NEW = f"{_GIT} ls-files --others --exclude-standard --exclude='{PROOF_PREFIX}*' -z"
_PARTS = (f"exec {_DIFF} --binary HEAD", f"{_NEW} | xargs -0 -n 1 {_DIFF} --no-index -- /dev/null")
# a hook of git may submit
_ALONE = "unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE; export GIT_OPTIONAL_LOCKS=0; "
_CREDENTIALS = re.compile(r"(?<=://)[^/]*@|\?.*")
_SECRET_FILES = (
    "*.jks",
    "*.kdbx",
    "*.key",
    "*.keystore",
    "*.p12",
    "*.pem",
    "*.pfx",
    "*.ppk",
    ".git-credentials",
    ".htpasswd",
    ".npmrc",
    ".pypirc",
    "credentials",
    "credentials.*",
    "id_dsa*",
    "id_ecdsa*",
    "id_ed25519*",
    "id_rsa*",
    "secret.*",
    "secrets",
    "secrets.*",
)
"""Names of files that hold keys and passwords. A file of git's history is no secret any more."""
_SECRET_FOLDERS = frozenset(
    {".aws", ".azure", ".docker", ".gnupg", ".kube", ".secrets", ".ssh", "secrets"}
)
"""Names of folders whose files are secrets, whatever their names: `.ssh/deploy`, `.kube/config`."""
_HEAD_OF_PART = 10_000
"""Characters of a file's part of a patch that hold its first lines: names have up to 4096."""
_NAMED = 5
"""Files that are left out and named."""
_MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)


class GitReading:
    """A reading of the folder of a script by git. git runs beside the other steps of a submit,
    which waits at most PATIENCE_S for git: what git has not printed until then is not recorded, and
    a git that fails is no error."""

    def __init__(self, folder: Path) -> None:
        self._root = next((each for each in (folder, *folder.parents) if _is_root(each)), None)
        self._printed = [b""] * len(_PARTS)
        parts = enumerate(_PARTS) if self._root else ()
        self._threads = [Thread(target=self._read, args=part, daemon=True) for part in parts]
        with suppress(RuntimeError):  # no thread is free
            for thread in self._threads:
                thread.start()

    @cached_property
    def result(self) -> Provenance:
        """All that is known by now, or after PATIENCE_S."""
        until = time.monotonic() + PATIENCE_S
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))
        whole = "".join(printed.decode("utf-8", "replace") for printed in self._printed)
        may = may_travel(self._root or Path())
        parts = [(names, part) for names, part in files_of(whole) if all(map(may, names))]
        secret = [names[-1] for names, part in parts if _is_new_secret(names[-1], part)]
        diff = "".join(part for names, part in parts if names[-1] not in secret)
        head = _head(self._root) if self._root else _Head()
        missing = None
        if any(thread.is_alive() for thread in self._threads):
            missing = (
                "the uncommitted changes are not known: git took more than the "
                f"{1000 * PATIENCE_S:.0f} ms that a submit waits for it"
            )
        elif len(diff) > DIFF_MAX or any(len(printed) > 4 * DIFF_MAX for printed in self._printed):
            missing = f"of the uncommitted changes the first {DIFF_MAX} characters are recorded"
        if secret:
            named = ", ".join(secret[:_NAMED]) + (" ..." if secret[_NAMED:] else "")
            left_out = f"new files whose names suggest a secret are left out: {named}"
            missing = f"{missing}; {left_out}" if missing else left_out
        known_diff: str | None = diff[:DIFF_MAX]
        if not head.commit or (missing and not diff):
            known_diff = None
        return Provenance(
            command_line=_line(shlex.join(Masking().words(sys.orig_argv))),
            commit=_line(head.commit) or None,
            branch=_line(head.branch) or None,
            remote=_CREDENTIALS.sub("", _line(head.remote)) or None,
            diff=known_diff,
            missing=missing and _line(missing),
        )

    def _read(self, number: int, part: str) -> None:
        command = ["sh", "-c", _ALONE + part]
        with (
            suppress(OSError),
            Popen(command, cwd=self._root, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL) as git,
        ):
            assert git.stdout is not None
            while len(self._printed[number]) <= 4 * DIFF_MAX and (
                block := os.read(git.stdout.fileno(), 65536)
            ):
                self._printed[number] += block
            git.stdout.close()  # git ends at its next write


def _is_root(folder: Path) -> bool:
    """False for a repository of the home directory or of all above it: it holds more than code."""
    if not os.path.exists(folder / ".git"):
        return False
    home = Path.home().resolve()
    return folder.resolve() not in (home, *home.parents)


class _Head(NamedTuple):
    """The checked-out version; "": not known."""

    commit: str = ""
    branch: str = ""
    remote: str = ""
    """URL of `origin`."""


def _head(root: Path) -> _Head:
    """Read git's files: that takes 0.2 ms, and a process of git 2 ms."""
    folder = root / ".git"
    if os.path.isfile(folder):  # of a worktree or a submodule
        folder = root / _content(folder).removeprefix("gitdir: ")
    common = folder / (_content(folder / "commondir") or ".")
    head = _content(folder / "HEAD")
    ref = head.removeprefix("ref: ")
    commit = head if ref == head else _content(common / ref)
    if not commit:  # the file of all packed refs may be large
        packed = re.search(
            rf"^(\S+) {re.escape(ref)}$", _content(common / "packed-refs"), re.MULTILINE
        )
        commit = packed[1] if packed else ""
    url = re.search(
        r'^\[remote "origin"\][^\[]*?^\s*url\s*=\s*(.+)$', _content(common / "config"), re.MULTILINE
    )
    branch = "" if ref == head else ref.removeprefix("refs/heads/")
    return _Head(commit, branch, url[1] if url else "")


def _content(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text("utf-8", "replace").strip()
    return ""


def _is_new_secret(path: str, part: str) -> bool:
    *folders, name = path.lower().split("/")
    is_named_so = any(fnmatchcase(name, pattern) for pattern in _SECRET_FILES)
    is_new = "\nnew file mode " in part[:_HEAD_OF_PART]
    return is_new and (is_named_so or not _SECRET_FOLDERS.isdisjoint(folders))


def _line(text: str) -> str:
    return re.sub("[\x00-\x1f\x7f-\x9f\ud800-\udfff]", "\ufffd", text)[:PATH_MAX]


# --- patches


def files_of(patch: str) -> list[tuple[list[str], str]]:
    """Names (of a file that was moved the old and the new one) and part of the
    patch, for each file in it.
    """
    found = []
    for part in re.split(r"^(?=diff --git )", patch, flags=re.MULTILINE)[1:]:
        names = [_unquoted(name) for name in _MOVED.findall(part.partition("\n@@ ")[0])]
        if not names:
            header = part.partition("\n")[0].removeprefix("diff --git ")
            before = _unquoted(header[: len(header) // 2])
            after = _unquoted(header[len(header) // 2 + 1 :])
            # the same: a patch without `a/` and `b/`
            names = [after if before == after else after[2:]]
        found.append((names, part))
    return found


def _unquoted(name: str) -> str:
    """git quotes names as in C: `"b/\\320\\264"`."""
    if not (len(name) > 1 and name[0] == name[-1] == '"'):
        return name
    escaped = name[1:-1].encode("utf-8", "backslashreplace")
    return (
        escaped.decode("unicode_escape", "replace")
        .encode("latin-1", "replace")
        .decode("utf-8", "replace")
    )
