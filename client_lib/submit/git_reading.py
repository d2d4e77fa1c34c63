"""The git repository of a script: commit, remote, uncommitted changes as a patch."""

import logging
import os
import re
import shlex
import signal
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

PATIENCE_S = 3.0
"""Longest wait of a submit for git. git needs 1.5 s in a repository with 50,000 files beside a
folder of 200,000 new ones, and in a small one, under load, less than a second."""
PATIENCE_AGAIN_S = 0.3
"""The same in a repository whose git has taken longer before: a process may submit a thousand
jobs."""
# else git runs a program that the configuration names
_GIT = "git -c core.fsmonitor=false -c core.quotePath=false"
# The clean filters of the configuration do run, as with each `git diff`: git-lfs keeps its contents
# out by one.
_DIFF = f"{_GIT} diff --no-ext-diff --no-textconv --no-color --src-prefix=a/ --dst-prefix=b/"
_NEW = f"{_GIT} ls-files --others --exclude-standard --exclude='{PROOF_PREFIX}*' -z"
_OF_CHANGED = f"exec {_DIFF} --binary HEAD"
_OF_NEW = f"{_NEW} | xargs -0 -n 1 {_DIFF} --no-index -- /dev/null"
_PRINTED_MAX = 4 * DIFF_MAX
"""Bytes of a patch that are read: a character has up to four."""
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
_NOT_FOUND = 127
"""Exit code of a shell for a program that is not there."""
_NAMED = 5
"""Files that are left out and named."""
_MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)
_log = logging.getLogger("client_lib")
_slow: set[Path] = set()
"""Repositories whose git took longer than PATIENCE_S in this process."""


class GitReading:
    """A reading of the folder of a script by git. git runs beside the other steps of a submit. The
    submit waits for git at its end, by PATIENCE_S at most. What git has not read whole until then
    is not recorded, and the record says so; a git that fails is no error."""

    def __init__(self, folder: Path) -> None:
        self._root = next((each for each in (folder, *folder.parents) if _is_root(each)), None)
        self._patches: list[_Patch] = []
        if self._root:
            self._patches = [
                _Patch("changed files", _OF_CHANGED, self._root),
                _Patch("new files", _OF_NEW, self._root),
            ]

    @cached_property
    def result(self) -> Provenance:
        """All that is known when git has ended, or after PATIENCE_S."""
        if self._root is None:
            return Provenance(command_line=command_line())
        head = _head(self._root)
        patience_s = PATIENCE_AGAIN_S if self._root in _slow else PATIENCE_S
        late = self._late(patience_s)
        missing = []
        if late:
            missing.append(
                f"of the uncommitted changes the {' and the '.join(late)} are not known: git took "
                f"more than the {patience_s:g} s that a submit waits for it"
            )
        elif head.commit and self._patches[0].code:
            missing.append(
                f"the uncommitted changes are not known: `git diff HEAD` fails in {self._root}"
            )
        printed = [b"" if patch.name in late else patch.printed for patch in self._patches]
        parts = _travelling(b"".join(printed), self._root)
        secret = [names[-1] for names, part in parts if _is_new_secret(names[-1], part)]
        diff = "".join(part for names, part in parts if names[-1] not in secret)
        if len(diff) > DIFF_MAX or any(len(each) > _PRINTED_MAX for each in printed):
            missing.append(
                f"of the uncommitted changes the first {DIFF_MAX} characters are recorded"
            )
        if secret:
            named = ", ".join(secret[:_NAMED]) + (" ..." if secret[_NAMED:] else "")
            missing.append(f"new files whose names suggest a secret are left out: {named}")
        is_known = head.commit and (diff or not missing)
        return Provenance(
            command_line=command_line(),
            commit=_line(head.commit) or None,
            branch=_line(head.branch) or None,
            remote=_CREDENTIALS.sub("", _line(head.remote)) or None,
            diff=diff[:DIFF_MAX] if is_known else None,
            missing=_line("; ".join(missing)) or None,
        )

    def _late(self, patience_s: float) -> list[str]:
        """Wait for git, and end what then still runs. Return names of the patches that are not
        known whole."""
        assert self._root is not None
        _log.debug("waiting for git in %s", self._root)
        until = time.monotonic() + patience_s
        late = [patch.name for patch in self._patches if not patch.ends(until)]
        if late:
            _slow.add(self._root)
        return late


class _Patch:
    """Output of a command of git, read in a thread."""

    def __init__(self, name: str, command: str, root: Path) -> None:
        self.name = name
        self.printed = b""
        self.code: int | None = None
        """The exit code; None: there is none yet."""
        self._command = ["sh", "-c", _ALONE + command]
        self._root = root
        self._git: Popen[bytes] | None = None
        self._is_late = False
        self._thread = Thread(target=self._read, daemon=True)
        with suppress(RuntimeError):  # no thread is free
            self._thread.start()

    def ends(self, until: float) -> bool:
        """True if the command has ended by this time (monotonic, in seconds); else it is killed."""
        if self._thread.ident is not None:
            self._thread.join(max(0.0, until - time.monotonic()))
        if self.code is not None:
            return True
        self._is_late = True
        if self._git is not None:
            _kill(self._git)
        return False

    def _read(self) -> None:
        try:
            git = Popen(
                self._command,
                cwd=self._root,
                stdin=DEVNULL,
                stdout=PIPE,
                stderr=DEVNULL,
                start_new_session=True,  # so that all of a pipe can be killed
            )
        except OSError:  # there is no shell
            self.code = _NOT_FOUND
            return
        with git:
            self._git = git
            if self._is_late:
                _kill(git)
            assert git.stdout is not None
            while len(self.printed) <= _PRINTED_MAX and (
                block := os.read(git.stdout.fileno(), 65536)
            ):
                self.printed += block
            git.stdout.close()  # git ends at its next write
            ended = git.wait()
            self.code = 0 if len(self.printed) > _PRINTED_MAX else ended


def _kill(git: Popen[bytes]) -> None:
    with suppress(OSError):
        os.killpg(git.pid, signal.SIGKILL)


def command_line() -> str:
    """The line that runs this program, without values that are named like secrets."""
    return _line(shlex.join(Masking().words(sys.orig_argv)))


def _travelling(printed: bytes, root: Path) -> list[tuple[list[str], str]]:
    """Names and parts of the files of a patch that may leave this machine."""
    may = may_travel(root)
    found = files_of(printed.decode("utf-8", "replace"))
    return [(names, part) for names, part in found if all(map(may, names))]


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
