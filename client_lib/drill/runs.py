"""Runs of a drill as ordinary jobs of this machine, and what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from client_lib.drill.folders import RunPlace
from client_lib.drill.judgement import Seen, Tensors
from client_lib.drill.records import RankRecords, parse
from client_lib.drill.values import Curves, Key, Points
from client_lib.durable import make_private_folders
from client_lib.errors import ClientLibError, Conflict
from client_lib.job import Job
from client_lib.launcher_protocol.processes import start_time
from client_lib.spec.job import CheckpointParams, JobSpec
from client_lib.spec.states import State
from client_lib.spec.wire import JobInfo
from client_lib.transport.api import Api

VARIABLE = "CLIENT_LIB_DRILL"
"""Variable of a run: the folder with the probe, which gets the records. `rank_runner` executes the
probe there before the script."""
_HERE = Path(__file__).parent
_OF_OPTIMIZERS = ("train/step", "optim/")
"""Beginnings of the names of curves that the rank runner makes of the optimizers' steps. The steps
are sampled, and count from 1 in a process whose optimizer keeps no number of steps."""
_POINTS = 100_000
"""Points of each curve that are compared."""
_STATE_EVERY_S = 0.2
_COMPARE_S = 180.0
_STOP_S = 30.0
"""Seconds that the end of a cancelled run may take beside its grace."""
_OFFLINE = {
    "wandb": {"WANDB_MODE": "offline"},
    "mlflow": {"MLFLOW_TRACKING_URI": "file:mlruns"},
    "comet_ml": {"COMET_MODE": "disabled"},
    "neptune": {"NEPTUNE_MODE": "offline"},
    "clearml": {"CLEARML_OFFLINE_MODE": "1"},
    "swanlab": {"SWANLAB_MODE": "offline"},
}
"""Variables that keep a tracker from its server, by the tracker's module. Set only where it is
installed: variables that libraries read at their import cost a run the warm pool."""
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class RunProcess(NamedTuple):
    """A process of this machine. Its number may be given to a foreign process when it has ended."""

    pid: int
    started: str

    @classmethod
    def running(cls, pid: int) -> RunProcess:
        """The process that has this number now."""
        return cls(pid, start_time(pid) or "")

    def is_alive(self) -> bool:
        return start_time(self.pid) == self.started


class Script(NamedTuple):
    """The facts that all runs of a drill have in common."""

    api: Api
    spec: JobSpec
    python: str
    label: str


class Run:
    """One job of a drill, from its submit to its end."""

    def __init__(self, script: Script, place: RunPlace, name: str, what: str) -> None:
        """Submit the job. `name`: of the folder of its records; `what`: its description."""
        self.place = place
        self._records = place.records / name
        make_private_folders(str(self._records))
        (self._records / "probe.py").write_bytes((_HERE / "probe.py").read_bytes())
        self._job = Job(**fields(script, place, self._records, what), client=script.api)
        self._api = script.api
        self._lines = 0
        self._read_to = 0
        self._asked_at = 0.0
        self._job.submit(python=script.python, check=False)

    @property
    def name(self) -> str:
        return self._job.name or ""

    @property
    def info(self) -> JobInfo:
        """The job as it was when last asked."""
        assert self._job.last_info is not None
        return self._job.last_info

    def is_over(self) -> bool:
        """True if the job has ended; asks the server a few times in a second."""
        now = time.monotonic()
        if now - self._asked_at > _STATE_EVERY_S and not self.info.state.final:
            self._job.info()
            self._asked_at = time.monotonic()
        return self.info.state.final

    def wait(self, limit_s: float) -> None:
        """Wait for the end; cancel the job after `limit_s`."""
        with suppress(ClientLibError):
            self._job.wait(limit_s)
        if not self._job.info().state.final:
            self.stop()

    def stop(self) -> None:
        """Cancel the job, and wait for its end: until then it writes into its folder."""
        with suppress(ClientLibError):
            self._job.cancel()
            self._job.wait(self._job.spec.grace_s + _STOP_S)

    def cancel(self) -> None:
        """Stop the job as `client-lib cancel` does: SIGTERM, then SIGKILL after its grace."""
        self._job.cancel()

    def steps(self) -> int:
        """Number of steps that rank 0 has recorded so far."""
        with suppress(FileNotFoundError), open(self._records / "rank-0.jsonl", "rb") as file:
            file.seek(self._read_to)
            text = file.read()
            self._read_to += len(text)
            self._lines += text.count(b'"weights_after"')
        return self._lines

    def processes(self) -> list[RunProcess]:
        """The process of each rank that runs, in the order of the ranks. Raises ClientLibError: the
        server does not know the processes."""
        found = {
            rank: RunProcess(records.pid, records.started)
            for rank, records in self.records().items()
            if records.pid
        }
        if not found:  # a command: the probe is not in it
            found = {
                each.rank: RunProcess.running(each.processes[0].pid)
                for each in self._job.stacks().ranks
                if each.processes
            }
        return [process for _, process in sorted(found.items()) if process.is_alive()]

    def records(self) -> dict[int, RankRecords]:
        """The records of each rank."""
        found = {}
        for path in self._records.glob("rank-*.jsonl"):
            rank = path.stem.partition("-")[2]
            if rank.isdigit():
                with open(path, "rb") as file:
                    found[int(rank)] = parse(file)
        return found

    def seen(self) -> Seen:
        """The run as judgement sees it, when it has ended."""
        info = self.info
        records = self.records().get(0, RankRecords())
        return Seen(
            info.name,
            info.state is State.SUCCEEDED,
            seconds(info),
            self._curves(),
            records.steps,
            "" if info.state is State.SUCCEEDED else _why(info),
        )

    def _curves(self) -> Curves:
        until = time.monotonic() + 10.0
        found = self._api.job_metrics(self.name, rank="all", points=_POINTS)
        while not found.complete and time.monotonic() < until:
            time.sleep(0.05)
            found = self._api.job_metrics(self.name, rank="all", points=_POINTS)
        return {
            Key(curve.name, curve.rank): Points(
                curve.axis, dict(zip(curve.steps, curve.values, strict=True))
            )
            for curve in found.curves
            if not curve.name.startswith(_OF_OPTIMIZERS)
        }

    def delete(self) -> None:
        """Remove the job and its log."""
        with suppress(ClientLibError):
            self._job.delete(force=True)


@contextmanager
def ending(run: Run) -> Iterator[Run]:
    """Stop the run where the block fails, such as by Ctrl-C."""
    try:
        yield run
    except BaseException:
        run.stop()
        raise


def seconds(info: JobInfo) -> float:
    """Seconds for which the ranks of an ended job ran."""
    if info.started_at is None or info.finished_at is None:
        return 0.0
    return (info.finished_at - info.started_at).total_seconds()


def _why(info: JobInfo) -> str:
    failure = info.failure
    text = (failure.exception if failure else None) or info.message or str(info.reason)
    return _last_line(text)[:300]


def fields(script: Script, place: RunPlace, records: Path, what: str) -> dict[str, Any]:
    """The fields of the job of a run: the fields that a drill sets, and all others as the user has
    set them."""
    spec = script.spec
    given = {name: getattr(spec, name) for name in spec.model_fields_set}
    params = (spec.checkpoint_params or CheckpointParams()).model_dump()
    variables = {**dict.fromkeys(_THREADS, "1"), **spec.env_variables, VARIABLE: str(records)}
    ours: dict[str, Any] = {
        "script": place.script,
        "code": "in_place",  # the code is a copy
        "working_dir": str(place.working_dir),
        "checkpoint_dir": str(place.checkpoints),
        # as in a job without `checkpoint_dir`, unless the user has decided
        "checkpoint_params": {**params, "from_step": None, "damaged": params["damaged"] or "aside"},
        "env_variables": variables,
        "labels": {**spec.labels, "drill": script.label},
        "job_desc": what,
        "observe": True,
        "max_retry": None,
        "max_infrastructure_retry": 0,
        "outputs": [],
        "alarm": [],
        **dict.fromkeys(("name", "after", "checkpoint_from", "notify", "retry_on")),
        **dict.fromkeys(("retry_reset_steps", "health_params")),
        "hang_action": "report",
        "smoke": False,
    }
    return {**given, **ours}


def offline(python: str) -> dict[str, str]:
    """Variables that keep the trackers of an interpreter from their servers."""
    code = (
        "import importlib.util, json, sys; "
        "print(json.dumps([n for n in sys.argv[1:] if importlib.util.find_spec(n)]))"
    )
    done = subprocess.run([python, "-c", code, *_OFFLINE], capture_output=True, check=False)
    installed = _json(done.stdout, [])
    return {key: value for name in installed for key, value in _OFFLINE[name].items()}


def compare_tensors(python: str, one: Path, other: Path) -> Tensors:
    """Compare two checkpoints in a child process of the job's interpreter. Raises Conflict: the
    child failed."""
    argv = [python, str(_HERE / "tensors.py"), str(one), str(other)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            argv, env=environment, capture_output=True, timeout=_COMPARE_S, check=False
        )
    except subprocess.TimeoutExpired as late:
        raise Conflict(f"the comparison of {one} took longer than {_COMPARE_S:g} s") from late
    found: Mapping[str, Any] = _json(done.stdout, {})
    if not found:
        last = _last_line(done.stderr.decode(errors="replace"))
        raise Conflict(f"{one} and {other} can't be compared: {last or 'no output'}")
    largest = [(str(name), float(by)) for name, by in found["largest"]]
    return Tensors(found["compared"], found["differ"], largest, found["raw"])


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or [""])[-1]


def _json(text: bytes, otherwise: Any) -> Any:
    try:
        return json.loads(text.strip().splitlines()[-1])
    except (ValueError, IndexError):
        return otherwise
