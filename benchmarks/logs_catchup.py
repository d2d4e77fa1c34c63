"""How fast a follower catches up: through the server and through the SDK, as a ratio to the file's
raw bytes.

    python benchmarks/logs_catchup.py [--lines 1000000] [--rounds 5] [--torchx ENVIRONMENT]

The floor in the same run: the same server sends the same file as it is, in blocks of 64 KiB, to the
same raw socket. With --torchx (a folder of a virtual environment that has torchx) the follow of
TorchX's local scheduler is timed too.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from http.client import HTTPConnection
from pathlib import Path
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parents[1]))

from client_lib.log_reading.reader import Params, log_entries, log_lines, log_params
from client_lib.spec import paths
from client_lib.spec.paths import LOG_FRAMES, NDJSON
from server_stub.files.job_dirs import log_dir
from tests.logs.log_server import NAME, write_job
from tests.logs.support import LogWriter, ServerProcess, stamp

# about 120 bytes with its head
TEXT = "epoch 3 step {:8d} loss 0.2512345 lr 3.0e-05 tokens/s 123456 "


def write_log(folder: Path, workers: int, lines: int) -> list[Path]:
    logs = [LogWriter(log_dir(folder, 1, worker)) for worker in range(workers)]
    # as a launcher writes: one stamp for each block that it read from a pipe
    for block in range(0, lines, 500):
        for worker, log in enumerate(logs):
            time_of_block = stamp(block / 1000 + worker / 10000)
            head = f"{time_of_block} {worker} stdout "
            log.append([f"{log.seq + n} {head}{TEXT.format(n)}\n".encode() for n in range(500)])
            log.seq += 500
    return [log.path for log in logs]


def receive(port: int, path: str, accept: str) -> int:
    """Bytes of the answer, read as fast as a socket gives them and looked at not at all."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        request = f"GET {path} HTTP/1.1\r\nHost: x\r\nAccept: {accept}\r\nConnection: close\r\n\r\n"
        connection.sendall(request.encode())
        count, buffer = 0, bytearray(256 * 1024)
        while got := connection.recv_into(buffer):
            count += got
    return count


def open_stream(port: int) -> Callable[[Params], Iterator[bytes]]:
    def opened(params: Params) -> Iterator[bytes]:
        connection = HTTPConnection("127.0.0.1", port)
        connection.request(
            "GET",
            f"{paths.job(NAME, 'logs')}?{urlencode(params, doseq=True)}",
            headers={"Accept": LOG_FRAMES},
        )
        answer = connection.getresponse()
        while chunk := answer.read1(64 * 1024):
            yield chunk
        connection.close()

    return opened


def drain(lines: Iterator[object]) -> int:
    return sum(1 for _ in lines)


def torchx(environment: Path, what: str, lines: int) -> str:
    """The output of the rival, run by the interpreter of a virtual environment."""
    command = [
        environment / "bin" / "python",
        Path(__file__).parent / "rivals" / "torchx_logs.py",
        what,
        str(lines),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--torchx", type=Path, help="virtual environment with torchx")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        write_job(Path(one))
        write_job(Path(two), n_workers=2)
        (path,) = write_log(Path(one), 1, options.lines)
        write_log(Path(two), 2, options.lines // 2)
        servers = ServerProcess(Path(one)), ServerProcess(Path(two))
        try:
            for server in servers:
                server.start()
            measure(options, path, *(server.port for server in servers))
        finally:
            for server in servers:
                server.kill()
    if options.torchx:
        rate = float(torchx(options.torchx, "catchup", options.lines // 10).split()[-1])
        print(f"{'TorchX local_cwd, follow':42} {rate:12,.0f} lines/s")
    else:
        print("TorchX was not timed: give --torchx ENVIRONMENT")


def measure(options: argparse.Namespace, path: Path, one: int, two: int) -> None:
    logs = paths.job(NAME, "logs")
    ways: dict[str, Callable[[], int]] = {
        "raw bytes of the file (floor)": lambda: receive(one, f"/raw?path={path}", "*/*"),
        "server, frames, 1 worker": lambda: receive(one, logs, LOG_FRAMES),
        "server, frames, 2 workers merged": lambda: receive(two, logs, LOG_FRAMES),
        "server, frames, rank=0": lambda: receive(one, f"{logs}?rank=0", LOG_FRAMES),
        "server, text": lambda: receive(one, logs, "text/plain"),
        "server, ndjson": lambda: receive(one, logs, NDJSON),
        "log_lines, 1 worker": lambda: drain(log_lines(open_stream(one), log_params())),
        "log_entries, 1 worker": lambda: drain(log_entries(open_stream(one), log_params())),
        "log_lines, 2 workers": lambda: drain(log_lines(open_stream(two), log_params())),
    }
    took: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(options.rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            count = way()
            took[name].append(time.perf_counter() - began)
            assert count >= options.lines, (name, count)
    floor = statistics.median(took["raw bytes of the file (floor)"])
    print(
        f"{options.lines:,} lines, {os.path.getsize(path):,} bytes; medians of {options.rounds} "
        "interleaved rounds"
    )
    for name, times in took.items():
        median = statistics.median(times)
        print(f"{name:42} {options.lines / median:12,.0f} lines/s   {floor / median:5.2f} x raw")


if __name__ == "__main__":
    main()
