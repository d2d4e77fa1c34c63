"""Drills of twelve scripts, half of them with one seeded fault: verdicts, and how long they take.

    python benchmarks/drill.py [--rounds 1] [--quick] [NAME ...]

The scripts are in `tests/drill/scripts`: plain DDP, transformers' Trainer, Lightning, Accelerate,
FSDP2 with torch.distributed.checkpoint; two ranks on gloo. A right script must have no complaint, a
seeded fault must be named. `--rounds`: of the right ones, which chance could let down.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from own_server import own_server

from client_lib.client import Client
from client_lib.drill import FAULTS, QUICK, DrillReport, rehearse
from client_lib.spec.job import JobSpec

SCRIPTS = Path(__file__).parents[1] / "tests" / "drill" / "scripts"


class Case(NamedTuple):
    script: str
    args: tuple[str, ...] = ()
    finding: str = ""
    """The finding that the drill must name; "": the script is right."""


CASES = {
    "ddp": Case("ddp.py", ("--keep",)),
    "ddp, one file": Case("ddp.py"),
    "trainer": Case("hf_trainer.py"),
    "lightning": Case("lightning_fit.py"),
    "accelerate": Case("accelerated.py"),
    "fsdp2": Case("fsdp.py"),
    "ddp without random state": Case("ddp.py", ("--fault", "random"), "random state"),
    "ddp without order": Case("ddp.py", ("--fault", "order"), "order of the data"),
    "ddp in place": Case("ddp.py", ("--fault", "in-place"), "save is not atomic"),
    "trainer without optimizer": Case("hf_trainer.py", ("--fault", "optimizer"), "optimizer state"),
    "lightning that never loads": Case(
        "lightning_fit.py", ("--fault", "never-loads"), "nothing is resumed"
    ),
    "accelerate without schedule": Case(
        "accelerated.py", ("--fault", "rates"), "learning-rate schedule"
    ),
}


def found(report: DrillReport) -> set[str]:
    of_faults = {finding.what for result in report.results for finding in result.findings}
    return of_faults | {finding.what for finding in report.findings}


def is_right(case: Case, report: DrillReport) -> bool:
    named = found(report)
    return case.finding in named if case.finding else not named and report.resumes


def drill(client: Client, case: Case, quick: bool) -> tuple[DrillReport, float]:
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(SCRIPTS / case.script, folder)
        os.chdir(folder)
        spec = JobSpec(
            script=case.script, args=list(case.args), n_workers=2, instance_type="cpu.1C.1G"
        )
        began = time.monotonic()
        try:
            report = rehearse(client, spec, sys.executable, QUICK if quick else FAULTS)
        finally:
            os.chdir("/")
        took = time.monotonic() - began
        if report.folder:
            shutil.rmtree(report.folder)
        return report, took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    chosen = {name: CASES[name] for name in args.names or CASES}
    print("| script | undisturbed | drill | verdict | found |\n|---|---|---|---|---|", flush=True)
    right = tried = 0
    with own_server():
        client = Client()
        for name, case in chosen.items():
            for _ in range(1 if case.finding else args.rounds):
                report, took = drill(client, case, args.quick)
                good = is_right(case, report)
                tried += 1
                right += good
                named = ", ".join(sorted(found(report))) or "-"
                word = "right" if good else "WRONG"
                print(
                    f"| {name} | {report.undisturbed_s:.1f} s | {took:.0f} s | {word} | {named} |",
                    flush=True,
                )
    print(f"\n{right} of {tried} verdicts are right")


if __name__ == "__main__":
    main()
