"""Packs the launcher into one file that any python3 >= 3.8 runs: `python worker.pyz DIRECTORY`, or `... pod`.

Pods run it, because their images lack this package. The same sources give the same bytes, so that the file can be named
by its hash. Run as `python -m client_lib.worker.zipapp_build TARGET`.
"""

import os
import sys
import zipfile
from typing import Iterator

_MAIN = b"import sys, os\nfrom client_lib.worker.__main__ import main\nos._exit(main(sys.argv[1:]))\n"
_TIME = (1980, 1, 1, 0, 0, 0)


def build(target: str) -> None:
    here = os.path.dirname(os.path.abspath(__file__))
    files = {"__main__.py": _MAIN, "client_lib/__init__.py": b""}
    for name in sorted(_sources(here)):
        with open(os.path.join(here, name), "rb") as file:
            files["client_lib/worker/" + name.replace(os.sep, "/")] = file.read()
    with open(target, "wb") as out:
        out.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(zipfile.ZipInfo(name, _TIME), content, zipfile.ZIP_DEFLATED)
    os.chmod(target, 0o755)


def _sources(here: str) -> Iterator[str]:
    """Relative paths of all modules except the warm pool, which pods do not use."""
    for folder, below, names in os.walk(here):
        below[:] = [name for name in below if name not in ("warm", "__pycache__")]
        for name in names:
            if name.endswith(".py"):
                yield os.path.relpath(os.path.join(folder, name), here)


if __name__ == "__main__":
    build(sys.argv[1])
