"""The rank runner as ranks run it: one file, joined from its modules."""

import atexit
import shutil
import tempfile
from pathlib import Path

from client_lib.worker.joining import joined_rank_runner
from client_lib.worker.programs import RANK_RUNNER


def _written() -> Path:
    folder = tempfile.mkdtemp(prefix="rank-runner-")
    atexit.register(shutil.rmtree, folder)
    path = Path(folder, RANK_RUNNER)
    path.write_bytes(joined_rank_runner())
    return path


RUNNER = _written()
