"""The interpreter, environment, directory and GPUs of the caller, from which a job on this machine starts.

Read at submit and never changed. The values travel only to servers of this machine.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable, Mapping

from client_lib.spec.bounds import is_storable
from client_lib.spec.wire import Submitter
from client_lib.transport.config import TOKEN

_log = logging.getLogger("client_lib")
_NO_DEVICE = frozenset({"", "-1", "NoDevFiles", "none", "void"})
_SLURM_GPUS = ("SLURM_STEP_GPUS", "SLURM_JOB_GPUS")  # a step's are a part of its job's


def submitter(environ: Mapping[str, str], working_dir: str, python: str | None = None) -> Submitter:
    """The caller's part of a request for a job on this machine. `python`: the interpreter for scripts; None: this
    one."""
    return Submitter(
        python=python or sys.executable or None,
        environment=_that_can_travel(environ),
        working_dir=working_dir,
        gpus=gpu_bound(environ),
    )


def gpu_bound(environ: Mapping[str, str]) -> list[str] | None:
    """Devices that CUDA_VISIBLE_DEVICES or a SLURM allocation leave to this process; None: no bound, []: none.

    Inside a SLURM job without any GPU variable there is no GPU for us, whatever the machine has.
    """
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return _until_invalid(visible.split(","))
    for name in _SLURM_GPUS:
        if environ.get(name):
            return _expand(environ[name])
    return [] if "SLURM_JOB_ID" in environ else None


def _until_invalid(devices: Iterable[str]) -> list[str]:
    """Devices up to the first invalid entry: CUDA hides that entry and all later ones."""
    found: list[str] = []
    for device in map(str.strip, devices):
        if device in _NO_DEVICE:
            break
        found.append(device)
    return found


def _expand(listed: str) -> list[str]:
    """SLURM writes `0,2-3`."""
    found: list[str] = []
    for part in filter(None, map(str.strip, listed.split(","))):
        span = re.fullmatch(r"(\d+)-(\d+)", part)
        found += map(str, range(int(span[1]), int(span[2]) + 1)) if span else [part]
    return found


def _that_can_travel(environ: Mapping[str, str]) -> dict[str, str]:
    """Without our own token, and without variables that hold no text: JSON can't carry their bytes."""
    text = {name: value for name, value in environ.items() if is_storable(name + value)}
    lost = sorted(map(repr, environ.keys() - text.keys()))
    if lost:
        _log.warning("not passed on to the job, as the value is no UTF-8: %s", ", ".join(lost))
    text.pop(TOKEN, None)  # opens another server than the one that runs the job, or all of its user's jobs
    return text
