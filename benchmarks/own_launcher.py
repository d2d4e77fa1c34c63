"""A worker launcher of one benchmark alone, without a server: its plan, and the
orders that a runtime gives it.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from client_lib.durable import read_json
from client_lib.launcher_protocol import control
from client_lib.launcher_protocol.directory import Directory
from client_lib.launcher_protocol.plan import WorkerPlan
from tests.kit.processes import free_port


def plan_of(folder: Path, command: list[str], ranks: int, **fields: Any) -> WorkerPlan:
    """The plan of the one worker of a job. `fields`: those that differ from the ones here."""
    values: dict[str, Any] = {
        "job": "bench",
        "attempt": 1,
        "worker": 0,
        "n_workers": 1,
        "processes_per_worker": ranks,
        "type": "pytorch2",
        "command": command,
        "python": sys.executable,
        "environment": dict(os.environ),
        "user_variables": [],
        "working_dir": str(folder),
        "master_addr": "127.0.0.1",
        "master_port": free_port(),
        "gpus": [],
        "cores": os.cpu_count() or 1,
        "checkpoint_dir": str(folder),
    }
    return WorkerPlan(**{**values, **fields})


def prepared(worker_dir: Path, plan: WorkerPlan) -> Directory:
    """The directory of a launcher that has this plan."""
    worker_dir.mkdir(parents=True)
    directory = Directory(str(worker_dir))
    Path(directory.plan).write_text(plan.to_json())
    return directory


def let_start(directory: Directory) -> control.ControlConnection:
    """Wait until the launcher listens, and let it start its ranks."""
    while not os.path.exists(directory.control):
        time.sleep(0.001)
    peer = control.ControlConnection(control.connect(directory.control))
    peer.send(control.order(control.GO))
    return peer


def until_ended(directory: Directory, peer: control.ControlConnection) -> dict[str, Any]:
    """The report of the launcher. Raises RuntimeError: a rank has failed."""
    while (message := peer.receive(100)) is not None and message["event"] != control.ENDED:
        pass
    report = read_json(directory.report)
    if report is None or report["exit_code"]:
        raise RuntimeError(
            report["message"] if report else "the launcher has ended without a report"
        )
    return report
