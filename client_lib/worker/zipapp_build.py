"""Packs the launcher into one file that any python3 >= 3.8 runs: `python worker.pyz DIRECTORY`, or
`... pod`.

Pods run it, because their images lack this package. The same sources give the same bytes, so that
the file can be named by its hash. Each module is in it as source, and those that every pod imports
also compiled for the Python that runs `build`: a pod whose Python has the same minor version loads
these, another one compiles the sources at each start. Run as
`python -m client_lib.worker.zipapp_build TARGET`.
"""

import importlib.util
import marshal
import os
import sys
import zipfile
from pathlib import Path

from client_lib.worker.joining import joined_rank_runner

_MAIN = (
    b"import sys, os\nfrom client_lib.worker.__main__ import main\nos._exit(main(sys.argv[1:]))\n"
)
_PACKED = ("checkpoints", "durable.py", "launcher_protocol", "worker")
"""Modules and packages of client_lib that the launcher needs."""
_RARE = (
    "launcher_protocol/output_",
    "worker/function_runner",
    "worker/hardware",
    "worker/joining",
    "worker/outputs/",
    "worker/pod/peer_channel",
    "worker/requirements",
    "worker/stacks",
    "worker/zipapp",
)
"""Beginnings of the names of modules that few pods import, or that are run
from a copy of their source.
"""
_UNUSED = "worker/warm/"
"""Beginning of the names of modules that no pod imports."""
_JOINED = "worker/rank_runner/"
"""Beginning of the names of modules that are in the file joined, as `rank_runner.py`."""
_TIME = (1980, 1, 1, 0, 0, 0)


def build(target: str) -> None:
    """Write the file, or replace it at once: workers that run from an earlier one read
    more modules at their end.
    """
    package = Path(__file__).resolve().parents[1]
    files = {
        "__main__.py": _MAIN,
        "client_lib/__init__.py": b"",
        "client_lib/worker/rank_runner.py": joined_rank_runner(),
    }
    for path in _sources(package):
        name = path.relative_to(package).as_posix()
        source = path.read_bytes()
        if name.startswith((_UNUSED, _JOINED)):
            continue
        inside = "client_lib/" + name
        files[inside] = source
        if not name.startswith(_RARE):
            files[inside + "c"] = _compiled(inside, source)
    incomplete = target + ".new"
    with open(incomplete, "wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    os.chmod(incomplete, 0o755)
    os.replace(incomplete, target)


def _sources(package: Path) -> "list[Path]":
    found: "list[Path]" = []
    for name in _PACKED:
        path = package / name
        found += [path] if path.is_file() else sorted(path.rglob("*.py"))
    return found


def _compiled(name: str, source: bytes) -> bytes:
    """Content of the .pyc file of a module. The interpreter compares nothing
    but the version (PEP 552).
    """
    code = compile(source, "worker.pyz/" + name, "exec", dont_inherit=True, optimize=0)
    unchecked = (1).to_bytes(4, "little")
    # version 2 has no references between objects, which differ from one run to the next; 3.14 has
    # constants that need 5
    version = 2 if sys.version_info < (3, 14) else marshal.version
    return (
        importlib.util.MAGIC_NUMBER
        + unchecked
        + importlib.util.source_hash(source)
        + marshal.dumps(code, version)
    )


if __name__ == "__main__":
    build(sys.argv[1])
