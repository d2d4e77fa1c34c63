"""Submits of the SDK: beside a bare GET, in a git repository, and of a project of 2000 files.

    python benchmarks/sdk_submit.py [--only get|git|snapshot] [-n SUBMITS] [--files FILES] [--rounds
    10]

`get`: one submit beside a GET of `requests.Session` from a bare ASGI app, in turns. The submit is
all of it: a script in place with its proof, this process's environment, the durable commit. Goal: a
p50 of at most 4 times the GET's.

`git`: a script in a git repository of FILES files with uncommitted changes, beside the same outside
of git. The difference is what reading commit, branch, remote and changes costs a submit; the goal
is at most 20 ms. The share of submits whose record is complete is printed, too: a submit does not
wait longer for git.

`snapshot`: a project of 2000 files as a snapshot, for the first time, unchanged, and with one file
changed: from the call to the durable answer, with the bytes that are sent. The files are 4 kB each,
half of it text that repeats, half of it noise. In place, as `auto` takes it on this machine,
nothing is sent at all.

One long job holds the only place, so that the others wait and nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests
from interleave import Samples, percentile, wall_times
from own_server import INSTANCE_TYPE, own_server
from submits import asgi

from client_lib import Job

GET_GOAL, GIT_GOAL_MS = 4.0, 20
PROJECT_FILES = 2000
_LINE = "def step(model, batch, rate=0.1): return model.update(batch, rate)\n"


def main() -> None:
    parts = {"get": beside_get, "git": in_git, "snapshot": of_project}
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=[*parts])
    parser.add_argument("-n", "--submits", type=int, default=200, help="beside a GET, and in git")
    parser.add_argument("--files", type=int, default=5000, help="in the git repository")
    parser.add_argument("--rounds", type=int, default=10, help="of the project")
    options = parser.parse_args()
    os.environ["CLIENT_LIB_SERVER_MAX_CPU_JOBS"] = "1"
    with own_server() as folder:
        holder = Job(script="sleep 3600", type="binary", instance_type=INSTANCE_TYPE)
        holder.submit()
        for name, part in parts.items():
            if options.only in (None, name):
                part(folder, options)
        holder.kill()


def submitted(
    script: Path, on_upload: Callable[[int, int], None] | None = None, **fields: Any
) -> Job:
    job = Job(script=script, instance_type=INSTANCE_TYPE, **fields)
    job.submit(on_upload=on_upload)
    return job


def show(title: str, samples: Samples) -> None:
    print(f"\n{title}\n\n| | p50 ms | p99 ms |\n|---|---|---|")
    for name, times in samples.items():
        print(f"| {name} | {percentile(times, 50) * 1e3:.2f} | {percentile(times, 99) * 1e3:.2f} |")


def beside_get(folder: Path, options: argparse.Namespace) -> None:
    script = folder / "train.py"
    script.write_text("print('hello')\n")
    with asgi("submits_floor", folder) as server, requests.Session() as session:
        url = f"http://127.0.0.1:{server.port}/"
        ways = {
            "GET": lambda: session.get(url),
            "Job.submit": lambda: submitted(script, args=["--epochs", "3"]),
        }
        wall_times(ways, 20)  # not counted
        samples = wall_times(ways, options.submits)
    show("One submit", samples)
    ratio = statistics.median(samples["Job.submit"]) / statistics.median(samples["GET"])
    print(f"\nsubmit to GET: {ratio:.2f} (goal {GET_GOAL:g})")


def in_git(folder: Path, options: argparse.Namespace) -> None:
    _make_repository(folder / "git", options.files)
    shutil.copytree(folder / "git", folder / "plain", ignore=shutil.ignore_patterns(".git"))
    jobs: list[Job] = []
    ways = {
        "outside of git": lambda: submitted(folder / "plain" / "train.py"),
        "in git": lambda: jobs.append(submitted(folder / "git" / "train.py")),
    }
    samples = wall_times(ways, options.submits)
    records = [job.provenance().submitted for job in jobs[1:]]
    complete = sum(
        record is not None and bool(record.diff) and record.missing is None for record in records
    )
    show(f"A submit in a git repository of {options.files} files", samples)
    outside_s, git_s = map(statistics.median, samples.values())
    print(
        f"\ngit costs {1e3 * (git_s - outside_s):.1f} ms (goal {GIT_GOAL_MS}); "
        f"{complete}/{len(records)} complete"
    )


def _make_repository(root: Path, files: int) -> None:
    for number in range(files):
        path = root / f"package{number % 200}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\n" * 50)
    (root / "train.py").write_text("print('hello')\n")
    for line in (
        "init -q",
        "add -A",
        "-c user.name=ann -c user.email=ann@example.org commit -qm one",
    ):
        subprocess.run(["git", *line.split()], cwd=root, check=True)
    for number in range(3):
        (root / f"package{number}" / f"module{number}.py").write_text("y = 1\n" * 50)
    (root / "package0" / "new.py").write_text("z = 1\n")


def of_project(folder: Path, options: argparse.Namespace) -> None:
    project, draw = folder / "project", random.Random(0)
    for number in range(PROJECT_FILES):
        path = project / f"package{number // 100}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(_LINE * 30 + f"# {draw.randbytes(1000).hex()}\n")
    (project / "train.py").write_text("pass\n")
    (project / "pyproject.toml").touch()

    def submit(code: str) -> tuple[float, int]:
        """Milliseconds, and bytes that were sent."""
        sent = [0]
        began = time.perf_counter()
        submitted(project / "train.py", lambda bytes_sent, _: sent.append(bytes_sent), code=code)
        return (time.perf_counter() - began) * 1e3, sent[-1]

    ways = {"first": [submit("snapshot")], "unchanged": [], "one file changed": [], "in place": []}
    for _ in range(options.rounds):
        ways["unchanged"].append(submit("snapshot"))
        with (project / "package7" / "module777.py").open("a") as file:
            file.write(f"# {draw.random()}\n")
        ways["one file changed"].append(submit("snapshot"))
        ways["in place"].append(submit("in_place"))
    size = sum(path.stat().st_size for path in project.rglob("*") if path.is_file())
    print(f"\nA project of {PROJECT_FILES} files, {size / 1e6:.1f} MB ({options.rounds} rounds)\n")
    print("| submit | median ms | max ms | to in place | sent MB |\n|---|---|---|---|---|")
    base = statistics.median(took for took, _ in ways["in place"])
    for name, found in ways.items():
        median, sent = (statistics.median(each) for each in zip(*found, strict=True))
        most = max(took for took, _ in found)
        print(f"| {name} | {median:.0f} | {most:.0f} | {median / base:.1f} | {sent / 1e6:.2f} |")


if __name__ == "__main__":
    main()
