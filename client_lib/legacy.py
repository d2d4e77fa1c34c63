"""Arguments of `Job` from earlier years of the ML Space platform: what each of them is today. Pure; only `job` uses it.

Scripts still pass them. Each is one DeprecationWarning that says what to write instead; what can't be had is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from client_lib.errors import InvalidRequest, NotSupported

TODAY = {
    "cpu_limit": "the instance_type says how many cores a worker has, for example 'cpu.8C.32G'",
    "cuda11": "the image says which CUDA there is",
    "detached": "submit() returns at once, and logs() follows",
    "forbid_internet": "write internet=False",
    "forbid_s3": "internet=False forbids all outbound access",
    "in_communal_cluster": "priority_class and allocation_name say whose capacity it is",
    "memory_limit": "the instance_type says how much memory a worker has, for example 'cpu.8C.32G'",
    "n_gpus": "write instance_type='gpu.4gpu' for 4 of any card",
    "preflight_check": "a job is checked when it is submitted",
    "spark_executor_memory": "there is no Spark here",
    "warm_cache": "images are cached by the nodes that have run them",
}
"""Each of them -> what says it today."""
NAMES = frozenset(TODAY)


@dataclass
class Translation:
    """What the old arguments of one call mean."""

    fields: dict[str, Any] = field(default_factory=dict)
    """Fields of the spec that they become."""
    sentences: list[str] = field(default_factory=list)
    """One for each argument that was given."""
    attached: bool = False
    """`detached=False`: submit() shows the log and returns when the job has ended."""


def translate(given: Mapping[str, Any]) -> Translation:
    """Of all arguments of a Job, by name. None counts as not given.

    Raises:
        NotSupported, InvalidRequest: an old argument asks for what can't be had.
    """
    result = Translation()
    for name in sorted(NAMES):
        if given[name] is not None:
            result.sentences.append(_read(name, given, result))
    return result


def _read(name: str, given: Mapping[str, Any], result: Translation) -> str:
    """The sentence about one argument; what it becomes is put into `result`."""
    if name == "n_gpus":
        return _becomes(name, "instance_type", _type_of(given[name]), given, result)
    if name == "forbid_internet":
        return _becomes(name, "internet", not given[name], given, result)
    if name == "detached" and not given[name]:
        result.attached = True
        return "detached=False is deprecated: call submit(), then logs(), which follows until the job ends"
    if name == "warm_cache" and given[name]:
        raise NotSupported("warm_cache=True can't be had: images are cached by the nodes that ran them", hint="omit it")
    return f"{name} is deprecated and has no effect: {TODAY[name]}"


def _becomes(name: str, today: str, value: object, given: Mapping[str, Any], result: Translation) -> str:
    if given[today] is not None:
        return f"{name} is deprecated and not read, as {today}={given[today]!r} says it"
    result.fields[today] = value
    return f"{name} is deprecated: write {today}={value!r}"


def _type_of(n_gpus: object) -> str:
    """An instance type that says nothing of the card."""
    if isinstance(n_gpus, bool) or not isinstance(n_gpus, int) or n_gpus < 0:
        raise InvalidRequest(f"n_gpus={n_gpus!r} is no number of GPUs", hint="write instance_type='gpu.4gpu'")
    return f"gpu.{n_gpus}gpu"
