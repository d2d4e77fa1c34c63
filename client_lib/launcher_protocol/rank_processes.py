"""The processes that a plan describes: argv, environment and working directory of each. Pure.

The launcher computes them from the plan (RANK is always worker index x processes_per_worker +
LOCAL_RANK), so that all runtimes share one rule.
"""

import os
from typing import Dict, List, NamedTuple, Optional

from client_lib.launcher_protocol.directory import MARKER, Directory
from client_lib.launcher_protocol.plan import (
    BINARY_TYPES,
    ELASTIC,
    RANK_VARIABLES,
    RENDEZVOUS_CONF,
    STDIN,
    TRAINER_STATUS,
    WorkerPlan,
)
from client_lib.launcher_protocol.record import METRICS_PIPE

# --- the processes

RANK_PIPES = "CLIENT_LIB_RANK_PIPES"  # rank_runner/pipes.py reads it
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
_OF_RANKS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK")
_MASTER = ("MASTER_ADDR", "MASTER_PORT")
_OF_TORCHRUN = (
    "GROUP_WORLD_SIZE",
    "ROLE_NAME",
    "ROLE_RANK",
    "ROLE_WORLD_SIZE",
    "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_MAX_RESTARTS",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCH_NCCL_ASYNC_ERROR_HANDLING",
)
"""Further variables that torchrun sets; `torch.distributed.is_torchelastic_launched` looks for one.
Source: torch 2.15, distributed/elastic/agent/server/local_elastic_agent.py, _start_workers."""
# seconds, as on the ML Space platform
_RENDEZVOUS = "join_timeout=1200,last_call_timeout=90,read_timeout=90"
# a rank that does not exist: torch 1.13 on Python 3.11 fails if an option names no rank
_NO_LOCAL_RANK = 9
_LOOPBACK = ("127.", "localhost", "::1")

# Variables that an outer torchrun, mpirun or accelerate sets for its own ranks. A job that is
# submitted from inside such a launcher inherits the variables, and torch
# (TORCHELASTIC_USE_AGENT_STORE) or accelerate (PMI_SIZE, OMPI_*) would apply them.
_STALE = frozenset(
    name
    for names in (
        " ".join(_OF_TORCHRUN),
        "TORCHELASTIC_ENABLE_FILE_TIMER",
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
    is_python: bool = False
    """True: an interpreter that runs the script of the job. A signal to end is for it alone, and
    for its children when it has ended."""


def processes(
    plan: WorkerPlan, directory: Directory, local_rank_option: Optional[str]
) -> List[Process]:
    """The ranks of this worker, local rank 0 first; of an elastic worker the agent that starts the
    ranks. `local_rank_option`: `--local_rank` or `--local-rank`, where the script gets its local
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
                plan.python is not None,
            )
        )
    return found


def setup_process(plan: WorkerPlan, directory: Directory) -> Process:
    """The job's command that runs before the ranks; it is no rank."""
    environment = of_no_rank(_environment(plan, directory, 0))
    command = ["sh", "-e", "-c", plan.setup or ""]
    return Process(-1, -1, command, environment, plan.working_dir_in(directory), is_agent=True)


def of_no_rank(environment: Dict[str, str]) -> Dict[str, str]:
    """The environment of a rank without RANK, LOCAL_RANK and the other variables of a rank."""
    return {
        name: value
        for name, value in without_rank_files(environment).items()
        if name not in (*_OF_RANKS, *_OF_TORCHRUN) and not name.startswith("OMPI_COMM_WORLD_")
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
    # otherwise agents exchange this machine's name, which may not resolve
    if plan.master_addr.startswith(_LOOPBACK):
        options.append("--local_addr=%s" % plan.master_addr)
    return ["-m", "torch.distributed.run", *options]


def _environment(plan: WorkerPlan, directory: Directory, local_rank: int) -> Dict[str, str]:
    own = set(plan.user_variables)
    per_worker = plan.processes_per_worker
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
    if plan.has_ranks and plan.type not in (*BINARY_TYPES, ELASTIC):
        theirs = _as_torchrun(plan, of_ranks)
        seen.update((name, value) for name, value in theirs.items() if name not in own)
    seen.update(of_ranks)
    hidden = [STDIN, RANK_VARIABLES, METRICS_PIPE]
    if not plan.has_ranks:
        hidden += of_ranks
        if plan.type not in BINARY_TYPES:  # programs of these types get no other address
            hidden += [name for name in _MASTER if name not in own]
    for name in hidden:
        seen.pop(name, None)
    if plan.observe:
        seen[METRICS_PIPE] = directory.metrics
    if plan.has_agent:
        seen[RANK_PIPES] = directory.rank_pipes
    return {**seen, MARKER: directory.path, _ERROR_FILE: directory.error_file(rank)}


def _as_torchrun(plan: WorkerPlan, of_ranks: Dict[str, str]) -> Dict[str, str]:
    """The values of torchrun with one role. Its store is no agent's: rank 0 opens it."""
    return {
        "GROUP_WORLD_SIZE": str(plan.n_workers),
        "ROLE_NAME": "default",
        "ROLE_RANK": of_ranks["RANK"],
        "ROLE_WORLD_SIZE": of_ranks["WORLD_SIZE"],
        "TORCHELASTIC_RUN_ID": plan.job,
        "TORCHELASTIC_MAX_RESTARTS": str(plan.max_restarts),
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": plan.environment.get(
            "TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"
        ),
    }


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
    # written for MPI; for other types accelerate would conclude that mpirun is in use
    if plan.type in BINARY_TYPES:
        set_by_us["OMPI_COMM_WORLD_RANK"] = of_ranks["RANK"]
        set_by_us["OMPI_COMM_WORLD_SIZE"] = of_ranks["WORLD_SIZE"]
        set_by_us["OMPI_COMM_WORLD_LOCAL_RANK"] = of_ranks["LOCAL_RANK"]
        # the pod's name on the ML Space platform, by which scripts recognize the master
        role = "mpimaster-0" if plan.worker == 0 else "mpiworker-%d" % (plan.worker - 1)
        set_by_us["PMIX_HOSTNAME"] = "%s-%s" % (plan.job, role)
    return set_by_us
