"""Compares the curves of jobs with the records that their frameworks keep, and measures how soon
they are shown.

    make .venv-bench-scripts/.ready
    python benchmarks/scripts.py [NAME ...]

Each script of benchmarks/scripts, and the one of examples/, runs on one or two workers of a local
server. None knows client_lib. A point of a record is equal if the job's curve of the same name has
its value, in the digits that the framework prints, at its step. `shown` is the longest time from
the write of a line or of a file to an answer with the point; it is asked for each 0.1 s. Where a
framework keeps no time, it is that of the line in the log.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from own_server import INSTANCE_TYPE, own_server

from client_lib import Job
from client_lib.spec.metrics import JobMetrics

HERE = Path(__file__).parent
PYTHON = HERE.parent / ".venv-bench-scripts" / "bin" / "python"
LEAST = 3  # fewer values are no curve
EVENTS = """
import glob, json, os, struct, sys
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.util.tensor_util import make_ndarray
found = []
for path in sorted(glob.glob("**/*.tfevents.*", recursive=True)):
    data, at = open(path, "rb").read(), 0
    while at < len(data):
        end = at + 16 + struct.unpack_from("<Q", data, at)[0]
        event = Event.FromString(data[at + 12 : end - 4])
        for value in event.summary.value:
            kind = value.WhichOneof("value")
            number = value.simple_value if kind == "simple_value" else None
            if kind == "tensor" and value.metadata.plugin_data.plugin_name == "scalars":
                number = float(make_ndarray(value.tensor))
            if number is not None:
                found.append([os.path.dirname(path), path, end, event.step, value.tag, number])
        at = end
print(json.dumps(found))
"""


class Point(NamedTuple):
    name: str
    step: float
    value: float
    at: float | None = None
    """Time at which it was written, if that is known."""


Sizes = dict[Path, list[tuple[float, int]]]
"""Sizes of the files that were seen, and the times."""
Seen = dict[tuple[str, int | None, int], float]
"""Times at which the points of curves (name, rank, number) were first in an answer."""
Read = Callable[[Path, Sizes], Iterator[Point]]


def trainer_state(folder: Path, _: Sizes) -> Iterator[Point]:
    """Yield the points that transformers keeps; it prints 4 digits."""
    for entry in json.loads((folder / "out" / "trainer_state.json").read_text())["log_history"]:
        for name, value in entry.items():
            if name not in ("step", "epoch", "total_flos"):
                text = f"{value:.4g}" if isinstance(value, float) else value
                yield Point(name, float(f"{entry['epoch']:.4g}"), float(text))


def event_files(folder: Path, sizes: Sizes) -> Iterator[Point]:
    """Yield the points that TensorBoard reads."""
    dumped = subprocess.run(
        [PYTHON, "-c", EVENTS], cwd=folder, capture_output=True, text=True, check=True
    ).stdout
    found = json.loads(dumped)
    first = min(found, key=lambda each: Path(each[1]).name)[0]  # the name begins with the time
    for run, path, end, step, name, value in found:
        of = "" if run == first else f"{Path(run).name}/"
        yield Point(of + name, step, value, written(sizes, folder / path, end))


def metrics_csv(folder: Path, sizes: Sizes) -> Iterator[Point]:
    (path,) = folder.rglob("metrics.csv")
    lines, end = path.read_text().splitlines(keepends=True), 0
    heading = next(csv.reader(lines))
    for number, line in enumerate(lines):
        end += len(line)
        row = dict(zip(heading, next(csv.reader(io.StringIO(line))), strict=True))
        for name in heading if number else ():
            if row[name] and name not in ("step", "epoch"):
                yield Point(name, float(row["step"]), float(row[name]), written(sizes, path, end))


def noted(folder: Path, _: Sizes) -> Iterator[Point]:
    """Yield the points that a script without a framework has noted beside its prints."""
    for line in (folder / "record.jsonl").read_text().splitlines():
        entry = json.loads(line)
        for name, text in entry["values"].items():
            yield Point(name, entry["step"], float(text), entry["at"])


def digits_log(folder: Path, _: Sizes) -> Iterator[Point]:
    for epoch, loss in re.findall(
        r"rank 0 epoch (\d+) loss (\S+)", (folder / "train.log").read_text()
    ):
        yield Point("loss", float(epoch), float(loss))


class Script(NamedTuple):
    workers: int
    read: Read
    drawn: bool = False
    """A bar is drawn for some steps alone: the points that are shown are
    looked for in the record.
    """


SCRIPTS = {
    "hf_trainer": Script(1, trainer_state),
    "trl_sft": Script(1, trainer_state),
    "accelerate_plain": Script(2, noted),
    "accelerate_tensorboard": Script(1, event_files),
    "lightning_tensorboard": Script(1, event_files),
    "lightning_csv": Script(1, metrics_csv),
    "summary_writer": Script(1, event_files),
    "tqdm_postfix": Script(1, noted, drawn=True),
    "plain_prints": Script(1, noted),
    "json_lines": Script(1, noted),
    "ddp_train_log": Script(2, noted),
    "digits_ddp": Script(2, digits_log),
}


def written(sizes: Sizes, path: Path, end: int) -> float | None:
    """The time at which the file was first seen with so many bytes."""
    return next((at for at, size in sizes.get(path, ()) if size >= end), None)


class Found(NamedTuple):
    names: list[str]
    missing: list[str]
    compared: int
    equal: int
    shown_s: float


def run(folder: Path, name: str, timeout_s: float) -> Found:
    where = folder / name
    shutil.copytree(HERE / "scripts", where)
    shutil.copy(HERE.parent / "examples" / "digits_ddp.py", where)
    script = SCRIPTS[name]
    os.chdir(where)  # the working directory of the job
    job = Job(script=where / f"{name}.py", n_workers=script.workers, instance_type=INSTANCE_TYPE)
    job.submit(python=str(PYTHON))
    sizes: Sizes = defaultdict(list)
    seen: Seen = {}
    end, last = time.monotonic() + timeout_s, 0.0
    while True:
        over = job.info().state.final or time.monotonic() > end
        note_sizes(where, sizes)
        if over or time.monotonic() - last >= 0.1:
            last, metrics = time.monotonic(), job.metrics(points=100_000)
            for curve in metrics.curves:
                for number in range(len(curve.values)):
                    seen.setdefault((curve.name, curve.rank, number), time.time())
        if over:
            break
        time.sleep(0.02)
    if str(job.info().state) != "SUCCEEDED":
        raise SystemExit(
            f"{name}: {job.info().state}\n" + "\n".join(list(job.log_lines(follow=False))[-30:])
        )
    return compare(list(script.read(where, sizes)), metrics, seen, script)


def note_sizes(folder: Path, sizes: Sizes) -> None:
    for path in (*folder.rglob("*.tfevents.*"), *folder.rglob("metrics.csv")):
        size = path.stat().st_size
        if not sizes[path] or sizes[path][-1][1] != size:
            sizes[path].append((time.time(), size))


def compare(record: Sequence[Point], metrics: JobMetrics, seen: Seen, script: Script) -> Found:
    by_name: dict[str, list[Point]] = defaultdict(list)
    for point in record:
        by_name[point.name].append(point)
    compared = equal = 0
    missing, waits = [], [0.0]
    for name, points in by_name.items():
        if name not in metrics.keys():  # noqa: SIM118  # no mapping
            missing += [name] if len(points) >= LEAST else []
            continue
        curve = metrics[name]
        shown = {
            (step, value): (number, at)
            for number, (step, value, at) in enumerate(
                zip(curve.steps, curve.values, curve.times, strict=True)
            )
        }
        wanted = {(point.step, point.value): point.at for point in points}
        for key in shown if script.drawn else wanted:
            compared += 1
            if key in shown and key in wanted:
                equal += 1
                number, at = shown[key]
                # else they wait for the third
                if number >= LEAST - 1 or script.read in (event_files, metrics_csv):
                    waits.append(seen[name, curve.rank, number] - (wanted[key] or at))
        if not script.drawn and len(shown) > len(wanted):
            print(
                f"  {name}: {len(shown) - len(wanted)} points that are not in the record: ", end=""
            )
            print(sorted(shown.keys() - wanted.keys())[:5])
        wrong = sorted(
            (shown.keys() if script.drawn else wanted.keys())
            - (wanted.keys() if script.drawn else shown.keys())
        )
        if wrong:
            near = [key for key in (wanted if script.drawn else shown) if key[0] == wrong[0][0]]
            print(f"  {name}: {wrong[:3]}, the other has {near[:3]} of {len(shown)} ({curve.axis})")
    return Found(metrics.keys(), missing, compared, equal, max(waits))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds of one script")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCRIPTS))
    options = parser.parse_args()
    if not PYTHON.exists():
        raise SystemExit("the frameworks are missing: make .venv-bench-scripts/.ready")
    with own_server() as folder:
        for name in options.names or SCRIPTS:
            found = run(folder, name, options.timeout)
            missing = f", missing: {' '.join(found.missing)}" if found.missing else ""
            print(
                f"{name}: {found.equal} of {found.compared} points equal, shown in "
                f"{found.shown_s:.2f} s",
                end="",
            )
            print(f"; names: {' '.join(found.names)}{missing}", flush=True)


if __name__ == "__main__":
    main()
