"""Which jobs may have warm ranks, and what a warm pool imports. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from client_lib.spec.job import JobSpec

WORTH_A_RESTART = 20  # modules; one of a package that was not there before is worth it, too
MODULES_MAX = 6000
_LEFT_OUT = frozenset({"client_lib", "server_stub", "_distutils_hack", "pip", "_pytest", "pytest"})


def wanted(spec: JobSpec, is_function: bool, *, default: bool) -> bool:
    """A job of this kind may have warm ranks. `default`: the setting; where it is off, no job can."""
    asked = default if spec.warm is None else spec.warm and default
    return (
        asked and (is_function or spec.python_script is not None) and spec.conda_env is None and not spec.requirements
    )


def grown(known: Sequence[str], imported: Sequence[str]) -> tuple[list[str], bool]:
    """(the new list, whether it is worth a new pool)."""
    added = [name for name in imported if name not in set(known) and name.partition(".")[0] not in _LEFT_OUT]
    packages = {name.partition(".")[0] for name in known}
    worth = len(added) >= WORTH_A_RESTART or any(name.partition(".")[0] not in packages for name in added)
    return [*known, *added][:MODULES_MAX], worth
