"""The virtual environments that hold `mls`, one per version, made from their lock files when they are first needed.

They lie beside `.venv` and are kept: `make clean` removes them. Packages come from where pip gets them on this machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
VERSIONS = {"1.3": "1.3.0", "0.10": "0.10.0"}


def environment(version: str) -> Path:
    """The environment's folder. Made by one process, however many ask."""
    lock = ROOT / "requirements" / f"mls-{version}.txt"
    folder = ROOT / f".venv-mls-{version}"
    folder.mkdir(exist_ok=True)
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    ready = folder / ".ready"
    with open(folder / ".making", "w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != wanted:
            install = [sys.executable, str(ROOT / "requirements" / "install.py"), str(folder), str(lock)]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            ready.write_text(wanted)
    return folder
