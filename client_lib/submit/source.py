"""The source of a job: the words of `script` become a file or a command, and its folder the root of
a snapshot."""

import difflib
import hashlib
import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import split_script
from client_lib.spec.job import JobSpec, JobType
from client_lib.spec.request import SharedFolderProof
from client_lib.submit.ignore import PROOF_PREFIX

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
    word = words[0]
    path = _absolute(words[0], cwd)
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
    start = start.resolve()
    home = home.resolve()
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
