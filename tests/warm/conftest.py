"""A real warm pool in a directory of its own, and workers that run in launchers forked from it."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import read_json
from client_lib.launcher_protocol.directory import MARKER
from client_lib.launcher_protocol.rank_processes import processes
from client_lib.worker.warm import ROOM, fit
from tests.kit.processes import alive
from tests.kit.waiting import until
from tests.worker.conftest import DEADLINE_S, Worker

COMPILE_S = 100.0  # a first torch.compile makes headers first
PROCESS = str(Path(fit.__file__).parent / "__main__.py")


class WarmPool:
    """The runtime's end of a pool."""

    def __init__(
        self, folder: Path, modules: Sequence[str], environment: dict[str, str], idle_s: float = 600
    ) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.config = folder / "pool.json"
        config = {
            "python": sys.executable,
            "modules": list(modules),
            "refused": {},
            "idle_s": idle_s,
        }
        self.config.write_text(json.dumps(config))
        self.socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, PROCESS, str(theirs.fileno()), str(self.config), ROOM],
            env=fit.environment_of(environment) | {MARKER: ROOM},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
        theirs.close()
        self.said = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line

    def message(self, deadline_s: float = DEADLINE_S) -> dict[str, Any] | None:
        """The next; None: it has ended."""
        self.socket.settimeout(deadline_s)
        with contextlib.suppress(ConnectionError):
            packet = self.socket.recv(65536)
            return json.loads(packet) if packet else None
        return None

    def waits_for(self, event: str, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        while message := self.message(deadline_s):
            if message["event"] == event:
                return message
        raise AssertionError(f"the pool ended before {event!r}: {self.said.decode()}")

    def ready(self, deadline_s: float = DEADLINE_S) -> WarmPool:
        self.waits_for("ready", deadline_s)
        return self

    def launch(self, worker_dir: str) -> None:
        """Returns when the launcher holds its lock."""
        self.socket.send(json.dumps({"do": "launch", "worker_dir": worker_dir}).encode())
        message = self.message()
        while message and message["event"] == "gone" and message["worker_dir"] != worker_dir:
            message = self.message()
        assert message == {"event": "launched", "worker_dir": worker_dir}, (message, self.said)

    @property
    def pid(self) -> int:
        return self.process.pid

    def close(self) -> None:
        self.socket.close()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()


class WarmWorker(Worker):
    """A worker whose launcher comes out of a pool."""

    def started_by(self, pool: WarmPool) -> WarmWorker:
        pool.launch(self.directory.path)
        self.connection = until(self._connect, "the launcher listens")
        return self

    def go(self) -> WarmWorker:
        assert self.connection
        assert self.event() == "ready"
        self.connection.send(b'{"do": "go"}\n')
        started = self.connection.receive(DEADLINE_S)
        assert started
        self.started = started
        return self

    def report(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        return until(lambda: read_json(self.directory.report), "a report", deadline_s)

    def lock_holder(self) -> int:
        return int((read_json(self.directory.lock) or {})["pid"])

    def close(self) -> None:
        super().close()
        holder = read_json(self.directory.lock)
        if holder and alive(holder["pid"]) and read_json(self.directory.report) is None:
            os.kill(holder["pid"], 9)


def environment_of(worker: Worker) -> dict[str, str]:
    """Of its first rank."""
    return processes(worker.plan, worker.directory, "host")[0].environment


@pytest.fixture(scope="session")
def warm_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WarmPool]:
    """With torch, for jobs like those of the fixture `both`."""
    folder = tmp_path_factory.mktemp("warm")
    like = Worker(folder)
    made = WarmPool(folder / "pool", ["numpy", "torch", "torch.distributed"], environment_of(like))
    yield made.ready()
    made.close()


Make = Callable[..., WarmPool]


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Make]:
    made: list[WarmPool] = []

    def make(
        *modules: str, idle_s: float = 600, environment: dict[str, str] | None = None
    ) -> WarmPool:
        folder = tmp_path / f"pool-{len(made)}"
        folder.mkdir()
        made.append(
            WarmPool(folder, modules, environment_of(Worker(folder)) | (environment or {}), idle_s)
        )
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., WarmWorker]]:
    made: list[WarmWorker] = []

    def make(script: str, **fields: Any) -> WarmWorker:
        folder = tmp_path / f"worker-{len(made)}"
        folder.mkdir()
        made.append(WarmWorker(folder, script, **fields))
        return made[-1]

    yield make
    for one in made:
        one.close()


def package(folder: Path, **modules: str) -> str:
    """The environment's PYTHONPATH with these modules, as installed ones."""
    site = folder / "site-packages"
    site.mkdir()
    for name, text in modules.items():
        path = site / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return str(site)


class Both:
    """The same script, as a fresh rank and as a warm one."""

    def __init__(self, fresh: Worker, warm: WarmWorker) -> None:
        self.fresh, self.warm = fresh, warm

    def lines(self, stream: str = "stdout") -> list[str]:
        """Of the warm one, after it was compared with the fresh one."""
        ours, theirs = _lines(self.warm, stream), _lines(self.fresh, stream)
        assert ours == theirs
        return ours

    def values(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """The JSON that the script printed: (fresh, warm)."""
        return json.loads(_lines(self.fresh, "stdout")[-1]), json.loads(
            _lines(self.warm, "stdout")[-1]
        )


def _lines(worker: Worker, stream: str) -> list[str]:
    return [line.replace(str(worker.folder), "FOLDER") for line in worker.lines(stream)]


def _outcome(worker: Worker) -> dict[str, Any]:
    """A report without its times and lines; tests read the lines from the log."""
    report = worker.report(COMPILE_S)
    left_out = (
        "started_at",
        "ended_at",
        "failed_at",
        "last_lines",
        "log_end_offset",
        "log_end_seq",
    )
    ranks = [
        {name: value for name, value in rank.items() if name not in left_out}
        for rank in report["ranks"]
    ]
    outcome = {name: value for name, value in report.items() if name not in left_out} | {
        "ranks": ranks
    }
    return json.loads(json.dumps(outcome).replace(str(worker.folder), "FOLDER"))


@pytest.fixture
def both(tmp_path: Path, warm_pool: WarmPool) -> Iterator[Callable[..., Both]]:
    made: list[Worker] = []

    def run(script: str, **fields: Any) -> Both:
        for name in ("fresh", "warm"):
            (tmp_path / name).mkdir()
        fresh = Worker(tmp_path / "fresh", script, **fields)
        warm = WarmWorker(
            tmp_path / "warm",
            script,
            **fields | {"master_port": fields.get("master_port", 2999) + 1},
        )
        made.extend((fresh, warm))
        warm.started_by(warm_pool).go()
        assert warm.started["warm"], warm.started
        ours = _outcome(warm)
        fresh.start().go()
        assert ours == _outcome(fresh)
        return Both(fresh, warm)

    yield run
    for worker in made:
        worker.close()
