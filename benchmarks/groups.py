"""Submits of groups: 1000 members in one request, beside 100 jobs one by one, and `list` with all of them.

    python benchmarks/groups.py [-n ROUNDS]

Both by the SDK with the real local server and SQLite, a group and a tenth of the single jobs in turn. Few jobs run, so
that the others wait.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

MEMBERS = 1000
GOAL_S = 2.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-n", "--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["CLIENT_LIB_STATE_DIR"] = str(Path(scratch, "state"))
        try:
            _compare(Path(scratch), rounds)
        finally:
            subprocess.run([sys.executable, "-m", "client_lib", "server", "stop"], check=False)


def _compare(scratch: Path, rounds: int) -> None:
    from client_lib import Client, Job

    script = scratch / "sleep.py"
    script.write_text("import time; time.sleep(60)\n")
    client = Client()
    client.server_info()  # starts the server

    def group(name: str) -> None:
        Job(script=script, client=client).each(name, {"seed": range(MEMBERS)}, max_parallel=1, check=False)

    def one_by_one(name: str) -> None:
        for seed in range(MEMBERS // 10):
            Job(script=script, args=["--seed", str(seed)], name=f"{name}-{seed}", client=client).submit(check=False)

    ways: dict[str, Callable[[str], None]] = {"group": group, "one by one": one_by_one}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name, way in ways.items():
            begin = time.perf_counter()
            way(f"{name.replace(' ', '-')}-{number}")
            times[name].append(time.perf_counter() - begin)
    for name, found in times.items():
        print(f"{name}: median {statistics.median(found):.2f} s, largest {max(found):.2f} s")
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-m", "client_lib", "list"], check=True, stdout=subprocess.DEVNULL)
    print(f"client-lib list with all of them: {time.perf_counter() - begin:.2f} s")
    print(f"goal of a group: {GOAL_S} s: {'met' if max(times['group']) <= GOAL_S else 'MISSED'}")


if __name__ == "__main__":
    main()
