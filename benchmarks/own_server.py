"""A local server of one benchmark alone, in a scratch folder: the user's own server and jobs aren't touched."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from client_lib import Job

COMMAND = Path(sys.executable).parent / "client-lib"
INSTANCE_TYPE = "cpu.1C.1G"


@contextlib.contextmanager
def own_server() -> Iterator[Path]:
    """Yields the scratch folder. The server is up, and is stopped at the end."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each first import of a file would be measured
    with tempfile.TemporaryDirectory() as folder:
        os.environ["CLIENT_LIB_STATE_DIR"] = os.path.join(folder, "state")
        os.environ["CLIENT_LIB_CONFIG"] = os.path.join(folder, "no-config.toml")
        run_job(script="true", type="binary")
        try:
            yield Path(folder)
        finally:
            subprocess.run([COMMAND, "server", "stop"], check=False, capture_output=True)


def run_job(**fields: object) -> Job:
    """Submit and wait, as a user does; raises JobFailed."""
    job = Job(**fields, instance_type=INSTANCE_TYPE)  # type: ignore[arg-type]
    job.submit()
    job.wait()
    return job
