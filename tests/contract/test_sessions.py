"""Commands in the workers of a running job, wherever it runs."""

import os
import subprocess
import sys

import pytest

from tests.contract.places import Place, prints

pytestmark = pytest.mark.process

UP = "import time\nprint('up', flush=True)\ntime.sleep(600)\n"


def test_a_command_runs_beside_a_rank_and_gives_its_exit_code(place: Place) -> None:
    job = place.job(UP, n_workers=2)
    job.submit()
    prints(job, "up", times=2)
    config = place.client.config
    server = {
        "CLIENT_LIB_ENDPOINT": config.endpoint,
        "CLIENT_LIB_TOKEN": config.token,
        "CLIENT_LIB_INSECURE": "1",
    }
    line = ["sh", "-c", "cat; echo $RANK; test -f script.py && exit 7"]
    done = subprocess.run(
        [sys.executable, "-m", "client_lib", "exec", job.info().name, "--rank", "1", "--", *line],
        input="stdin ",
        env=os.environ | {name: str(value) for name, value in server.items()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (7, "stdin 1\n", "")
    job.cancel()
