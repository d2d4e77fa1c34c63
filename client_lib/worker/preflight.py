"""Checks the machines of a job from inside its ranks, each of which runs this file before the
script.

A rank first checks its own machine: folders, shared memory, GPU, the name of the master. Then all
ranks meet at the address of the master, sum tensors and compare what they measured. A rank that
finds an error ends with a sentence that names its worker; the launchers then stop the others. Slow
workers are named in the log. Needs torch.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from typing import Any, Dict, Iterator, List, NamedTuple, Sequence

MEET_S = 60.0
"""Longest wait for all ranks."""
SUM_S = 30.0
"""Longest wait for one collective."""
_SLOW = 3.0
"""A measure is slow if it takes so many times as long as the fastest one ..."""
_NOTABLE_S = 0.5
"""... and is so many seconds longer."""
_SKEW_S = 1.0
"""Clocks that differ by more are named."""
_MEGABYTES = {"disk": 32, "link": 8, "sum": 64}
_NAMED = 8
"""Slow workers that the log names."""
WARNING = "preflight warning: "
"""Begin of a line that names a slow worker; the server shows it with the job."""
PEER_LOST = 3
"""Exit code of a rank that has failed because it lost another one."""
_PEERS_END_S = 0.5  # delay of its end, so that the report of the lost one is the first
MEASURES = {
    "disk": "writes %d MB to its checkpoint folder" % _MEGABYTES["disk"],
    "matmul": "multiplies two matrices",
    "link": "receives %d MB from the worker before it" % _MEGABYTES["link"],
}


class Rank(NamedTuple):
    """The place of this process in the job."""

    rank: int
    size: int
    local_rank: int
    worker: int
    n_workers: int
    master: str
    port: int
    gpus: int
    """Number of GPUs that torch sees; 0: the job runs on the CPU."""

    @property
    def per_worker(self) -> int:
        return self.size // self.n_workers

    @property
    def device(self) -> str:
        return "cuda:%d" % (self.local_rank % self.gpus) if self.gpus else "cpu"

    @property
    def backend(self) -> str:
        """NCCL refuses ranks that share a GPU."""
        return "nccl" if self.gpus >= self.per_worker else "gloo"


class Failed(Exception):
    """A check failed; the text says which, without the worker's name."""


class LostPeer(Failed):
    """A rank does not answer any more."""


def this_rank() -> Rank:
    """Raises Failed: the job asks for GPUs, and torch sees none."""
    import torch

    wanted = os.environ.get("CUDA_VISIBLE_DEVICES")
    gpus = torch.cuda.device_count()
    if wanted and not gpus:
        raise Failed(
            "torch %s sees no GPU, with CUDA_VISIBLE_DEVICES=%s" % (torch.__version__, wanted)
        )
    names = ("RANK", "LOCAL_RANK", "NODE_RANK", "MASTER_PORT")
    rank, local_rank, worker, port = (int(os.environ.get(name, "0")) for name in names)
    size, per_worker = (
        int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE")
    )
    master = os.environ.get("MASTER_ADDR", "127.0.0.1")
    return Rank(rank, size, local_rank, worker, size // per_worker, master, port, gpus)


# --- the machine of this rank


def own_measures(here: Rank) -> Dict[str, float]:
    """Seconds that this rank's machine takes. Raises Failed."""
    seconds = {}
    if here.local_rank == 0:
        seconds["disk"] = _write(
            os.environ.get("CLIENT_LIB_CHECKPOINT_DIR") or os.getcwd(), _MEGABYTES["disk"]
        )
        if os.path.isdir("/dev/shm"):
            _write("/dev/shm", 1)
        if here.gpus:
            _check_driver()
    seconds["matmul"] = _multiply(here)
    return seconds


def _write(folder: str, megabytes: int) -> float:
    block = os.urandom(1 << 20)
    began = time.monotonic()
    try:
        with tempfile.TemporaryFile(dir=folder, prefix=".preflight-") as file:
            for _ in range(megabytes):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise Failed(
            "can't write %d MB to %s: %s" % (megabytes, folder, error.strerror or error)
        ) from None
    return time.monotonic() - began


def _check_driver() -> None:
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=10, check=False
        )
    except FileNotFoundError:  # an image without the tool; torch is asked next
        return
    except subprocess.TimeoutExpired:
        raise Failed("nvidia-smi has not answered within 10 s: the driver hangs") from None
    if done.returncode:
        raise Failed("nvidia-smi fails: %s" % (done.stdout + done.stderr).strip()[:300])


def _multiply(here: Rank) -> float:
    import torch

    side = 4096 if here.gpus else 512
    try:
        ones = torch.ones(side, side, device=here.device)
        (ones @ ones)[0, 0].item()  # the first one loads libraries
        began = time.monotonic()
        product = ones @ ones
        right = bool((product == side).all())
    except RuntimeError as error:
        raise Failed(
            "a multiplication on %s fails: %s" % (here.device, _first_line(error))
        ) from None
    if not right:
        raise Failed(
            "%s computes wrong numbers: the product of two matrices of ones is not %d"
            % (here.device, side)
        )
    return time.monotonic() - began


# --- the ranks together


def meet(here: Rank) -> Any:
    """A store that all ranks have reached. Raises Failed."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]  # public by torch's documentation

    deadline = time.monotonic() + MEET_S
    while True:  # the name of a pod gets an address some time after its start
        try:
            socket.getaddrinfo(here.master, None)
            break
        except OSError as error:
            if time.monotonic() > deadline:
                why = (here.master, MEET_S, error)
                raise Failed("can't resolve %s, the name of worker 0, for %g s: %s" % why) from None
        time.sleep(0.2)
    left = timedelta(seconds=max(1.0, deadline - time.monotonic()))
    try:
        store = TCPStore(
            here.master, here.port, here.size, here.rank == 0, left, wait_for_workers=False
        )
        store.set("rank/%d" % here.rank, "")
    except RuntimeError as error:
        raise Failed(
            "can't reach rank 0 at %s:%d: %s" % (here.master, here.port, _first_line(error))
        ) from None
    missing = list(range(here.size))
    while True:
        with _answering(here):
            missing = [rank for rank in missing if not store.check(["rank/%d" % rank])]
        if not missing:
            return store
        if time.monotonic() > deadline:
            raise Failed("waits in vain for %s, for %g s" % (_ranks(missing, here), MEET_S))
        time.sleep(0.02)


def sum_tensors(here: Rank, store: Any) -> Dict[str, float]:
    """Seconds of collectives of all ranks, and of a transfer between each worker
    and the next. Raises Failed.
    """
    import torch
    import torch.distributed as dist

    device = here.device if here.backend == "nccl" else "cpu"
    try:
        if here.gpus:
            torch.cuda.set_device(here.device)
        limit = timedelta(seconds=SUM_S)
        dist.init_process_group(
            here.backend, store=store, rank=here.rank, world_size=here.size, timeout=limit
        )
        seconds = {}
        for name, kilobytes in (("warm", 1), ("small", 1), ("sum", _MEGABYTES["sum"] * 1024)):
            tensor = torch.ones(kilobytes * 256, device=device)
            began = time.monotonic()
            dist.all_reduce(tensor)
            if float(tensor[-1]) != here.size:
                raise Failed(
                    "all_reduce gives %g where %d ranks sum ones" % (float(tensor[-1]), here.size)
                )
            seconds[name] = time.monotonic() - began
        dist.barrier()
        seconds["clock"] = time.time()
        if here.local_rank == 0 and here.n_workers > 1:
            sent = torch.ones(_MEGABYTES["link"] << 18, device=device)
            arrived = torch.zeros_like(sent)
            began = time.monotonic()
            after, before = (
                (here.rank + step) % here.size for step in (here.per_worker, -here.per_worker)
            )
            both = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, arrived, before)]
            for work in dist.batch_isend_irecv(both):
                work.wait()
            float(arrived[-1])  # on a GPU `wait` returns before the data has arrived
            seconds["link"] = time.monotonic() - began
        dist.barrier()
        dist.destroy_process_group()
    except RuntimeError as error:
        with _answering(here):
            store.check(["rank/0"])
        raise LostPeer(
            "%s fails between the ranks: %s" % (here.backend, _first_line(error))
        ) from None
    return seconds


@contextlib.contextmanager
def _answering(here: Rank, heard: Sequence[object] = ()) -> Iterator[None]:
    """Raise LostPeer for an error of the store. It names the first rank that is not among `heard`:
    at the beginning rank 0, which has the store."""
    try:
        yield
    except RuntimeError as error:
        raise LostPeer(
            "has lost %s: %s" % (_ranks([len(heard)], here), _first_line(error))
        ) from None


def share(here: Rank, store: Any, measured: Dict[str, Any]) -> List[Dict[str, Any]]:
    """The measures of all ranks, for rank 0. Raises LostPeer."""
    found: List[Dict[str, Any]] = []
    with _answering(here, found):
        store.set("measured/%d" % here.rank, json.dumps(measured))
        for rank in range(0 if here.rank else here.size):
            found.append(json.loads(store.get("measured/%d" % rank)))
    return found


def leave(here: Rank, store: Any) -> None:
    """Return when rank 0 has compared the measures; rank 0 when all others have
    returned. Raises LostPeer.
    """
    until = time.monotonic() + MEET_S
    with _answering(here):
        if here.rank:
            store.get("compared")
            with contextlib.suppress(RuntimeError):  # rank 0 waits for it no more
                store.add("left", 1)
            return
        store.set("compared", "")  # the store ends with rank 0
        while store.add("left", 0) < here.size - 1 and time.monotonic() < until:
            time.sleep(0.01)


def compare(measured: List[Dict[str, Any]]) -> List[str]:
    """Lines for the log: all measures, and the slow workers. `measured`: of each rank,
    with its worker and host.
    """
    lines = []
    slow = []
    for name, what in MEASURES.items():
        known = [(each[name], each["worker"], each["host"]) for each in measured if name in each]
        if not known:
            continue
        least, fastest, its_host = min(known)
        lines.append("%s %.3f to %.3f s" % (name, least, max(known)[0]))
        for seconds, worker, host in known:  # workers of one machine only disturb each other
            if host != its_host and seconds > max(_SLOW * least, least + _NOTABLE_S):
                text = "worker %d (%s) is slow: it %s in %.2f s, and worker %d in %.2f s"
                slow.append(text % (worker, host, what, seconds, fastest, least))
    clocks = [(each["clock"], each["worker"], each["host"]) for each in measured if "clock" in each]
    middle = sorted(clocks)[len(clocks) // 2][0] if clocks else 0.0
    for clock, worker, host in clocks:
        if abs(clock - middle) > _SKEW_S:
            slow.append(
                "the clock of worker %d (%s) differs by %+.1f s" % (worker, host, clock - middle)
            )
    slow = list(dict.fromkeys(slow))
    more = (
        ["%d more workers are slow or have another time" % (len(slow) - _NAMED)]
        if len(slow) > _NAMED
        else []
    )
    return [", ".join(lines), *slow[:_NAMED], *more]


def _ranks(missing: List[int], here: Rank) -> str:
    named = ["rank %d (worker %d)" % (rank, rank // here.per_worker) for rank in missing[:_NAMED]]
    return ", ".join(named) + (
        " and %d more" % (len(missing) - _NAMED) if len(missing) > _NAMED else ""
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:300]


def _say(text: str, mark: str = "preflight: ") -> None:
    sys.stdout.write("%s%s\n" % (mark, text))
    sys.stdout.flush()


def _together(here: Rank, own: Dict[str, float], imported_s: float) -> None:
    began = time.monotonic()
    store = meet(here)
    met = time.monotonic()
    seconds = {**own, **sum_tensors(here, store)}
    measured = share(here, store, {**seconds, "worker": here.worker, "host": socket.gethostname()})
    if measured:
        sums = (
            here.n_workers,
            here.size,
            1000 * seconds["small"],
            _MEGABYTES["sum"],
            seconds["sum"],
        )
        _say("%d workers, %d ranks: all_reduce of 1 KB %.1f ms, of %d MB %.2f s" % sums)
        measures, *warnings = compare(measured)
        _say(measures)
        for line in warnings:
            _say(line, WARNING)
        took = (time.monotonic() - met + sum(own.values()), imported_s + met - began)
        _say("passed in %.1f s, beside %.1f s for the import of torch and the rendezvous" % took)
    leave(here, store)


def main() -> int:
    began = time.monotonic()
    try:
        here = this_rank()
        imported_s = time.monotonic() - began
        own = own_measures(here)
        if here.size > 1:
            _together(here, own, imported_s)
        else:
            _say("passed: %s" % ", ".join("%s %.3f s" % measure for measure in own.items()))
        return 0
    except ImportError as error:
        problem: Exception = Failed("preflight needs torch: %s" % error)
    except Failed as failed:
        problem = failed
    sys.stderr.write(
        "worker %s (%s): %s\n" % (os.environ.get("NODE_RANK", "0"), socket.gethostname(), problem)
    )
    if isinstance(problem, LostPeer):
        time.sleep(_PEERS_END_S)
        return PEER_LOST
    return 1


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # the interpreter's own teardown of torch takes long, and may hang if a collective failed
    os._exit(status)
