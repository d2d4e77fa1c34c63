"""Calls the function of a job in a rank, and writes its return value to a file for the server.

It is a rank's script: started by path with the user's interpreter, which lacks this package. If
that has no cloudpickle either, the caller's own is used, which is part of the payload.
`client_lib.functions` writes the payload and reads the results, with the names defined here. The
names of the caller's `__main__` are bound in this process's `__main__`, whose own names are removed
before: objects that the function pickles are found under the same name in the caller's process.

A payload is a line of JSON and two pickles that share a memo: the function with its globals, then
its arguments. A process that a rank spawns (a DataLoader's worker) runs this file as `__mp_main__`
and reads the first pickle alone.

A result is a line of JSON and at most one pickle. Standard library only, Python >= 3.8.
"""

import functools
import importlib
import json
import os
import pickle
import sys
from typing import Any, Dict, List, Optional

PROTOCOL = 1
PAYLOAD = "CLIENT_LIB_FUNCTION"
"""Variable: the file with the payload."""
LIMIT = "CLIENT_LIB_MAX_RESULT_BYTES"
RESULTS = "results"
"""Folder in the worker's directory with a file for each rank, named by its number."""

VALUE = "value"
"""Outcome of a call: it has returned a value, which is in the result."""
RAISED = "raised"
"""It has raised an exception."""
EXITED = "exited"
"""It has called sys.exit."""
REFUSED = "refused"
"""It could not begin."""
NOT_PICKLED = "not_pickled"
"""It has returned a value that can't be pickled."""
TOO_LARGE = "too_large"
"""It has returned a value that is larger than a result may be."""

_PACKAGES = """
absl=absl-py apex=apex@git+https://github.com/NVIDIA/apex.git attr=attrs Bio=biopython
bs4=beautifulsoup4 cairo=pycairo clip=clip@git+https://github.com/openai/CLIP.git
community=python-louvain cpuinfo=py-cpuinfo Crypto=pycryptodome cudf=cudf-cu12 cuml=cuml-cu12
cupy=cupy-cuda12x cv2=opencv-python-headless dateutil=python-dateutil
detectron2=detectron2@git+https://github.com/facebookresearch/detectron2.git distutils=setuptools
dns=dnspython docx=python-docx dotenv=python-dotenv faiss=faiss-cpu ffmpeg=ffmpeg-python
fitz=pymupdf fla=flash-linear-attention git=gitpython github=pygithub gitlab=python-gitlab
google=protobuf google.cloud=google-cloud-storage google.protobuf=protobuf
googleapiclient=google-api-python-client grpc=grpcio grpc_tools=grpcio-tools haiku=dm-haiku
hydra=hydra-core imblearn=imbalanced-learn jose=python-jose jwt=pyjwt kafka=kafka-python
llama_cpp=llama-cpp-python magic=python-magic MeCab=mecab-python3 megatron=megatron-core
modelopt=nvidia-modelopt mpl_toolkits=matplotlib MySQLdb=mysqlclient nacl=pynacl nemo=nemo-toolkit
nvidia.dali=nvidia-dali-cuda120 open_clip=open-clip-torch OpenGL=pyopengl openslide=openslide-python
OpenSSL=pyopenssl orbax=orbax-checkpoint osgeo=gdal ot=pot PIL=pillow pkg_resources=setuptools
pl_bolts=lightning-bolts pptx=python-pptx psycopg2=psycopg2-binary pxr=usd-core pylab=matplotlib
pynvml=nvidia-ml-py pythonjsonlogger=python-json-logger pywt=pywavelets ruamel=ruamel.yaml
serial=pyserial shapefile=pyshp skimage=scikit-image sklearn=scikit-learn skopt=scikit-optimize
skvideo=scikit-video slugify=python-slugify snappy=python-snappy socks=pysocks sonnet=dm-sonnet
tree=dm-tree umap=umap-learn usb=pyusb websocket=websocket-client whisper=openai-whisper
Xlib=python-xlib yaml=pyyaml zmq=pyzmq
"""
PACKAGES = dict(pair.split("=", 1) for pair in _PACKAGES.split())
"""Popular modules whose package has another name than the module."""

RANKS = {
    "rank": "RANK",
    "local_rank": "LOCAL_RANK",
    "world_size": "WORLD_SIZE",
    "size": "WORLD_SIZE",
}
"""Parameters that are filled in by name -> the variable with their value."""

_MODULE = "_client_lib_function_runner"
_MARKER = "CLIENT_LIB_WORKER_DIR"


class CallRefused(Exception):
    """The call cannot begin; the message gives the reason."""


def main(namespace: Dict[str, Any]) -> None:
    """`namespace`: globals of the module that runs as `__main__`, or as
    `__mp_main__` in a spawned process.
    """
    for name in [name for name in globals() if not name.startswith("__")]:
        namespace.pop(name, None)
    own_folder = os.path.dirname(os.path.realpath(__file__))
    if sys.path and os.path.realpath(sys.path[0] or ".") == own_folder:
        del sys.path[0]
    with open(os.environ[PAYLOAD], "rb") as file:
        header = json.loads(file.readline())
        if namespace["__name__"] == "__main__":
            _run(header, file)
        else:
            namespace.update(_names_for_spawned(file))


def _names_for_spawned(file: Any) -> Dict[str, Any]:
    """The names of the caller's `__main__`, which multiprocessing reads from the namespace of
    `__mp_main__`."""
    main_module = vars(sys.modules["__main__"])
    before = set(main_module)
    _bind(pickle.Unpickler(file).load())
    return {name: value for name, value in main_module.items() if name not in before}


def _run(header: Dict[str, Any], file: Any) -> None:
    result = ResultFile(os.environ[_MARKER], int(os.environ["RANK"]))
    sys.argv = [header["name"]]
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _print_exception
    try:
        value = _load(header, file)()
    except CallRefused as refused:
        result.write(REFUSED, str(refused))
        sys.exit(str(refused))
    except SystemExit as end:
        shown = "" if end.code is None else repr(end.code)
        what = "called sys.exit(%s) and so returned nothing" % shown
        result.write(EXITED, "the function on rank %d %s" % (result.rank, what))
        raise
    except BaseException as error:
        result.write_raised(error)
        raise
    result.write_value(value)


def _load(header: Dict[str, Any], file: Any) -> Any:
    """The call, ready to be made. Raises CallRefused."""
    worker = os.environ.get("GROUP_RANK", "0")
    differs = difference(header, here(_version_of_cloudpickle(header)))
    if differs:
        raise CallRefused("worker %s can't read the function: %s" % (worker, differs))
    _add_to_path(header["sys_path"])
    reader = _Reader(file)
    try:
        function = _bind(reader.load())
        args, kwargs = reader.load()
    except ModuleNotFoundError as error:
        if error.name is None:
            raise
        module = error.name.partition(".")[0]
        raise CallRefused(
            "worker %s has no module %r: add requirements=[%r], or install it for %s"
            % (worker, module, package_of(error.name), sys.executable)
        ) from error
    args = list(args)
    _fill_in(header["fill"], args, kwargs)
    return functools.partial(function, *args, **kwargs)


def package_of(module: str) -> str:
    """The package that has a module, as pip knows the package; of an unknown module its first part.
    `module` may be dotted: `google.cloud` and `google.protobuf` are of two packages."""
    parts = module.split(".")
    above = [".".join(parts[:count]) for count in range(len(parts), 0, -1)]
    return next((PACKAGES[name] for name in above if name in PACKAGES), parts[0])


def _add_to_path(entries: List[str]) -> None:
    """Put the caller's entries of sys.path before our own; they are relative to the job's code."""
    work = os.path.join(os.environ[_MARKER], "work")
    paths = [os.path.normpath(os.path.join(work, entry)) for entry in entries]
    sys.path[:0] = [path for path in paths if path not in sys.path]


def _fill_in(fill: Dict[str, str], args: List[Any], kwargs: Dict[str, Any]) -> None:
    """Set the arguments that are the numbers of this rank. `fill`: number or name of an argument ->
    name in RANKS."""
    for place, name in fill.items():
        value = int(os.environ[RANKS[name]])
        if place.isdigit():
            args[int(place)] = value
        else:
            kwargs[place] = value


class _Reader(pickle.Unpickler):
    def persistent_load(self, pid: Any) -> Any:
        """The value that rank 0 returned in a job for which this job waited. Raises CallRefused."""
        place, job = pid
        path = os.environ["CLIENT_LIB_AFTER_%d_OUTPUTS" % place] + ".result"
        if not os.path.exists(path):
            raise CallRefused("job %s, whose result is an argument, left none" % job)
        with open(path, "rb") as file:
            header = json.loads(file.readline())
            why = header["text"]
            if header["outcome"] == VALUE:
                why = difference(header, here(_cloudpickle().__version__))
            if why:
                raise CallRefused("the result of job %s can't be an argument: %s" % (job, why))
            return pickle.load(file)


def _version_of_cloudpickle(header: Dict[str, Any]) -> str:
    """Version of the cloudpickle that is imported later: that of the interpreter, or if there is
    none the caller's copy in the payload."""
    try:
        return str(_cloudpickle().__version__)
    except ImportError:
        import base64

        path = os.path.join(os.environ[_MARKER], "cloudpickle.%s.zip" % os.environ["RANK"])
        with open(path, "wb", opener=_private) as file:
            file.write(base64.b64decode(header.get("cloudpickle_zip", "")))
        sys.path.append(path)  # spawned processes inherit it
        return str(header["cloudpickle"])


def _private(path: str, flags: int) -> int:
    """Open a file for this account alone."""
    return os.open(path, flags, 0o600)


def _cloudpickle() -> Any:
    """Import cloudpickle only to read the call and to write the result."""
    return importlib.import_module("cloudpickle")


def here(cloudpickle_version: str) -> Dict[str, Any]:
    """The part of a header that must agree between the process that pickles and the process that
    reads: code objects are read by one minor version of Python alone."""
    return {"python": list(sys.version_info[:2]), "cloudpickle": cloudpickle_version}


def difference(header: Dict[str, Any], mine: Dict[str, Any]) -> Optional[str]:
    """The reason why this process cannot read another's pickle; None: it
    can. `mine`: from `here`.
    """
    if list(header["python"]) != mine["python"]:
        versions = tuple(".".join(map(str, each["python"])) for each in (header, mine))
        return (
            "it was submitted from Python %s, and this is Python %s; both must be the same"
            % versions
        )
    both = (header["cloudpickle"], mine["cloudpickle"])
    if both[0].split(".")[0] != both[1].split(".")[0]:
        return (
            "it was pickled by cloudpickle %s, and this is cloudpickle %s; the first number must "
            "be the same"
        ) % both
    return None


def _bind(needs: Dict[str, Any]) -> Any:
    """Put the names of the caller's `__main__` into this process's `__main__`. Returns the
    function."""
    main_module = vars(sys.modules["__main__"])
    main_module.update(needs["main"])
    if needs.get("package"):
        main_module["__package__"] = needs["package"]
    if needs["sources"]:
        import linecache

        # cells of a notebook, for the lines of a traceback
        for name, text in needs["sources"].items():
            linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    return needs["function"]


# --- the result


def _without_our_frames(error: BaseException, trace: Any) -> str:
    """The traceback of the exception, from the function on."""
    import traceback

    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace))


def _print_exception(_kind: Any, error: BaseException, trace: Any) -> None:
    """Print an exception that nothing has caught. The interpreter's own function knows the lines of
    a notebook's cell from Python 3.13 on."""
    sys.stderr.write(_without_our_frames(error, trace))


class _TooLarge(Exception):
    pass


class _BoundedWriter:
    """A file that accepts at most `limit` bytes."""

    def __init__(self, file: Any, limit: int) -> None:
        self._file = file
        self._left = limit

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self._left -= size
        if self._left < 0:
            raise _TooLarge()
        self._file.write(data)
        return size


class ResultFile:
    """The result of one rank: written under a temporary name, then renamed."""

    def __init__(self, worker_dir: str, rank: int) -> None:
        self.rank = rank
        self._path = os.path.join(worker_dir, RESULTS, str(rank))
        self._pid = os.getpid()
        self._world_size = int(os.environ["WORLD_SIZE"])

    def write_value(self, value: Any) -> None:
        """Write the value; if it cannot be pickled or is too large, write
        the reason, also to the log.
        """
        limit = int(os.environ.get(LIMIT, 2 * 2**30))
        try:
            self.write(VALUE, "", value, limit)
            return
        except _TooLarge:
            kind = TOO_LARGE
            what = " is larger than the %.1f MB that a result may have" % (limit / 1e6)
        except OSError:
            raise
        except Exception as error:  # noqa: BLE001  (pickling runs the code of any class)
            why = (type(value).__qualname__, type(error).__name__, error)
            kind = NOT_PICKLED
            what = ", a %s, can't be pickled: %s: %s" % why
        sentence = "what rank %d returned%s" % (self.rank, what)
        sys.stderr.write(sentence + "\n")
        self.write(kind, sentence)

    def write_raised(self, error: BaseException) -> None:
        text = _without_our_frames(error, error.__traceback__)
        try:
            self.write(RAISED, text, error)
        except Exception:  # noqa: BLE001  (pickling runs the code of any class; the text remains)
            self.write(RAISED, text)

    def write(
        self, outcome: str, text: str, value: Any = None, limit: Optional[int] = None
    ) -> None:
        if os.getpid() != self._pid:
            return  # a fork of the rank: the exception propagates in both processes
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        header = {"protocol": PROTOCOL, "outcome": outcome, "rank": self.rank, "text": text}
        header["world_size"] = self._world_size
        if outcome in (VALUE, RAISED):
            cloudpickle = _cloudpickle()
            header.update(here(cloudpickle.__version__))
        new = self._path + ".new"
        with open(new, "wb", opener=_private) as file:
            file.write(json.dumps(header).encode() + b"\n")
            if outcome == VALUE or (outcome == RAISED and value is not None):
                cloudpickle.dump(value, file if limit is None else _BoundedWriter(file, limit))
            file.flush()
            os.fsync(file.fileno())
        os.replace(new, self._path)


def _run_as_module(namespace: Dict[str, Any]) -> None:
    """Run `main` from a module of another name, so that `__main__` holds
    the caller's names alone.
    """
    import importlib.util

    spec = importlib.util.spec_from_file_location(_MODULE, __file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[_MODULE] = module
    spec.loader.exec_module(module)
    module.main(namespace)


if __name__ in ("__main__", "__mp_main__"):
    _run_as_module(globals())
