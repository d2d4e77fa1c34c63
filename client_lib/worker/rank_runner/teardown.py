"""Ends the process by hand: the interpreter's own teardown of torch takes half a second."""

from __future__ import annotations

import io
import os
import sys

from client_lib.worker.rank_runner.answers import C_SIGNAL
from client_lib.worker.rank_runner.collectives import send_last_entries
from client_lib.worker.rank_runner.imports import note_imports
from client_lib.worker.rank_runner.open_files import BEFORE_TORCH, finish_files, open_files
from client_lib.worker.rank_runner.process_groups import keep_process_groups
from client_lib.worker.rank_runner.script_end import tell_script_end
from client_lib.worker.rank_runner.step_hooks import send_last_steps
from client_lib.worker.rank_runner.this_rank import THIS_RANK
from client_lib.worker.rank_runner.world import tell_variable

INTERRUPTED = -2
"""In place of an exit status: SIGINT ends the process."""


def end(status: int) -> None:
    """End the process with `status`; by hand if the interpreter's own teardown would be slow."""
    note_imports()
    if os.getpid() == THIS_RANK.pid:
        send_last_entries()
        send_last_steps()
        tell_variable()
        tell_script_end()
    if "torch" not in sys.modules and status != INTERRUPTED and not THIS_RANK.is_forked:
        sys.exit(status)
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit

    try:
        atexit._run_exitfuncs()  # the only way to call them without an exit
    except BaseException:  # noqa: BLE001  (3.8 raises an exception that it has printed already)
        pass
    keep_process_groups(sys.modules.get("torch.distributed.distributed_c10d"))
    _release_objects()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001  (any failure has the interpreter's status for it)
            status = 120
    import ctypes

    ctypes.CDLL(None).fflush(None)  # C's own streams
    if status == INTERRUPTED:
        C_SIGNAL.signal(C_SIGNAL.SIGINT, C_SIGNAL.SIG_DFL)
        os.kill(os.getpid(), C_SIGNAL.SIGINT)  # shows the parent the cause, as Python does
    os._exit(status)


def _release_objects() -> None:
    """Empty the script's namespace, as the interpreter does, so that finalizers run."""
    import gc

    # a collection may close the buffer before the text above it
    finish_files(open_files(), io.TextIOWrapper)
    threading = sys.modules.get("threading")
    # a daemon thread could fail without its globals
    if threading is None or threading.active_count() == 1:
        names = vars(sys.modules["__main__"])
        private = [name for name in names if name[0] == "_" and name[1:2] != "_"]
        for name in private + list(names):
            if name not in ("__builtins__", "__name__", "__file__"):
                names[name] = None
        gc.collect()
    files = BEFORE_TORCH + open_files()
    finish_files(files, io.TextIOWrapper)  # each of the three writes into the next
    finish_files(files, "gzip", "bz2", "lzma")
    finish_files(files, io.BufferedWriter, io.BufferedRandom)
