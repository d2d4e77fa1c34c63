"""Makes the plan of one pod's worker from the plan that all workers of a job share. Pure."""

import os
from typing import Dict, NamedTuple, Optional

from client_lib.worker.plan import WorkerPlan
from client_lib.worker.pod.settings import PodSettings

FUNCTION_RUNNER = "function_runner.py"
_OF_THE_POD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("PET_", "CLIENT_LIB_POD_")
_SEGMENTS = 16  # per spool: one dropped segment costs a sixteenth of it
_UNLIMITED = 2**62  # the spool has its own limit (log_carriers.py), and the server limits the job's log


class InputFiles(NamedTuple):
    """Paths of the worker's inputs in this pod."""

    snapshot: Optional[str]
    function: Optional[str]
    runner: Optional[str]
    """function_runner.py."""
    environments: str
    token: str
    authorities: Optional[str]


def own_plan(shared: WorkerPlan, pod: PodSettings, files: InputFiles, outputs_url: Optional[str]) -> WorkerPlan:
    """`outputs_url`: URL at which the server takes this worker's outputs."""
    environment = dict(_inherited(pod), **shared.environment)
    if files.function is not None:
        from client_lib.worker.function_runner import PAYLOAD  # here: few jobs are functions

        environment[PAYLOAD] = files.function
    command = list(shared.command)
    if files.runner is not None:
        command[0] = files.runner
    # without a snapshot all workers share one folder: worker 0 alone follows its files
    own_folder = pod.worker == 0 or pod.snapshot is not None
    return shared._replace(
        worker=pod.worker,
        master_addr=pod.master_addr,
        master_port=pod.master_port,
        environment=environment,
        command=command,
        snapshot=files.snapshot,
        log_file=shared.log_file if own_folder else None,
        log_limit_bytes=_UNLIMITED,
        segment_bytes=max(1, min(shared.segment_bytes, pod.spool_bytes // _SEGMENTS)),
        outputs=shared.outputs if own_folder else [],
        outputs_to=outputs_url,
        outputs_token=files.token,
        outputs_ca=files.authorities,
        environments_dir=files.environments,
    )


def _inherited(pod: PodSettings) -> Dict[str, str]:
    """The container's environment without the variables that the operator and the pod's template set for the pod: ranks
    get numbers of their own, and torchrun would read PET_* as its options."""
    kept = {
        name: value
        for name, value in pod.environment.items()
        if name not in _OF_THE_POD and not name.startswith(_PREFIXES)
    }
    return kept if pod.conda_prefix is None else _activated(kept, pod.conda_prefix)


def _activated(environment: Dict[str, str], prefix: str) -> Dict[str, str]:
    """The environment after `conda activate`."""
    active = {name: value for name, value in environment.items() if name != "PYTHONHOME"}
    active["PATH"] = os.pathsep.join([os.path.join(prefix, "bin"), environment.get("PATH", os.defpath)])
    active["CONDA_PREFIX"] = prefix
    active["CONDA_DEFAULT_ENV"] = os.path.basename(prefix)
    return active
