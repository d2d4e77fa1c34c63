"""Paths of the programs of this package: the launcher, and files that the interpreter of the ranks
runs.
"""

import os
import sys
from typing import List

from client_lib.launcher_protocol.directory import Directory


def launcher_command(worker_dir: str, python: str = sys.executable) -> List[str]:
    """The argv that starts this installation's launcher on a directory. By path and isolated: that
    starts twice as fast as `-m`, and neither the caller's folder nor PYTHON* variables have an
    effect."""
    main = os.path.join(os.path.dirname(os.path.abspath(__file__)), "__main__.py")
    return [python, "-I", "-S", main, worker_dir]


def runner_file(name: str, directory: Directory) -> str:
    """A module of this package as a file that any interpreter can run."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    if os.path.exists(beside):
        return beside
    import pkgutil  # here: only a zipapp reads it

    source = pkgutil.get_data("client_lib.worker", name)
    assert source is not None
    path = os.path.join(directory.path, name)
    with open(path, "wb") as file:
        file.write(source)
    return path
