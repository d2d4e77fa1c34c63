"""Every setting of the server, with its unit, the meaning of None and the reason for its default.

Read once, at the door (`server_stub.__main__`); everything below takes this value. Each field is a variable
`CLIENT_LIB_SERVER_<NAME>`; the flags of `python -m server_stub` win over variables. Nothing here touches the disk.
"""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from client_lib.spec.state_dir import state_dir

KIB, MIB, GIB = 2**10, 2**20, 2**30
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]


def _data_dir(fields: dict[str, Any]) -> Path:
    return Path(fields["state_dir"]) / "data"


def _database_url(fields: dict[str, Any]) -> str:
    return f"sqlite:///{fields['data_dir']}/client_lib.db"


class Settings(BaseSettings):
    """What one server process is told. Frozen."""

    model_config = SettingsConfigDict(
        env_prefix="CLIENT_LIB_SERVER_", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    # --- where it keeps things, where it listens
    state_dir: Path = Field(default_factory=state_dir)
    """`server.json`, `token`, `server.lock` and `server.log` of this machine and user.
    Default: `$CLIENT_LIB_STATE_DIR`, else `~/.local/state/client_lib/<hostname>`; on a network file system
    below `/var/tmp`."""
    data_dir: Path = Field(default_factory=_data_dir)
    """Database, jobs, logs and snapshots. Default: `<state_dir>/data`."""
    database_url: str = Field(default_factory=_database_url, repr=False)
    """SQLAlchemy URL: `sqlite:///…` or `postgresql+psycopg://…`. Default: SQLite in `data_dir`,
    which needs no set-up."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback it needs `users_file`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """TCP port; 0: a free one, which `server.json` tells."""
    public_url: str | None = None
    """How clients reach this server (behind a proxy); None: `http://<host>:<port>`."""

    # --- who may do what
    users_file: Path | None = None
    """TOML with a `[[users]]` per user: name, token_sha256, admin. None: the one token in `<state_dir>/token`."""
    share_jobs: bool = False
    """True: every user sees, reads and cancels every job. Off: jobs of others do not exist for a user."""

    # --- what runs jobs
    runtime: Literal["local", "kubernetes"] = "local"
    """Where attempts run: as processes of this machine, or as PyTorchJobs of a cluster."""
    max_cpu_jobs: Positive = 32
    """CPU-only jobs that run at once; the others wait. Large, as they share the cores as processes do."""
    max_processes: Positive = 256
    """Ranks of one job on this machine; more is refused, so that a slip of a digit does not take it down."""
    catalogue: Path | None = None
    """What jobs may ask for. Locally TOML with `[[instance_types]]`, None: this machine's own. On a cluster YAML, which
    it needs: `docs/catalogue.md`."""
    parse_instance_types: bool | None = None
    """Names that the catalogue does not know are read by pattern (`a100.8gpu`, `cpu.8C.32G`). None: on this machine, as
    it has no catalogue of its own, and not on a cluster, whose operator decides what is offered."""
    regions: list[str] = []
    """Regions of the ML Space platform that this server answers for, as a JSON list; a job that names another one is
    refused. Empty: every region."""
    public_v2_roots: list[Path] | None = None
    """Folders that this server shares with the users of `/public/v2`, as that platform shares its file system: scripts
    below them run where they lie, and commands run in the first. A JSON list. None: without `users_file` every file
    that the one user of this server can read, and commands run in the home; with `users_file` none."""
    secrets_file: Path | None = None
    """TOML table of names and values for `spec.secrets` that a client did not send; None: there are none."""
    rank_runner: bool = True
    """False: ranks start as plain `python script`, slower and without an exception in the report."""
    warm: bool = True
    """Start the ranks of Python scripts by fork from a process that has their packages imported, one per interpreter
    (Linux only): it is begun when a first job has shown what to import, and ends with the server. `warm=False` in a job
    turns it off for that job."""
    warm_idle_s: Annotated[float, Field(gt=0)] = 1800.0
    """Such a process ends when no job has asked for it for so long, or when memory is short."""
    retry_pause_s: Seconds = 1.0
    """Pause before the second attempt; it doubles with each."""
    retry_pause_max_s: Seconds = 60.0
    """The longest pause between two attempts."""

    # --- jobs on a cluster (runtime=kubernetes)
    kubeconfig: Path | None = None
    """How to reach the cluster; None: in a pod its service account, else `$KUBECONFIG`, else `~/.kube/config`."""
    kube_context: str | None = None
    """Context of the kubeconfig; None: its current one."""
    kube_namespace: str | None = None
    """Where jobs are made; None: the pod's own, else that of the context, else `default`."""
    worker_server_url: str | None = None
    """How pods reach this server. None: they can't; then their logs come from `pods/log`, which loses lines."""
    worker_server_ca: Path | None = None
    """PEM file by which pods check this server's certificate; None: what their images trust."""
    pod_security: Literal["restricted", "baseline", "privileged"] = "restricted"
    """Level of the Pod Security Standards that the pods of jobs keep to: the strictest is what most clusters admit."""
    gang_timeout_s: Annotated[float, Field(gt=0)] = 900.0
    """A gang whose workers are not all ready for so long, pulls of images not counted, gives its place to others and
    queues again."""
    spool_bytes: Positive = GIB
    """Volume in which each worker keeps its log while this server is away; it uses 80 % of it."""

    # --- bounds; over one of them the answer is 413, 422 or 507
    max_body_bytes: Positive = 16 * MIB
    """Of any request but a snapshot. A submit carries the caller's environment, which Linux lets grow to 6 MB."""
    max_spec_bytes: Positive = MIB
    """Of the spec inside a submit: it is stored with the job and is part of each answer."""
    max_snapshot_bytes: Positive = 2 * GIB
    """Of one uploaded archive: code, not data."""
    max_result_bytes: Positive = 2 * GIB
    """Of what a function job returns in one rank: it is kept with the job."""
    max_header_count: Positive = 100
    """Header lines of a request; browsers send about 20."""
    max_page: Positive = 1000
    """Jobs in one page of a list."""
    max_pending_jobs: Positive = 100_000
    """Jobs that are not final, of all users: a loop that submits for ever is refused before it fills the disk."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    """Submits and uploads are refused (507) while the disk of `data_dir` has less: running jobs still log."""

    # --- logs
    log_limit_bytes: Positive = 10 * GIB
    """Of one job, in equal shares for each worker in each attempt; head and tail are kept, the gap is counted."""
    segment_bytes: Positive = 64 * MIB
    """Size at which a log begins a new segment file: what the limit removes at once."""
    inotify: bool = True
    """False: log files are polled also where inotify is there (it does not see writes of other hosts)."""

    # --- what jobs install and leave behind
    environments_limit_bytes: Positive = 20 * GIB
    """Of the environments that `requirements` of jobs are installed into, below `data_dir`; those that were not used
    for longest go when a new one is made, none that is used."""
    outputs_limit_bytes: Positive = 10 * GIB
    """Of what the ranks of one job write and is kept for download, all workers and attempts together. Less than
    `retention_gb`: a job that is larger than that goes with the next look."""
    outputs_every_s: Annotated[float, Field(gt=0)] = 60.0
    """Between two looks for it while a job runs: what a lost machine can cost."""

    # --- how long things are kept
    retention_days: Annotated[float, Field(gt=0)] | None = 30.0
    """Days after its end that a job, its logs and events are kept, and a snapshot or an idempotency key that no job
    needs. None: for ever."""
    retention_gb: Annotated[float, Field(gt=0)] | None = 20.0
    """10^9 bytes of finished jobs and unreferenced snapshots; the oldest go first. None: no bound."""
    retention_every_s: Annotated[float, Field(gt=0)] = 600.0
    """Between two looks at what has to go."""

    # --- its own life
    idle_exit_s: Annotated[float, Field(gt=0)] | None = None
    """Seconds with no job that is not final and no request after which the server ends. None: never; the client
    starts its local server with 1800."""
    stop_grace_s: Seconds = 5.0
    """At SIGTERM: how long answers that are on their way may take. Streams are cut at once; followers resume."""
    server_log_bytes: Positive = 32 * MIB
    """Size of `<state_dir>/server.log` at which a new one begins; one old one is kept."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Of the server's own log; each request is a line of level info."""

    @property
    def local(self) -> bool:
        """It listens on loopback only."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """A name other than `localhost` counts as beyond loopback: what it resolves to may change."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
