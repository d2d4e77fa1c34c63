"""What a pod finds: its files (mounted below /client-lib) and its variables, read once at the start.

Standard library only, Python >= 3.8.
"""

import json
import os
import socket
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

from client_lib.worker.directory import Directory
from client_lib.worker.plan import WorkerPlan, from_json

ROOT = "/client-lib"
PROTOCOL = 1
_GATE_PORT = 23455
_STAY_S = 600.0


class Pod(NamedTuple):
    """What this pod was told."""

    server_url: Optional[str]
    """None: no server can be reached from here."""
    job: str
    attempt: int
    worker: int
    n_workers: int
    spool_bytes: int
    snapshot: Optional[str]
    """Digest of the code's archive; None: the code runs in place."""
    function: bool
    """The job is a function, which has to be had beside the code."""
    conda_prefix: Optional[str]
    gate_port: int
    """Where worker 0 listens for the others if there is no server."""
    termination_log: str
    stay_s: float
    """So long a worker that has ended waits for who doesn't answer: with it goes what they don't have yet."""
    uid: str
    name: str
    master_addr: str
    master_port: int
    environment: Dict[str, str]
    """The container's own."""
    start: str = ""
    """Tells this start of the container from others of the pod: those of an elastic job are restarted."""


class Place:
    """Paths of a pod."""

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
        """The certificate authorities that the server's is checked by; None: those of the image."""
        return self.ca if os.path.exists(self.ca) else None

    def fetched(self, what: str) -> str:
        """Where what the server gave is kept; `what`: snapshot or function."""
        return os.path.join(self.directory.path, what + ".fetched")

    def mounted(self, what: str) -> Optional[str]:
        """Where it is mounted; None: it is not, and has to be fetched."""
        path = os.path.join(self.code, {"snapshot": "snapshot.tar.gz"}.get(what, what))
        return path if os.path.exists(path) else None


def read_plan(place: Place) -> WorkerPlan:
    """As all workers share it. Raises ValueError for one of another protocol."""
    with open(place.plan, encoding="utf-8") as file:
        return from_json(file.read())


def read_token(place: Place) -> str:
    with open(place.token, encoding="ascii") as file:
        return file.read().strip()


def read_pod(place: Place, environ: Mapping[str, str]) -> Pod:
    """Raises ValueError for what another protocol has written, and KeyError for a variable that is missing."""
    with open(place.pod, encoding="utf-8") as file:
        told: Dict[str, Any] = json.load(file)
    if told["protocol"] != PROTOCOL:
        raise ValueError("this agent speaks protocol %d, the pod is of protocol %r" % (PROTOCOL, told["protocol"]))
    code = told.get("code") or {}
    name = environ.get("CLIENT_LIB_POD_NAME") or environ.get("HOSTNAME") or socket.gethostname()
    return Pod(
        server_url=told["server_url"],
        job=told["job"],
        attempt=told["attempt"],
        worker=int(environ["RANK"]),  # the training operator's: the index of the pod
        n_workers=told["n_workers"],
        spool_bytes=told["spool_bytes"],
        snapshot=code.get("sha256") if code.get("mode") == "snapshot" else None,
        function=bool(told.get("function")),
        conda_prefix=told.get("conda_prefix"),
        gate_port=told.get("gate_port", _GATE_PORT),
        termination_log=told.get("termination_log", "/dev/termination-log"),
        stay_s=told.get("stay_s", _STAY_S),
        uid=environ.get("CLIENT_LIB_POD_UID") or name,
        name=name,
        master_addr=environ["MASTER_ADDR"],
        master_port=int(environ["MASTER_PORT"]),
        environment=dict(environ),
        start=os.urandom(8).hex(),
    )


def results(directory: Directory) -> List[str]:
    """Files that a function's ranks have left, one per rank, named by its number."""
    from client_lib.worker.function_runner import RESULTS  # here: see agent

    folder = os.path.join(directory.path, RESULTS)
    found = os.listdir(folder) if os.path.isdir(folder) else []
    return [os.path.join(folder, name) for name in sorted(found) if name.isdigit()]
