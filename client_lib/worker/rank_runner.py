"""Runs a rank's script as `python script.py` does, and starts and ends faster if the script uses
torch.

The launcher starts it by path with the user's interpreter, which lacks this package, and copies it
out of a zipapp as a single file: it must stay one module that imports nothing of the package, and
before the script runs hardly a module that an interpreter has not loaded itself. It also answers
the launcher's questions (stacks, the exception from which it unwinds), writes an exception that
ends the script to TORCHELASTIC_ERROR_FILE, in torch's format, and ends the process by hand: the
interpreter's own teardown of torch takes half a second. One difference from `python script.py`
remains: its frames are below the script's (inspect.stack()).
"""

from __future__ import annotations

import io
import os
import sys
import time

TYPE_CHECKING = False  # typing itself takes 4 ms to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import ModuleType, TracebackType
    from typing import Any

_OUR_FRAMES = globals()
_signal: Any = sys.modules["_signal"]  # the part of `signal` in C, which takes no time to import
_INTERRUPTED = -2  # instead of an exit status: by SIGINT
_LIMIT_S = 60.0  # longest wait for the master; then torch waits, and reports a failure, by itself
_PAUSE_S, _PAUSE_SHARE = (
    0.002,
    0.01,
)  # between two looks; the latter: of the time waited for the master, if longer
_ANSWER_S = 10.0
_STACKS_SIGNAL = 50  # a real-time signal; stacks.py uses the same number
_UNWINDING_SIGNAL = 51  # ranks.py uses the same number
# the launcher asks when the others have lost this rank for at least this time (outcome.PEERS_END_S)
_UNWINDS_S = 1.0
_CHAIN_MAX = 100
_STACKS_FD = 100  # high: files of the script get the same numbers as under `python script.py`
_LOOPBACK = ("localhost", "127.", "::1")
_ENTRIES_MAX = 128  # collectives in one line of the pipe for metrics
_OFTEN_S, _OFTEN_FOR_S, _SELDOM_S = (
    1.0,
    60.0,
    16.0,
)  # between two lines: in the first minute, and later
# of the file that shows that the rank enters collectives, between two lines; at most each second
_TOUCHES = 64
# between two of them: less than half of the time after which the observer calls a rank quiet
_PAUSE_MAX_S = 4.0
_ENTRIES_SHARE = 0.005  # largest part of the time that both may take
# the launcher's MASTER_ADDR, at which the ranks of several workers meet; "": there is one worker
_master = ""
_PID = 0  # of the process that runs the script, to tell it from its forks
_forked = False
_sender: _EntrySender | None = None
_kept: list[Any] = []  # process groups, and files that were open before torch was imported


def main() -> None:
    own = sys.modules["__main__"]  # kept: its functions need their globals
    sys.argv = sys.argv[1:]
    if "orig_argv" in vars(sys):  # new in 3.10
        vars(sys)["orig_argv"].remove(own.__file__)
    module = _main_module(own, sys.argv[0])
    hook_imports()
    _end(_run(module))


def _begin() -> None:
    """Note the rank and its master, and answer the launcher's questions from now on."""
    global _PID, _master
    _PID = os.getpid()
    several = os.environ.get("WORLD_SIZE") != os.environ.get("LOCAL_WORLD_SIZE")
    _master = os.environ.get("MASTER_ADDR", "") if several else ""
    try:
        _signal.signal(_UNWINDING_SIGNAL, _answer_unwinding)
        import faulthandler

        fd = os.open(_own_file(), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(fd, _STACKS_FD, inheritable=False)
        os.close(fd)
        # this handler is C: it also runs while a thread holds the interpreter's lock
        faulthandler.register(_STACKS_SIGNAL, file=_STACKS_FD, all_threads=True, chain=False)
    except (
        OSError,
        ImportError,
        ValueError,
    ):  # no such signals here; or stacks are not requested: there is no folder
        pass


def hook_imports() -> None:
    sys.meta_path.insert(
        0,
        _Hooks({"torch": _import_torch, "torch.distributed.distributed_c10d": _import_distributed}),
    )


def run_forked(argv: list[str]) -> None:
    """Run a script in a process forked from a warm pool, and end it by hand: the
    callers are not the script's.
    """
    global _forked
    _forked = True
    _begin()
    sys.argv = argv
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path.insert(0, "")
    _end(_run(_main_module(sys.modules["__main__"], argv[0])))


def _own_file(kind: str = "") -> str:
    """Path of a file of this rank by which the launcher sees what it does."""
    return os.path.join(
        os.environ.get("CLIENT_LIB_WORKER_DIR", ""), "stacks", kind + os.environ.get("RANK", "0")
    )


def _answer_unwinding(signum: int, frame: Any) -> None:
    """Write the exception from which the main thread unwinds to the error file. The launcher asks
    before SIGTERM: a `finally` may take longer than the other ranks need to fail, which only say
    that they lost this one."""
    try:
        error = _unwinding(frame)
        if error is not None:
            _write_error_file(error, time.time() - _UNWINDS_S)
    except Exception:  # noqa: BLE001  (it must not reach the script)
        pass
    _signal.signal(
        signum, _signal.SIG_IGN
    )  # the answer: the launcher waits until there is no handler


def _unwinding(frame: Any) -> BaseException | None:
    """The exception that leaves one of the main thread's frames; None: there is none, or it is
    handled there. The traceback of an exception begins in the frame that it has reached."""
    errors: list[BaseException] = []
    error = sys.exc_info()[1]
    while error is not None and len(errors) < _CHAIN_MAX:
        errors.append(error)
        error = error.__context__
    while frame is not None:
        here = [
            each for each in errors if each.__traceback__ and each.__traceback__.tb_frame is frame
        ]
        for error, leaves in zip(here, _entered_blocks(frame) if here else ()):  # noqa: B905  # not in 3.8
            if leaves:
                return error
        frame = frame.f_back
    return None


def _entered_blocks(frame: Any) -> list[bool]:
    """A value for each block for exceptions around the line of a frame, innermost first: True if
    they leave it again. These are `finally`, the line of a `with`, and an `except` that ends with
    `raise` or an exit."""
    import ast

    try:
        with open(frame.f_code.co_filename, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # there is no source, as for a cell of a notebook
        return [True]
    found: list[bool] = []
    for node in ast.walk(tree):  # outer ones first
        first, last, leaves = 0, -1, True
        if isinstance(node, (ast.With, ast.AsyncWith)):
            first, last = node.lineno, max(node.lineno, node.body[0].lineno - 1)
            if sys.version_info < (3, 10):  # the exit has the line that failed
                last = node.end_lineno or 0
        elif isinstance(node, ast.ExceptHandler):
            first, last, leaves = node.lineno, node.end_lineno or 0, _goes_on(node.body[-1])
        elif getattr(node, "finalbody", None):
            final: Any = vars(node)["finalbody"]
            first, last = final[0].lineno, final[-1].end_lineno
        if first <= frame.f_lineno <= last:
            found.insert(0, leaves)
    return found


def _goes_on(statement: Any) -> bool:
    """True for `raise` and for a call of exit, sys.exit or os._exit."""
    called = getattr(getattr(statement, "value", None), "func", None)
    name = getattr(called, "attr", getattr(called, "id", None))
    return type(statement).__name__ == "Raise" or name in ("exit", "_exit")


def _bring_own_output() -> None:
    """Replace stdout and stderr by pipes of this rank if the launcher requests and opens them."""
    folder = os.environ.pop("CLIENT_LIB_RANK_PIPES", "")
    if not folder:
        return
    name = "%s-%d" % (os.environ["RANK"], os.getpid())
    paths = [os.path.join(folder, "%s.%s" % (name, stream)) for stream in ("stdout", "stderr")]
    fds = []
    try:
        for path in paths:
            os.mkfifo(path, 0o600)
            fds.append(
                os.open(path, os.O_RDWR)
            )  # for reading, too: otherwise `open` waits for a reader
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
    except OSError:  # the launcher is gone, or the disk is full
        pass
    for fd in fds:
        os.close(fd)


def _main_module(own: Any, path: str) -> ModuleType:
    """The script's module `__main__`, made as the interpreter makes it. Sets
    sys.path[0] in the same way.
    """
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
    """Run the script. Returns its exit status, or _INTERRUPTED."""
    try:
        with open(module.__file__, "rb") as file:
            source = file.read()
        exec(compile(source, module.__file__, "exec", dont_inherit=True), vars(module))
    except SystemExit as exit:
        return _status_of(exit)
    except BaseException as error:  # noqa: BLE001  (any exception of the script is reported as the interpreter does)
        _remove_our_frames(error, set())
        trace = error.__traceback__
        _write_error_file(error)
        sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
        vars(sys)["last_exc"] = error  # new in 3.12
        try:
            sys.excepthook(type(error), error, trace)
        except SystemExit as exit:
            return _status_of(exit)
        except BaseException:  # noqa: BLE001  (the user's hook failed: the interpreter then calls its own)
            sys.__excepthook__(type(error), error, trace)
        return _INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status_of(exit: SystemExit) -> int:
    if exit.code is None or isinstance(exit.code, int):
        return (exit.code or 0) & 0xFF
    try:
        sys.stderr.write("%s\n" % (exit.code,))
    except Exception:  # noqa: BLE001  (the interpreter ignores these, too)
        pass
    return 1


def _remove_our_frames(error: BaseException | None, seen: set[int]) -> None:
    if error is None or id(error) in seen:
        return
    seen.add(id(error))
    trace: list[TracebackType] = []
    entry = error.__traceback__
    while entry is not None:
        if entry.tb_frame.f_globals is not _OUR_FRAMES:
            trace.append(entry)
        else:
            while trace and trace[-1].tb_frame.f_code.co_filename.startswith("<frozen importlib"):
                trace.pop()  # Python removes these itself, but not with our frame between them
        entry = entry.tb_next
    for place, entry in enumerate(trace):
        entry.tb_next = trace[place + 1] if place + 1 < len(trace) else None
    error.__traceback__ = trace[0] if trace else None
    _remove_our_frames(error.__cause__, seen)
    _remove_our_frames(error.__context__, seen)


def _write_error_file(error: BaseException, raised_at: float | None = None) -> str | None:
    """Write the file of torch.distributed.elastic's ErrorHandler, unless there is one, which has
    more details. `raised_at`: seconds since 1970; None: now. Returns its path; None: it is not
    written."""
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path or os.getpid() != _PID:
        return None
    now = time.time() if raised_at is None else raised_at
    try:
        import json
        import traceback

        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        extra = {
            "py_callstack": text,
            "timestamp": str(int(now)),
            "rank": os.environ.get("RANK", ""),
            "raised_at": now,
        }
        message = {"message": "%s: %s" % (type(error).__name__, error), "extraInfo": extra}
        with open(path, "x") as file:
            json.dump({"message": message}, file)
    except Exception:  # noqa: BLE001  (it exists, the disk is full, str(error) fails: the traceback is on stderr, too)
        return None
    return path


class _Hooks:
    """A finder that lets a function run the first import of some modules,
    which other finders find.
    """

    def __init__(self, of: dict[str, Callable[[Any, Callable[[Any], None]], None]]) -> None:
        """`of`: functions that get the module and the loader's exec_module."""
        self._of = of
        self._searched: set[str] = set()

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in self._of or name in self._searched:
            return None
        self._searched.add(name)  # another finder may search all of them, too
        try:
            found = (
                finder.find_spec(name, path, target)
                for finder in list(sys.meta_path)
                if finder is not self
            )
            spec: Any = next((each for each in found if each is not None), None)
        finally:
            self._searched.discard(name)
        if hasattr(getattr(spec, "loader", None), "__dict__"):
            self._hook(name, spec.loader)
        return spec

    def _hook(self, name: str, loader: Any) -> None:
        """Change the loader's next exec_module, unless another import is the first."""

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module
            if name in self._of:
                self._of[name](module, loader.exec_module)
                self._of.pop(
                    name, None
                )  # only now: an import that fails, as in the warm pool, is repeated
            else:
                loader.exec_module(module)

        loader.exec_module = exec_module


def _import_torch(module: Any, load: Callable[[Any], None]) -> None:
    """Disable garbage collection: the import makes half a million objects and no
    garbage; collecting takes 0.4 s.
    """
    import gc

    enabled = gc.isenabled()
    gc.disable()
    _kept.extend(_open_files(gc.get_objects()))  # before the freeze: frozen objects are not listed
    try:
        load(module)
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def _import_distributed(module: Any, load: Callable[[Any], None]) -> None:
    """Wrap init_process_group: wait for the master before it, as torch delays early ranks by up to
    0.7 s, and keep the groups that it makes to the end of the process: gloo's threads race with a
    teardown.

    Wrap destroy_process_group: write the error file before it, if it runs because of an exception.
    It may take long or hang, and a rank that is killed meanwhile prints no traceback."""
    import functools

    load(module)
    init, destroy = (
        getattr(module, "init_process_group", None),
        getattr(module, "destroy_process_group", None),
    )
    if init is None or destroy is None:
        return

    @functools.wraps(init)
    def init_process_group(
        backend: Any = None, init_method: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if kwargs.get("store") is None:
            _refuse_own_master(init_method or "env://")
            if init_method in (None, "env://"):
                _wait_for_master()
        result = init(backend, init_method, *args, **kwargs)
        _keep_process_groups(module)
        _begin_entries()
        return result

    @functools.wraps(destroy)
    def destroy_process_group(*args: Any, **kwargs: Any) -> None:
        error = sys.exc_info()[1]
        path = _write_error_file(error) if error is not None else None
        try:
            destroy(*args, **kwargs)
        finally:
            try:
                os.unlink(path or "")
            except OSError:  # it was not written, or the worker's directory was removed
                pass

    module.init_process_group, module.destroy_process_group = (
        init_process_group,
        destroy_process_group,
    )


class _EntrySender:
    """Sends the launcher the times at which this rank enters collectives, and touches a file in
    each second, or four, in which it has entered or ended some, as a sign of life. Nothing if this
    PyTorch has no recorder."""

    def __init__(self) -> None:
        """Raises OSError."""
        import json  # noqa: F401  # for the thread, whose own import could delay one of the script
        import pickle  # noqa: F401

        self._sent: dict[str, int] = {}
        self._seen: list[Any] = []
        self._touched = _own_file("entered-")
        os.close(os.open(self._touched, os.O_WRONLY | os.O_CREAT, 0o600))
        self._fd = os.open(
            os.environ["CLIENT_LIB_METRICS"], os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )

    def run(self) -> None:
        """Send the newest entries at the same moments in all ranks, as these then
        send the same collectives.
        """
        begin, interval = time.time(), _OFTEN_S
        try:
            while True:
                now, used = time.time(), time.thread_time()
                interval = max(interval, _OFTEN_S if now - begin < _OFTEN_FOR_S else _SELDOM_S)
                due, pause = (
                    now - now % interval + interval,
                    min(max(_OFTEN_S, interval / _TOUCHES), _PAUSE_MAX_S),
                )
                while 0 < due - now <= interval:  # it is more if the clock was set back
                    time.sleep(pause - now % pause)
                    now = time.time()
                    self._touch()
                self.send()
                while time.thread_time() - used > _ENTRIES_SHARE * interval:
                    interval *= 2
        except Exception:  # noqa: BLE001  (the recorder's functions are private: another torch may have others)
            pass

    def _touch(self) -> None:
        counts = [dump.get("pg_status") for dump in _recorder(False)]
        if counts != self._seen:
            self._seen = counts
            os.utime(self._touched)

    def send(self) -> None:
        import json

        found = _newest_entries(self._sent)
        if found:
            try:
                os.write(
                    self._fd,
                    json.dumps([int(os.environ["RANK"]), "collectives", found]).encode() + b"\n",
                )
            except BlockingIOError:  # the launcher is busy: the next line has newer ones
                pass


def _begin_entries() -> None:
    """Start the thread. It is not one of `threading`, whose list has only
    the threads of the script.
    """
    global _sender
    if (
        _sender
        or os.environ.get("WORLD_SIZE", "1") == "1"
        or "CLIENT_LIB_METRICS" not in os.environ
    ):
        return
    try:
        import _thread

        _sender = _EntrySender()
        _thread.start_new_thread(_sender.run, ())
    except (OSError, RuntimeError):  # the launcher is gone, or there can be no more threads
        pass


def _newest_entries(sent: dict[str, int]) -> list[Any] | None:
    """[group, number of the first collective, collectives in a step (0: not known), its time in
    seconds since 1970, and how much later the following were entered, in 0.1 ms]; None: nothing
    new. `sent`: the last number of each group that was sent."""
    groups: dict[str, dict[int, Any]] = {}
    for entry in [each for dump in _recorder(True) for each in dump.get("entries", ())]:
        if not entry.get("is_p2p"):
            backend = entry["profiling_name"].partition(":")[0]
            of_group = groups.setdefault("%s:%s" % (backend, entry["process_group"][0]), {})
            of_group.setdefault(entry["collective_seq_id"], entry)
    group = max(groups, key=lambda name: len(groups[name]), default="")
    numbers = sorted(groups.get(group, ()))
    if not numbers or numbers[-1] <= sent.get(group, -1):
        return None
    first = max(sent.get(group, -1) + 1, numbers[-1] - _ENTRIES_MAX + 1, numbers[0])
    if numbers[-1] - numbers[0] >= len(numbers):  # some are missing: take those after the last gap
        neighbours = zip(numbers, numbers[1:])  # noqa: B905 (Python 3.8)
        first = max([first] + [after for before, after in neighbours if after > before + 1])
    sent[group] = numbers[-1]
    entries = groups[group]
    kinds = [(entries[n]["profiling_name"], entries[n].get("input_sizes")) for n in numbers]
    times = [round(entries[n]["time_created_ns"] / 1e5) for n in range(first, numbers[-1] + 1)]
    deltas = [after - before for before, after in zip(times, times[1:])]  # noqa: B905
    return [group, first, _period(kinds), times[0] / 1e4, deltas]


def _recorder(with_entries: bool) -> list[Any]:
    """PyTorch's flight recorder, and that of NCCL: the state of each group,
    and the newest collectives.
    """
    import pickle

    torch = sys.modules["torch._C._distributed_c10d"]
    dumps = [getattr(torch, name, None) for name in ("_dump_fr_trace", "_dump_nccl_trace")]
    return [pickle.loads(dump(with_entries, False)) for dump in dumps if dump]


def _period(kinds: list[Any]) -> int:
    """The smallest number of collectives after which the newest repeat; 0: they do not."""
    for period in range(1, len(kinds) // 2 + 1):
        same = 0
        while same + period < len(kinds) and kinds[-1 - same] == kinds[-1 - same - period]:
            same += 1
        if same >= max(2 * period, len(kinds) // 2):
            return period
    return 0


def _keep_process_groups(module: Any) -> None:
    """Keep the groups in torch's `_world`, before 2.0 in a table of the module."""
    world = getattr(module, "_world", None)
    _kept.extend(world.pg_map if world else getattr(module, "_pg_map", ()))


def _refuse_own_master(init_method: str) -> None:
    """Fail if a script for one machine sets its own master: the workers would wait
    half an hour for each other.
    """
    by_variable = init_method.startswith("env://")
    own = (
        os.environ.get("MASTER_ADDR", "")
        if by_variable
        else init_method.partition("tcp://")[2].lstrip("[")
    )
    if _master and own.startswith(_LOOPBACK) and not _master.startswith(_LOOPBACK):
        raise RuntimeError(
            "the script sets %s by itself, where only one worker can meet, and this job has "
            "several: init_process_group without init_method, and MASTER_ADDR and MASTER_PORT as "
            "they are set (%s); or take n_workers=1"
            % ("MASTER_ADDR=%s" % own if by_variable else "init_method=%r" % init_method, _master)
        )


def _wait_for_master() -> None:
    import socket

    host, port = os.environ.get("MASTER_ADDR"), os.environ.get("MASTER_PORT", "")
    if os.environ.get("RANK", "0") == "0" or not host or not port.isdigit():
        return
    begin, waited_s = time.monotonic(), 0.0
    while waited_s < _LIMIT_S:
        try:
            with socket.create_connection((host, int(port)), timeout=5) as probe:
                if (
                    probe.getsockname() != probe.getpeername()
                ):  # a socket may connect to itself on a free local port
                    return
        except OSError:  # it does not listen yet, or its name does not resolve yet
            pass
        time.sleep(max(_PAUSE_S, waited_s * _PAUSE_SHARE))
        waited_s = time.monotonic() - begin


def _end(status: int) -> None:
    """End the process with `status`; by hand if the interpreter's own teardown would be slow."""
    _note_imports()
    try:
        if _sender and os.getpid() == _PID:
            _sender.send()  # the entries that are not sent yet
    except Exception:  # noqa: BLE001  (see its `run`)
        pass
    if "torch" not in sys.modules and status != _INTERRUPTED and not _forked:
        sys.exit(status)
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    import atexit

    try:
        atexit._run_exitfuncs()  # the only way to call them without an exit
    except BaseException:  # noqa: BLE001  (3.8 raises an exception that it has printed already)
        pass
    _keep_process_groups(sys.modules.get("torch.distributed.distributed_c10d"))
    _release_objects()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None and not stream.closed:
                stream.flush()
        except Exception:  # noqa: BLE001  (any failure has the interpreter's status for it)
            status = 120
    import ctypes

    ctypes.CDLL(None).fflush(None)  # C's own streams
    if status == _INTERRUPTED:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
        os.kill(os.getpid(), _signal.SIGINT)  # shows the parent the cause, as Python does since 3.8
    os._exit(status)


def _note_imports() -> None:
    """Write the names of installed modules, in the order in which their imports ended, if
    the launcher requests it.
    """
    if os.environ.get("LOCAL_RANK", "0") != "0" or os.getpid() != _PID:
        return
    try:
        with open(
            os.path.join(os.environ.get("CLIENT_LIB_WORKER_DIR", ""), "imports"), "r+"
        ) as file:
            import json

            specs = {
                name: getattr(module, "__spec__", None)
                for name, module in list(sys.modules.items())
            }
            names = [name for name, spec in specs.items() if getattr(spec, "name", None) == name]
            json.dump(
                [
                    name
                    for name in names
                    if "-packages/" in str(getattr(specs[name], "origin", None))
                ],
                file,
            )
    except Exception:  # noqa: BLE001  (there is no file: not requested; or a lazy module fails)
        pass


def _release_objects() -> None:
    """Empty the script's namespace, as the interpreter does, so that finalizers run."""
    import gc

    # a collection may close the buffer before the text above it
    _finish_files(_open_files(gc.get_objects()), io.TextIOWrapper)
    threading = sys.modules.get("threading")
    if (
        threading is None or threading.active_count() == 1
    ):  # a daemon thread could fail without its globals
        names = vars(sys.modules["__main__"])
        for name in [name for name in names if name[0] == "_" and name[1:2] != "_"] + list(names):
            if name not in ("__builtins__", "__name__", "__file__"):
                names[name] = None
        gc.collect()
    files = _kept + _open_files(gc.get_objects())
    _finish_files(files, io.TextIOWrapper)  # each of the three writes into the next
    _finish_files(files, "gzip", "bz2", "lzma")
    _finish_files(files, io.BufferedWriter, io.BufferedRandom)


def _open_files(objects: Iterable[object]) -> list[Any]:
    return [thing for thing in objects if issubclass(type(thing), io.IOBase)]


def _finish_files(files: list[Any], *kinds: type | str) -> None:
    """Flush the files of these types, or close those whose types are of these modules."""
    for file in files:
        try:
            if type(file).__module__ in kinds and not file.closed:
                file.close()
            elif type(file) in kinds and not file.closed:
                file.flush()
        except Exception:  # noqa: BLE001  (the interpreter ignores these, too)
            pass


if __name__ == "__main__":
    _begin()
    _bring_own_output()
    main()
