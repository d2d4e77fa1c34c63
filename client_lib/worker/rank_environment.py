"""Environment, argv and working directory of every process of a worker. Pure: the same for every runtime."""

import os
from typing import Dict, List, NamedTuple, Optional

from client_lib.worker.directory import MARKER, Directory
from client_lib.worker.format import METRICS_PIPE
from client_lib.worker.plan import ELASTIC, WorkerPlan

RANK_PIPES = "CLIENT_LIB_RANK_PIPES"  # rank_runner.py reads it
STDIN = "CLIENT_LIB_STDIN"
"""Variable of a plan: a terminal, pipe or file of the submitter that rank 0 reads. Ranks do not get the variable."""
TRAINER_STATUS = tuple("KUBEFLOW_TRAINER_SERVER_" + name for name in ("URL", "TOKEN", "CA_CERT"))
"""Variables of the ranks: address, file of the token, file of authorities; see trainer_status.py."""
RANK_VARIABLES = "CLIENT_LIB_RANK_VARIABLES"
"""Variable of a job: with 0 its process gets no variables of ranks if it is the only one. No process gets this one."""

RENDEZVOUS_CONF = "CLIENT_LIB_RDZV_CONF"
"""Variable: settings of torchrun's --rdzv-conf, which override ours."""
_RENDEZVOUS = "join_timeout=1200,last_call_timeout=90,read_timeout=90"  # seconds, as on the ML Space platform
_NO_LOCAL_RANK = 9  # a rank that does not exist: torch 1.13 on Python 3.11 fails if an option names no rank
_LOOPBACK = ("127.", "localhost", "::1")

_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")

_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_BINARY = ("binary", "binary_exp")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")

# Variables that an outer torchrun, mpirun or accelerate sets for its own ranks. A job that is submitted from inside one
# of them inherits them, and torch (TORCHELASTIC_USE_AGENT_STORE) or accelerate (PMI_SIZE, OMPI_*) would apply them.
_STALE = frozenset(
    name
    for names in (
        "GROUP_WORLD_SIZE ROLE_RANK ROLE_WORLD_SIZE ROLE_NAME TORCH_NCCL_ASYNC_ERROR_HANDLING",
        "TORCHELASTIC_RUN_ID TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE TORCHELASTIC_ENABLE_FILE_TIMER",
        "OMPI_COMM_WORLD_RANK OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE",
        "OMPI_COMM_WORLD_NODE_RANK PMIX_RANK PMIX_HOSTNAME PMI_RANK PMI_SIZE MPI_LOCALRANKID MPI_LOCALNRANKS",
        "MV2_COMM_WORLD_RANK MV2_COMM_WORLD_SIZE MV2_COMM_WORLD_LOCAL_RANK MV2_COMM_WORLD_LOCAL_SIZE",
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
    """True: an agent of torchrun, whose ranks have output pipes of their own, or a step before the ranks, such as
    `setup`. Its lines belong to no rank."""


def processes(plan: WorkerPlan, directory: Directory, local_rank_option: Optional[str]) -> List[Process]:
    """The ranks of this worker, local rank 0 first: RANK = worker x processes_per_worker + LOCAL_RANK, always.

    `local_rank_option`: `--local_rank` or `--local-rank`, where the script gets its local rank as an argument too.
    Of an elastic worker it is the one agent that starts the ranks.
    """
    folder = working_dir(plan, directory)
    return [
        Process(
            plan.worker * plan.processes_per_worker + local_rank,
            local_rank,
            _argv(plan, local_rank, local_rank_option),
            _environment(plan, directory, local_rank),
            folder,
            plan.environment.get(STDIN, os.devnull) if plan.worker == local_rank == 0 else os.devnull,
            has_agent(plan),
        )
        for local_rank in range(1 if plan.type == ELASTIC else plan.processes_per_worker)
    ]


def setup_process(plan: WorkerPlan, directory: Directory) -> Process:
    """The job's command that runs before the ranks. It is none of them."""
    environment = of_no_rank(_environment(plan, directory, 0))
    command = ["sh", "-e", "-c", plan.setup or ""]
    return Process(-1, -1, command, environment, working_dir(plan, directory), is_agent=True)


def preflight_process(rank: Process, python: str, file: str) -> Process:
    """The check of the machines in the place of a rank, with its environment. Its lines belong to no rank."""
    environment = without_rank_files(rank.environment)
    return rank._replace(
        rank=-1 - rank.local_rank, argv=[python, file], environment=environment, stdin=os.devnull, is_agent=True
    )


def of_no_rank(environment: Dict[str, str]) -> Dict[str, str]:
    """The environment of a rank without RANK, LOCAL_RANK and the other variables of a rank."""
    return {
        name: value
        for name, value in without_rank_files(environment).items()
        if name not in _OF_RANKS and not name.startswith("OMPI_COMM_WORLD_")
    }


def without_rank_files(environment: Dict[str, str]) -> Dict[str, str]:
    """The environment of a rank for another process: what that wrote to these files would count as the rank's."""
    return {name: value for name, value in environment.items() if name not in (RANK_PIPES, _ERROR_FILE)}


def working_dir(plan: WorkerPlan, directory: Directory) -> str:
    return os.path.join(directory.work, plan.working_dir) if plan.snapshot else plan.working_dir


def script_path(plan: WorkerPlan, directory: Directory) -> Optional[str]:
    """Absolute path of the script; None: the command is no Python script."""
    if plan.python is None:
        return None
    root = directory.work if plan.snapshot else plan.working_dir
    return os.path.normpath(os.path.join(root, plan.command[0]))


def default_threads(plan: WorkerPlan) -> Optional[int]:
    """OMP_NUM_THREADS of each process; None: the user has set it."""
    return None if "OMP_NUM_THREADS" in plan.environment else threads_with(plan.cores, plan.processes_per_worker)


def threads_with(cores: int, processes: int) -> int:
    return max(1, cores // processes)


def has_ranks(plan: WorkerPlan) -> bool:
    """False: the one process of the job sees no RANK, as in a shell. Scripts that look for it would prepare for DDP."""
    if plan.world_size > 1 or plan.type == ELASTIC:
        return True
    as_in_a_shell = RANK_VARIABLES in plan.user_variables and plan.environment.get(RANK_VARIABLES) == "0"
    is_function = os.path.basename(plan.command[0]) == "function_runner.py"  # it needs RANK
    return plan.type not in _BINARY and (is_function or not as_in_a_shell)


def uses_rank_runner(plan: WorkerPlan) -> bool:
    return plan.rank_runner and plan.python is not None and plan.command[0].endswith(".py")


def has_agent(plan: WorkerPlan) -> bool:
    """An agent whose ranks bring output pipes, for which they need the rank runner."""
    return plan.type == ELASTIC and uses_rank_runner(plan)


def others_may_wait(plan: WorkerPlan) -> bool:
    """True if the job has several ranks, and the launcher starts those here itself: not by an agent of torchrun."""
    return plan.world_size > 1 and not has_agent(plan)


def agent_arguments(plan: WorkerPlan) -> List[str]:
    """Arguments of the interpreter before the script of an elastic worker: torchrun with its options.

    Each worker runs one agent of torchrun, which starts, numbers and restarts the ranks. The agents meet at worker 0,
    which holds the rendezvous.
    """
    least = plan.n_workers if plan.elastic_min_workers is None else plan.elastic_min_workers
    is_host = "true" if plan.worker == 0 else "false"
    options = [  # torch 1.13 knows no option with a hyphen
        "--nnodes=%d:%d" % (least, plan.n_workers),
        "--nproc_per_node=%d" % plan.processes_per_worker,
        "--max_restarts=%d" % plan.elastic_max_restarts,
        "--rdzv_id=%s-%d" % (plan.job, plan.attempt),
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=%s:%d" % (plan.master_addr, plan.master_port),
        "--rdzv_conf="
        + ",".join(filter(None, ["is_host=" + is_host, _RENDEZVOUS, plan.environment.get(RENDEZVOUS_CONF)])),
    ]
    if plan.processes_per_worker <= _NO_LOCAL_RANK:
        options += ["--redirects=%d:3" % _NO_LOCAL_RANK, "--tee=%d:3" % _NO_LOCAL_RANK]
    if plan.master_addr.startswith(_LOOPBACK):  # otherwise agents exchange this machine's name, which may not resolve
        options.append("--local_addr=%s" % plan.master_addr)
    return ["-m", "torch.distributed.run"] + options


def _argv(plan: WorkerPlan, local_rank: int, option: Optional[str]) -> List[str]:
    script, arguments = plan.command[0], plan.command[1:]
    if option:  # before the script's own arguments, as torch.distributed.launch does
        arguments = ["%s=%d" % (option, local_rank)] + arguments
    return ([plan.python] if plan.python else []) + [script] + arguments


def _environment(plan: WorkerPlan, directory: Directory, local_rank: int) -> Dict[str, str]:
    own, per_worker = set(plan.user_variables), plan.processes_per_worker
    numbers = (plan.worker * per_worker + local_rank, plan.world_size, local_rank, per_worker, plan.worker, plan.worker)
    of_ranks = dict(zip(_OF_RANKS, map(str, numbers)))  # noqa: B905  # `strict` is of Python 3.10
    seen = {name: value for name, value in plan.environment.items() if name in own or name not in _STALE}
    seen.update((name, value) for name, value in _defaults(plan, of_ranks).items() if name not in own)
    for name, value in _if_absent(plan).items():
        seen.setdefault(name, value)
    seen.update(of_ranks)
    hidden = [STDIN, RANK_VARIABLES, METRICS_PIPE]
    if not has_ranks(plan):
        hidden += of_ranks
        if plan.type not in _BINARY:  # programs of these types get no other address
            hidden += [name for name in _MASTER if name not in own]
    for name in hidden:
        seen.pop(name, None)
    seen[MARKER] = directory.path
    if plan.observe:
        seen[METRICS_PIPE] = directory.metrics
    if has_agent(plan):
        seen[RANK_PIPES] = directory.rank_pipes
    seen[_ERROR_FILE] = directory.error_file(numbers[0])
    return seen


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
    set_by_us.update(("CLIENT_LIB_AFTER_%d_OUTPUTS" % place, each) for place, each in enumerate(plan.inputs))
    if plan.gpus is not None:
        set_by_us["CUDA_VISIBLE_DEVICES"] = ",".join(plan.gpus)
    if plan.type == ELASTIC:
        # otherwise an agent with a store from an earlier round does not announce it to one that joins later, which
        # waits in vain (torch 2.15, dynamic_rendezvous.py, next_rendezvous)
        set_by_us["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
    if plan.type in _BINARY:  # written for MPI; for other types accelerate would conclude that mpirun is in use
        set_by_us["OMPI_COMM_WORLD_RANK"] = of_ranks["RANK"]
        set_by_us["OMPI_COMM_WORLD_SIZE"] = of_ranks["WORLD_SIZE"]
        set_by_us["OMPI_COMM_WORLD_LOCAL_RANK"] = of_ranks["LOCAL_RANK"]
        # the pod's name on the ML Space platform, by which scripts recognize the master
        role = "mpimaster-0" if plan.worker == 0 else "mpiworker-%d" % (plan.worker - 1)
        set_by_us["PMIX_HOSTNAME"] = "%s-%s" % (plan.job, role)
    return set_by_us


def _if_absent(plan: WorkerPlan) -> Dict[str, str]:
    """Variables that any setting of the user overrides."""
    absent = {}
    threads = default_threads(plan)
    if threads is not None:
        absent["OMP_NUM_THREADS"] = str(threads)
    several = plan.world_size > 1 or plan.type == ELASTIC
    if plan.observe and several and "TORCH_NCCL_TRACE_BUFFER_SIZE" not in plan.environment:
        absent["TORCH_FR_BUFFER_SIZE"] = "256"  # PyTorch's own 2000 take rank_runner 10 ms at each reading
    if plan.gpus:
        absent["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbering of nvidia-smi, by which devices are chosen
    if plan.gpus == []:
        absent["ACCELERATE_USE_CPU"] = "true"  # otherwise accelerate and Trainer train every rank alone
    return absent
