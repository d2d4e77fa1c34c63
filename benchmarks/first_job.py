"""From one call to a finished distributed job: ours beside bare processes, torchrun, accelerate and
TorchX, in one run.

    python benchmarks/first_job.py [-n ROUNDS] [--only all_reduce|ddp_step] [--ways bare torchrun
    ours] [--into FILE]

Two jobs of two processes each: join, all_reduce once, leave; and the same with one
DistributedDataParallel step. Ours is the SDK's `submit()` and `wait()`, with a local server that is
up already, as for every job of a user but the first. `ours, plain python` is without the rank
runner. These start fresh; `ours, warm` is forked from the pool, as all jobs of a user but the first
are. --into keeps the times of several runs together (interleave.joined).
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from interleave import Samples, joined, table, wall_times
from own_server import own_server, run_job, time_of_warm_job
from rivals import launchers

JOBS = Path(__file__).resolve().parent / "rivals" / "jobs"
GOALS = {
    "all_reduce": "goals: 0.75 to bare, 0.45 to torchrun",
    "ddp_step": "goals: 0.85 to bare, 0.60 to torchrun",
}
PLAIN_PYTHON = {"CLIENT_LIB_RANK_RUNNER": "0"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", "--rounds", type=int, default=5)
    parser.add_argument("--only", choices=tuple(GOALS))
    parser.add_argument("--ways", nargs="+", help="only these; default: all")
    parser.add_argument("--into", type=Path)
    options = parser.parse_args()
    with own_server() as scratch:
        for name, goals in GOALS.items():
            if options.only in (None, name):
                samples = joined(
                    measure(name, scratch, options.rounds, options.ways), options.into, name
                )
                print(
                    table(
                        f"{name}, {goals}",
                        samples,
                        to=tuple(to for to in ("bare", "torchrun") if to in samples),
                    )
                )


def measure(name: str, scratch: Path, rounds: int, chosen: list[str] | None) -> Samples:
    script = scratch / f"{name}.py"
    shutil.copy(JOBS / script.name, script)
    ours = partial(
        run_job, script=str(script), processes_per_worker=launchers.WORLD_SIZE, warm=False
    )
    ways: dict[str, Callable[[], object]] = {
        "bare": partial(launchers.bare, script, scratch),
        "torchrun": partial(launchers.torchrun, script, scratch),
        "accelerate launch": partial(launchers.accelerate, script, scratch),
        "TorchX local_cwd": partial(launchers.torchx, script, scratch),
        "ours": ours,
        "ours, 2 workers": partial(
            run_job, script=str(script), n_workers=launchers.WORLD_SIZE, warm=False
        ),
        "ours, plain python": partial(ours, env_variables=PLAIN_PYTHON),
        "ours, warm": partial(
            time_of_warm_job, script=str(script), processes_per_worker=launchers.WORLD_SIZE
        ),
    }
    return wall_times({way: ways[way] for way in chosen or ways}, rounds)


if __name__ == "__main__":
    main()
