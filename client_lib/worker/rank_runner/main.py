"""Runs the script: makes its module `__main__`, executes it, and ends the process."""

from __future__ import annotations

import os
import sys

from client_lib.worker.rank_runner.answers import begin
from client_lib.worker.rank_runner.error_file import write_error_file
from client_lib.worker.rank_runner.frames import HIDDEN, HIDDEN_FILES, remove_our_frames
from client_lib.worker.rank_runner.hooks import hook_imports
from client_lib.worker.rank_runner.pipes import bring_own_output
from client_lib.worker.rank_runner.script_end import note_exit
from client_lib.worker.rank_runner.teardown import INTERRUPTED, end
from client_lib.worker.rank_runner.this_rank import THIS_RANK

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any

_FUNCTION = "CLIENT_LIB_FUNCTION"
"""Variable of a job whose script is function_runner.py, which calls the function of the user."""

_DRILL = "CLIENT_LIB_DRILL"
"""Variable of a run of `client-lib drill`: the folder with its probe."""

HIDDEN.append(globals())


def main() -> None:
    """Run the script that the arguments of this process name."""
    own = sys.modules["__main__"]  # kept: its functions need their globals
    sys.argv = sys.argv[1:]
    if "orig_argv" in vars(sys):  # new in 3.10
        vars(sys)["orig_argv"].remove(own.__file__)
    module = _main_module(own, sys.argv[0])
    hook_imports()
    end(_run(module))


def run_forked(argv: list[str]) -> None:
    """Run a script in a process forked from a warm pool, and end it by hand: the
    callers are not the script's.
    """
    THIS_RANK.is_forked = True
    begin()
    sys.argv = argv
    if _has_path_of_script():
        sys.path.insert(0, "")
    end(_run(_main_module(sys.modules["__main__"], argv[0])))


def _has_path_of_script() -> bool:
    """True if sys.path begins with the folder of the script."""
    return not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated


def _main_module(own: Any, path: str) -> ModuleType:
    """The script's module `__main__`, made as the interpreter makes it. Sets
    sys.path[0] in the same way.
    """
    if _has_path_of_script():
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    if sys.version_info >= (3, 9):
        path = os.path.abspath(path)
    module: Any = type(sys)("__main__")
    for name in ("__annotations__", "__cached__"):
        if name in vars(own):
            setattr(module, name, {} if name == "__annotations__" else None)
    module.__builtins__ = sys.modules["builtins"]
    module.__file__ = path
    module.__loader__ = type(own.__loader__)("__main__", path)
    sys.modules["__main__"] = module
    if "__mp_main__" in sys.modules:  # multiprocessing was imported before
        sys.modules["__mp_main__"] = module
    return module  # type: ignore[no-any-return]


def _run(module: Any) -> int:
    """Run the script. Returns its exit status, or INTERRUPTED."""
    if _FUNCTION in os.environ:
        HIDDEN_FILES.append(module.__file__)
    try:
        if _DRILL in os.environ:
            _begin_probe(os.environ[_DRILL])
        with open(module.__file__, "rb") as file:
            source = file.read()
        exec(compile(source, module.__file__, "exec", dont_inherit=True), vars(module))
    except SystemExit as exit:
        note_exit(exit)
        return _status_of(exit)
    # any exception of the script is reported as the interpreter does
    except BaseException as error:  # noqa: BLE001
        remove_our_frames(error, set())
        trace = error.__traceback__
        write_error_file(error)
        sys.last_type = type(error)
        sys.last_value = error
        sys.last_traceback = trace
        vars(sys)["last_exc"] = error  # new in 3.12
        try:
            sys.excepthook(type(error), error, trace)
        except SystemExit as exit:
            return _status_of(exit)
        # the user's hook failed: the interpreter then calls its own
        except BaseException:  # noqa: BLE001
            sys.__excepthook__(type(error), error, trace)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _begin_probe(folder: str) -> None:
    """Execute the probe of a drill, in a namespace of its own."""
    path = os.path.join(folder, "probe.py")
    with open(path, "rb") as file:
        source = file.read()
    probe = {"__name__": "client_lib_drill_probe", "__file__": path}
    HIDDEN.append(probe)
    exec(compile(source, path, "exec", dont_inherit=True), probe)


def _status_of(exit: SystemExit) -> int:
    if exit.code is None or isinstance(exit.code, int):
        return (exit.code or 0) & 0xFF
    try:
        sys.stderr.write("%s\n" % (exit.code,))
    except Exception:  # noqa: BLE001  (the interpreter ignores these, too)
        pass
    return 1


if __name__ == "__main__":
    begin()
    bring_own_output()
    main()
