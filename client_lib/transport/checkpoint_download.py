"""Fetches a checkpoint of a job into a folder: a file, or a folder with its files.

It has its name only when it is complete, and nothing is written outside of the folder, whatever a
server sends.
"""

import os
import posixpath
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from client_lib.checkpoints import step_of
from client_lib.checkpoints.metric_values import MetricValues, best_of
from client_lib.checkpoints.single_files import SUFFIXES
from client_lib.errors import BadResponse, InvalidRequest, NotFound
from client_lib.launcher_protocol.archive import ArchiveRefused, unpack_stream
from client_lib.spec.checkpoints import JobCheckpoint
from client_lib.spec.metric_names import Wanted, wanted
from client_lib.spec.metrics import POINTS_MAX
from client_lib.spec.wire import JobInfo
from client_lib.transport.api import Api
from client_lib.transport.failures import Transient

_WORDS = "best, best:METRIC, last or a step"


def download(api: Api, info: JobInfo, which: str, folder: Path) -> list[Path]:
    """Fetch a checkpoint, which may be several files of one step, into a folder, which is made.
    `which`: `best`, `best:METRIC`, `last`, or a step.

    Raises:
        InvalidRequest: `which` is something else; or something of this name is in the folder.
        NotFound: the job has no such checkpoint. NotSupported: the server does not see it.
        BadResponse: what came is no such checkpoint, or broke off.
        ServerUnreachable and others of `client_lib.errors`: the file or folder was not written.
    """
    word, _, metric = which.partition(":")
    if not (which == "last" or word == "best" or (which.isascii() and which.isdecimal())):
        raise InvalidRequest(f"checkpoint={which!r} is none of {_WORDS}")
    found = api.job_checkpoints(info.name, owner=info.owner)
    complete = [each for each in found if each.state == "complete"]
    if not complete:
        raise NotFound(f"job {info.name} has no complete checkpoint")
    if word == "best":
        by = wanted(metric or _keep_best(info))
        chosen = best_checkpoint(complete, _values(api, info, by.metric), by)
    elif which == "last":
        chosen = complete[-1]
    else:
        chosen = _of_step(complete, int(which))
    return [_fetch(api, info, each.path, folder) for each in _of_one_save(complete, chosen)]


def _keep_best(info: JobInfo) -> str:
    params = info.spec.checkpoint_params
    if params is None or params.keep_best is None:
        raise InvalidRequest(
            f"job {info.name} does not say by which metric a checkpoint is the best",
            hint="name the metric: best:val_loss",
        )
    return params.keep_best


def _values(api: Api, info: JobInfo, metric: str) -> MetricValues:
    """Raises NotFound: the job has no such metric."""
    metrics = api.job_metrics(info.name, rank=0, points=POINTS_MAX, owner=info.owner)
    curve = next((each for each in metrics.curves if each.name == metric), None)
    if curve is None:
        names = ", ".join(metrics.keys()) or "none"
        raise NotFound(f"job {info.name} has no metric {metric!r}; it has {names}")
    values = MetricValues()
    has_steps = curve.axis != "count"
    for step, time, value in zip(curve.steps, curve.times, curve.values, strict=True):
        values.add(step if has_steps else None, time, value)
    return values


def best_checkpoint(
    complete: Sequence[JobCheckpoint], values: MetricValues, by: Wanted
) -> JobCheckpoint:
    """The checkpoint with the best value, of those that tell their step: `last.pt` is overwritten,
    and so can't stand for the best, as with `keep_best`. Raises NotFound."""
    valued = [
        (each, values.of(each.step, each.modified_at.timestamp()))
        for each in complete
        if _tells_its_step(each)
    ]
    found = best_of(valued, by.is_larger)
    if found is None:
        raise NotFound(
            f"no checkpoint has a value of {by.metric}",
            hint="files without a step in their names, such as last.pt, do not count",
        )
    return found


def _tells_its_step(checkpoint: JobCheckpoint) -> bool:
    """False for a file with no step in its own name or in the name of its folder: the list then has
    the step that the job had printed before. Of a folder, the files in it may tell the step."""
    folder, name = posixpath.split(checkpoint.path)
    if name.endswith(SUFFIXES):
        return step_of(name) is not None or step_of(posixpath.basename(folder)) is not None
    return checkpoint.step is not None


def _of_step(complete: Sequence[JobCheckpoint], step: int) -> JobCheckpoint:
    found = next((each for each in complete if each.step == step), None)
    if found is None:
        steps = sorted({each.step for each in complete if each.step is not None})
        there = ", ".join(map(str, steps)) or "none"
        raise NotFound(f"there is no complete checkpoint of step {step}; there are: {there}")
    return found


def _of_one_save(complete: Sequence[JobCheckpoint], chosen: JobCheckpoint) -> list[JobCheckpoint]:
    """The checkpoint with others of its folder whose names have the same step: `model-400.pt` and
    `optimizer-400.pt`."""
    folder, name = posixpath.split(chosen.path)
    step = step_of(name)
    if step is None:
        return [chosen]
    names = ((each, *posixpath.split(each.path)) for each in complete)
    return [each for each, beside, other in names if beside == folder and step_of(other) == step]


def _fetch(api: Api, info: JobInfo, path: str, folder: Path) -> Path:
    """Fetch one file or folder; returns its place."""
    target = folder / posixpath.basename(path)
    if os.path.lexists(target):
        raise InvalidRequest(f"{target} is there already", hint="name another folder")
    folder.mkdir(parents=True, exist_ok=True)
    blocks = api.open_checkpoint(info.name, path, owner=info.owner)
    with TemporaryDirectory(prefix=".client-lib-", dir=folder) as beside:
        unpacked = Path(beside) / "checkpoint"
        try:
            unpack_stream(_Stream(blocks), str(unpacked))
            os.rename(unpacked / target.name, target)
        except Transient as cut:
            raise cut.error from cut.__cause__
        except (ArchiveRefused, FileNotFoundError) as refused:
            raise BadResponse(f"what came as {path} is not that checkpoint: {refused}") from refused
    return target


class _Stream:
    """The blocks of an answer as a stream."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._rest = b""

    def read(self, size: int) -> bytes:
        self._rest = self._rest or next(self._blocks, b"")
        data = self._rest[:size]
        self._rest = self._rest[size:]
        return data
