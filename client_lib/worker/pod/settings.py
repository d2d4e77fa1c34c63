"""Files (mounted below /client-lib) and variables of a pod, read once at the start,
and the plan that they make.
"""

import json
import os
import socket
from typing import Any, Dict, Mapping, NamedTuple, Optional, Tuple
from urllib.parse import quote

from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import WorkerPlan, from_json

ROOT = "/client-lib"
PROTOCOL = 1
_BARRIER_PORT = 23455
_STAY_S = 600.0
_LEAVE_S = 60.0
_CLAIM_S = 900.0


class PodSettings(NamedTuple):
    """pod.json and the variables of the container."""

    server_url: Optional[str]
    """None: no server is reachable from this pod."""
    job: str
    attempt: int
    worker: int
    n_workers: int
    spool_bytes: int
    snapshot: Optional[str]
    """Digest of the code's archive; None: the code runs in place."""
    function: bool
    """The job is a function, which the agent needs in addition to the code."""
    conda_prefix: Optional[str]
    barrier_port: int
    """Port on which worker 0 listens for the other workers if there is no server."""
    termination_log: str
    stay_s: float
    """Longest wait of an ended worker for a server that does not answer; then undelivered
    data is lost with the pod.
    """
    leave_s: float
    """The same for a worker that leaves all of its data where the server finds it."""
    claim_s: float
    """Longest wait of a new worker for the first answer of its server."""
    uid: str
    name: str
    master_addr: str
    master_port: int
    environment: Dict[str, str]
    """The container's own."""
    start: str = ""
    """Differs for each start of the container: containers of an elastic job are
    restarted within their pod.
    """

    @property
    def worker_url(self) -> Optional[str]:
        """The server's URL of this worker (client_lib.spec.paths.worker);
        None: no server is reachable.
        """
        if self.server_url is None:
            return None
        place = (self.server_url.rstrip("/"), quote(self.job, safe=""), self.attempt, self.worker)
        return "%s/api/v1/jobs/%s/attempts/%d/workers/%d" % place


class PodFiles:
    def __init__(self, root: str = ROOT) -> None:
        self.plan = os.path.join(root, "plan", "plan.json")
        self.pod = os.path.join(root, "plan", "pod.json")
        self.token = os.path.join(root, "secret", "token")
        self.ca = os.path.join(root, "secret", "ca.crt")
        self.code = os.path.join(root, "code")
        self.directory = Directory(os.path.join(root, "run"))
        self.environments = os.path.join(self.directory.path, "environments")

    @property
    def authorities(self) -> Optional[str]:
        """File of the certificate authorities that sign the server's certificate; None: the
        authorities of the image.
        """
        return self.ca if os.path.exists(self.ca) else None


def read_plan(files: PodFiles) -> WorkerPlan:
    """The plan that all workers share. Raises ValueError for one of another protocol."""
    with open(files.plan, encoding="utf-8") as file:
        return from_json(file.read())


def read_settings(files: PodFiles, environ: Mapping[str, str]) -> PodSettings:
    """Raises ValueError for a file of another protocol, and KeyError for a missing variable."""
    with open(files.pod, encoding="utf-8") as file:
        pod: Dict[str, Any] = json.load(file)
    if pod["protocol"] != PROTOCOL:
        raise ValueError(
            "this agent speaks protocol %d, the pod is of protocol %r" % (PROTOCOL, pod["protocol"])
        )
    code = pod.get("code") or {}
    name = environ.get("CLIENT_LIB_POD_NAME") or environ.get("HOSTNAME") or socket.gethostname()
    return PodSettings(
        server_url=pod["server_url"],
        job=pod["job"],
        attempt=pod["attempt"],
        worker=int(environ["RANK"]),  # set by the training operator: the index of the pod
        n_workers=pod["n_workers"],
        spool_bytes=pod["spool_bytes"],
        snapshot=code.get("sha256") if code.get("mode") == "snapshot" else None,
        function=bool(pod.get("function")),
        conda_prefix=pod.get("conda_prefix"),
        barrier_port=pod.get("gate_port", _BARRIER_PORT),
        termination_log=pod.get("termination_log", "/dev/termination-log"),
        stay_s=pod.get("stay_s", _STAY_S),
        leave_s=pod.get("leave_s", _LEAVE_S),
        claim_s=pod.get("claim_s", _CLAIM_S),
        uid=environ.get("CLIENT_LIB_POD_UID") or name,
        name=name,
        master_addr=environ["MASTER_ADDR"],
        master_port=int(environ["MASTER_PORT"]),
        environment=dict(environ),
        start=os.urandom(8).hex(),
    )


# --- the plan of this pod's worker

FUNCTION_RUNNER = "function_runner.py"
_OF_THE_POD = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
_PREFIXES = ("PET_", "CLIENT_LIB_POD_")
_SEGMENTS = 16  # per spool: a dropped segment costs a sixteenth of the spool
# the spool has its own limit (log_carriers.py), and the server limits the job's log
_UNLIMITED = 2**62


def own_plan(
    shared: WorkerPlan,
    pod: PodSettings,
    files: PodFiles,
    snapshot: Optional[str] = None,
    function: Optional[Tuple[str, str]] = None,
) -> WorkerPlan:
    """The launcher's plan. `snapshot`: path of the code. `function`: paths of the
    function and function_runner.py.
    """
    # without what the operator and the pod's template set for the pod: ranks get numbers of their
    # own, and torchrun would read PET_* as its options
    environment = {
        name: value
        for name, value in pod.environment.items()
        if name not in _OF_THE_POD and not name.startswith(_PREFIXES)
    }
    if pod.conda_prefix is not None:  # as `conda activate` changes them
        environment.pop("PYTHONHOME", None)
        path = environment.get("PATH", os.defpath)
        environment["PATH"] = os.path.join(pod.conda_prefix, "bin") + os.pathsep + path
        environment["CONDA_PREFIX"] = pod.conda_prefix
        environment["CONDA_DEFAULT_ENV"] = os.path.basename(pod.conda_prefix)
    environment.update(shared.environment)
    command = list(shared.command)
    if function is not None:
        from client_lib.worker.function_runner import PAYLOAD  # here: few jobs are functions

        environment[PAYLOAD], command[0] = function
    # without a snapshot all workers share one folder: worker 0 alone follows its files
    own_folder = pod.worker == 0 or pod.snapshot is not None
    return shared._replace(
        worker=pod.worker,
        master_addr=pod.master_addr,
        master_port=pod.master_port,
        environment=environment,
        command=command,
        snapshot=snapshot,
        log_file=shared.log_file if own_folder else None,
        log_limit_bytes=_UNLIMITED,
        segment_bytes=max(1, min(shared.segment_bytes, pod.spool_bytes // _SEGMENTS)),
        inputs=[os.path.join(files.directory.inputs, each) for each in shared.inputs],
        outputs=shared.outputs if own_folder else [],
        outputs_to=None if pod.worker_url is None else pod.worker_url + "/outputs",
        outputs_token=files.token,
        outputs_ca=files.authorities,
        environments_dir=files.environments,
    )
