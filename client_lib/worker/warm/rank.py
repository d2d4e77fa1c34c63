"""What a forked process does to be as a fresh one, up to the script. Standard library only, Python >= 3.8.

`Warm.run` is the twin of exec: it is called in a new process that has its session, its working directory and its three
streams, and never returns.
"""

import gc
import os
import signal
import sys
import time
import traceback
import warnings
from typing import Any, Dict, FrozenSet, List, NoReturn, Optional, Sequence

from client_lib.worker import rank_runner
from client_lib.worker.directory import MARKER
from client_lib.worker.environment import Process
from client_lib.worker.plan import WorkerPlan
from client_lib.worker.warm import fit, hidden
from client_lib.worker.warm.hidden import Group, Hidden
from client_lib.worker.warm.threads import Setters, set_torch
from client_lib.worker.warm.title import relabel

_OURS = "client_lib"
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ)  # by every Python


class AtStart:
    """How the interpreter of the pool was before it imported anything."""

    def __init__(self, modules: FrozenSet[str]) -> None:
        self.modules = modules
        self.filters = list(warnings.filters)
        self.environment = dict(os.environ)


class Warm:
    """What a pool gives its launchers: whether ranks may be warm, and how they run."""

    def __init__(self, python: str, at_start: AtStart, groups: List[Group]) -> None:
        names = {name.partition(".")[0] for name in sys.modules if name not in at_start.modules} - {_OURS}
        self._pool = fit.Pool(python, at_start.environment, frozenset(names))
        self._at_start, self._groups = at_start, groups
        self._setters = Setters()

    def refusal(self, plan: WorkerPlan, processes: Sequence[Process]) -> Optional[str]:
        """Why the ranks of this worker must start fresh."""
        for process in processes:
            why = fit.refusal(self._pool, plan, process, _beside(process))
            if why:
                return why
        return None

    def run(self, argv: List[str], environment: Dict[str, str]) -> NoReturn:
        """Run the script of `argv` (python, rank runner, script, arguments) to its end, and the process's."""
        try:
            _close_descriptors()
            _default_signals()
            relabel([argv[0]] + argv[2:], MARKER, environment[MARKER])
            self._forget(argv, environment)
            rank_runner.run_forked(argv[2:])
        except BaseException:  # noqa: BLE001  (a fault of ours: nothing below this may run in this process)
            traceback.print_exc()
        finally:
            os._exit(1)

    def _forget(self, argv: List[str], environment: Dict[str, str]) -> None:
        """Let the interpreter's state be that of one that was started for this script."""
        os.environ.clear()
        os.environ.update(environment)
        time.tzset()
        _new_seeds()
        _of_this_process()
        for name in [name for name in sys.modules if name.partition(".")[0] == _OURS]:
            del sys.modules[name]
        warnings.filters[:] = self._at_start.filters  # type: ignore[index]
        hidden.filters_changed()
        Hidden(self._groups, lambda names: self._set_threads(names, environment)).hide()
        if "orig_argv" in vars(sys):  # new in 3.10
            vars(sys)["orig_argv"][:] = [argv[0]] + argv[2:]
        gc.freeze()  # the launcher's objects, whose descriptors are closed, are nobody's any more
        gc.enable()

    def _set_threads(self, back: List[str], environment: Dict[str, str]) -> None:
        """With the first import of a package: a script without any gets no threads of theirs."""
        self._setters.apply(environment)
        if "torch" in back:
            set_torch(sys.modules["torch"], environment)


def _beside(process: Process) -> List[str]:
    try:
        return os.listdir(os.path.dirname(os.path.realpath(os.path.join(process.working_dir, process.argv[2]))))
    except (OSError, IndexError):  # the start itself will say so
        return []


def _close_descriptors() -> None:
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2:
            try:
                os.close(fd)
            except OSError:  # the descriptor of the listing itself
                pass


def _default_signals() -> None:
    for signum in signal.valid_signals():
        if signal.getsignal(signum) not in (signal.SIG_DFL, None):
            signal.signal(signum, signal.SIG_DFL)
    for signum in _IGNORED:
        signal.signal(signum, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _new_seeds() -> None:
    """Python's own `random` seeds itself after a fork."""
    numpy_random: Any = sys.modules.get("numpy.random")
    if numpy_random is not None:
        numpy_random.seed()
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.seed()


def _of_this_process() -> None:
    """What multiprocessing noted when it was imported."""
    process: Any = sys.modules.get("multiprocessing.process")
    if process is not None:
        process.ORIGINAL_DIR = os.getcwd()
        process.current_process().authkey = os.urandom(32)
