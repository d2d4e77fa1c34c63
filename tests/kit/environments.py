"""Virtual environments for tests that want other packages than ours, made from their lock files
when first needed.

They lie beside `.venv` and are kept: `make clean` removes them. Packages come from where pip gets
them on this machine.
"""

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def environment(name: str, *, ours_behind: bool = False) -> Path:
    """The folder of one with what requirements/<name>.txt pins. Made by one process, however many
    ask.

    `ours_behind`: what it has not itself it finds among the packages of this interpreter.
    """
    lock = ROOT / "requirements" / f"{name}.txt"
    folder = ROOT / f".venv-{name}"
    folder.mkdir(exist_ok=True)
    wanted = hashlib.sha256(lock.read_bytes()).hexdigest()
    ready = folder / ".ready"
    with open(folder / ".making", "w") as making:
        fcntl.flock(making, fcntl.LOCK_EX)
        if not ready.exists() or ready.read_text() != wanted:
            behind = ["--behind", sys.prefix] if ours_behind else []
            install = [
                sys.executable,
                str(ROOT / "requirements" / "install.py"),
                str(folder),
                str(lock),
                *behind,
            ]
            done = subprocess.run(install, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            ready.write_text(wanted)
    return folder
