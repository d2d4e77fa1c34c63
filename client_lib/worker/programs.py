"""Paths of the programs of this package: the launcher, and files that the interpreter of the ranks
runs.
"""

import os
import sys
from typing import List

from client_lib.durable import private
from client_lib.launcher_protocol.directory import Directory

RANK_RUNNER = "rank_runner.py"
_HERE = os.path.dirname(os.path.abspath(__file__))


def launcher_command(worker_dir: str, python: str = sys.executable) -> List[str]:
    """The argv that starts this installation's launcher on a directory."""
    return [*_main(python), worker_dir]


def checkpoints_command(verb: str, python: str = sys.executable) -> List[str]:
    """The argv that works on checkpoints: see `checkpoint_files`."""
    return [*_main(python), "checkpoints", verb]


def _main(python: str) -> List[str]:
    """Run this package by path and isolated: that starts twice as fast as `-m`, and neither the
    caller's folder nor PYTHON* variables have an effect."""
    return [python, "-I", "-S", os.path.join(_HERE, "__main__.py")]


def runner_file(name: str, directory: Directory) -> str:
    """A program that the interpreter of the ranks runs, as a file: a module of this package, or a
    copy in the worker's directory, if this package is in a zipapp or the program is joined from
    several modules."""
    beside = os.path.join(_HERE, name)
    if os.path.exists(beside):
        return beside
    path = os.path.join(directory.path, name)
    with open(path, "wb", opener=private) as file:
        file.write(_source(name))
    return path


def _source(name: str) -> bytes:
    if name == RANK_RUNNER and os.path.isdir(_HERE):
        from client_lib.worker.joining import joined_rank_runner

        return joined_rank_runner()
    import pkgutil  # here: only a zipapp reads it

    source = pkgutil.get_data("client_lib.worker", name)
    assert source is not None
    return source
