"""The source of a job: the words of `script` become a file or a command, and its folder the root of a snapshot.

Reads the disk; writes only the file of `shared_folder_proof`, for as long as its block runs.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import secrets
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
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
    """The script field as it is sent: a file's absolute path, quoted, with its arguments; or the command."""
    script: Path | None
    """The .py file, absolute, links not resolved; None: a command."""
    cwd: Path
    """The caller's."""

    @property
    def folder(self) -> Path:
        return self.script.parent if self.script else self.cwd

    def sha256(self) -> str | None:
        return hashlib.sha256(self.script.read_bytes()).hexdigest() if self.script else None


def resolve(script: str, job_type: JobType, cwd: Path, in_conda: bool = False) -> Source:
    """An existing path wins over splitting; a relative one counts from `cwd`.

    `in_conda`: a conda environment is named, and its python runs a .py file that the binary types are given.

    Raises:
        InvalidRequest: no such script (with the nearest files), or it is a directory, unreadable, or needs a shell.
    """
    whole = _absolute(script.strip(), cwd)
    try:
        words = [script.strip()] if whole.is_file() else split_script(script)
    except ValueError as error:
        raise InvalidRequest(f"script: {error}") from None
    path = _absolute(words[0], cwd)
    if words[0].endswith(".py") and not job_type.is_command:
        _check_readable(path)
        return Source(shlex.join([str(path), *words[1:]]), path, cwd)
    return Source(_command(words, path, script, job_type, in_conda), None, cwd)


def _command(words: list[str], path: Path, script: str, job_type: JobType, in_conda: bool) -> str:
    """A file of the caller's directory is named as a shell would want it, so that it is found and started."""
    word = words[0]
    if path.is_dir():
        raise InvalidRequest(f"script={word!r} is a directory", hint="give the file that runs")
    if not path.is_file():
        if os.sep in word and not os.path.isabs(word):
            raise InvalidRequest(f"script={word!r}: there is no {path}", hint=_nearest(path))
        return script
    program = word if os.sep in word else f"./{word}"
    if os.access(path, os.X_OK):
        return shlex.join([program, *words[1:]])
    interpreter = {".sh": "bash", ".py": "python" if in_conda else ""}.get(path.suffix)
    if interpreter:
        return shlex.join([interpreter, program, *words[1:]])
    fix = f"python {script}" if path.suffix == ".py" else f"chmod +x {path}"
    raise InvalidRequest(
        f"script={script!r}: {path} can't be executed, and type={str(job_type)!r} runs a command", hint=f"write {fix}"
    )


def check_program(source: Source, path: str | None) -> None:
    """Check that the program of a command is there. `path`: PATH of the job, which runs on this machine.

    Raises InvalidRequest.
    """
    import shutil  # here: a script needs none of it

    program = split_script(source.text)[0]
    names = (program, "python3") if program == "python" else (program,)  # the worker takes either
    if any(shutil.which(name, path=path) for name in names):
        return
    where = "" if os.sep in program else " on PATH"
    raise InvalidRequest(
        f"script={source.text!r}: there is no program {program!r}{where}, and the job runs on this machine",
        hint="give its path; a shell's own commands run with bash -c",
    )


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb"):
            return
    except FileNotFoundError:
        raise InvalidRequest(f"script: there is no {path}", hint=_nearest(path)) from None
    except NotADirectoryError:
        raise InvalidRequest(f"script: there is no {path}; {path.parent} is no folder") from None
    except IsADirectoryError:
        raise InvalidRequest(f"script: {path} is a directory", hint=_nearest(path / "train.py")) from None
    except OSError as error:
        raise InvalidRequest(f"script: {path} can't be read: {error.strerror}") from None


def _nearest(path: Path) -> str:
    """Hint with the files of the folder that look like `path`."""
    try:
        names = sorted(entry.name for entry in os.scandir(path.parent) if entry.is_file())
    except OSError:
        return f"the folder {path.parent} isn't there either"
    near = difflib.get_close_matches(path.name, names, n=3) or [name for name in names if name.endswith(".py")][:5]
    return f"{path.parent} has: {', '.join(near)}" if near else f"{path.parent} has no Python file"


def _absolute(path: str, cwd: Path) -> Path:
    return Path(os.path.normpath(cwd / os.path.expanduser(path)))


# --- in place


@contextmanager
def shared_folder_proof(folder: Path) -> Iterator[SharedFolderProof | None]:
    """A file with a secret in `folder`, for as long as the block runs: who reads it there shares the folder.

    None: nothing can be written there, so nothing can be proven.
    """
    nonce = secrets.token_hex(16)
    path = folder / f"{PROOF_PREFIX}{secrets.token_hex(8)}"
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)  # the server may be another user
    except OSError:
        yield None
        return
    try:
        try:
            os.write(file, nonce.encode())
        finally:
            os.close(file)
        yield SharedFolderProof(path=str(path), nonce=nonce)
    finally:
        path.unlink(missing_ok=True)


# --- for a snapshot


def snapshot_root(start: Path, home: Path) -> Path:
    """The nearest of `start` and the folders above it with .git or pyproject.toml, else `start`; links resolved.

    Raises InvalidRequest where that would be the home directory or `/`.
    """
    start, home = start.resolve(), home.resolve()
    forbidden = {home, *home.parents}
    for folder in (start, *start.parents):
        if folder not in forbidden and any((folder / mark).exists() for mark in ROOT_MARKS):
            return folder
    if start in forbidden:
        which = "is your home directory" if start == home else "contains your home directory"
        raise InvalidRequest(
            f"{start} {which}: a snapshot would hold everything in it", hint="put the code in a folder of its own"
        )
    return start


def place_in_root(source: Source, spec: JobSpec, root: Path) -> tuple[str | None, str]:
    """(script, working directory) relative to the root, as they will be in the unpacked snapshot.

    Raises InvalidRequest for a `working_dir` that is not in the root.
    """
    script = _relative(source.script, root) if source.script else None
    if spec.working_dir is not None:
        wanted = _absolute(spec.working_dir, source.cwd)
        inside = _relative(wanted, root)
        if inside is None:
            raise InvalidRequest(
                f"working_dir={str(wanted)!r} is not in the snapshot's folder {root}",
                hint="give a folder below it, or code='in_place' where the server shares the folder",
            )
        return script, inside
    return script, _relative(source.cwd, root) or (os.path.dirname(script) if script else "") or "."


def _relative(path: Path, root: Path) -> str | None:
    """None: not in the root. The folder's links are resolved, the file's own are not: it is run by the name given."""
    try:
        return (path.parent.resolve() / path.name).relative_to(root).as_posix()
    except ValueError:
        pass
    try:
        return path.resolve().relative_to(root).as_posix()
    except ValueError:
        return None
