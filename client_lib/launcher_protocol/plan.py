"""The plan of one worker, written as JSON for its launcher. A runtime makes the plan. Pure."""

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

from client_lib.launcher_protocol.directory import Directory

PROTOCOL = 1
ELASTIC = "pytorch_elastic"
"""Type whose ranks are started by agents of torchrun."""
BINARY_TYPES = ("binary", "binary_exp")

STDIN = "CLIENT_LIB_STDIN"
"""Variable of a plan: a terminal, pipe or file of the submitter that rank 0 reads.
Ranks do not get the variable.
"""
RANK_VARIABLES = "CLIENT_LIB_RANK_VARIABLES"
"""Variable of a job: with 0 the job's process gets no variables of ranks if it is the only process.
No process gets this variable itself.
"""
RENDEZVOUS_CONF = "CLIENT_LIB_RDZV_CONF"
"""Variable: settings of torchrun's --rdzv-conf, which override ours."""
TRAINER_STATUS = tuple("KUBEFLOW_TRAINER_SERVER_" + name for name in ("URL", "TOKEN", "CA_CERT"))
"""Variables of the ranks: address, file of the token, file of authorities; see metrics.py."""


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
    """Script and arguments if `python` is given, otherwise a whole argv. A relative script is below
    working_dir, with a snapshot below its root."""
    python: Optional[str]
    """Interpreter that runs the script; None: `command` is run directly."""
    environment: Dict[str, str]
    """Environment of the processes without the variables that the launcher sets for each."""
    user_variables: List[str]
    """Names in `environment` that the user has set in the spec: the launcher's
    defaults never override them.
    """
    working_dir: str
    """Working directory of the processes. With a snapshot: relative to where it is unpacked."""
    master_addr: str
    master_port: int
    gpus: Optional[List[str]]
    """Devices of this worker; []: none, and none is visible; None: the
    machine's own setting stays.
    """
    cores: int
    """Cores of this worker, for OMP_NUM_THREADS."""
    checkpoint_dir: str
    owner: str = ""
    """User who owns the job: messages to this user do not name the jobs of
    others. "": there is one user.
    """
    moves_damaged: bool = False
    """A damaged newest checkpoint in `checkpoint_dir` is moved aside before the ranks start; False:
    the job's events only tell of it."""
    keep_checkpoints: Optional[int] = None
    """Number of steps whose checkpoints stay in `checkpoint_dir`; None: all."""
    keep_best: Optional[str] = None
    """`max:METRIC` or `min:METRIC`: the checkpoint with the best value stays, too; None: none."""
    from_step: Optional[int] = None
    """Step from which the first attempt starts; None: from the last one that was copied."""
    last_good: Optional[List[Optional[float]]] = None
    """Step (None: not known) and time, in seconds since 1970, before which the attempt starts:
    checkpoints that were written later are moved away. None: it starts from the last one."""
    checkpoints_from: Optional[str] = None
    """Folder, or glob of one, that worker 0 copies to checkpoint_dir before
    the first start; None: none.
    """
    snapshot: Optional[str] = None
    """Archive to unpack into `work/` of the worker's directory; None: the code runs in place."""
    keep_free_bytes: int = 0
    """Bytes of the disk that stay free when code is unpacked, and
    checkpoints and outputs are copied.
    """
    log_file: Optional[str] = None
    """File or glob followed as train.log, in working_dir and in the script's folder;
    None: none on this worker.
    """
    local_rank_argument: Optional[str] = None
    """`--local_rank` or `--local-rank`, which the script gets with its local rank.
    None: see `local_rank_auto`.
    """
    local_rank_auto: bool = False
    """Pass the argument in the spelling that the script declares, if it declares one."""
    rank_runner: bool = True
    """False: `python script` itself, without the rank runner."""
    no_new_privileges: bool = False
    """True: a program such as `sudo` cannot give the processes rights that
    the launcher lacks (Linux).
    """
    observe: bool = True
    """False: the stacks of the processes are not taken (stacks.py)."""
    metrics: Optional[str] = None
    """Regular expression that reads metrics from lines (metrics.py); None: none."""
    record_imports: bool = False
    """Local rank 0 writes the names of the installed modules that it has imported to
    a file, for the warm pool.
    """
    elastic_min_workers: Optional[int] = None
    """Number of workers with which `pytorch_elastic` continues; None: all."""
    elastic_max_restarts: int = 5
    """Number of times that the agents of `pytorch_elastic` restart the ranks within an attempt."""
    max_restarts: int = 0
    """Number of further attempts that the user allows, for TORCHELASTIC_MAX_RESTARTS."""
    outputs: List[str] = []
    """Globs, relative to working_dir, of files to keep for download if the
    ranks create or change them.
    """
    outputs_to: Optional[str] = None
    """Destination of the outputs: an absolute directory, or the URL of a server; None: outputs are
    not kept.
    """
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
    """True: the machines are checked before the script, by the interpreter of
    the ranks (preflight.py).
    """
    inputs: List[str] = []
    """Folders with the outputs of the jobs for which this job waited, in their order; in the plan
    of a cluster relative to the folder that the agent makes."""
    requirements: List[str] = []
    """Extra packages, as lines of a requirements file; []: none."""
    requirements_python: Optional[str] = None
    """Interpreter to whose packages they are added; None: `python`."""
    environments_dir: Optional[str] = None
    """Folder that caches environments with extra packages; needed for `requirements`."""
    grace_s: float = 30.0
    log_limit_bytes: int = 10 * 2**30
    segment_bytes: int = 64 * 2**20
    log_offset: int = 0
    log_seq: int = 0
    """Offset and seq of the first record: the server has the records of earlier pods of this
    worker."""
    secrets: List[str] = []
    """Names in `environment` whose values are secret."""
    protocol: int = PROTOCOL

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return self.n_workers * self.processes_per_worker

    @property
    def has_ranks(self) -> bool:
        """False: the one process of the job sees no RANK, as in a shell: scripts that find a RANK
        prepare for DDP.
        """
        if self.world_size > 1 or self.type == ELASTIC:
            return True
        as_in_a_shell = (
            RANK_VARIABLES in self.user_variables and self.environment.get(RANK_VARIABLES) == "0"
        )
        is_function = os.path.basename(self.command[0]) == "function_runner.py"  # it needs RANK
        return self.type not in BINARY_TYPES and (is_function or not as_in_a_shell)

    @property
    def uses_rank_runner(self) -> bool:
        return self.rank_runner and self.python is not None and self.command[0].endswith(".py")

    @property
    def has_agent(self) -> bool:
        """True: torchrun's agent starts the ranks, which bring output pipes. For these
        they need the rank runner.
        """
        return self.type == ELASTIC and self.uses_rank_runner

    @property
    def others_may_wait(self) -> bool:
        """True if the job has several ranks, and the launcher starts this worker's ranks itself,
        not by an agent of torchrun.
        """
        return self.world_size > 1 and not self.has_agent

    @property
    def default_threads(self) -> Optional[int]:
        """OMP_NUM_THREADS of each process; None: the user has set it."""
        return (
            None
            if "OMP_NUM_THREADS" in self.environment
            else threads_with(self.cores, self.processes_per_worker)
        )

    def working_dir_in(self, directory: Directory) -> str:
        return os.path.join(directory.work, self.working_dir) if self.snapshot else self.working_dir

    def script_in(self, directory: Directory) -> Optional[str]:
        """Absolute path of the script; None: the command is no Python script."""
        root = directory.work if self.snapshot else self.working_dir
        return (
            os.path.normpath(os.path.join(root, self.command[0]))
            if self.python is not None
            else None
        )

    def to_json(self) -> str:
        return json.dumps(self._asdict())


def from_json(text: str) -> WorkerPlan:
    """Raises ValueError for a plan of another protocol. Unknown fields of
    a newer minor are ignored.
    """
    data: Dict[str, Any] = json.loads(text)
    if data.get("protocol") != PROTOCOL:
        raise ValueError(
            "this launcher speaks protocol %d, the plan %r" % (PROTOCOL, data.get("protocol"))
        )
    return WorkerPlan(**{key: value for key, value in data.items() if key in WorkerPlan._fields})


def threads_with(cores: int, processes: int) -> int:
    return max(1, cores // processes)


OPEN_FILES = "CLIENT_LIB_OPEN_FILES"
"""Variable with the soft limit of open files that ranks get: a server raises its own
limit, which launchers inherit.
"""
