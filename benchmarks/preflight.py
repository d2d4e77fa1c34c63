"""Measures what the preflight of a job costs.

    python benchmarks/preflight.py [--runs 3] [--workers 8]

A job whose script prints at once, with `preflight_check=True`: the time of the checks as the
preflight tells it, and from its last line to the first line of the script. That is the end of its
processes and the start of the ranks; the import of torch and the rendezvous are counted apart.
"""

from __future__ import annotations

import argparse
import re

from own_server import own_server, run_job

PASSED = re.compile(r"preflight: passed in ([\d.]+) s, beside ([\d.]+) s")


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("--runs", type=int, default=3)
    arguments.add_argument("--workers", type=int, default=8)
    given = arguments.parse_args()
    with own_server() as folder:
        (folder / "train.py").write_text("print('begins')\n")
        for _ in range(given.runs):
            job = run_job(script=folder / "train.py", n_workers=given.workers, preflight_check=True)
            entries = list(job.log_entries(follow=False))
            passed = next(
                (entry, found) for entry in entries if (found := PASSED.match(entry.text))
            )
            begins = [entry.time for entry in entries if entry.text == "begins"]
            checks, beside = map(float, passed[1].groups())
            until_first, until_last = (
                (at - passed[0].time).total_seconds() for at in (min(begins), max(begins))
            )
            print(
                f"{given.workers} workers: checks {checks:.1f} s, then {until_first:.1f} s until "
                f"the first rank has begun, and {until_last:.1f} s until the last; import and "
                f"rendezvous {beside:.1f} s",
                flush=True,
            )


if __name__ == "__main__":
    main()
