"""The order that a worker launcher carries out: one WorkerPlan, written as JSON. Standard library only, Python >= 3.8.

A runtime's planner makes it; the launcher computes from it what each process sees (design of the environment: RANK =
worker index x processes_per_worker + LOCAL_RANK, always), so that this is decided in one place for every runtime.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional

PROTOCOL = 1


class WorkerPlan(NamedTuple):  # a dataclass would cost a sixth of the launcher's start
    """Everything one worker needs to know. Paths are absolute; None means absent."""

    job: str
    attempt: int
    worker: int
    n_workers: int
    processes_per_worker: int
    type: str
    """A value of client_lib.spec.job.JobType."""
    command: List[str]
    """Script and arguments where `python` is given, else a whole argv. A relative script is looked for in working_dir,
    with a snapshot in the root of what is unpacked."""
    python: Optional[str]
    """Interpreter that runs the script; None: `command` is run as it is."""
    environment: Dict[str, str]
    """The whole environment of the processes but for what the launcher sets for each."""
    user_variables: List[str]
    """Names in `environment` that the user set in the spec: the launcher's defaults never override these."""
    working_dir: str
    """Working directory of the processes. With a snapshot: relative to where it is unpacked."""
    master_addr: str
    master_port: int
    gpus: Optional[List[str]]
    """Devices of this worker; []: it has none and sees none; None: leave the machine's own setting alone."""
    cores: int
    """Cores of this worker, for OMP_NUM_THREADS."""
    checkpoint_dir: str
    owner: str = ""
    """Whose job it is: where other users' jobs are named to it, they have no names. "": all are one user's."""
    checkpoints_from: Optional[str] = None
    """A folder, or glob of one, whose copy is what checkpoint_dir begins with: worker 0 makes it; None: none."""
    snapshot: Optional[str] = None
    """Archive to unpack into `work/` of the worker's directory; None: the code runs in place."""
    log_file: Optional[str] = None
    """File or glob tailed as train.log, looked for in working_dir and in the script's folder; None: not here."""
    local_rank_argument: Optional[str] = None
    """`--local_rank` or `--local-rank`, where the script gets its local rank as an argument too. None: it doesn't,
    unless `local_rank_auto`."""
    local_rank_auto: bool = False
    """Pass the argument in the spelling that the script declares, if it declares one."""
    rank_runner: bool = True
    """False: `python script` itself, without the rank runner."""
    record_imports: bool = False
    """Local rank 0 leaves the names of the installed modules that it has imported in a file, for the warm pool."""
    elastic_min_workers: Optional[int] = None
    """Of `pytorch_elastic`: workers that are enough to go on; None: all."""
    elastic_max_restarts: int = 5
    """Of `pytorch_elastic`: how often its agents start the ranks anew within an attempt."""
    outputs: List[str] = []
    """Globs of files that are kept for download, relative to working_dir: of them what the ranks create or change."""
    outputs_to: Optional[str] = None
    """Where they are kept: an absolute directory, or the URL of a server; None: nowhere."""
    outputs_token: Optional[str] = None
    """File with the token for that URL."""
    outputs_ca: Optional[str] = None
    """File of the certificate authorities to trust there; None: the system's."""
    outputs_every_s: float = 60.0
    """Between two looks while the ranks run; the last one is at their end."""
    outputs_limit_bytes: int = 10 * 2**30
    """Of the whole job, all workers and attempts together."""
    requirements: List[str] = []
    """Extra packages, as lines of a requirements file; []: none."""
    requirements_python: Optional[str] = None
    """Interpreter whose packages they are added to; None: `python`."""
    environments_dir: Optional[str] = None
    """Where environments with extra packages are kept for later workers; needed for `requirements`."""
    environments_limit_bytes: int = 20 * 2**30
    """Of all of them; those that were not used for longest go first."""
    grace_s: float = 30.0
    log_limit_bytes: int = 10 * 2**30
    segment_bytes: int = 64 * 2**20
    log_offset: int = 0
    log_seq: int = 0
    """Offset and seq of the first record here: what another pod of this worker wrote before is elsewhere."""
    protocol: int = PROTOCOL

    def to_json(self) -> str:
        return json.dumps(self._asdict())


def from_json(text: str) -> WorkerPlan:
    """Raises ValueError for a plan of another protocol. Unknown fields of a newer minor are ignored."""
    data: Dict[str, Any] = json.loads(text)
    if data.get("protocol") != PROTOCOL:
        raise ValueError(
            "this launcher speaks protocol %d, the plan is of protocol %r" % (PROTOCOL, data.get("protocol"))
        )
    return WorkerPlan(**{key: value for key, value in data.items() if key in WorkerPlan._fields})
