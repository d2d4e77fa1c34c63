"""Tables of docs/mlspace.md that repeat what the code says: every argument of Job, with what becomes of it where.

`readme_tables` writes them (`make docs`); a test compares what is committed with what this makes.
"""

from __future__ import annotations

import inspect

from client_lib import legacy
from client_lib.job import Job
from client_lib.spec.job import JobSpec
from server_stub.runtimes.local.notices import FIELDS, MEANS_NOTHING, Fate

KUBERNETES = "not yet"
"""That runtime is not there."""

_OTHERWISE = {
    "base_image": "not pulled: your interpreter runs the script, and a notice says so",
    "instance_type": "GPUs are taken, or without any the CPU; cores bound OMP_NUM_THREADS; memory is not enforced",
    "pytorch_use_env": "honoured; type `pytorch` passes the argument unless this is True",
    "volumes": "the path must be this machine's own",
    "outputs": "refused by name: what a job in place writes lies where it wrote it",
    "requirements": "refused by name: install them into the environment that submits",
}
_OTHERWISE |= dict.fromkeys(
    ("elastic_min_workers", "elastic_max_workers", "elastic_max_restarts"),
    "honoured for `pytorch_elastic`; no effect for other types, and a notice says so",
)
"""Fields of which more is to be said than their fate."""

_BESIDE = {
    "client": "The server that it goes to; None: the configured one.",
    "kwargs": "Keyword arguments of the function, where `script` is one.",
}
"""Arguments that are no fields of the spec."""


def parameters() -> str:
    """A row for each argument of Job but those of earlier years."""
    rows = [_row(name) for name in _arguments() if name not in legacy.NAMES]
    return _table(("argument", "means", "on this machine", "on Kubernetes"), rows)


def earlier_parameters() -> str:
    rows = [(f"`{name}`", legacy.TODAY[name]) for name in _arguments() if name in legacy.NAMES]
    return _table(("argument", "today"), rows)


def _arguments() -> list[str]:
    return [name for name in inspect.signature(Job.__init__).parameters if name != "self"]


def _row(name: str) -> tuple[str, ...]:
    if name in _BESIDE:
        return f"`{name}`", _BESIDE[name], "honoured", KUBERNETES
    return f"`{name}`", JobSpec.model_fields[name].description or "", _here(name), KUBERNETES


def _here(name: str) -> str:
    if name in _OTHERWISE:
        return _OTHERWISE[name]
    if FIELDS[name] is Fate.NAMED:
        return f"no effect, and a notice says so: {MEANS_NOTHING[name]}"
    return {Fate.REFUSED: "refused by name"}.get(FIELDS[name], "honoured")


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )
