"""From the plan that all workers of a job share to the order of this one. Pure.

Standard library only, Python >= 3.8.
"""

import os
from typing import Dict, NamedTuple, Optional

from client_lib.worker.plan import WorkerPlan
from client_lib.worker.pod.place import Pod

FUNCTION_RUNNER = "function_runner.py"
_OF_THE_POD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("PET_", "CLIENT_LIB_POD_")
_SEGMENTS = 16  # of a spool: what one dropped segment costs
_ENDLESS = 2**62  # the spool is bounded in another way (spool.py), and the job's log by the server


class Files(NamedTuple):
    """Where what the worker needs lies in this pod."""

    snapshot: Optional[str]
    function: Optional[str]
    runner: Optional[str]
    """function_runner.py."""
    environments: str
    token: str
    authorities: Optional[str]


def fill(plan: WorkerPlan, pod: Pod, files: Files, outputs_url: Optional[str]) -> WorkerPlan:
    """`outputs_url`: where the server takes this worker's outputs."""
    environment = dict(_inherited(pod), **plan.environment)
    if files.function is not None:
        from client_lib.worker.function_runner import PAYLOAD  # here: see agent

        environment[PAYLOAD] = files.function
    command = list(plan.command)
    own_folder = pod.worker == 0 or pod.snapshot is not None  # in place all workers write to one, which worker 0 minds
    if files.runner is not None:
        command[0] = files.runner
    return plan._replace(
        worker=pod.worker,
        master_addr=pod.master_addr,
        master_port=pod.master_port,
        environment=environment,
        command=command,
        snapshot=files.snapshot,
        log_file=plan.log_file if own_folder else None,
        log_limit_bytes=_ENDLESS,
        segment_bytes=max(1, min(plan.segment_bytes, pod.spool_bytes // _SEGMENTS)),
        outputs=plan.outputs if own_folder else [],
        outputs_to=outputs_url,
        outputs_token=files.token,
        outputs_ca=files.authorities,
        environments_dir=files.environments,
    )


def _inherited(pod: Pod) -> Dict[str, str]:
    """The container's environment without what the operator and the pod's template say about the pod: ranks get their
    own numbers, and torchrun would take PET_* for orders."""
    kept = {
        name: value
        for name, value in pod.environment.items()
        if name not in _OF_THE_POD and not name.startswith(_PREFIXES)
    }
    return kept if pod.conda_prefix is None else _activated(kept, pod.conda_prefix)


def _activated(environment: Dict[str, str], prefix: str) -> Dict[str, str]:
    """As `conda activate` does."""
    active = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    active["PATH"] = os.pathsep.join([os.path.join(prefix, "bin"), environment.get("PATH", os.defpath)])
    active["CONDA_PREFIX"] = prefix
    active["CONDA_DEFAULT_ENV"] = os.path.basename(prefix)
    return active
