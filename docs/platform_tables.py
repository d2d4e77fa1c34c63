"""Tables of docs/mlspace.md that repeat what the code says: every argument of Job, with what
becomes of it where.

`tables` writes them (`make docs`); a test compares what is committed with what this makes.
"""

from __future__ import annotations

import inspect

from client_lib.job import Job
from client_lib.spec.job import JobSpec
from client_lib.spec.validation import descriptions
from client_lib.submit import arguments as legacy
from server_stub.runtimes.fields import FIELDS

_OTHERWISE = {
    "base_image": "not pulled: your interpreter runs the script, and a notice says so",
    "instance_type": (
        "GPUs are taken, or without any the CPU; cores bound OMP_NUM_THREADS; memory is not "
        "enforced"
    ),
    "pytorch_use_env": "honoured; type `pytorch` passes the argument unless this is True",
    "volumes": "the path must be this machine's own",
    "requirements": "honoured: an environment of the job's own, which sees the packages of yours",
}
_OTHERWISE |= dict.fromkeys(
    ("elastic_min_workers", "elastic_max_workers", "elastic_max_restarts"),
    "honoured for `pytorch_elastic`; no effect for other types, and a notice says so",
)
"""Texts for fields that the table of the runtimes describes too briefly."""

_ON_A_CLUSTER = {
    "gpus": "refused by name",
    "base_image": "honoured; the catalogue may pull another image for it",
    "type": "honoured; `pytorch_elastic` where pods reach the server, else refused by name",
    "checkpoint_dir": "honoured; a notice where it is on no volume",
    "shm_size_class": "honoured, at most half of the worker's memory",
    "priority_class": "the PriorityClass that the catalogue has for it",
    "queue_name": "a queue of Kueue; refused where there is none",
    "conda_env": "an environment of the image",
    "outputs": "honoured; refused by name where pods don't reach the server",
}
_ELASTIC = ("elastic_min_workers", "elastic_max_workers", "elastic_max_restarts")
_ON_A_CLUSTER |= {name: _OTHERWISE[name] for name in _ELASTIC}

_BESIDE = {
    "client": "The server that it goes to; None: the configured one.",
    "kwargs": "Keyword arguments of the function, where `script` is one.",
}
"""Arguments that are no fields of the spec."""


def parameters() -> str:
    """A row for each argument of Job but those of earlier years."""
    rows = [_row(name) for name in _arguments() if name not in legacy.TODAY]
    return _table(("argument", "means", "on this machine", "on Kubernetes"), rows)


def earlier_parameters() -> str:
    rows = [(f"`{name}`", legacy.TODAY[name]) for name in _arguments() if name in legacy.TODAY]
    return _table(("argument", "today"), rows)


def _arguments() -> list[str]:
    return [name for name in inspect.signature(Job.__init__).parameters if name != "self"]


def _row(name: str) -> tuple[str, ...]:
    if name in _BESIDE:
        return f"`{name}`", _BESIDE[name], "honoured", "honoured"
    here, there = _support(name, "local", _OTHERWISE), _support(name, "kubernetes", _ON_A_CLUSTER)
    return f"`{name}`", descriptions(JobSpec).get(name, ""), here, there


def _support(name: str, runtime: str, otherwise: dict[str, str]) -> str:
    if name in otherwise:
        return otherwise[name]
    reason = getattr(FIELDS[name], runtime)
    return "honoured" if reason is None else f"no effect, and a notice says so: {reason}"


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(
        "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in line) + " |\n"
        for line in lines
    )
