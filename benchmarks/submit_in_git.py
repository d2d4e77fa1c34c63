"""One submit of a script in a git repository with uncommitted changes, beside the same outside of git, in turns.

    python benchmarks/submit_in_git.py [-n SUBMITS] [--files FILES]

The difference is what reading commit, branch, remote and changes costs a submit; the goal is at most 20 ms. The share
of submits whose record is complete is printed, too: a submit does not wait longer for git.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
from pathlib import Path

from interleave import wall_times
from own_server import INSTANCE_TYPE, own_server

from client_lib import Job


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--submits", type=int, default=100)
    parser.add_argument("--files", type=int, default=5000)
    given = parser.parse_args()
    os.environ["CLIENT_LIB_SERVER_MAX_CPU_JOBS"] = "1"
    with own_server() as folder:
        holder = Job(script="sleep 600", type="binary", instance_type=INSTANCE_TYPE)
        holder.submit()
        _make(folder / "git", given.files)
        shutil.copytree(folder / "git", folder / "plain", ignore=shutil.ignore_patterns(".git"))
        jobs: list[Job] = []

        def submit(where: str) -> None:
            job = Job(script=folder / where / "train.py", instance_type=INSTANCE_TYPE)
            job.submit()
            jobs.append(job)

        ways = {where: lambda where=where: submit(where) for where in ("plain", "git")}  # type: ignore[misc]
        samples = wall_times(ways, given.submits)
        records = [job.provenance().submitted for job in jobs[3::2]]
        holder.kill()
    complete = sum(record is not None and bool(record.diff) and record.missing is None for record in records)
    medians = {where: 1000 * statistics.median(times) for where, times in samples.items()}
    p90 = {where: 1000 * statistics.quantiles(times, n=10)[-1] for where, times in samples.items()}
    for where in medians:
        print(f"{where:6} median {medians[where]:5.1f} ms, p90 {p90[where]:5.1f} ms")
    print(
        f"git costs {medians['git'] - medians['plain']:.1f} ms (goal: 20); {complete}/{len(records)} records complete"
    )


def _make(root: Path, files: int) -> None:
    for number in range(files):
        path = root / f"package{number % 200}" / f"module{number}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"x = {number}\n" * 50)
    (root / "train.py").write_text("print('hello')\n")
    for line in ("init -q", "add -A", "-c user.name=ann -c user.email=ann@example.org commit -qm one"):
        subprocess.run(["git", *line.split()], cwd=root, check=True)
    for number in range(3):
        (root / f"package{number}" / f"module{number}.py").write_text("y = 1\n" * 50)
    (root / "package0" / "new.py").write_text("z = 1\n")


if __name__ == "__main__":
    main()
