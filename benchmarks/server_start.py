"""How long a server takes from its spawn to its first answer, to the import of its libraries alone.

    python benchmarks/server_start.py [--runs 9]

Interleaved runs, medians. The data directory has been used before, as in all starts but the first. Goal: <= 1.5.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIBRARIES = "import fastapi, uvicorn, sqlalchemy, pydantic_settings, uvloop, httptools"


def import_libraries() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", LIBRARIES], check=True)
    return time.perf_counter() - began


def start_server(state_dir: Path) -> float:
    """Seconds until /healthz answers; the server is ended then."""
    began = time.perf_counter()
    server = subprocess.Popen(
        [sys.executable, "-m", "server_stub", "--state-dir", str(state_dir)], stderr=subprocess.DEVNULL
    )
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=9)
    runs = parser.parse_args().runs
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # a start without compiled files measures the compiler
    libraries, starts = [], []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(2):  # the first compiles and makes the database
            import_libraries()
            start_server(Path(folder))
        for _ in range(runs):
            libraries.append(import_libraries())
            starts.append(start_server(Path(folder)))
    base, start = statistics.median(libraries), statistics.median(starts)
    print(f"import of the libraries   {base * 1000:7.0f} ms")
    print(f"start to first answer     {start * 1000:7.0f} ms   {start / base:.2f} x (goal <= 1.5)")


if __name__ == "__main__":
    main()
