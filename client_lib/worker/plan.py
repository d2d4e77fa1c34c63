"""The plan of one worker, written as JSON for its launcher, and the processes that it describes.
Pure.

A runtime makes the plan; the launcher computes from it argv, environment and working directory of
each process (RANK is always worker index x processes_per_worker + LOCAL_RANK), so that all runtimes
share one rule.
"""

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

from client_lib.worker.directory import MARKER, Directory
from client_lib.worker.format import METRICS_PIPE

PROTOCOL = 1
ELASTIC = "pytorch_elastic"
"""Type whose ranks are started by agents of torchrun."""
_BINARY = ("binary", "binary_exp")

STDIN = "CLIENT_LIB_STDIN"
"""Variable of a plan: a terminal, pipe or file of the submitter that rank 0 reads.
Ranks do not get the variable.
"""
RANK_VARIABLES = "CLIENT_LIB_RANK_VARIABLES"
"""Variable of a job: with 0 its process gets no variables of ranks if it is the only one.
No process gets this one.
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
    """Interpreter that runs the script; None: `command` is run as it is."""
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
    outputs: List[str] = []
    """Globs, relative to working_dir, of files to keep for download if the
    ranks create or change them.
    """
    outputs_to: Optional[str] = None
    """Destination of these files: an absolute directory, or the URL of a
    server; None: they are not kept.
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
    """Folders with the outputs of the jobs that this one waited for, in their order; in the plan of
    a cluster relative to the folder that the agent makes."""
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
    """Offset and seq of the first record: the server has those of earlier pods of this worker."""
    secrets: List[str] = []
    """Names in `environment` whose values are secret."""
    protocol: int = PROTOCOL

    @property
    def world_size(self) -> int:
        """Number of ranks of the job."""
        return self.n_workers * self.processes_per_worker

    @property
    def has_ranks(self) -> bool:
        """False: the one process of the job sees no RANK, as in a shell: scripts that
        find one prepare for DDP.
        """
        if self.world_size > 1 or self.type == ELASTIC:
            return True
        as_in_a_shell = (
            RANK_VARIABLES in self.user_variables and self.environment.get(RANK_VARIABLES) == "0"
        )
        is_function = os.path.basename(self.command[0]) == "function_runner.py"  # it needs RANK
        return self.type not in _BINARY and (is_function or not as_in_a_shell)

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
        """True if the job has several ranks, and the launcher starts those here itself:
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


# --- the processes

RANK_PIPES = "CLIENT_LIB_RANK_PIPES"  # rank_runner.py reads it
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
# seconds, as on the ML Space platform
_RENDEZVOUS = "join_timeout=1200,last_call_timeout=90,read_timeout=90"
# a rank that does not exist: torch 1.13 on Python 3.11 fails if an option names no rank
_NO_LOCAL_RANK = 9
_LOOPBACK = ("127.", "localhost", "::1")

# Variables that an outer torchrun, mpirun or accelerate sets for its own ranks. A job that is
# submitted from inside one of them inherits them, and torch (TORCHELASTIC_USE_AGENT_STORE) or
# accelerate (PMI_SIZE, OMPI_*) would apply them.
_STALE = frozenset(
    name
    for names in (
        "GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME TORCH_NCCL_ASYNC_ERROR_HANDLING",
        (
            "TORCHELASTIC_RUN_ID TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE "
            "TORCHELASTIC_ENABLE_FILE_TIMER"
        ),
        (
            "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK "
            "OMPI_COMM_WORLD_LOCAL_SIZE"
        ),
        (
            "OMPI_COMM_WORLD_NODE_RANK PMIX_RANK PMIX_HOSTNAME PMI_RANK PMI_SIZE MPI_LOCALRANKID "
            "MPI_LOCALNRANKS"
        ),
        (
            "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK "
            "MV2_COMM_WORLD_LOCAL_SIZE"
        ),
        " ".join(TRAINER_STATUS),
    )
    for name in names.split()
)


class Process(NamedTuple):
    """One rank, ready to be started."""

    rank: int
    local_rank: int
    argv: List[str]
    environment: Dict[str, str]
    working_dir: str
    stdin: str = os.devnull
    is_agent: bool = False
    """True: an agent of torchrun, whose ranks have output pipes of their own, or a step before the
    ranks, such as `setup`. Its lines belong to no rank."""


def processes(
    plan: WorkerPlan, directory: Directory, local_rank_option: Optional[str]
) -> List[Process]:
    """The ranks of this worker, local rank 0 first; of an elastic worker the one agent that starts
    them. `local_rank_option`: `--local_rank` or `--local-rank`, where the script gets its local
    rank as an argument too."""
    found = []
    for local_rank in range(1 if plan.type == ELASTIC else plan.processes_per_worker):
        # before the script's own arguments, as torch.distributed.launch does
        option = ["%s=%d" % (local_rank_option, local_rank)] if local_rank_option else []
        found.append(
            Process(
                plan.worker * plan.processes_per_worker + local_rank,
                local_rank,
                [
                    *([plan.python] if plan.python else []),
                    plan.command[0],
                    *option,
                    *plan.command[1:],
                ],
                _environment(plan, directory, local_rank),
                plan.working_dir_in(directory),
                plan.environment.get(STDIN, os.devnull)
                if plan.worker == local_rank == 0
                else os.devnull,
                plan.has_agent,
            )
        )
    return found


def setup_process(plan: WorkerPlan, directory: Directory) -> Process:
    """The job's command that runs before the ranks. It is none of them."""
    environment = of_no_rank(_environment(plan, directory, 0))
    command = ["sh", "-e", "-c", plan.setup or ""]
    return Process(-1, -1, command, environment, plan.working_dir_in(directory), is_agent=True)


def of_no_rank(environment: Dict[str, str]) -> Dict[str, str]:
    """The environment of a rank without RANK, LOCAL_RANK and the other variables of a rank."""
    return {
        name: value
        for name, value in without_rank_files(environment).items()
        if name not in _OF_RANKS and not name.startswith("OMPI_COMM_WORLD_")
    }


def without_rank_files(environment: Dict[str, str]) -> Dict[str, str]:
    """The environment of a rank for another process: what that wrote to these files
    would count as the rank's.
    """
    return {
        name: value for name, value in environment.items() if name not in (RANK_PIPES, _ERROR_FILE)
    }


def agent_arguments(plan: WorkerPlan) -> List[str]:
    """Arguments of the interpreter before the script of an elastic worker: torchrun with its
    options. Its agents, one a worker, start, number and restart the ranks; they meet at worker 0,
    which holds the rendezvous."""
    least = plan.n_workers if plan.elastic_min_workers is None else plan.elastic_min_workers
    is_host = "is_host=true" if plan.worker == 0 else "is_host=false"
    settings = filter(None, [is_host, _RENDEZVOUS, plan.environment.get(RENDEZVOUS_CONF)])
    options = [  # torch 1.13 knows no option with a hyphen
        "--nnodes=%d:%d" % (least, plan.n_workers),
        "--nproc_per_node=%d" % plan.processes_per_worker,
        "--max_restarts=%d" % plan.elastic_max_restarts,
        "--rdzv_id=%s-%d" % (plan.job, plan.attempt),
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=%s:%d" % (plan.master_addr, plan.master_port),
        "--rdzv_conf=" + ",".join(settings),
    ]
    if plan.processes_per_worker <= _NO_LOCAL_RANK:
        options += ["--redirects=%d:3" % _NO_LOCAL_RANK, "--tee=%d:3" % _NO_LOCAL_RANK]
    if plan.master_addr.startswith(
        _LOOPBACK
    ):  # otherwise agents exchange this machine's name, which may not resolve
        options.append("--local_addr=%s" % plan.master_addr)
    return ["-m", "torch.distributed.run", *options]


def _environment(plan: WorkerPlan, directory: Directory, local_rank: int) -> Dict[str, str]:
    own, per_worker = set(plan.user_variables), plan.processes_per_worker
    rank = plan.worker * per_worker + local_rank
    numbers = (rank, plan.world_size, local_rank, per_worker, plan.worker, plan.worker)
    of_ranks = dict(zip(_OF_RANKS, map(str, numbers)))  # noqa: B905  # `strict` is of Python 3.10
    seen = {}  # first what any setting of the user overrides
    if plan.default_threads is not None:
        seen["OMP_NUM_THREADS"] = str(plan.default_threads)
    several = plan.world_size > 1 or plan.type == ELASTIC
    if plan.observe and several and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in plan.environment:
        # PyTorch's own 2000 take rank_runner 10 ms at each reading
        seen["TORCH_FR_BUFFER_SIZE"] = "256"
    if plan.gpus:
        # the numbering of nvidia-smi, by which devices are chosen
        seen["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    if plan.gpus == []:
        # otherwise accelerate and Trainer train every rank alone
        seen["ACCELERATE_USE_CPU"] = "true"
    seen.update(
        (name, value)
        for name, value in plan.environment.items()
        if name in own or name not in _STALE
    )
    seen.update(
        (name, value) for name, value in _defaults(plan, of_ranks).items() if name not in own
    )
    seen.update(of_ranks)
    hidden = [STDIN, RANK_VARIABLES, METRICS_PIPE]
    if not plan.has_ranks:
        hidden += of_ranks
        if plan.type not in _BINARY:  # programs of these types get no other address
            hidden += [name for name in _MASTER if name not in own]
    for name in hidden:
        seen.pop(name, None)
    if plan.observe:
        seen[METRICS_PIPE] = directory.metrics
    if plan.has_agent:
        seen[RANK_PIPES] = directory.rank_pipes
    return {**seen, MARKER: directory.path, _ERROR_FILE: directory.error_file(rank)}


def _defaults(plan: WorkerPlan, of_ranks: Dict[str, str]) -> Dict[str, str]:
    """Variables that the spec can override, but not the submitter's shell."""
    set_by_us = {
        "MASTER_ADDR": plan.master_addr,
        "MASTER_PORT": str(plan.master_port),
        "PYTHONUNBUFFERED": "1",
        "CLIENT_LIB_JOB_NAME": plan.job,
        "CLIENT_LIB_ATTEMPT": str(plan.attempt),
        "CLIENT_LIB_CHECKPOINT_DIR": plan.checkpoint_dir,
        "MLSPACE_JOB_NAME": plan.job,
        "TORCHELASTIC_RESTART_COUNT": str(plan.attempt - 1),
    }
    set_by_us.update(
        ("CLIENT_LIB_AFTER_%d_OUTPUTS" % place, each) for place, each in enumerate(plan.inputs)
    )
    if plan.gpus is not None:
        set_by_us["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)
    if plan.type == ELASTIC:
        # otherwise an agent with a store from an earlier round does not announce it to one that
        # joins later, which waits in vain (torch 2.15, dynamic_rendezvous.py, next_rendezvous)
        set_by_us["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if (
        plan.type in _BINARY
    ):  # written for MPI; for other types accelerate would conclude that mpirun is in use
        set_by_us["OMPI_COMM_WORLD_RANK"] = of_ranks["RANK"]
        set_by_us["OMPI_COMM_WORLD_SIZE"] = of_ranks["WORLD_SIZE"]
        set_by_us["OMPI_COMM_WORLD_LOCAL_RANK"] = of_ranks["LOCAL_RANK"]
        # the pod's name on the ML Space platform, by which scripts recognize the master
        role = "mpimaster-0" if plan.worker == 0 else "mpiworker-%d" % (plan.worker - 1)
        set_by_us["PMIX_HOSTNAME"] = "%s-%s" % (plan.job, role)
    return set_by_us
