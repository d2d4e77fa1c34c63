"""The settings of the server, with unit, meaning of None and the reason for the default.

`server_stub.__main__` reads them once and passes them on. Each field is a variable
`CLIENT_LIB_SERVER_<NAME>`; the options of `client-lib serve` win over variables. Values that no
operator needs to change are constants in the code.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from client_lib.spec.state_dir import state_dir

PREFIX = "CLIENT_LIB_SERVER_"
MIB = 2**20
GIB = 2**30
Positive = Annotated[int, Field(gt=0)]

_MOVED = {
    "OIDC_": "the table [oidc] of the users file has its place",
    "PARSE_INSTANCE_TYPES": "the entry by_pattern of the catalogue has its place",
    "JOB_KIND": "the entry job_kind of the catalogue has its place",
    "POD_SECURITY": "the entry pod_security of the catalogue has its place",
    "GANG_SCHEDULER": "the entry gang.scheduler of the catalogue has its place",
    "GANG_TIMEOUT_S": "the entry gang.timeout_s of the catalogue has its place",
}
"""Places of the settings of earlier versions, by the beginning of their names."""


class Settings(BaseSettings):
    """The settings of one server process."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    # --- directories and addresses
    state_dir: Path = Field(default_factory=state_dir)
    """`server.json`, `token`, `server.lock` and `server.log` of this machine and user.
    Default: `$CLIENT_LIB_STATE_DIR`, else `~/.local/state/client_lib/<hostname>`; on a network file
    system below `/var/tmp`."""
    data_dir: Path = Field(default_factory=lambda fields: fields["state_dir"] / "data")
    """Database, jobs, logs and snapshots. Default: `<state_dir>/data`."""
    database_url: str = Field(
        default_factory=lambda fields: f"sqlite:///{fields['data_dir']}/client_lib.db", repr=False
    )
    """SQLAlchemy URL: `sqlite:///…` or `postgresql+psycopg://…`. Default: SQLite in `data_dir`,
    which needs no set-up."""
    host: str = "127.0.0.1"
    """Address to listen on. Beyond loopback it needs `users_file`."""
    port: Annotated[int, Field(ge=0, le=65535)] = 0
    """TCP port; 0: a free one, which is written to `server.json`."""

    # --- users
    users_file: Path | None = None
    """TOML with the users, their teams, and the OpenID Connect issuer of their tokens; see [the
    users file](#the-users-file). None: the server has one user, with the token in
    `<state_dir>/token`."""
    insecure_shared_uid: bool = False
    """True: with `users_file` and the local runtime all jobs run as the server's account: the code
    of one user can read the files, the secrets and the memory of another's jobs. False: a server
    that runs as root on Linux, and whose users file has no `[oidc]`, runs the jobs of each user
    under an account of the user; any other does not start."""
    share_jobs: bool = False
    """True: every user sees, reads and cancels every job. False: a user
    sees only their own jobs.
    """

    # --- runtime
    runtime: Literal["local", "kubernetes"] = "local"
    """Attempts run as processes of this machine (`local`) or on a cluster (`kubernetes`)."""
    max_cpu_jobs: Positive = 32
    """Number of CPU-only jobs that run at the same time; others wait. They share the cores, so the
    default is large.
    """
    catalogue: Path | None = None
    """File of the instance types that jobs may use. Local runtime: TOML with `[[instance_types]]`,
    which may switch names by pattern (`a100.8gpu`, `cpu.8C.32G`) off with `by_pattern = false`;
    None: the types of this machine, and names by pattern. Kubernetes: YAML, required; see
    `docs/catalogue.md`."""
    public_v2_roots: list[Path] | None = None
    """Folders that this server shares with the users of `/public/v2`, as a JSON list: scripts in
    them run in place, and commands run in the first one. None: if the server has one user, all
    files that this user can read, and commands run in the home directory; otherwise no folder."""
    secrets_file: Path | None = None
    """TOML table with values for `spec.secrets` that a client did not send; None: no values."""
    warm: bool = True
    """Fork the ranks of Python scripts from a process that has imported their packages, one process
    per interpreter (Linux only). It starts after the first job, which shows what to import, and
    ends with the server. A job can turn it off with `warm=False`."""

    sessions: bool = True
    """The owner of a running job, and admins, can enter its workers: `client-lib exec`, `shell` and
    `port-forward`. False: nobody can."""

    notify_hosts: list[str] | None = None
    """Hosts that `notify` of a job may name, as a JSON list: `hooks.slack.com`, `*.example.com`;
    and networks such as `10.0.0.0/8`, without which no name may resolve to a loopback or private
    address. None: every host if the server has one user; otherwise none, as users could reach what
    this machine reaches."""

    # --- jobs on a cluster (runtime=kubernetes)
    kubeconfig: Path | None = None
    """Kubeconfig file; None: the service account in a pod, else
    `$KUBECONFIG`, else `~/.kube/config`.
    """
    kube_context: str | None = None
    """Context of the kubeconfig; None: its current one."""
    kube_namespace: str | None = None
    """Namespace of the jobs; None: that of the server's pod, else of
    the context, else `default`.
    """
    worker_server_url: str | None = None
    """URL of this server for pods. None: pods can't reach it; their logs come from
    `pods/log`, which loses lines.
    """
    worker_server_ca: Path | None = None
    """PEM file with which pods check this server's certificate; None: the
    authorities of their images.
    """

    # --- bounds; over one of them the answer is 413, 422 or 507
    max_snapshot_bytes: Positive = 2 * GIB
    """Largest upload: an archive of code, or what a function returns in one rank."""
    min_free_bytes: Annotated[int, Field(ge=0)] = 256 * MIB
    """Bytes of the disk of `data_dir` that submits, uploads and unpacked code leave free. A request
    that needs them is refused (507), and a job whose code needs them ends with reason StorageFull.
    Logs, reports and results may use these bytes."""

    # --- logs
    log_limit_bytes: Positive = 10 * GIB
    """Size of the logs of one job, in equal shares for its workers. One half is for the first
    attempt and max_retry others, the other half for attempts of max_infrastructure_retry; without
    such attempts, the whole size is for the first kind. With retry_reset_steps both kinds share one
    half, and further attempts the other half, each less than the previous one. A larger log loses
    lines in its middle, which are counted."""

    # --- outputs
    outputs_limit_bytes: Positive = 10 * GIB
    """Size of the outputs of one job that are kept for download, of all workers and attempts. It
    must be less than `retention_gb`, or retention removes the job."""

    # --- retention
    retention_days: Annotated[float, Field(gt=0)] | None = 30.0
    """Days after its end that a job is kept with its logs and events; also snapshots that no job
    uses and idempotency keys. None: no limit."""
    retention_gb: Annotated[float, Field(gt=0)] | None = None
    """Size of finished jobs and unused snapshots in 10^9 bytes; the oldest are removed first. None:
    20 for the local runtime; on a cluster 80 % of the room that jobs, snapshots and the free space
    on the disk of `data_dir` have together, so that the size follows the size of the volume. A size
    larger than the disk is no limit."""

    # --- process
    idle_exit_s: Annotated[float, Field(gt=0)] | None = None
    """The server ends after this many seconds without a request and without an unfinished job.
    None: never. The client starts its local server with 1800."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Level of the server's own log; each request is a line of level info."""


def unknown_variables(environment: Mapping[str, str]) -> list[str]:
    """A sentence for each variable with our prefix that is no setting: a typing error, or
    one of an earlier version.
    """
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    found = []
    for name in sorted(environment):
        if name.upper().startswith(PREFIX) and name.upper() not in known:
            moved = (
                place
                for start, place in _MOVED.items()
                if name.upper().startswith(f"{PREFIX}{start}")
            )
            instead = next((f": {place}" for place in moved), "")
            found.append(f"{name} is no setting of this server; it is ignored{instead}")
    return found
