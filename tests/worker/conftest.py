"""A real launcher in a directory of its own: started, ordered through its socket,
read by its log and report.
"""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from client_lib.durable import read_json
from client_lib.launcher_protocol import control, processes
from client_lib.launcher_protocol.directory import MARKER, Directory
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.record import GOES_ON, Record, parse
from client_lib.worker.programs import launcher_command
from tests.kit.processes import alive
from tests.kit.waiting import until

DEADLINE_S = 30.0


class Worker:
    """One launcher. `script` is the text of a Python script unless `command` is given."""

    def __init__(
        self, folder: Path, script: str = "", portable: bool = False, **fields: Any
    ) -> None:
        self.folder = folder
        self.directory = Directory(str(folder / "worker"))
        Path(self.directory.path).mkdir(mode=0o700)
        self.script = folder / "train.py"
        self.script.write_text(textwrap.dedent(script))
        self.extra_environment = {"CLIENT_LIB_PORTABLE": "1"} if portable else {}
        values: dict[str, Any] = {
            "job": "job-1",
            "attempt": 1,
            "worker": 0,
            "n_workers": 1,
            "processes_per_worker": 1,
            "type": "pytorch2",
            "command": [str(self.script)],
            "python": sys.executable,
            "environment": {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"},
            "user_variables": [],
            "working_dir": str(folder),
            "master_addr": "127.0.0.1",
            "master_port": 2999,
            "gpus": [],
            "cores": 4,
            "checkpoint_dir": str(folder / "checkpoints"),
            "grace_s": 5.0,
        }
        self.give(WorkerPlan(**(values | fields)))
        self.process: subprocess.Popen[bytes] | None = None
        self.connection: control.ControlConnection | None = None

    def give(self, plan: WorkerPlan) -> None:
        """Replace the plan, before the start."""
        self.plan = plan
        Path(self.directory.plan).write_text(plan.to_json())

    def start(self, before: tuple[str, ...] = ()) -> Worker:
        """`before`: a command that execs the launcher's."""
        environment = os.environ | self.extra_environment
        command = [*before, *launcher_command(self.directory.path)]
        self.process = subprocess.Popen(command, env=environment, start_new_session=True)
        until(self._connected_or_ended, "the launcher listens, or has ended")
        return self

    def _connected_or_ended(self) -> bool:
        assert self.process
        self.connection = self._connect()
        return self.connection is not None or self.process.poll() is not None

    def _connect(self) -> control.ControlConnection | None:
        try:
            return control.ControlConnection(control.connect(self.directory.control))
        except (FileNotFoundError, ConnectionRefusedError):
            return None

    def event(self) -> str | None:
        assert self.connection
        message = self.connection.receive(DEADLINE_S)
        return message["event"] if message else None

    def go(self) -> Worker:
        """Returns when the ranks run."""
        assert self.connection
        assert self.event() == control.READY
        self.connection.send(control.order(control.GO))
        assert self.event() == control.STARTED
        return self

    def stop(self, grace_s: float, **more: object) -> None:
        assert self.connection
        self.connection.send(control.order(control.STOP, grace_s=grace_s, **more))

    def report(self, deadline_s: float = DEADLINE_S) -> dict[str, Any]:
        """Waits for the end."""
        assert self.process
        self.process.wait(deadline_s)
        report = read_json(self.directory.report)
        assert report is not None, "the launcher ended without a report"
        return report

    def run(self) -> dict[str, Any]:
        return self.start().go().report()

    def records(self) -> list[Record]:
        data = b"".join(
            path.read_bytes() for path in sorted(Path(self.directory.log).glob("*.log"))
        )
        return [parse(line) for line in data.splitlines(keepends=True) if line.endswith(b"\n")]

    def lines(self, stream: str = "stdout", rank: int | None = 0) -> list[str]:
        """Whole lines: those that went on are put together."""
        lines, begun = [], ""
        for record in self.records():
            if record.stream == stream and record.rank == rank:
                begun += record.text
                if record.kind != GOES_ON:
                    lines.append(begun)
                    begun = ""
        return lines

    def waits_for(self, text: str) -> None:
        until(lambda: any(text in record.text for record in self.records()), f"{text!r} in the log")

    def left_over(self) -> list[int]:
        return [pid for pid in processes.marked(MARKER, self.directory.path) if alive(pid)]

    def close(self) -> None:
        if self.connection:
            self.connection.close()
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for pid in self.left_over():
            os.kill(pid, 9)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Callable[..., Worker]]:
    made: list[Worker] = []

    def make(script: str = "", **fields: Any) -> Worker:
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Worker(folder, script, **fields))
        return made[-1]

    yield make
    for one in made:
        one.close()
