"""Runs a rank's script as `python script.py` would, and starts and ends faster where torch is used.

The launcher starts it by path with the user's interpreter, which has nothing of this package: it imports nothing of it.
What it does beyond `python script.py`:

- below an elastic agent, stdout and stderr become pipes of this rank's own (rank_pipes.py);
- garbage collection is off while torch is imported, and what was made then is frozen (never searched again);
- ranks > 0 wait until MASTER_PORT listens before init_process_group: torch puts one that is early off by up to 0.7 s;
- process groups live to the end of the process: gloo's threads race with a teardown;
- where the launcher asks for it, the names of the installed modules that were imported are left in a file;
- an exception that ends the script is written to TORCHELASTIC_ERROR_FILE, in torch's format;
- a process that has loaded torch ends by hand: threads joined, atexit handlers called, the script's objects and files
  let go, C's streams flushed, then `_exit`. The interpreter's own teardown takes half a second then.

What differs from `python script.py`: its frames stand below the script's (inspect.stack()). Standard library only,
Python >= 3.8; little is imported before the script runs.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing itself takes 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType, TracebackType
    from typing import Any

_OUR_FRAMES = globals()
_INTERRUPTED = -2  # instead of an exit status: by SIGINT
_LIMIT_S = 60.0  # how long the master is waited for before torch waits, and complains, by itself
_PAUSE_S = 0.002
_ANSWER_S = 10.0
_LOOPBACK = ("localhost", "127.", "::1")
_master = ""  # where the ranks of several workers meet, as the launcher says; "": there is one worker
_PID = 0  # of the process that runs the script; its forks are others
_forked = False
_kept: list[Any] = []  # process groups, and files that were open before torch was imported


def main() -> None:
    own = sys.modules["__main__"]  # kept: its functions need their globals
    sys.argv = sys.argv[1:]
    if "orig_argv" in vars(sys):  # new in 3.10
        vars(sys)["orig_argv"].remove(own.__file__)
    module = _main_module(own, sys.argv[0])
    hook_imports()
    _end(_run(module))


def hook_imports() -> None:
    """From now on torch is imported as it is described above."""
    sys.meta_path.insert(0, _Hooks({"torch": _TorchImport, "torch.distributed.distributed_c10d": _Rendezvous}))


def run_forked(argv: list[str]) -> None:
    """Run a script in a process that was forked from a warm pool, where torch may be imported already. Never returns.

    The process ends by hand, whatever it has loaded: what stands below this call is not the script's.
    """
    import os

    global _PID, _forked
    _PID, _forked = os.getpid(), True
    _note_master()
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path.insert(0, "")
    _end(_run(_main_module(sys.modules["__main__"], argv[0])))


def _bring_own_output() -> None:
    """Where the launcher asks for it; without its answer all stays as it is."""
    import os

    folder = os.environ.pop("CLIENT_LIB_RANK_PIPES", "")
    if not folder:
        return
    import time

    name = "%s-%d" % (os.environ["RANK"], os.getpid())
    paths = [os.path.join(folder, "%s.%s" % (name, stream)) for stream in ("stdout", "stderr")]
    fds = []
    try:
        for path in paths:
            os.mkfifo(path, 0o600)
            fds.append(os.open(path, os.O_RDWR))  # for reading, too: so that opening it does not wait
            fds.append(os.open(path, os.O_WRONLY))
        new = os.open(os.path.join(folder, "new"), os.O_WRONLY | os.O_NONBLOCK)
        os.write(new, b"%b %b\n" % (os.environ["RANK"].encode(), name.encode()))
        os.close(new)
        end = time.monotonic() + _ANSWER_S
        while any(map(os.path.exists, paths)) and time.monotonic() < end:
            time.sleep(_PAUSE_S)
        if not any(map(os.path.exists, paths)):
            os.dup2(fds[1], 1)
            os.dup2(fds[3], 2)
    except OSError:  # the launcher is gone, or the disk full
        pass
    for fd in fds:
        os.close(fd)


def _main_module(own: Any, path: str) -> ModuleType:
    """The module `__main__` of the script, as the interpreter would have made it; sys.path[0] likewise."""
    import os

    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
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
    """Run the script; gives back its exit status, or _INTERRUPTED."""
    try:
        with open(module.__file__, "rb") as file:
            source = file.read()
        exec(compile(source, module.__file__, "exec", dont_inherit=True), vars(module))
    except SystemExit as exit:
        return _status(exit.code)
    except BaseException as error:  # noqa: BLE001  (whatever ends the script: it is reported as the interpreter does)
        _failed(error)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status(code: object) -> int:
    """The exit status that sys.exit(code) means."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    sys.stdout.flush()
    sys.stderr.write("%s\n" % (code,))
    return 1


def _failed(error: BaseException) -> None:
    """Report the exception as the interpreter would, and to the error file."""
    _remove_our_frames(error, set())
    trace = error.__traceback__
    _write_error_file(error)
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    vars(sys)["last_exc"] = error  # new in 3.12
    try:
        sys.excepthook(type(error), error, trace)
    except BaseException:  # noqa: BLE001  (the user's own hook failed: the interpreter goes on with its own)
        sys.__excepthook__(type(error), error, trace)


def _remove_our_frames(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace: list[TracebackType] = []
    for entry in _entries(error.__traceback__):
        if entry.tb_frame.f_globals is not _OUR_FRAMES:
            trace.append(entry)
            continue
        while trace and trace[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
            trace.pop()  # python removes these, but doesn't know them with our frame between
    for place, entry in enumerate(trace):
        entry.tb_next = trace[place + 1] if place + 1 < len(trace) else None
    error.__traceback__ = trace[0] if trace else None
    _remove_our_frames(error.__cause__, seen)
    _remove_our_frames(error.__context__, seen)


def _entries(trace: TracebackType | None) -> Iterator[TracebackType]:
    while trace is not None:
        yield trace
        trace = trace.tb_next


def _write_error_file(error: BaseException) -> None:
    """As torch.distributed.elastic's ErrorHandler does; one that is there already says more."""
    import os

    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.getpid() != _PID:
        return
    import json
    import time
    import traceback

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    extra = {"py_callstack": text, "timestamp": str(int(time.time())), "rank": os.environ.get("RANK", "")}
    message = {"message": "%s: %s" % (type(error).__name__, error), "extraInfo": extra}
    try:
        with open(path, "x") as file:
            json.dump({"message": message}, file)
    except OSError:  # there already, or no room for it: the traceback on stderr is left
        pass


class _Hooks:
    """A finder that has a module's import wrapped, the first time it is imported; it finds nothing by itself."""

    def __init__(self, wrappers: dict[str, Callable[[ModuleType], Any]]) -> None:
        self._wrappers = wrappers

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._wrappers:
            return None
        wrapper = self._wrappers.pop(name)
        for finder in list(sys.meta_path):
            spec: Any = finder.find_spec(name, path, target) if finder is not self else None
            if spec is not None:
                _wrap(spec.loader, wrapper)
                return spec
        return None


def _wrap(loader: Any, wrapper: Callable[[ModuleType], Any]) -> None:
    """The loader's next exec_module happens inside of `wrapper`."""

    def exec_module(module: ModuleType) -> None:
        del loader.exec_module
        with wrapper(module):
            loader.exec_module(module)

    if hasattr(loader, "__dict__"):
        loader.exec_module = exec_module


class _TorchImport:
    """Half a million objects are made and none becomes garbage: collecting meanwhile is 0.4 s for nothing."""

    def __init__(self, _: ModuleType) -> None:
        self._enabled = True

    def __enter__(self) -> None:
        import gc

        self._enabled = gc.isenabled()
        gc.disable()
        _kept.extend(_open_files(gc.get_objects()))  # found now, because frozen objects aren't listed

    def __exit__(self, *exception: object) -> None:
        import gc

        gc.freeze()
        if self._enabled:
            gc.enable()


class _Rendezvous:
    """Puts the wait for the master before init_process_group, and keeps the group that it makes."""

    def __init__(self, module: Any) -> None:
        self._module = module

    def __enter__(self) -> None:
        pass

    def __exit__(self, *exception: object) -> None:
        import functools

        module = self._module
        theirs = getattr(module, "init_process_group", None)
        if theirs is None:
            return

        @functools.wraps(theirs)
        def init_process_group(backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("store") is None:
                _refuse_own_master(init_method or "env://")
                if init_method in (None, "env://"):
                    _wait_for_master()
            result = theirs(backend, init_method, *args, **kwargs)
            _kept.extend(_process_groups(module))
            return result

        module.init_process_group = init_process_group


def _process_groups(module: Any) -> list[Any]:
    """Torch has them in its `_world`, before 2.0 in a table of the module."""
    world = getattr(module, "_world", None)
    return list(world.pg_map if world else getattr(module, "_pg_map", ()))


def _note_master() -> None:
    """Before the script may change it."""
    import os

    global _master
    several = os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE")
    _master = os.environ.get("MASTER_ADDR", "") if several else ""


def _refuse_own_master(init_method: str) -> None:
    """A script for one machine that sets its master by itself: its workers would wait for each other half an hour."""
    import os

    by_variable = init_method.startswith("env://")
    own = os.environ.get("MASTER_ADDR", "") if by_variable else init_method.partition("tcp://")[2].lstrip("[")
    if _master and own.startswith(_LOOPBACK) and not _master.startswith(_LOOPBACK):
        raise RuntimeError(
            "the script sets %s by itself, where only one worker can meet, and this job has several: init_process_group"
            " without init_method, and MASTER_ADDR and MASTER_PORT as they are set (%s); or take n_workers=1"
            % ("MASTER_ADDR=%s" % own if by_variable else "init_method=%r" % init_method, _master)
        )


def _wait_for_master() -> None:
    import os
    import socket
    import time

    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if os.environ.get("RANK", "0") == "0" or not host or not port.isdigit():
        return
    end = time.monotonic() + _LIMIT_S
    while time.monotonic() < end:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as probe:
                if probe.getsockname() != probe.getpeername():  # a free port of this machine can be met by oneself
                    return
        except OSError:  # not yet; a name that is not known yet, either
            pass
        time.sleep(_PAUSE_S)


def _end(status: int) -> None:
    """End the process with `status`; by hand where the interpreter's own teardown would be slow."""
    import os

    _note_imports()
    if "torch" not in sys.modules and status != _INTERRUPTED and not _forked:
        sys.exit(status)
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit

    try:
        atexit._run_exitfuncs()  # the one way to call them and go on
    except BaseException:  # noqa: BLE001  (3.8 raises what it has printed already)
        pass
    distributed = sys.modules.get("torch.distributed.distributed_c10d")
    _kept.extend(_process_groups(distributed) if distributed else ())
    _let_go()
    status = _flush() or status
    if status == _INTERRUPTED:
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)  # so that the parent sees what it was, as since Python 3.8
    os._exit(status)


def _note_imports() -> None:
    """Leave the names of installed modules, in the order in which their imports ended, where the launcher asks."""
    import os

    if os.environ.get("LOCAL_RANK") != "0" or os.getpid() != _PID:
        return
    try:
        with open(os.path.join(os.environ.get("CLIENT_LIB_WORKER_DIR", ""), "imports"), "r+") as file:
            import json

            json.dump(_installed(), file)
    except OSError:  # nobody asks
        pass


def _installed() -> list[str]:
    names = []
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        origin = getattr(spec, "origin", None)
        if isinstance(origin, str) and "-packages/" in origin and getattr(spec, "name", None) == name:
            names.append(name)
    return names


def _let_go() -> None:
    """Empty the script's namespace, as the interpreter does, so that what waits for its end gets to know it."""
    import gc

    _flush_text(_open_files(gc.get_objects()))  # a collection may close the buffer before the text above it
    threading = sys.modules.get("threading")
    if threading is None or threading.active_count() == 1:  # a daemon thread would stumble over what is gone
        names = vars(sys.modules["__main__"])
        for name in [name for name in names if name[0] == "_" and name[1:2] != "_"] + list(names):
            if name not in ("__builtins__", "__name__", "__file__"):
                names[name] = None
        gc.collect()
    _close_files(_kept + _open_files(gc.get_objects()))


def _open_files(objects: Iterable[object]) -> list[Any]:
    import io

    return [thing for thing in objects if issubclass(type(thing), io.IOBase)]


def _flush_text(files: list[Any]) -> None:
    import io

    _call("flush", [file for file in files if type(file) is io.TextIOWrapper])


def _close_files(files: list[Any]) -> None:
    """Text first, then what packs it (gzip), then the buffers below."""
    import io

    _flush_text(files)
    _call("close", [file for file in files if type(file).__module__ in ("gzip", "bz2", "lzma")])
    _call("flush", [file for file in files if type(file) in (io.BufferedWriter, io.BufferedRandom)])


def _call(method: str, files: list[Any]) -> None:
    for file in files:
        try:
            if not file.closed:
                getattr(file, method)()
        except Exception:  # noqa: BLE001  (the interpreter ignores these, too)
            pass


def _flush() -> int:
    """Python's own streams and C's; 120 where that fails, as the interpreter says it."""
    status = 0
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001  (any failure means the same)
            status = 120
    import ctypes

    ctypes.CDLL(None).fflush(None)
    return status


if __name__ == "__main__":
    import os

    _PID = os.getpid()
    _bring_own_output()
    _note_master()
    main()
