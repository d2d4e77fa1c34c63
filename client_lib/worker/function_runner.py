"""Calls the function of a job in a rank, and leaves what it gives back for the server.

It is a rank's script: started by path with the user's interpreter, which has nothing of this package. Where it lacks
cloudpickle, the caller's own is used, which travels in the payload. `client_lib.functions` writes the payload and reads
the results, by the names that are defined here. The caller's `__main__` is bound in this process's `__main__`: what its
functions see as globals is this module's namespace, emptied of ours, so that what they save with pickle is found again
under the same name in the caller's.

A payload is a line of JSON and two pickles that share a memo: what the function needs, then its arguments. A process
that a rank spawns (a DataLoader's worker) runs this file as `__mp_main__` and reads the first pickle alone.

A result is a line of JSON and at most one pickle. Standard library only, Python >= 3.8.
"""

import json
import os
import sys
from typing import Any, Dict, List, NamedTuple, Optional

PROTOCOL = 1
PAYLOAD = "CLIENT_LIB_FUNCTION"
"""Variable: the file with the payload."""
LIMIT = "CLIENT_LIB_MAX_RESULT_BYTES"
RESULTS = "results"
"""Folder in the worker's directory with a file for each rank, named by its number."""

# how a call ended
VALUE, RAISED, EXITED, REFUSED = "value", "raised", "exited", "refused"
NOT_PICKLED, TOO_LARGE = "not_pickled", "too_large"

PACKAGES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "dateutil": "python-dateutil",
    "dotenv": "python-dotenv",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
}
"""Modules whose package has another name, of those that people use."""

RANKS = {"rank": "RANK", "local_rank": "LOCAL_RANK", "world_size": "WORLD_SIZE", "size": "WORLD_SIZE"}
"""Parameters that are filled by name -> the variable with their value."""

_HERE = os.path.dirname(os.path.abspath(__file__))
_MODULE = "_client_lib_function_runner"
_MARKER = "CLIENT_LIB_WORKER_DIR"


class Refused(Exception):
    """The call can't begin; the sentence says why."""


def main(namespace: Dict[str, Any]) -> None:
    """`namespace`: of the module that runs as `__main__`, or as `__mp_main__` in a process that a rank spawned."""
    for name in [name for name in globals() if not name.startswith("__")]:
        namespace.pop(name, None)
    if sys.path and os.path.realpath(sys.path[0] or ".") == os.path.realpath(_HERE):
        del sys.path[0]
    with open(os.environ[PAYLOAD], "rb") as file:
        header = json.loads(file.readline())
        if namespace["__name__"] == "__main__":
            _run(header, file)
        else:
            _bind_in_spawned(file, namespace)


def _run(header: Dict[str, Any], file: Any) -> None:
    result = Result(os.environ[_MARKER], int(os.environ["RANK"]))
    sys.argv = [header["name"]]
    try:
        value = _load(header, file)()
    except Refused as refused:
        result.write(REFUSED, str(refused))
        sys.exit(str(refused))
    except SystemExit as end:
        result.write(EXITED, _exit_sentence(result.rank, end.code))
        raise
    except BaseException as error:
        result.write_raised(error)
        raise
    result.write_value(value)


def _load(header: Dict[str, Any], file: Any) -> Any:
    """The call, ready to be made. Raises Refused."""
    worker = os.environ.get("GROUP_RANK", "0")
    differs = difference(header, here(_version_of_cloudpickle(header)))
    if differs:
        raise Refused("worker %s can't read the function: %s" % (worker, differs))
    _extend_path(header["sys_path"])
    try:
        return _Call(file, header["fill"])
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        raise Refused(_missing(worker, error.name.partition(".")[0])) from error


def _version_of_cloudpickle(header: Dict[str, Any]) -> str:
    """Of the one that is imported from now on: the user's interpreter's, or else the caller's."""
    try:
        return str(_cloudpickle().__version__)
    except ImportError:
        _bring_cloudpickle(header.get("cloudpickle_zip", ""))
        return str(header["cloudpickle"])


def _bring_cloudpickle(packed: str) -> None:
    """To the end of sys.path, which processes that a rank spawns inherit."""
    import base64

    path = os.path.join(os.environ[_MARKER], "cloudpickle.%s.zip" % os.environ["RANK"])
    with open(path, "wb") as file:
        file.write(base64.b64decode(packed))
    sys.path.append(path)


def _cloudpickle() -> Any:
    """Of the user's interpreter: nothing here needs it but to read the call and to write what comes of it."""
    import importlib

    return importlib.import_module("cloudpickle")


def _missing(worker: str, module: str) -> str:
    return "worker %s has no module %r: add requirements=[%r], or install it for %s" % (
        worker,
        module,
        PACKAGES.get(module, module),
        sys.executable,
    )


class Versions(NamedTuple):
    """What must agree between who pickles and who reads it."""

    python: List[int]
    """Major and minor: code objects are read by no other."""
    cloudpickle: str


def here(cloudpickle_version: str) -> Versions:
    return Versions(list(sys.version_info[:2]), cloudpickle_version)


def difference(header: Dict[str, Any], mine: Versions) -> Optional[str]:
    """Why this process can't read what another has pickled; None: it can."""
    if list(header["python"]) != mine.python:
        return "it was submitted from Python %s, and this is Python %s; both must be the same" % (
            _dotted(header["python"]),
            _dotted(mine.python),
        )
    if header["cloudpickle"].split(".")[0] != mine.cloudpickle.split(".")[0]:
        return "it was pickled by cloudpickle %s, and this is cloudpickle %s; the first number must be the same" % (
            header["cloudpickle"],
            mine.cloudpickle,
        )
    return None


def _dotted(version: List[int]) -> str:
    return ".".join(map(str, version))


def _extend_path(entries: List[str]) -> None:
    """The caller's own entries of sys.path; relative ones are below the unpacked snapshot."""
    work = os.path.join(os.environ[_MARKER], "work")
    paths = [os.path.normpath(os.path.join(work, entry)) for entry in entries]
    sys.path[:0] = [path for path in paths if path not in sys.path]


class _Call:
    """The function and its arguments, unpickled."""

    def __init__(self, file: Any, fill: Dict[str, str]) -> None:
        import pickle

        reader = pickle.Unpickler(file)
        self._function = _bind(reader.load())
        args, self._kwargs = reader.load()
        self._args = list(args)
        for place, name in fill.items():
            value = int(os.environ[RANKS[name]])
            if place.isdigit():
                self._args[int(place)] = value
            else:
                self._kwargs[place] = value

    def __call__(self) -> Any:
        return self._function(*self._args, **self._kwargs)


def _bind(needs: Dict[str, Any]) -> Any:
    """Put what came from the caller's `__main__` into this one; the function itself."""
    vars(sys.modules["__main__"]).update(needs["main"])
    if needs.get("package"):
        vars(sys.modules["__main__"])["__package__"] = needs["package"]
    if needs["sources"]:
        import linecache

        for name, text in needs["sources"].items():  # cells of a notebook, for the lines of a traceback
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return needs["function"]


def _bind_in_spawned(file: Any, namespace: Dict[str, Any]) -> None:
    """multiprocessing takes the names from `namespace` when this returns."""
    import pickle

    main_module = vars(sys.modules["__main__"])
    before = set(main_module)
    _bind(pickle.Unpickler(file).load())
    namespace.update({name: value for name, value in main_module.items() if name not in before})


# --- what is left for the server


class _Full(Exception):
    pass


class _Bounded:
    """A file that takes so many bytes."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file, self._left = file, limit

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _Full()
        self._file.write(data)
        return size


class Result:
    """The result of one rank: written beside its place, then renamed."""

    def __init__(self, worker_dir: str, rank: int) -> None:
        self.rank = rank
        self._path = os.path.join(worker_dir, RESULTS, str(rank))
        self._pid, self._world_size = os.getpid(), int(os.environ["WORLD_SIZE"])

    def write_value(self, value: Any) -> None:
        """The value; where it can't travel, why not, which is said in the log too."""
        limit = int(os.environ.get(LIMIT, 2 * 2**30))
        try:
            self.write(VALUE, "", value, limit)
            return
        except _Full:
            sentence = "what rank %d returned is larger than the %.1f MB that a result may have" % (
                self.rank,
                limit / 1e6,
            )
            kind = TOO_LARGE
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  (pickling runs code of any class)
            sentence = "what rank %d returned, a %s, can't be pickled: %s: %s" % (
                self.rank,
                type(value).__qualname__,
                type(error).__name__,
                error,
            )
            kind = NOT_PICKLED
        sys.stderr.write(sentence + "\n")
        self.write(kind, sentence)

    def write_raised(self, error: BaseException) -> None:
        text = traceback_of(error)
        try:
            self.write(RAISED, text, error)
        except Exception:  # noqa: BLE001  (pickling runs code of any class; the text is left)
            self.write(RAISED, text)

    def write(self, outcome: str, text: str, value: Any = None, limit: Optional[int] = None) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the rank, that came here by the same exception
        os.makedirs(os.path.dirname(self._path), exist_ok=True)
        header: Dict[str, Any] = {"protocol": PROTOCOL, "outcome": outcome, "rank": self.rank, "text": text}
        header["world_size"] = self._world_size
        if outcome in (VALUE, RAISED):
            cloudpickle = _cloudpickle()
            header.update(here(cloudpickle.__version__)._asdict())
        new = self._path + ".new"
        with open(new, "wb") as file:
            file.write(json.dumps(header).encode() + b"\n")
            if outcome == VALUE or (outcome == RAISED and value is not None):
                cloudpickle.dump(value, file if limit is None else _Bounded(file, limit))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)


def traceback_of(error: BaseException) -> str:
    """As the interpreter prints it, without our frames."""
    import traceback

    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _exit_sentence(rank: int, code: object) -> str:
    shown = "" if code is None else repr(code)
    return "the function on rank %d called sys.exit(%s) and so returned nothing" % (rank, shown)


def _again_as_module(namespace: Dict[str, Any]) -> None:
    """Run from a module of its own, so that `__main__` is left to the caller's names."""
    import importlib.util

    spec = importlib.util.spec_from_file_location(_MODULE, __file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    module.main(namespace)


if __name__ in ("__main__", "__mp_main__"):
    _again_as_module(globals())
