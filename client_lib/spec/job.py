"""The job spec: every field a user can set, with its type, unit, default and meaning.

Strict: an unknown field is an error. The JSON Schema under `docs/` is generated from this module.
Nothing here touches the machine: what needs one (does the script exist, does the job fit) is
checked by the client or the runtime.
"""

# without `from __future__ import annotations`: pydantic would compile each annotation from its
# text, 3 % of a submit

import re
import shlex
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, model_validator
from typing_extensions import Self  # of the standard library from Python 3.11 on

from client_lib.spec.alarm import RULES_MAX, action_of, check as check_rule
from client_lib.spec.command_line import check_name, split_script
from client_lib.spec.replace import replaced
from client_lib.spec.secrets import MASK, Masking
from client_lib.spec.states import Reason, TextEnum, check_failure
from client_lib.spec.validation import (
    ARGUMENTS_MAX,
    MANY_MAX,
    Bound,
    Label,
    Line,
    Scalar,
    Strict,
    Text,
    empty,
    up_to,
    within,
)

WORKERS_MAX = 9999
GPUS_MAX = 1024
LABELS_MAX = 256
AFTER_MAX = 1000  # a group counts as one
# ten years: a date that far ahead exists, and a timer can wait for it
STOP_TIMER_MAX = 10 * 366 * 24 * 60
RESTARTS_MAX = 1_000_000
STEPS_MAX = 10**15
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
OUR_RANK_VARIABLES = frozenset(
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK"}
)
SLACK = "slack+"
"""Begin of a URL in `notify` that gets Slack's form."""
PIP_OPTIONS = (
    *(
        "--index-url",
        "-i",
        "--extra-index-url",
        "--find-links",
        "-f",
        "--no-index",
        "--trusted-host",
    ),
    *("--pre", "--prefer-binary", "--only-binary", "--no-binary"),
)

Condition = Literal["ok", "any", "failed"]
"""The end of a job that lets one start which waits for it: SUCCEEDED, in
whatever state, or FAILED.
"""
_CONDITIONS: dict[str, Condition] = {"": "ok", "ok:": "ok", "failed:": "failed", "any:": "any"}


class JobType(TextEnum):
    """Way of starting the processes of a worker."""

    PYTORCH2 = "pytorch2"
    PYTORCH = "pytorch"
    TORCHRUN = "torchrun"
    PYTORCH_ELASTIC = "pytorch_elastic"
    BINARY = "binary"
    BINARY_EXP = "binary_exp"
    NOGPU = "nogpu"

    @property
    def is_command(self) -> bool:
        """The script is a command line, not a Python file."""
        return self in (JobType.BINARY, JobType.BINARY_EXP)


REFUSED_TYPES: dict[str, str] = {
    "horovod": "there is no MPI launcher here; type='pytorch2' starts the processes of a "
    "torch.distributed script, type='binary' any command, with the rank variables of MPI",
    "spark": "this service runs no Spark; type='binary' runs any command line",
    "cce": (
        "the clusters of that type are gone; type='nogpu' or 'binary' with an instance type like "
        "cpu.8C.32G"
    ),
}
"""Types of the ML Space platform that are known and not offered -> the way out."""


class PriorityClass(TextEnum):
    """Order in the queue. Members are written as constants, and as the ML
    Space platform writes them.
    """

    SHARED_LOW = "shared-low"
    SHARED_MEDIUM = "shared-medium"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"

    shared_low = SHARED_LOW
    shared_medium = SHARED_MEDIUM
    low = LOW
    medium = MEDIUM
    high = HIGH

    @property
    def order(self) -> int:
        """Place in the queue: a higher number starts earlier."""
        return list(PriorityClass).index(self)


class HealthAction(TextEnum):
    """Action on a job that prints nothing."""

    DELETE = "delete"
    RESTART = "restart"

    delete = DELETE
    restart = RESTART


class HealthSubAction(TextEnum):
    """Further action on a job that prints nothing."""

    NOTIFY = "notify"

    notify = NOTIFY


class HealthParams(Strict):
    """Actions if no line was logged for `log_period` minutes."""

    log_period: Annotated[int, Field(ge=1, le=24 * 60)]
    """Minutes without any output after which the job counts as hung."""
    action: HealthAction | None = None
    """`delete`: the job is FAILED with reason HungSilent. `restart`: a new
    attempt, counted in max_retry.
    """
    sub_actions: Annotated[list[HealthSubAction], up_to(MANY_MAX)] = []
    """`notify`: an event, and nothing else happens unless `action` says so."""

    @model_validator(mode="after")
    def _does_something(self) -> Self:
        if self.action is None and not self.sub_actions:
            raise ValueError("needs action='delete' or 'restart', or sub_actions=['notify']")
        return self


class CheckpointParams(Strict):
    """Rules for the checkpoints of a job."""

    keep: Annotated[int, Field(ge=1, le=MANY_MAX)] | None = None
    """Number of steps whose checkpoints are kept, in each folder below the directory for
    checkpoints; earlier ones are removed while the job runs. Only complete checkpoints with a step
    in their name count; what has none, or what a pointer such as `latest` names, stays. None: all
    are kept."""
    keep_best: Annotated[Label, Field(min_length=1)] | None = None
    """Metric by which the best checkpoint stays, too, whatever its step: a name as `client-lib
    metrics` shows it, such as `eval/acc`. Its name tells if the largest value is the best, else the
    smallest is; `max:NAME` and `min:NAME` say it. Its value is the last one of the checkpoint's
    step, else the last one before the checkpoint was written. While nothing is known of a
    checkpoint, it stays."""
    from_step: Annotated[int, Field(ge=0, le=10**15)] | None = None
    """Step from which the job starts: of the checkpoints that are copied for it (checkpoint_from, a
    resubmit that resumes), later ones are moved to a hidden folder before the first attempt. None:
    from the last."""
    damaged: Literal["aside", "leave"] | None = None
    """A newest checkpoint that is certainly damaged, before the ranks start. `aside`: it is moved
    to the folder `.damaged`, so that the script resumes from the one before. `leave`: an event
    tells. None: `leave` in a checkpoint_dir that the job names, else `aside`."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.keep_best is not None and self.keep is None:
            raise ValueError("keep_best is an exception from keep: give both, as in keep=3")
        return self


def _check_script(script: str) -> None:
    if not script.strip():
        raise ValueError("is empty; give the path of a .py file or a command line")
    split_script(script)


def _check_image(image: str) -> None:
    if image.endswith(".py"):
        raise ValueError(f"{image!r} looks like a script; pass it as script={image!r}")


def _check_type(kind: Any) -> None:
    if isinstance(kind, str) and kind in REFUSED_TYPES:
        raise ValueError(f"does not run here: {REFUSED_TYPES[kind]}")


def _check_after(after: list[str]) -> None:
    names = Counter(split_dependency(entry)[1] for entry in after)
    if repeated := next((name for name, times in names.items() if times > 1), None):
        raise ValueError(f"names {repeated} more than once")


def _check_glob(glob: str) -> None:
    if not glob.strip("./") or glob.startswith(("/", "~")) or ".." in glob.split("/"):
        raise ValueError(
            f"{glob!r} must name files below the working directory: `*.pt`, `out/**/*.json`"
        )


def _check_flag(name: str) -> None:
    if not name or name.startswith("-") or "=" in name:
        raise ValueError(f"flag {name!r}: give the name without dashes and without '='")


def check_env_name(name: str) -> None:
    """Raises ValueError for a name that no environment can hold, or that belongs to the ranks."""
    if not _ENV_NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} is not a name for an environment variable (letters, digits and '_')"
        )
    if name in OUR_RANK_VARIABLES:
        raise ValueError(f"{name} is set for each process by the launcher and can't be given")


def _each(check: Callable[[str], None]) -> Bound:
    """The check of each entry of a list, or of each key of a mapping."""

    def check_all(entries: list[str] | dict[str, Any]) -> None:
        for entry in entries:
            check(entry)

    return Bound(check_all)


def check_webhook(url: str) -> None:
    """Raises ValueError unless `url` is an address for `notify`. It is not shown:
    who has it can write there.
    """
    if url == MASK:  # of a spec that is shown
        return
    try:
        parts = urlsplit(url.removeprefix(SLACK))
        usable = (
            parts.scheme in ("http", "https")
            and parts.hostname
            and parts.port != 0
            and not parts.username
        )
    except ValueError:
        usable = False
    if not usable or not url.isascii() or " " in url:
        raise ValueError(
            "is no URL of a webhook: write https://host/path, without a user; `slack+https://...` "
            "for Slack's format"
        )


def _int_not_bool(value: Any) -> Any:
    if isinstance(value, bool | str | float):
        raise ValueError(f"{value!r} is not a whole number; write it without quotes")
    return value


def check_requirement(line: str) -> None:
    """Raises ValueError for a text that is no line of a requirements file, or refers
    to the submitter's machine.
    """
    if not line.strip() or not line.isprintable():
        raise ValueError(f"{line!r} is no requirement")
    if line.strip().startswith("-"):
        try:
            # as pip splits it
            options = {word.split("=", 1)[0] for word in shlex.split(line) if word.startswith("-")}
        except ValueError:
            options = {line}
        if not options <= set(PIP_OPTIONS):
            known = ", ".join(PIP_OPTIONS)
            raise ValueError(
                f"{line!r} can't be used in a worker; of pip's options these can: {known}"
            )
    if re.search(r"https?://[^/@ ]+@", line):  # not shown: it may be a token
        raise ValueError(
            "an address holds a password, and the spec is shown; give it as PIP_INDEX_URL among "
            "`secrets`"
        )


def _listed(value: Any) -> Any:
    """A list for one text."""
    return [value] if isinstance(value, str) else value


WholeNumber = Annotated[int, BeforeValidator(_int_not_bool)]
_Lines = Annotated[list[Line], up_to(MANY_MAX)]
_Names = Annotated[list[Label], up_to(MANY_MAX)]
_Values = Annotated[dict[Label, Scalar], up_to(MANY_MAX, "object")]
_Failures = Annotated[list[Annotated[Label, Bound(check_failure)]], up_to(MANY_MAX)]
_Rules = Annotated[
    list[Annotated[Label, Bound(check_rule)]],
    up_to(RULES_MAX),
    BeforeValidator(_listed, json_schema_input_type=Label | list[Label]),
]
_Requirement = Annotated[Line, Bound(check_requirement)]
_ElasticWorkers = Annotated[WholeNumber, within(0, WORKERS_MAX)] | Literal["default"] | None


class JobSpec(Strict):
    """One distributed job. Only `script` is needed."""

    # --- what runs
    script: Annotated[Text, Bound(_check_script)]
    """Path of a .py file, which arguments may follow; for the binary types, and where it names no
    .py file, any command line. The text is split by shell rules and run without a shell."""
    base_image: Annotated[Line, Bound(_check_image)] | None = None
    """Container image; None: the catalogue's default. The local runtime uses no image: it runs the
    interpreter of the submit."""
    type: Annotated[JobType, Bound(_check_type, first=True)] = JobType.PYTORCH2
    """Way of starting the processes of a worker."""
    args: Annotated[list[Text], up_to(ARGUMENTS_MAX)] = empty(list)
    """Arguments that are passed to the script as they are."""
    flags: Annotated[_Values, _each(_check_flag)] = empty(dict)
    """Options that follow `args`, as `--key=value`; None: `--key` alone."""
    env_variables: Annotated[_Values, _each(check_env_name)] = empty(dict)
    """Variables for every process. They win over variables that client_lib sets; variables of the
    ranks (RANK, MASTER_ADDR ...) are refused. A variable with the value None is not set."""
    secrets: Annotated[_Names, _each(check_env_name)] = empty(list)
    """Names of variables whose values are sent and stored apart from the spec, and are never
    shown."""
    code: Literal["auto", "in_place", "snapshot"] = "auto"
    """Place of the code: "in_place" runs it where it is, on a server that shares the folder;
    "snapshot" uploads a copy; "auto" is in place if the server proves that it shares the folder,
    else a snapshot."""
    working_dir: Line | None = None
    """Working directory of the processes. None: of code in place, the directory of the submit; of a
    snapshot, the same directory if it is inside the snapshot, else the script's folder."""
    warm: bool | None = None
    """False: start every process from scratch. None: fork the processes from one that has imported
    torch and other packages, if there is one that suits the job (local runtime only)."""
    observe: bool = True
    """False: take no stacks of the job (`client-lib stacks`), and read no metrics and no progress
    from its output."""
    metrics: Line | None = None
    """Regular expression whose named groups are metrics, and `step` their step, in each line of the
    output: as in `ppl (?P<perplexity>[0-9.]+)`. Metrics that are found without the expression are
    kept."""
    conda_env: Line | None = None
    """Name or path of a conda environment whose python runs the script."""
    pytorch_use_env: bool | None = None
    """None: `--local_rank` is passed if the script declares that option; True: never; False:
    always."""
    log_file: Line | None = "train.log"
    """File (or glob) that the script writes beside its stdout; its lines are in the log as the
    stream `train.log`. None: no file."""
    checkpoint_dir: Line | None = None
    """Directory for checkpoints; the script finds its path in CLIENT_LIB_CHECKPOINT_DIR. None: a
    directory of the job's own, which is kept over its attempts."""
    checkpoint_from: Label | None = None
    """Name of an earlier job of the same user. At its start the new job gets a copy of the
    checkpoints of the earlier one. If the earlier job has not ended, it must stand in `after`,
    too."""
    checkpoint_params: CheckpointParams | None = None
    """Rules for checkpoints: how many are kept, and what is done with a damaged one. None: all are
    kept."""
    outputs: Annotated[_Lines, _each(_check_glob)] | None = None
    """Globs of files that are kept for download, relative to the working directory (`**`: any
    folders). Of the files that match, those are kept that the ranks create or change. None: all
    such files of a job that runs from a snapshot; none of a job in place, whose files stay where
    they are. []: none."""
    requirements: Annotated[list[_Requirement], up_to(ARGUMENTS_MAX)] | None = None
    """Extra packages, as lines of pip's requirements files. They are installed before the script
    starts, beside the packages of its interpreter, which stay as they are."""
    setup: Text | None = None
    """Command for `sh -e`, of one line or several. It runs once on each worker before the script,
    in each attempt, in the working directory and environment of the processes, without the
    variables of a rank. stop_timer limits its time, too."""
    preflight_check: bool = False
    """True: check the machines before the script, in each attempt: all ranks meet and sum tensors;
    disks, shared memory, GPUs and clocks are tried. A failing worker ends the job with reason
    PreflightFailed; `status` and the log name a slow worker."""
    smoke: bool = False
    """True: a short trial. When rank 0 has logged 3 values of a metric, or 3 marks of progress, or
    after 60 s of running, all ranks are stopped, and the job is SUCCEEDED if nothing has failed."""

    # --- where and how much
    instance_type: Label | None = None
    """Name of an instance type of the server's catalogue, or, where the server reads such names, a
    name of the form `a100.8gpu` or `cpu.8C.32G`. None: the catalogue's default; on this machine all
    free GPUs, else the CPU."""
    n_workers: Annotated[WholeNumber, Field(ge=1, le=WORKERS_MAX)] = 1
    """Number of workers: pods of a cluster, or groups of processes of this machine. Worker 0
    computes like the others."""
    processes_per_worker: Annotated[WholeNumber, Field(ge=1, le=1024)] | Literal["default"] = (
        "default"
    )
    """Ranks per worker; "default": the GPUs of the instance type, at least 1."""
    gpus: (
        Annotated[list[Annotated[WholeNumber, Field(ge=0), within(0, GPUS_MAX)]], up_to(GPUS_MAX)]
        | None
    ) = None
    """Indices of this machine's GPUs to use (local runtime only)."""
    volumes: _Lines = empty(list)
    """Volumes of the server's catalogue for every worker, as `name:path[:ro]`. In the local runtime
    the path must be the path on this machine."""
    shm_size_class: Literal["small", "medium", "large"] | None = None
    """Size of /dev/shm: 16, 32 or 64 GiB per GPU."""
    tmp_storage: Label | None = None
    """Preset of an extra disk at /tmp."""
    include_nodes: _Names | None = None
    """Nodes of the cluster; the job runs on no others."""
    exclude_nodes: _Names | None = None
    """Nodes of the cluster on which the job never runs."""
    internet: bool | None = None
    """False: no outbound access. None: the server's default."""
    region: Label | None = None
    """Region of the ML Space platform; any is accepted."""

    # --- order in the queue
    priority_class: PriorityClass = PriorityClass.MEDIUM
    """Order in the queue; within a class, the order of submission."""
    queue_name: Label | None = None
    """Queue of the cluster."""
    allocation_name: Label | None = None
    """Reserved capacity of the ML Space platform."""
    after: Annotated[list[Label], up_to(AFTER_MAX), Bound(_check_after)] = empty(list)
    """Jobs or groups for which the job waits, without taking resources: `NAME` or `ok:NAME` until
    NAME has SUCCEEDED, `failed:NAME` until it has FAILED, `any:NAME` until it has ended. If one of
    them ends in another way, the job is FAILED with reason DependencyFailed. A cancelled job has
    neither succeeded nor failed."""

    # --- how it ends
    max_retry: Annotated[WholeNumber, Field(ge=0, le=100)] | None = None
    """Largest number of new attempts, each with all workers, after failed ones; None: none."""
    retry_on: _Failures | None = None
    """Failures after which max_retry, which must be given too, makes a new attempt: reasons such as
    `NodeLost`, `Preempted`, `Hung`, and `exit:N`, the exit code of the first failing rank. None:
    all failures. Retries by max_infrastructure_retry, hang_action and health_params do not depend
    on this list. `Hung` stops and retries a hung attempt after a minute, whatever hang_action says;
    `HungSilent` needs health_params with an action."""
    retry_reset_steps: Annotated[WholeNumber, Field(ge=1), within(1, STEPS_MAX)] | None = None
    """Number of steps. If an attempt gets so many steps further than all attempts before it,
    max_retry and max_infrastructure_retry count from 0 again. The step of an attempt is the largest
    step in the metrics of rank 0, or without such metrics the step of rank 0's progress bar; an
    attempt with neither changes nothing. None: both count all attempts."""
    max_infrastructure_retry: Annotated[WholeNumber, Field(ge=0, le=100)] = 3
    """Largest number of new attempts after the loss of a place to run: a node was lost, or evicted
    or refused a worker, another job took the place, or this machine was rebooted. max_retry does
    not count these attempts, and applies after the last one."""
    stop_timer: Annotated[WholeNumber, Field(ge=0), within(0, STOP_TIMER_MAX)] | None = None
    """Minutes of running, at most ten years, after which the job is stopped and FAILED with reason
    Timeout; None or 0: never."""
    health_params: HealthParams | None = None
    """Actions if the job prints nothing for a time; None: none."""
    hang_action: Literal["report", "stop", "retry"] = "report"
    """Action if ranks wait in a collective for a rank that does nothing. `report`: the job's
    message names that rank; `stop`: after a minute the job is FAILED with reason Hung; `retry`:
    after a minute a new attempt begins, which max_retry counts."""
    alarm: _Rules = empty(list)
    """Rules about the metrics of all ranks, each with what is done when it becomes true: `nan ->
    stop`, `loss > 10 for 50 steps -> retry`, `loss spike -> notify`, `loss rises for 200 steps ->
    notify`, `loss stands still for 10 min -> notify`, `idle for 30 min -> notify`. `notify`: an
    event, `attention` and the webhook; `stop`: the job is FAILED with reason Alarm; `retry`: a new
    attempt, which max_retry counts, from the newest checkpoint before. A rule acts once in an
    attempt. At most 20 rules."""
    notify: Annotated[Line, Bound(check_webhook)] | None = Field(default=None, repr=False)
    """URL of a webhook. The server posts JSON to it when the job ends, hangs, or resumes after a
    hang, when a rule of `alarm` with `-> notify` becomes true, and when the script calls
    `client_lib.alert`; in Slack's format to hooks.slack.com and to a URL that begins with `slack+`.
    The URL is shown as `***`. None: the URL of the profile."""
    grace_s: Annotated[float, Field(ge=0, le=3600)] = 30.0
    """Seconds between SIGTERM and SIGKILL when the job is cancelled, another rank fails, or the job
    is pre-empted."""
    elastic_min_workers: _ElasticWorkers = None
    """Number of workers with which a `pytorch_elastic` job continues; None or "default":
    n_workers."""
    elastic_max_workers: _ElasticWorkers = None
    """Upper bound of the workers of a `pytorch_elastic` job; never more than n_workers are
    started."""
    elastic_max_restarts: Annotated[WholeNumber, Field(ge=0), within(0, RESTARTS_MAX)] | None = None
    """Restarts of the ranks of a `pytorch_elastic` job within an attempt; None: 5."""

    # --- what it is called
    name: Annotated[Label, Bound(check_name)] | None = None
    """DNS-1035 label of at most 50 characters, which no other job of the user has; None: a name
    made from the script's name."""
    job_desc: Text | None = None
    """Free text."""
    labels: Annotated[dict[Label, Label], up_to(LABELS_MAX, "object")] = empty(dict)
    """Free key-value pairs to find jobs by: at most 256, keys and values
    of at most 255 characters.
    """
    logs_dir: Line | None = None
    """Directory of log files on the ML Space platform; here `client-lib logs` reads logs."""

    @property
    def _from_step(self) -> int | None:
        return self.checkpoint_params.from_step if self.checkpoint_params else None

    @model_validator(mode="after")
    def _fields_fit_together(self) -> Self:
        if self.checkpoint_dir is not None and self._from_step is not None:
            raise ValueError(
                "checkpoint_params.from_step is for checkpoints that are copied to the job's own "
                "directory: leave checkpoint_dir out"
            )
        if self.checkpoint_from is not None and self.checkpoint_dir is not None:
            raise ValueError(
                "checkpoint_from copies to the job's own directory: leave checkpoint_dir out"
            )
        if self.type is JobType.PYTORCH_ELASTIC:
            bounds = (self.elastic_min_workers, self.elastic_max_workers)
            least, most = (value if isinstance(value, int) else self.n_workers for value in bounds)
            if not 1 <= least <= self.n_workers <= most:
                raise ValueError(
                    f"elastic_min_workers={least} <= n_workers={self.n_workers} <= {most} does "
                    "not hold"
                )
        if self.retry_on is not None and self.max_retry is None:
            raise ValueError("retry_on needs max_retry, the number of new attempts: max_retry=3")
        if Reason.HUNG_SILENT in (self.retry_on or ()) and not (
            self.health_params and self.health_params.action
        ):
            raise ValueError(
                "HungSilent in retry_on needs health_params with log_period and action='restart'"
            )
        if self.retry_reset_steps and not self.observe:
            raise ValueError(
                "retry_reset_steps needs observe=True: the steps are found in the metrics"
            )
        self._check_alarm()
        return self

    def _check_alarm(self) -> None:
        """Raises ValueError: another field leaves a rule without effect."""
        if self.alarm and not self.observe:
            raise ValueError("alarm needs observe=True: its rules are about the metrics")
        if "retry" not in map(action_of, self.alarm):
            return
        if not self.max_retry:
            raise ValueError(
                "alarm with `-> retry` needs max_retry, the number of new attempts: max_retry=1"
            )
        if self.checkpoint_dir is not None:
            raise ValueError(
                "alarm with `-> retry` moves checkpoints from after the alarm aside, in the job's "
                "own directory only: leave checkpoint_dir out, or write `-> stop`"
            )

    def command(self) -> list[str]:
        """The script's words, then args, then flags: the arguments of the
        interpreter, or the whole command.
        """
        flags = [
            f"--{key}" if value is None else f"--{key}={value}" for key, value in self.flags.items()
        ]
        return [*split_script(self.script), *self.args, *flags]

    @property
    def python_script(self) -> str | None:
        """Path of the .py file if the script is one (by its first word), else None: a command."""
        first = split_script(self.script)[0]
        return first if first.endswith(".py") and not self.type.is_command else None

    def environment(self) -> dict[str, str]:
        """env_variables as text; variables that are None are left out."""
        return {key: str(value) for key, value in self.env_variables.items() if value is not None}

    def masked(self) -> Self:
        """The spec for display: `notify`, and what `client_lib.spec.secrets` finds in the command
        line, the variables and `setup`, are `***`."""
        masking = Masking()
        shown = self._with_masked_command(masking)
        variables = masking.variables(self.env_variables)
        if variables != self.env_variables:
            shown = replaced(shown, env_variables=variables)
        return replaced(shown, notify=MASK) if self.notify else shown

    def with_masked_command(self) -> Self:
        """The spec with `***` for each secret in the command line and in `setup`."""
        return self._with_masked_command(Masking())

    def _with_masked_command(self, masking: Masking) -> Self:
        script = split_script(self.script)
        shown = masking.words(script)
        masked: dict[str, Any] = {
            "script": self.script if shown == script else shlex.join(shown),
            "args": masking.words(self.args),
            "flags": masking.values(self.flags),
            "setup": self.setup and masking.text(self.setup),
        }
        changed = {name: value for name, value in masked.items() if value != getattr(self, name)}
        return replaced(self, **changed) if changed else self


def from_last_step(spec: JobSpec) -> JobSpec:
    """The spec for another job that goes on where this one has ended: `from_step` is for the start
    of this one alone."""
    params = spec.checkpoint_params
    if params is None or params.from_step is None:
        return spec
    return replaced(spec, checkpoint_params=replaced(params, from_step=None))


@cache  # pydantic inspects the factory of a default at each call
def defaults() -> dict[str, Any]:
    """The default of each field."""
    return {
        name: field.get_default(call_default_factory=True)
        for name, field in JobSpec.model_fields.items()
    }


def split_dependency(entry: str) -> tuple[Condition, str]:
    """Condition and name of an entry of `after`. Raises ValueError."""
    head, colon, name = entry.rpartition(":")
    found = _CONDITIONS.get(head + colon)
    if found is None:
        raise ValueError(
            f"{entry!r}: {head!r} is no condition; write NAME, ok:NAME, failed:NAME or any:NAME"
        )
    check_name(name)
    return found, name
