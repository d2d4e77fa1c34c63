"""Workers of `pytorch_elastic`: each runs one agent of torchrun, which starts, numbers and restarts the ranks.

The agents meet at worker 0, which holds the rendezvous. An agent renumbers its ranks whenever the group changes, so the
agent's own output cannot tell their lines apart: a rank (`rank_runner`) makes two named pipes, writes `RANK NAME` into
the pipe `new` and continues as soon as the launcher has opened and removed them.
"""

import os
from typing import Callable, List

from client_lib.worker.loop import Loop
from client_lib.worker.plan import WorkerPlan

CONF = "CLIENT_LIB_RDZV_CONF"
"""Variable: settings of torchrun's --rdzv-conf, which override ours."""
_RENDEZVOUS = "join_timeout=1200,last_call_timeout=90,read_timeout=90"  # seconds, as on the ML Space platform
_NO_RANK = 9  # a local rank that does not exist: torch 1.13 on Python 3.11 fails if it redirects the streams of none
_LOOPBACK = ("127.", "localhost", "::1")
_NEW, _STREAMS = "new", ("stdout", "stderr")  # rank_runner.py uses the same names
_BLOCK = 4096


def agent_arguments(plan: WorkerPlan) -> List[str]:
    """Arguments of the interpreter before the script: torchrun with its options."""
    least = plan.n_workers if plan.elastic_min_workers is None else plan.elastic_min_workers
    is_host = "true" if plan.worker == 0 else "false"
    options = [  # torch 1.13 knows no option with a hyphen
        "--nnodes=%d:%d" % (least, plan.n_workers),
        "--nproc_per_node=%d" % plan.processes_per_worker,
        "--max_restarts=%d" % plan.elastic_max_restarts,
        "--rdzv_id=%s-%d" % (plan.job, plan.attempt),
        "--rdzv_backend=c10d",
        "--rdzv_endpoint=%s:%d" % (plan.master_addr, plan.master_port),
        "--rdzv_conf=" + ",".join(filter(None, ["is_host=" + is_host, _RENDEZVOUS, plan.environment.get(CONF)])),
    ]
    if plan.processes_per_worker <= _NO_RANK:
        options += ["--redirects=%d:3" % _NO_RANK, "--tee=%d:3" % _NO_RANK]
    if plan.master_addr.startswith(_LOOPBACK):  # otherwise agents exchange this machine's name, which may not resolve
        options.append("--local_addr=%s" % plan.master_addr)
    return ["-m", "torch.distributed.run"] + options


class RankPipes:
    """Reads the output pipes that ranks bring; the launcher's side."""

    def __init__(self, path: str, loop: Loop, add_pipe: Callable[[int, str, int], None]) -> None:
        self._path, self._loop, self._add_pipe = path, loop, add_pipe
        self._rest = b""
        os.makedirs(path, mode=0o700, exist_ok=True)
        for name in os.listdir(path):  # left by an earlier launcher
            os.unlink(os.path.join(path, name))
        new = os.path.join(path, _NEW)
        os.mkfifo(new, 0o600)
        self._fd = os.open(new, os.O_RDWR | os.O_NONBLOCK)  # opened for writing, too: no end of file
        loop.watch(self._fd, self._read)

    def close(self) -> None:
        self._loop.forget(self._fd)
        os.close(self._fd)

    def _read(self) -> None:
        *lines, self._rest = (self._rest + os.read(self._fd, _BLOCK)).split(b"\n")
        for line in lines:
            rank, _, name = line.decode("ascii", "replace").partition(" ")
            if rank.isdigit():
                self._take(int(rank), os.path.join(self._path, os.path.basename(name)))

    def _take(self, rank: int, path: str) -> None:
        try:
            fds = [os.open("%s.%s" % (path, stream), os.O_RDONLY | os.O_NONBLOCK) for stream in _STREAMS]
        except OSError:  # the rank has ended
            return
        for stream, fd in zip(_STREAMS, fds):  # noqa: B905  Python 3.8 has no strict
            self._add_pipe(rank, stream, fd)
            os.unlink("%s.%s" % (path, stream))
