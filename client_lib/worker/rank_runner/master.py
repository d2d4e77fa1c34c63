"""Waits for the master of a job, and refuses one that a script for one machine sets by itself."""

from __future__ import annotations

import os
import time

from client_lib.worker.rank_runner.frames import HIDDEN
from client_lib.worker.rank_runner.this_rank import THIS_RANK

_LIMIT_S = 60.0
"""Longest wait; then torch waits, and reports a failure, by itself."""
_PAUSE_S = 0.002
"""Shortest pause between two tries."""
_PAUSE_SHARE = 0.01
"""The pause as a part of the time waited so far, if this makes it longer."""
_LOOPBACK = ("localhost", "127.", "::1")

HIDDEN.append(globals())


def refuse_own_master(init_method: str) -> None:
    """Fail if a script for one machine sets its own master: the workers would wait
    half an hour for each other.
    """
    by_variable = init_method.startswith("env://")
    if by_variable:
        own = os.environ.get("MASTER_ADDR", "")
        setting = "MASTER_ADDR=%s" % own
    else:
        own = init_method.partition("tcp://")[2].lstrip("[")
        setting = "init_method=%r" % init_method
    master = THIS_RANK.master
    if master and own.startswith(_LOOPBACK) and not master.startswith(_LOOPBACK):
        raise RuntimeError(
            "the script sets %s by itself, where only one worker can meet, and this job has "
            "several: init_process_group without init_method, and MASTER_ADDR and MASTER_PORT as "
            "they are set (%s); or take n_workers=1" % (setting, master)
        )


def wait_for_master() -> None:
    """Wait until the master listens: torch delays a rank that connects earlier by up to 0.7 s."""
    import socket

    host = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT", "")
    if os.environ.get("RANK", "0") == "0" or not host or not port.isdigit():
        return
    begin = time.monotonic()
    waited_s = 0.0
    while waited_s < _LIMIT_S:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as probe:
                # a socket may connect to itself on a free local port
                if probe.getsockname() != probe.getpeername():
                    return
        except OSError:  # it does not listen yet, or its name does not resolve yet
            pass
        time.sleep(max(_PAUSE_S, waited_s * _PAUSE_SHARE))
        waited_s = time.monotonic() - begin
