"""The plan of one worker, written as JSON for its launcher.

A runtime makes it; the launcher computes from it the environment of each process (RANK is always worker index x
processes_per_worker + LOCAL_RANK), so that all runtimes share one rule.
"""

from __future__ import annotations

import json
from typing import Any, Dict, List, NamedTuple, Optional

PROTOCOL = 1
ELASTIC = "pytorch_elastic"
"""Type whose ranks are started by agents of torchrun."""


class WorkerPlan(NamedTuple):  # a dataclass would take a sixth of the launcher's start time
    """Everything that one launcher needs. Paths are absolute; None means absent."""

    job: str
    attempt: int
    worker: int
    n_workers: int
    processes_per_worker: int
    type: str
    """A value of client_lib.spec.job.JobType."""
    command: List[str]
    """Script and arguments if `python` is given, otherwise a whole argv. A relative script is below working_dir, with a
    snapshot below its root."""
    python: Optional[str]
    """Interpreter that runs the script; None: `command` is run as it is."""
    environment: Dict[str, str]
    """Environment of the processes without the variables that the launcher sets for each."""
    user_variables: List[str]
    """Names in `environment` that the user has set in the spec: the launcher's defaults never override them."""
    working_dir: str
    """Working directory of the processes. With a snapshot: relative to where it is unpacked."""
    master_addr: str
    master_port: int
    gpus: Optional[List[str]]
    """Devices of this worker; []: none, and none is visible; None: the machine's own setting stays."""
    cores: int
    """Cores of this worker, for OMP_NUM_THREADS."""
    checkpoint_dir: str
    owner: str = ""
    """User who owns the job: messages to this user do not name the jobs of others. "": there is one user."""
    checkpoints_from: Optional[str] = None
    """Folder, or glob of one, that worker 0 copies to checkpoint_dir before the first start; None: none."""
    snapshot: Optional[str] = None
    """Archive to unpack into `work/` of the worker's directory; None: the code runs in place."""
    keep_free_bytes: int = 0
    """Bytes of the disk that stay free when code is unpacked, and checkpoints and outputs are copied."""
    log_file: Optional[str] = None
    """File or glob followed as train.log, in working_dir and in the script's folder; None: none on this worker."""
    local_rank_argument: Optional[str] = None
    """`--local_rank` or `--local-rank`: passed to the script with its local rank. None: not passed, unless
    `local_rank_auto`."""
    local_rank_auto: bool = False
    """Pass the argument in the spelling that the script declares, if it declares one."""
    rank_runner: bool = True
    """False: `python script` itself, without the rank runner."""
    no_new_privileges: bool = False
    """True: a program such as `sudo` cannot give the processes rights that the launcher lacks (Linux)."""
    observe: bool = True
    """False: the stacks of the processes are not taken (stacks.py)."""
    metrics: Optional[str] = None
    """Regular expression that reads metrics from lines (metrics.py); None: none."""
    record_imports: bool = False
    """Local rank 0 writes the names of the installed modules that it has imported to a file, for the warm pool."""
    elastic_min_workers: Optional[int] = None
    """Number of workers with which `pytorch_elastic` continues; None: all."""
    elastic_max_restarts: int = 5
    """Number of times that the agents of `pytorch_elastic` restart the ranks within an attempt."""
    outputs: List[str] = []
    """Globs, relative to working_dir, of files to keep for download if the ranks create or change them."""
    outputs_to: Optional[str] = None
    """Destination of these files: an absolute directory, or the URL of a server; None: they are not kept."""
    outputs_token: Optional[str] = None
    """File with the token for that URL."""
    outputs_ca: Optional[str] = None
    """File of the certificate authorities to trust for that URL; None: the system's."""
    outputs_every_s: float = 60.0
    """Seconds between two scans while the ranks run; the last scan follows their end."""
    outputs_limit_bytes: int = 10 * 2**30
    """Limit for the whole job, all workers and attempts together."""
    setup: Optional[str] = None
    """Command for `sh -e` that runs before the ranks; None: none."""
    setup_limit_s: Optional[float] = None
    """Seconds after which it is ended; None: no limit."""
    preflight: bool = False
    """True: the machines are checked before the script, by the interpreter of the ranks (preflight.py)."""
    inputs: List[str] = []
    """Folders with the outputs of the jobs that this one waited for, in their order; in the plan of a cluster relative
    to the folder that the agent makes."""
    requirements: List[str] = []
    """Extra packages, as lines of a requirements file; []: none."""
    requirements_python: Optional[str] = None
    """Interpreter to whose packages they are added; None: `python`."""
    environments_dir: Optional[str] = None
    """Folder that caches environments with extra packages; needed for `requirements`."""
    environments_limit_bytes: int = 20 * 2**30
    """Limit for all cached environments; the least recently used ones are removed."""
    grace_s: float = 30.0
    log_limit_bytes: int = 10 * 2**30
    segment_bytes: int = 64 * 2**20
    log_offset: int = 0
    log_seq: int = 0
    """Offset and seq of the first record: the server has those of earlier pods of this worker."""
    secrets: List[str] = []
    """Names in `environment` whose values are secret."""
    protocol: int = PROTOCOL

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return self.n_workers * self.processes_per_worker

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
