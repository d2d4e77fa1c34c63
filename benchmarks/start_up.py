"""Start-up, in interleaved runs: of the command line beside `torchx --help` (if one is given), and
of a server.

    python benchmarks/start_up.py [--only command|server] [--torchx /path/to/torchx] [--rounds 15]

Goals of the command line: `--help`, `status`, `list` and `logs` <= 0.6 x `torchx --help`; `submit`
<= 1.1 x; `import client_lib` <= 1.5 x `python -c pass`. torchx wants an environment of its own:
`python -m venv /tmp/tx && /tmp/tx/bin/pip install torchx`.

The server: from its spawn to its first answer, to the import of its libraries alone; goal <= 1.5.
Its data directory has been used before, as in all starts but the first.
"""

from __future__ import annotations

import argparse
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from interleave import table, wall_times
from own_server import COMMAND, INSTANCE_TYPE, own_server

from client_lib import Job

PASS, TORCHX = "python -c pass", "torchx --help"
JOBS = 30  # in the list
LIBRARIES = "import fastapi, uvicorn, sqlalchemy, pydantic_settings, uvloop, httptools"


def way(*line: object) -> Callable[[], float]:
    """Seconds from spawn to exit, its output read from a pipe."""
    words = [str(word) for word in line]

    def run() -> float:
        began = time.perf_counter()
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False)
        took = time.perf_counter() - began
        if done.returncode:
            raise RuntimeError(
                f"{' '.join(words)} ended with {done.returncode}: {done.stderr.decode()[-300:]}"
            )
        return took

    return run


def some_jobs() -> str:
    """Submit them; the name of the last, which has ended."""
    jobs = [Job(script="true", type="binary", instance_type=INSTANCE_TYPE) for _ in range(JOBS)]
    for job in jobs:
        job.submit()
    for job in jobs:
        job.wait()
    return jobs[-1].job_name or ""


def ways(name: str, torchx: str | None) -> dict[str, Callable[[], float]]:
    found = {
        PASS: way(sys.executable, "-c", "pass"),
        "import client_lib": way(sys.executable, "-c", "import client_lib"),
        "client-lib --help": way(COMMAND, "--help"),
        "client-lib status": way(COMMAND, "status", name),
        "client-lib list": way(COMMAND, "list"),
        "client-lib logs": way(COMMAND, "logs", name),
        "client-lib submit": way(COMMAND, "submit", "-t", "binary", "-i", INSTANCE_TYPE, "true"),
    }
    return {**found, TORCHX: way(torchx, "--help")} if torchx else found


def start_server(state_dir: Path) -> float:
    """Seconds until /healthz answers; the server is ended then."""
    began = time.perf_counter()
    command = [sys.executable, "-m", "server_stub", "--state-dir", str(state_dir)]
    server = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        while not (state_dir / "server.json").exists():
            if server.poll() is not None:
                raise SystemExit(f"the server ended with {server.returncode}")
            time.sleep(0.001)
        address = json.loads((state_dir / "server.json").read_text())["url"].removeprefix("http://")
        connection = http.client.HTTPConnection(address, timeout=10)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        return time.perf_counter() - began
    finally:
        server.terminate()
        server.wait()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=["command", "server"])
    parser.add_argument("--torchx", help="its executable")
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    with own_server() as scratch:
        if options.only != "server":
            samples = wall_times(ways(some_jobs(), options.torchx), options.rounds)
            print(
                table(
                    "Command line, spawn to exit",
                    samples,
                    to=(PASS, *([TORCHX] if options.torchx else [])),
                )
            )
        if options.only != "command":
            libraries = "import of the server's libraries"
            starts: dict[str, Callable[[], float]] = {
                libraries: way(sys.executable, "-c", LIBRARIES),
                "server, start to first answer": lambda: start_server(scratch / "started"),
            }
            starts["server, start to first answer"]()  # makes the database
            print(table("Server, goal 1.5", wall_times(starts, options.rounds), to=(libraries,)))


if __name__ == "__main__":
    main()
