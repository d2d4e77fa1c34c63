"""The extra packages of a job: a list, requirements files in it, or the script's header (PEP 723).

Read at submit, so that the spec holds them and every worker installs the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from client_lib.errors import InvalidRequest
from client_lib.spec.toml import parse_toml

_FILES = (".txt", ".in")
_BEGIN = "# /// script"
_BLOCK = rf"^{_BEGIN}$\s(?P<content>(?:^#(?:| .*)$\s)+)^# ///$"  # as in PEP 723; most scripts have none
_DEPTH_MAX = 10


def resolve(given: Sequence[str] | None, script: Path | None, cwd: Path) -> list[str] | None:
    """The lines that are sent; None: there are none. What is given wins over the script's header.

    Raises InvalidRequest: a file that can't be read, a header that can't be understood.
    """
    if given is not None:
        return list(dict.fromkeys(line for entry in given for line in _lines(entry, cwd))) or None
    return of_header(script) if script is not None else None


def within(lines: Sequence[str], root: Path) -> list[str]:
    """The requirements for a snapshot of `root`: packages in that folder are named relative to it,
    `./wheels/one.whl`."""
    return [f"./{os.path.relpath(line, root)}" if line.startswith(f"{root}{os.sep}") else line for line in lines]


def of_header(script: Path) -> list[str] | None:
    """The `dependencies` of the script's header; None without one."""
    source = script.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n")
    found = re.search(_BLOCK, source, re.MULTILINE) if _BEGIN in source else None
    if found is None:
        return None
    text = "".join(line[2:] if line.startswith("# ") else line[1:] for line in found["content"].splitlines(True))
    dependencies = parse_toml(text, f"the `# /// script` header of {script}").get("dependencies", [])
    if not isinstance(dependencies, list) or not all(isinstance(one, str) for one in dependencies):
        raise InvalidRequest(f"the `# /// script` header of {script}: dependencies must be a list of texts")
    return dependencies or None


def _lines(entry: str, folder: Path, depth: int = 0) -> Iterator[str]:
    words = re.split(r"[\s=]+", entry.strip(), maxsplit=1)
    if words[0] in ("-r", "--requirement") and len(words) == 2:
        yield from _of_file(folder / words[1], depth)
    elif entry.endswith(_FILES) and not entry.startswith("-") and (folder / entry).is_file():
        yield from _of_file(folder / entry, depth)
    elif entry.startswith(("./", "../")):
        yield os.path.normpath(folder / entry)
    else:
        yield entry.strip()


def _of_file(path: Path, depth: int) -> Iterator[str]:
    if depth == _DEPTH_MAX:
        raise InvalidRequest(f"requirements: {path} is named by itself, {_DEPTH_MAX} files deep")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"requirements: {path} can't be read: {error}") from None
    for line in text.replace("\\\n", " ").splitlines():
        stated = re.sub(r"(^|\s)#.*", "", line).strip()
        if stated:
            yield from _lines(stated, path.parent, depth + 1)
