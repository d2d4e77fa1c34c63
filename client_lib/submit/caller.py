"""Values that a job takes over from its caller, read at submit and never changed.

A job on this machine starts from the interpreter, environment, directory and GPUs of its caller;
these values travel only to servers of this machine. The spec holds the extra packages (a list,
requirements files in it, or the script's header, PEP 723), so that every worker installs the same.
"""

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.command_line import parse_toml
from client_lib.spec.request import Submitter
from client_lib.spec.validation import is_storable
from client_lib.transport.config import TOKEN

_log = logging.getLogger("client_lib")
_NO_DEVICE = frozenset({"", "-1", "NoDevFiles", "none", "void"})
_SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # a step's are a part of its job's


def submitter(environ: Mapping[str, str], working_dir: str, python: str | None = None) -> Submitter:
    """The caller's part of a request for a job on this machine. `python`: runs
    scripts; None: this interpreter.
    """
    text = {name: value for name, value in environ.items() if is_storable(name + value)}
    if lost := sorted(map(repr, environ.keys() - text.keys())):  # JSON can't carry their bytes
        _log.warning("not passed on to the job, as the value is no UTF-8: %s", ", ".join(lost))
    # opens another server than the one that runs the job, or all of its user's jobs
    text.pop(TOKEN, None)
    return Submitter(
        python=python or sys.executable or None,
        environment=text,
        working_dir=working_dir,
        gpus=gpu_bound(environ),
    )


def gpu_bound(environ: Mapping[str, str]) -> list[str] | None:
    """Devices that CUDA_VISIBLE_DEVICES or a SLURM allocation leave to this process; None: no
    bound, []: none. Inside a SLURM job without any GPU variable there is no GPU for us, whatever
    the machine has."""
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        devices = map(str.strip, visible.split(","))
        # CUDA hides all after an invalid one
        return list(takewhile(lambda device: device not in _NO_DEVICE, devices))
    slurm = next((environ[name] for name in _SLURM_GPUS if environ.get(name)), None)
    if slurm is None:
        return [] if "SLURM_JOB_ID" in environ else None
    found: list[str] = []
    for part in filter(None, map(str.strip, slurm.split(","))):  # SLURM writes `0,2-3`
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        found += map(str, range(int(span[1]), int(span[2]) + 1)) if span else [part]
    return found


# --- extra packages

_REQUIREMENT_FILES = (".txt", ".in")
_BEGIN = "# /// script"
# as in PEP 723; most scripts have none
_HEADER_BLOCK = rf"^{_BEGIN}$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$"
_DEPTH_MAX = 10


def requirements_of(
    given: Sequence[str] | None, script: Path | None, cwd: Path
) -> list[str] | None:
    """The lines that are sent; None: there are none. What is given wins over the script's header.
    Raises InvalidRequest: a file that can't be read, a header that can't be understood."""
    if given is not None:
        return (
            list(dict.fromkeys(line for entry in given for line in _requirement_lines(entry, cwd)))
            or None
        )
    return of_header(script) if script is not None else None


def requirements_within(lines: Sequence[str], root: Path) -> list[str]:
    """The requirements for a snapshot of `root`, whose own packages are named relative
    to it: `./wheels/one.whl`.
    """
    return [
        f"./{os.path.relpath(line, root)}" if line.startswith(f"{root}{os.sep}") else line
        for line in lines
    ]


def of_header(script: Path) -> list[str] | None:
    """The `dependencies` of the script's header; None without one."""
    source = script.read_text(encoding="utf-8-sig", errors="replace").replace("\r\n", "\n")
    found = re.search(_HEADER_BLOCK, source, re.MULTILINE) if _BEGIN in source else None
    if found is None:
        return None
    text = "".join(
        line[2:] if line.startswith("# ") else line[1:]
        for line in found["content"].splitlines(True)
    )
    dependencies = parse_toml(text, f"the `# /// script` header of {script}").get(
        "dependencies", []
    )
    if not isinstance(dependencies, list) or not all(isinstance(one, str) for one in dependencies):
        raise InvalidRequest(
            f"the `# /// script` header of {script}: dependencies must be a list of texts"
        )
    return dependencies or None


def _requirement_lines(entry: str, folder: Path, depth: int = 0) -> Iterator[str]:
    words = re.split(r"[\s=]+", entry.strip(), maxsplit=1)
    if words[0] in ("-r", "--requirement") and len(words) == 2:
        yield from _of_file(folder / words[1], depth)
    elif (
        entry.endswith(_REQUIREMENT_FILES)
        and not entry.startswith("-")
        and (folder / entry).is_file()
    ):
        yield from _of_file(folder / entry, depth)
    elif entry.startswith(("./", "../")):
        yield os.path.normpath(folder / entry)
    else:
        yield entry.strip()


def _of_file(path: Path, depth: int) -> Iterator[str]:
    if depth == _DEPTH_MAX:
        raise InvalidRequest(f"requirements: {path} is named by itself, {_DEPTH_MAX} files deep")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"requirements: {path} can't be read: {error}") from None
    for line in text.replace("\\\n", " ").splitlines():
        stated = re.sub(r"(^|\s)#.*", "", line).strip()
        if stated:
            yield from _requirement_lines(stated, path.parent, depth + 1)
