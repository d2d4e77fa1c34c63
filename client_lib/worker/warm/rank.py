"""Makes a forked process like a fresh one, up to the script."""

import builtins
import contextlib
import ctypes
import gc
import os
import re
import signal
import sys
import time
import traceback
from typing import Any, Callable, Dict, List, NoReturn, Optional, Sequence, Tuple

from client_lib.launcher_protocol.directory import MARKER
from client_lib.launcher_protocol.plan import WorkerPlan
from client_lib.launcher_protocol.processes import content, stat
from client_lib.launcher_protocol.rank_processes import Process
from client_lib.worker.rank_runner.main import run_forked
from client_lib.worker.warm import ROOM, fit
from client_lib.worker.warm.hidden import Hidden, ModuleGroup

_LIBRARY = re.compile(r"/[^/]*(gomp|iomp5|libomp|openblas)[^/]*\.so[^/]*$")
_SETTERS = (
    "omp_set_num_threads",
    "openblas_set_num_threads",
    "openblas_set_num_threads64_",
    "scipy_openblas_set_num_threads",
    "scipy_openblas_set_num_threads64_",
)
_Setter = Callable[[int], Any]
_MARKS = (".dist-info", ".egg-info", ".pth", ".egg-link")
Fingerprint = Dict[str, int]


class Warm:
    """A pool as its launchers see it: decides whether ranks may be warm, and runs them."""

    def __init__(
        self, python: str, environment: Dict[str, str], hidden: Hidden, packages: Fingerprint
    ) -> None:
        """`environment`: the environment with which the pool was started; `packages`: the packages
        that were installed then.
        """
        self._packages = packages
        self._hidden = hidden
        names = frozenset(name.partition(".")[0] for name in hidden.names())
        self._pool = fit.PoolState(python, environment, names)
        self._added = {
            name: value for name, value in os.environ.items() if environment.get(name) != value
        }
        """Variables that the interpreter has set: LC_CTYPE, if the
        variables give it the locale "C".
        """
        self._thread_counts: Optional[ThreadCounts] = ThreadCounts()

    def refusal(self, plan: WorkerPlan, processes: Sequence[Process]) -> Optional[str]:
        """The reason why the ranks of this worker must start fresh; None: they may be warm."""
        if plan.setup and fingerprint(folders()) != self._packages:
            return "its setup has changed the installed packages"
        for process in processes:
            beside: List[str] = []
            with contextlib.suppress(OSError, IndexError):  # the start reports it
                script = os.path.join(process.working_dir, process.argv[2])
                beside = os.listdir(os.path.dirname(os.path.realpath(script)))
            why = fit.refusal(self._pool, plan, process, beside)
            if why:
                return why
        return None

    def run(self, argv: List[str], environment: Dict[str, str]) -> NoReturn:
        """Take the part of exec in a new process that has its session, its working directory and
        its three streams: run the script of `argv` (python, rank runner, script, arguments), and
        end."""
        try:
            os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
            for signum in signal.valid_signals():
                if signal.getsignal(signum) not in (signal.SIG_DFL, None):
                    signal.signal(signum, signal.SIG_DFL)
            for signum in (signal.SIGPIPE, signal.SIGXFSZ):  # by every Python
                signal.signal(signum, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            relabel([argv[0]] + argv[2:], MARKER, environment[MARKER])
            self._forget(argv, environment)
            run_forked(argv[2:])
        except BaseException:  # noqa: BLE001  (a defect of ours: the callers must not continue in this process)
            traceback.print_exc()
        finally:
            os._exit(1)

    def _forget(self, argv: List[str], environment: Dict[str, str]) -> None:
        """Reset the interpreter to the state of one that was started for this script."""
        self._hidden.on_return = lambda groups: self._adapt(groups, environment)
        self._hidden.hide({**environment, **self._added})
        time.tzset()
        builtins.__import__("__future__")  # the rank runner of a fresh process imports it
        if "orig_argv" in vars(sys):  # new in 3.10
            vars(sys)["orig_argv"][:] = [argv[0]] + argv[2:]
        gc.freeze()  # the launcher's objects: their descriptors are closed
        gc.enable()

    def _adapt(self, groups: List[ModuleGroup], environment: Dict[str, str]) -> None:
        """Set what modules would have read at their import. Before the first
        package, a script has no threads.
        """
        back = {name for group in groups for name in group.modules}
        if self._thread_counts and not all(group.standard for group in groups):
            self._thread_counts.apply(environment)
            self._thread_counts = None
        if "multiprocessing.process" in back:
            process: Any = sys.modules["multiprocessing.process"]
            process.ORIGINAL_DIR = os.getcwd()
            process.current_process().authkey = os.urandom(32)
        if "numpy.random" in back:
            sys.modules["numpy.random"].seed()
        if "torch" in back:
            sys.modules["torch"].default_generator.seed()
            _set_torch(sys.modules["torch"], environment)
        if "matplotlib" in back and environment.get("MPLBACKEND"):
            # as its import does
            sys.modules["matplotlib"].rcParams["backend"] = environment["MPLBACKEND"]


def folders() -> Tuple[str, ...]:
    """Folders of installed packages on this interpreter's sys.path."""
    return tuple(
        path for path in sys.path if os.path.basename(path) in ("site-packages", "dist-packages")
    )


def fingerprint(paths: Tuple[str, ...]) -> Fingerprint:
    """A value that changes with every installation, upgrade or removal, but not with an
    edit inside of a package.
    """
    found = {}
    for path in paths:
        with contextlib.suppress(OSError):
            for entry in os.scandir(path):
                if entry.name.endswith(_MARKS):
                    # removed since the listing, or a link to nothing
                    with contextlib.suppress(OSError):
                        found[entry.path] = entry.stat().st_mtime_ns
    return found


def given_environment() -> Dict[str, str]:
    entries = os.fsdecode(content("/proc/self/environ")).split("\0")
    return {
        name: value
        for name, equals, value in (entry.partition("=") for entry in entries)
        if name and equals
    }


class ThreadCounts:
    """Sets the thread counts of the OpenMP and BLAS libraries that are loaded when this is made."""

    def __init__(self) -> None:
        self._openmp: List[_Setter] = []
        self._blas: List[_Setter] = []
        with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as file:
            paths = {line.rstrip("\n").split(None, 5)[-1] for line in file}
        for path in sorted(filter(_LIBRARY.search, paths)):
            library = ctypes.CDLL(path)
            for name in _SETTERS:
                if hasattr(library, name):
                    (self._openmp if name.startswith("omp") else self._blas).append(
                        getattr(library, name)
                    )

    def apply(self, environment: Dict[str, str]) -> None:
        """Set the counts of a fresh process with this environment."""
        openmp = environment.get("OMP_NUM_THREADS")
        blas = environment.get("OPENBLAS_NUM_THREADS", openmp)
        for setter in self._openmp if openmp else ():
            setter(int(openmp or 1))
        for setter in self._blas if blas else ():
            setter(min(int(blas or 1), len(os.sched_getaffinity(0))))


def _set_torch(torch: Any, environment: Dict[str, str]) -> None:
    """Set torch's own count, which it takes from MKL: at most the number of cores."""
    count = int(environment.get("MKL_NUM_THREADS") or environment.get("OMP_NUM_THREADS") or 0)
    if torch.backends.mkl.is_available() and environment.get("MKL_DYNAMIC", "").lower() not in (
        "false",
        "0",
    ):
        siblings = "/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list"
        # physical ones; b"": not known
        cores = {content(siblings % cpu) for cpu in os.sched_getaffinity(0)}
        count = count if b"" in cores else min(count, len(cores))
    if count and count != torch.get_num_threads():
        torch.set_num_threads(count)


def show_argv(argv: Sequence[str]) -> None:
    """Make ps and /proc show `argv`, cut to the room there is: the memory that exec filled for the
    pool, which was started with ROOM in it."""
    arg_start, arg_end = map(int, stat("/proc/self")[45:47])
    shown = b"".join(argument.encode("utf-8", "surrogateescape") + b"\0" for argument in argv)
    _overwrite(arg_start, shown, arg_end - arg_start)


def relabel(argv: List[str], marker: str, value: str) -> None:
    """Make ps and /proc show `argv`, and `marker=value` in place of the pool's `marker`."""
    show_argv(argv)
    env_start, env_end = map(int, stat("/proc/self")[47:49])
    beginning = ("%s=" % marker).encode()
    entries = ctypes.string_at(env_start, env_end - env_start)
    at = entries.find(beginning + ROOM.encode())
    if at >= 0:
        room = len(beginning) + len(ROOM)
        _overwrite(env_start + at, beginning + value.encode("utf-8", "surrogateescape"), room)


def _overwrite(address: int, shown: bytes, room: int) -> None:
    ctypes.memmove(address, shown[: room - 1].ljust(room, b"\0"), room)
