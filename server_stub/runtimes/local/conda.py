"""Where a conda environment lies, and what its activation would change. Looks at the file system, runs nothing.

`conda run` and `conda activate` start conda's own Python and cost a second; an environment is a folder with a python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from client_lib.errors import InvalidRequest


def find_prefix(env: str, environment: Mapping[str, str], working_dir: str | None) -> Path:
    """The folder of the environment called `env`, or at the path `env`, as the submitter's conda would find it.

    Raises InvalidRequest: there is none; says where it was looked for.
    """
    looked = list(_candidates(env, environment, working_dir))
    for prefix in looked:
        if (prefix / "bin" / "python").exists():
            return prefix
    raise InvalidRequest(
        f"conda_env={env!r}: no such environment on this machine; looked for bin/python in "
        + (", ".join(map(str, looked)) or "no folder, as the submitter's environment names no conda"),
        hint="give the environment's path, as `conda env list` shows it",
    )


def _candidates(env: str, environment: Mapping[str, str], working_dir: str | None) -> Iterator[Path]:
    if os.sep in env or env.startswith("~"):
        home = environment.get("HOME", "~")
        yield Path(working_dir or "/", home + env[1:] if env.startswith("~/") else env)
        return
    roots = dict.fromkeys(_roots(environment))
    if env in ("base", "root"):
        yield from roots
    for folder in environment.get("CONDA_ENVS_DIRS", environment.get("CONDA_ENVS_PATH", "")).split(os.pathsep):
        if folder:
            yield Path(folder, env)
    for root in roots:
        yield root / "envs" / env
    if "HOME" in environment:
        yield Path(environment["HOME"], ".conda", "envs", env)


def _roots(environment: Mapping[str, str]) -> Iterator[Path]:
    """Installations: of the conda in use, of the environment that is active, of micromamba."""
    if "CONDA_EXE" in environment:
        yield Path(environment["CONDA_EXE"]).parent.parent
    if "CONDA_PREFIX" in environment:
        prefix = Path(environment["CONDA_PREFIX"])
        yield prefix.parent.parent if prefix.parent.name == "envs" else prefix
    if "MAMBA_ROOT_PREFIX" in environment:
        yield Path(environment["MAMBA_ROOT_PREFIX"])


def activated(prefix: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` as it is inside the environment at `prefix`: its programs come first. Pure."""
    kept = {key: value for key, value in environment.items() if key not in ("VIRTUAL_ENV", "PYTHONHOME")}
    path = os.pathsep.join(filter(None, [str(prefix / "bin"), environment.get("PATH", "")]))
    return kept | {"PATH": path, "CONDA_PREFIX": str(prefix), "CONDA_DEFAULT_ENV": prefix.name}
