"""Which jobs may have warm ranks, and what a warm pool imports. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from client_lib.spec.job import JobSpec

WORTH_A_RESTART = 20  # modules; one of a package that was not there before is worth it, too
MODULES_MAX = 6000
_LEFT_OUT = frozenset({"client_lib", "server_stub", "_distutils_hack", "pip", "_pytest", "pytest"})


def wanted(spec: JobSpec, is_function: bool, *, default: bool) -> bool:
    """This job may have warm ranks. `default`: the setting; where it is off, no job can."""
    return asked(spec, default=default) and unsuited(spec, is_function) is None


def asked(spec: JobSpec, *, default: bool) -> bool:
    """Neither the server nor the job says that every process shall be started anew."""
    return default and spec.warm is not False


def unsuited(spec: JobSpec, is_function: bool) -> str | None:
    """Why a job of this kind can't have warm ranks."""
    if not is_function and spec.python_script is None:
        return "the command is no Python script"
    if spec.conda_env is not None:
        return f"conda_env={spec.conda_env!r} has an interpreter of its own"
    if spec.requirements:
        return "requirements=[...] makes an environment of its own"
    return None


def grown(known: Sequence[str], imported: Sequence[str]) -> tuple[list[str], bool]:
    """(the new list, whether it is worth a new pool)."""
    added = [name for name in imported if name not in set(known) and name.partition(".")[0] not in _LEFT_OUT]
    packages = {name.partition(".")[0] for name in known}
    worth = len(added) >= WORTH_A_RESTART or any(name.partition(".")[0] not in packages for name in added)
    return [*known, *added][:MODULES_MAX], worth
