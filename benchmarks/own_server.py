"""A local server of one benchmark alone, in a scratch folder: the user's own
server and jobs aren't touched.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from client_lib import Client, Job

COMMAND = Path(sys.executable).parent / "client-lib"
INSTANCE_TYPE = "cpu.1C.1G"


@contextlib.contextmanager
def own_server() -> Iterator[Path]:
    """Yields the scratch folder. The server is up, and is stopped at the end."""
    # with it, each first import of a file would be measured
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLIENT_LIB_STATE_DIR"] = os.path.join(folder, "state")
        os.environ["CLIENT_LIB_CONFIG"] = os.path.join(folder, "no-config.toml")
        run_job(script="true", type="binary")
        try:
            yield Path(folder)
        finally:
            subprocess.run([COMMAND, "server", "stop"], check=False, capture_output=True)


def time_of_warm_job(**fields: object) -> float:
    """Seconds from submit to the final state of a job that was forked from the pool;
    those before it don't count.
    """
    while True:
        until_pools_are_ready()
        began = time.perf_counter()
        job = run_job(**fields)
        took = time.perf_counter() - began
        if job.info().warm:
            return took


def until_pools_are_ready() -> None:
    """What the jobs before have begun takes some seconds, and a core, until it is there."""
    time.sleep(0.5)  # until the last job's end has been looked at
    while any(pool.state == "starting" for pool in Client().server_info().warm_pools):
        time.sleep(0.1)


def run_job(**fields: object) -> Job:
    """Submit and wait, as a user does; raises JobFailed."""
    job = Job(**fields, instance_type=INSTANCE_TYPE)  # type: ignore[arg-type]
    job.submit()
    job.wait()
    return job
