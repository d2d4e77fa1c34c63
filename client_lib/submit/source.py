"""The source of a job: the words of `script` become a file or a command, and its folder the root of
a snapshot. Also reads where the code comes from: commit, branch, remote and uncommitted changes."""

import difflib
import hashlib
import os
import re
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from subprocess import DEVNULL, PIPE, Popen
from threading import Thread

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import split_script
from client_lib.spec.job import MASK, SECRET_NAME, JobSpec, JobType
from client_lib.spec.request import DIFF_MAX, Provenance, SharedFolderProof
from client_lib.spec.validation import PATH_MAX
from client_lib.submit.ignore import PROOF_PREFIX, may_travel

ROOT_MARKS = (".git", "pyproject.toml")


@dataclass(frozen=True)
class Source:
    """The script or command on the caller's machine."""

    text: str
    """The script field for the request: a file's absolute path, quoted, with its arguments; or the
    command.
    """
    script: Path | None
    """The .py file, absolute, links not resolved; None: a command."""
    cwd: Path  # the caller's

    @property
    def folder(self) -> Path:
        return self.script.parent if self.script else self.cwd

    def sha256(self) -> str | None:
        return hashlib.sha256(self.script.read_bytes()).hexdigest() if self.script else None


def resolve(script: str, job_type: JobType, cwd: Path, in_conda: bool = False) -> Source:
    """Find what `script` means: an existing path, relative to `cwd`, or else a command of several
    words. `in_conda`: the job names a conda environment, whose python runs a .py file also for the
    binary types. Raises InvalidRequest: there is no such script (names the nearest), or it can't be
    read or needs a shell."""
    # too long for a file name, perhaps: Path.is_file would raise OSError
    whole = _absolute(script.strip(), cwd)
    try:
        words = [script.strip()] if os.path.isfile(whole) else split_script(script)
    except ValueError as error:
        raise InvalidRequest(f"script: {error}") from None
    word, path = words[0], _absolute(words[0], cwd)
    if word.endswith(".py") and not job_type.is_command:
        try:
            path.open("rb").close()
        except FileNotFoundError:
            raise InvalidRequest(f"script: there is no {path}", hint=_nearest(path)) from None
        except NotADirectoryError:
            raise InvalidRequest(
                f"script: there is no {path}; {path.parent} is no folder"
            ) from None
        except IsADirectoryError:
            raise InvalidRequest(
                f"script: {path} is a directory", hint=_nearest(path / "train.py")
            ) from None
        except OSError as error:
            raise InvalidRequest(f"script: {path} can't be read: {error.strerror}") from None
        return Source(shlex.join([str(path), *words[1:]]), path, cwd)
    if os.path.isdir(path):
        raise InvalidRequest(f"script={word!r} is a directory", hint="give the file that runs")
    if not os.path.isfile(path):
        if os.sep in word and not os.path.isabs(word):
            raise InvalidRequest(f"script={word!r}: there is no {path}", hint=_nearest(path))
        return Source(script, None, cwd)
    # a file of the caller's directory is named as a shell would want it, so that it is found and
    # started
    started = [word if os.sep in word else f"./{word}", *words[1:]]
    if not os.access(path, os.X_OK):
        interpreter = {".sh": "bash", ".py": "python" if in_conda else None}.get(path.suffix)
        if interpreter is None:
            what = (
                f"script={script!r}: {path} can't be executed, and type={str(job_type)!r} runs a "
                "command"
            )
            fix = f"python {script}" if path.suffix == ".py" else f"chmod +x {path}"
            raise InvalidRequest(what, hint=f"write {fix}")
        started.insert(0, interpreter)
    return Source(shlex.join(started), None, cwd)


def _nearest(path: Path) -> str:
    """Hint with the files of the folder that look like `path`."""
    try:
        names = sorted(entry.name for entry in os.scandir(path.parent) if entry.is_file())
    except OSError:
        return f"the folder {path.parent} isn't there either"
    near = (
        difflib.get_close_matches(path.name, names, n=3)
        or [name for name in names if name.endswith(".py")][:5]
    )
    return f"{path.parent} has: {', '.join(near)}" if near else f"{path.parent} has no Python file"


def _absolute(path: str, cwd: Path) -> Path:
    return Path(os.path.normpath(cwd / os.path.expanduser(path)))


# --- in place


@contextmanager
def shared_folder_proof(folder: Path) -> Iterator[SharedFolderProof | None]:
    """A file with a secret in `folder`, for as long as the block runs: who reads it there shares
    the folder. None: nothing can be written there, so nothing can be proven."""
    nonce = secrets.token_hex(16)
    path = folder / f"{PROOF_PREFIX}{secrets.token_hex(8)}"
    proof = None
    with suppress(OSError):
        with path.open("x") as file:  # for all to read: the server may be another user
            file.write(nonce)
        proof = SharedFolderProof(path=str(path), nonce=nonce)
    try:
        yield proof
    finally:
        with suppress(OSError):
            path.unlink()


# --- for a snapshot


def snapshot_root(start: Path, home: Path) -> Path:
    """The nearest of `start` and the folders above it with .git or pyproject.toml, else `start`;
    links resolved. Raises InvalidRequest where that would be the home directory or `/`."""
    start, home = start.resolve(), home.resolve()
    forbidden = {home, *home.parents}
    for folder in (start, *start.parents):
        if folder not in forbidden and any((folder / mark).exists() for mark in ROOT_MARKS):
            return folder
    if start in forbidden:
        which = "is your home directory" if start == home else "contains your home directory"
        raise InvalidRequest(
            f"{start} {which}: a snapshot would hold everything in it",
            hint="put the code in a folder of its own",
        )
    return start


def place_in_root(source: Source, spec: JobSpec, root: Path) -> tuple[str | None, str]:
    """(script, working directory) relative to the root, as they will be in the unpacked snapshot.
    Raises InvalidRequest for a `working_dir` that is not in the root."""
    script = _relative(source.script, root) if source.script else None
    if spec.working_dir is None:
        return script, _relative(source.cwd, root) or (
            os.path.dirname(script) if script else ""
        ) or "."
    wanted = _absolute(spec.working_dir, source.cwd)
    inside = _relative(wanted, root)
    if inside is None:
        raise InvalidRequest(
            f"working_dir={str(wanted)!r} is not in the snapshot's folder {root}",
            hint="give a folder below it, or code='in_place' where the server shares the folder",
        )
    return script, inside


def _relative(path: Path, root: Path) -> str | None:
    """None: not in the root. The folder's links are resolved, the file's own are not: it
    is run by the name given.
    """
    for found in (path.parent.resolve() / path.name, path.resolve()):
        if found.is_relative_to(root):
            return found.relative_to(root).as_posix()
    return None


# --- where the code comes from

PATIENCE_S = 0.010
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
_MOVED = re.compile(r"^(?:rename|copy) (?:from|to) (.+)$", re.MULTILINE)
_NAMED = rf"(?:{SECRET_NAME.pattern}|notify)[\w-]*"
_VALUE = re.compile(rf"""({_NAMED}[\\"']*\s*[=:]).+""", re.IGNORECASE | re.DOTALL)
_NAME = re.compile(rf"(?:-[\w.-]*|[\w-]*){_NAMED}", re.IGNORECASE)


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
        diff = "".join(part for names, part in files_of(whole) if all(map(may, names)))
        commit, branch, remote = map(_line, _head(self._root) if self._root else ("", "", ""))
        missing = None
        if any(thread.is_alive() for thread in self._threads):
            missing = (
                "the uncommitted changes are not known: git took more than the 10 ms that a "
                "submit waits for it"
            )
        elif len(diff) > DIFF_MAX or any(len(printed) > 4 * DIFF_MAX for printed in self._printed):
            missing = f"of the uncommitted changes the first {DIFF_MAX} characters are recorded"
        return Provenance(
            command_line=_line(shlex.join(_masked(sys.orig_argv))),
            commit=commit or None,
            branch=branch or None,
            remote=_CREDENTIALS.sub("", remote) or None,
            diff=(diff[:DIFF_MAX] or (None if missing else "")) if commit else None,
            missing=missing,
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


def _head(root: Path) -> tuple[str, str, str]:
    """Commit, branch and URL, read from git's files: that takes 0.2 ms, and a process
    of git 2 ms. "": not known.
    """
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
    return commit, ref.removeprefix("refs/heads/") if ref != head else "", url[1] if url else ""


def _content(path: Path) -> str:
    with suppress(OSError, ValueError):
        return path.read_text("utf-8", "replace").strip()
    return ""


def _masked(words: list[str]) -> list[str]:
    """A value follows the name of a secret in the same word, up to its end, or is the next word."""
    names = [False, *(_NAME.fullmatch(word) for word in words)]
    return [
        MASK if named else _VALUE.sub(rf"\1{MASK}", word)
        for word, named in zip(words, names, strict=False)
    ]


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
            before, after = (
                _unquoted(header[: len(header) // 2]),
                _unquoted(header[len(header) // 2 + 1 :]),
            )
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
